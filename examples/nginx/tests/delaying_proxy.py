"""Proxy between nginx and the server that can delay replies."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class DelayingProxy:
    """Proxy that holds replies back while `forwards_replies` is not set."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.forwards_replies = threading.Event()
        self.forwards_replies.set()
        # Number of received calls.
        self.calls = 0

    @contextmanager
    def running(self) -> Iterator["DelayingProxy"]:
        accept_thread = threading.Thread(target=self._accept, daemon=True)
        accept_thread.start()
        try:
            yield self
        finally:
            self.forwards_replies.set()
            self._listener.shutdown(socket.SHUT_RDWR)
            accept_thread.join()
            self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for source_and_target in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._forward, args=source_and_target, daemon=True
                    ).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                if target.getpeername()[1] == self._target:
                    self.calls += 1
                else:
                    self.forwards_replies.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
