"""Commands as bytes, and a connection that sends many of them at a time.

Only the first reply is checked, and only lines are counted, so that the client needs little time.
"""

import socket
from collections.abc import Iterable
from typing import Self

Words = tuple[str, ...]


def pack(words: Iterable[str]) -> bytes:
    """Encodes a command in the server's protocol."""
    encoded = [word.encode() for word in words]
    parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded]
    return b"*%d\r\n" % len(parts) + b"".join(parts)


class ReplyError(Exception):
    """Error reply of the server, or an unexpected reply."""


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Pipe:
    """Connection that sends a batch and waits for all its replies."""

    def __init__(self, port: int) -> None:
        self._socket = connect(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def run(self, batch: bytes, lines: int, reply_prefix: bytes = b"") -> None:
        """Sends a batch, and waits for replies of `lines` lines that begin with `reply_prefix`."""
        self._socket.sendall(batch)
        received = self._receive(batch)
        if not received.startswith(reply_prefix):
            raise ReplyError(f"{batch[:200]!r}: {received[:200]!r}, and not {reply_prefix!r}")
        lines -= received.count(b"\n")
        while lines > 0:
            lines -= self._receive(batch).count(b"\n")

    def _receive(self, batch: bytes) -> bytes:
        received = self._socket.recv(2**20)
        if not received or received.startswith(b"-") or b"\n-" in received:
            raise ReplyError(f"{batch[:200]!r}: {received[:200]!r}")
        return received
