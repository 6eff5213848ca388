"""Clients that each wait for a reply before they send the next command, all in one process."""

import selectors
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from socket import socket
from typing import NamedTuple

from bench.servers import Measured
from bench.wire import ReplyError, connect


class Ask(NamedTuple):
    """What a client sends in one go, and how it knows that all replies are there."""

    request: bytes
    commands: int
    is_answered: Callable[[bytes], bool]


# One decision: it asks, is sent the replies, and returns whether the request may pass.
Decision = Generator[Ask, bytes, bool]


def lines(count: int) -> Callable[[bytes], bool]:
    """For replies that are always so many lines."""
    return lambda replies: replies.count(b"\n") >= count


@dataclass
class Load:
    """What came of it."""

    granted: int = 0
    commands: int = 0
    seconds: float = 0.0
    # Of the server's processor time.
    server_seconds: float = 0.0
    # In seconds, a decision each.
    latencies: list[float] = field(default_factory=list)

    @property
    def decisions(self) -> int:
        return len(self.latencies)

    def latency(self, part: float) -> float:
        """The latency that this part of all decisions did not exceed."""
        return sorted(self.latencies)[int(part * (self.decisions - 1))]


def run(
    server: Measured, deciders: list[Callable[[], Decision]], seconds: float, warm_up: float = 0.0
) -> Load:
    """A client for every decider, each making one decision after another, for so many seconds and
    until one is made. What comes of the seconds of `warm_up` before is left out.
    """
    clients = [_Client(connect(server.port), decide) for decide in deciders]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.begin()
        if warm_up:
            _serve(server, selector, warm_up)
        load = _serve(server, selector, seconds)
    for client in clients:
        client.socket.close()
    return load


def _serve(server: Measured, selector: selectors.BaseSelector, seconds: float) -> Load:
    load, cpu, start = Load(), server.cpu_seconds(), time.perf_counter()
    while (now := time.perf_counter()) < start + seconds or not load.latencies:
        for key, _ in selector.select(timeout=1):
            key.data.hear(load)
    load.seconds = now - start
    load.server_seconds = server.cpu_seconds() - cpu
    return load


class _Client:
    def __init__(self, connection: socket, decide: Callable[[], Decision]) -> None:
        self.socket = connection
        self._decide = decide
        self._heard = b""

    def begin(self) -> None:
        """Begins with a decision."""
        self._began = time.perf_counter()
        self._decision = self._decide()
        self._ask(next(self._decision))

    def _ask(self, asked: Ask) -> None:
        self._asked = asked
        self.socket.sendall(asked.request)

    def hear(self, load: Load) -> None:
        """Takes what has come in, and goes on if that is all that was waited for."""
        received = self.socket.recv(65536)
        if not received or received.startswith(b"-"):
            raise ReplyError(f"{self._asked.request[:200]!r}: {received[:200]!r}")
        heard = self._heard + received
        if not self._asked.is_answered(heard):
            self._heard = heard
            return
        self._heard = b""
        load.commands += self._asked.commands
        try:
            self._ask(self._decision.send(heard))
        except StopIteration as made:
            load.latencies.append(time.perf_counter() - self._began)
            load.granted += made.value
            self.begin()
