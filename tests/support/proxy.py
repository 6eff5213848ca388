"""Proxy that loses replies: a call is executed, and then its connection is closed without a reply,
as if the network had failed in between.
"""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO


class LossyProxy:
    """Proxy of a server, on a port of its own, that loses every n-th reply to RL commands."""

    def __init__(self, port: int, every: int) -> None:
        self._target, self._every = port, every
        self._lock = threading.Lock()
        # Numbers of the module's commands that were sent, and of lost replies.
        self.sent = self.lost = 0

    @contextmanager
    def running(self) -> Iterator["LossyProxy"]:
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            rbufsize = -1

            def handle(self) -> None:
                # One end may have disconnected.
                with suppress(ConnectionError):
                    proxy._pass_on(self.rfile, self.wfile)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        with Server(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()

    def _pass_on(self, client: BinaryIO, answers: BinaryIO) -> None:
        """Forwards one command after another, until one end closes or a reply is lost."""
        with (
            socket.create_connection(("127.0.0.1", self._target)) as upstream,
            upstream.makefile("rb") as replies,
        ):
            while command := read_value(client):
                upstream.sendall(command)
                reply = read_value(replies)
                if is_of_the_module(command) and self._loses():
                    return
                answers.write(reply)

    def _loses(self) -> bool:
        with self._lock:
            self.sent += 1
            lost = self.sent % self._every == 0
            self.lost += lost
            return lost


def is_of_the_module(command: bytes) -> bool:
    # Length of the array, length of the first word, and the word.
    return command.split(b"\r\n", 3)[2].upper().startswith(b"RL.")


def read_value(stream: BinaryIO) -> bytes:
    """Reads a command or a reply, which it does not decode. Returns no bytes at the end."""
    line = stream.readline()
    sign, count = line[:1], line[1:].strip()
    if sign in {b"$", b"=", b"!"} and count != b"-1":
        return line + stream.read(int(count) + 2)
    if sign in {b"*", b"~", b">", b"%"}:
        values = max(int(count), 0) * (2 if sign == b"%" else 1)
        return line + b"".join(read_value(stream) for _ in range(values))
    return line
