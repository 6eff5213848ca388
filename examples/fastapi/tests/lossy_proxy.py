"""Proxy between an application and Redis that loses replies."""

import select
import socket
import socketserver
import threading
from typing import Self


class LossyProxy(socketserver.ThreadingTCPServer):
    """Closes the connection in place of the first reply to a command with each of these words.

    Redis has executed the command, which the application cannot know.
    """

    daemon_threads = True

    def __init__(self, redis_port: int, words: tuple[bytes, ...]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.redis_port = redis_port
        self.port = self.server_address[1]
        self.lost: list[bytes] = []
        self._to_lose = list(words)
        self._thread = threading.Thread(target=self.serve_forever)

    def loses_reply_to(self, command: bytes) -> bool:
        for word in self._to_lose:
            if b"\r\n%b\r\n" % word in command:
                self._to_lose.remove(word)
                self.lost.append(word)
                return True
        return False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Connection(socketserver.BaseRequestHandler):
    server: LossyProxy

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.redis_port)) as redis:
            should_lose = False
            while True:
                for source in select.select([self.request, redis], [], [])[0]:
                    data = source.recv(65_536)
                    if not data or (source is redis and should_lose):
                        return
                    if source is self.request:
                        should_lose = self.server.loses_reply_to(data)
                        redis.sendall(data)
                    else:
                        self.request.sendall(data)
