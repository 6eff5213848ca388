"""Proxy before a server that is slow, silent, or loses replies."""

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Faults:
    """Proxy with a `delay` in seconds for each direction, and for connecting."""

    def __init__(self, port: int, delay: float = 0.0) -> None:
        self._target = port
        self.delay = delay
        # `silent` drops replies and keeps the connection; `losing` closes it instead.
        self.silent = self.losing = False
        # Drops only the next reply.
        self.loses_one = False
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
            for one in [self._listener, *self._open]:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # The duration of a TCP handshake.
        time.sleep(2 * self.delay)
        self.is_open.wait()
        server = socket.create_connection(("127.0.0.1", self._target))
        self._open += [client, server]
        threading.Thread(target=self._copy, args=(client, server, False), daemon=True).start()
        self._copy(server, client, True)

    def _copy(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
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
                    if not (replies and self.silent):
                        sink.sendall(data)
            for one in (source, sink):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

        threading.Thread(target=write, daemon=True).start()
        while True:
            data = b""
            with suppress(OSError):
                data = source.recv(65536)
            if replies and data and data.startswith(b"*5") and (self.losing or self.loses_one):
                self.loses_one = False
                data = b""
            with arrived:
                delayed.append((time.monotonic() + self.delay, data))
                arrived.notify()
            if not data:
                return
