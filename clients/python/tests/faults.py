"""Proxy that delays data, drops replies, or closes the connection in place of a reply."""

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Start of the reply to a take or a peek.
DECISION = b"*5"


class Faults:
    """Proxy with a `delay` in seconds for each direction, and for connecting."""

    def __init__(self, port: int, delay: float = 0.0) -> None:
        self._target = port
        self.delay = delay
        # Drops all replies.
        self.is_silent = False
        # Closes the connection in place of each decision, or in place of the next decision only.
        self.is_losing = self.loses_next = False
        # While it is not set, connections hang.
        self.is_open = threading.Event()
        self.is_open.set()
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    @contextmanager
    def running(self) -> Iterator["Faults"]:
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self.is_open.set()
            for connection in [self._listener, *self._open]:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # A TCP handshake takes one delay in each direction.
        time.sleep(2 * self.delay)
        self.is_open.wait()
        server = socket.create_connection(("127.0.0.1", self._target))
        self._open += [client, server]
        threading.Thread(target=self._copy, args=(client, server), daemon=True).start()
        self._copy(server, client, is_reply=True)

    def _copy(self, source: socket.socket, sink: socket.socket, *, is_reply: bool = False) -> None:
        delayed: deque[tuple[float, bytes]] = deque()
        arrived = threading.Condition()

        def write() -> None:
            with suppress(OSError):
                while True:
                    with arrived:
                        arrived.wait_for(lambda: delayed)
                        due, data = delayed.popleft()
                    time.sleep(max(due - time.monotonic(), 0))
                    if not data:
                        break
                    if not (is_reply and self.is_silent):
                        sink.sendall(data)
            for connection in (source, sink):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

        threading.Thread(target=write, daemon=True).start()
        while True:
            data = b""
            with suppress(OSError):
                data = source.recv(65536)
            is_decision = is_reply and data.startswith(DECISION)
            if is_decision and (self.is_losing or self.loses_next):
                self.loses_next = False
                data = b""
            with arrived:
                delayed.append((time.monotonic() + self.delay, data))
                arrived.notify()
            if not data:
                return
