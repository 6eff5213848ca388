"""Calls beside each other on one server: how many a second, and what each costs the server."""

import statistics
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import callgrind, floor
from bench.calls import ALL, Call, Peer, prepare
from bench.floor import Floor
from bench.scale import Scale
from bench.servers import Measured, serving
from bench.wire import Pipe
from support.binaries import Binary

PIPELINES = [1, 16, 100]


@dataclass(frozen=True)
class Timed:
    """Of one call. The server's time is of all its threads, its children left out."""

    calls_per_second: float
    server_ns: float


@dataclass(frozen=True)
class Commands:
    # By the call's name and how many are sent at a time.
    timed: dict[tuple[str, int], Timed]
    # By the call's name; empty without valgrind.
    instructions: dict[str, float]
    # The names of the calls of modules that the user has named.
    peers: list[str]
    floors: list[Floor]

    def server_ns(self, pipeline: int) -> dict[str, float]:
        """By the call's name, when so many are sent at a time."""
        return {name: one.server_ns for (name, many), one in self.timed.items() if many == pipeline}


def measure(binary: Binary, scale: Scale, peers: Iterable[Peer]) -> Commands:
    peer_calls = [peer.call for peer in peers]
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        floors = floor.floors(floor.build(Path(directory)))
        calls = [*ALL, *peer_calls, *(one.call for one in floors)]
        timed = _timed(binary, calls, scale)
        counted = callgrind.instructions(binary, calls) if callgrind.is_there() else {}
    return Commands(timed, counted, [call.name for call in peer_calls], floors)


def _timed(binary: Binary, calls: list[Call], scale: Scale) -> dict[tuple[str, int], Timed]:
    found: dict[tuple[str, int], list[Timed]] = {}
    with ExitStack() as stack:
        servers = {
            setup: stack.enter_context(serving(binary, setup))
            for setup in dict.fromkeys(call.setup for call in calls)
        }
        pipes = {setup: stack.enter_context(Pipe(server.port)) for setup, server in servers.items()}
        for call in calls:
            prepare(servers[call.setup], call)
        for _ in range(scale.rounds):
            for pipeline in PIPELINES:
                for call in calls:
                    server, pipe = servers[call.setup], pipes[call.setup]
                    once = _once(server, pipe, call, pipeline, scale.seconds / 4)
                    found.setdefault((call.name, pipeline), []).append(once)
    return {
        which: Timed(
            statistics.median(one.calls_per_second for one in rounds),
            statistics.median(one.server_ns for one in rounds),
        )
        for which, rounds in found.items()
    }


def _once(server: Measured, pipe: Pipe, call: Call, pipeline: int, seconds: float) -> Timed:
    batch, lines = call.encoded * pipeline, call.lines * pipeline
    pipe.run(batch, lines, call.begins)
    sent = 0
    cpu, start = server.cpu_seconds(), time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        pipe.run(batch, lines, call.begins)
        sent += pipeline
    used = server.cpu_seconds() - cpu
    return Timed(sent / (now - start), used / sent * 1e9)
