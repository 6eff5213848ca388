"""Calls beside each other on one server: how many a second, and what each costs the server."""

import statistics
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import floor, valgrind
from bench.calls import ALL, Call, Peer, prepare
from bench.load import CONNECTIONS, Benchmark, pin
from bench.scale import Scale
from bench.servers import Measured, serving
from bench.wire import Pipe
from support.binaries import Binary

PIPELINES = [1, 16, 100]


@dataclass(frozen=True)
class Timed:
    """Of one call. The server's time is of all its threads, its children left out.

    None in benches/measured/ is what nobody has kept of a run before there was that folder.
    """

    calls_per_second: float | None
    server_ns: float | None


@dataclass(frozen=True)
class Commands:
    # By the call's name and how many are sent at a time.
    timed: dict[tuple[str, int], Timed]
    # By the call's name; empty without valgrind.
    instructions: dict[str, float]
    # The names of the calls of modules that the user has named.
    peers: list[str]
    # By the name of a call that computes nothing, ours that do all that it does.
    floors: dict[str, list[str]]

    def server_ns(self, pipeline: int) -> dict[str, float]:
        """By the call's name, when so many are sent at a time."""
        return {name: one.server_ns for (name, many), one in self.timed.items() if many == pipeline}


def measure(binary: Binary, scale: Scale, peers: Iterable[Peer]) -> Commands:
    peer_calls = [peer.call for peer in peers]
    calls = [call for call in [*ALL, *peer_calls] if call.is_one_command]
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        floors = floor.floors(floor.build(Path(directory)))
        timed = _timed(binary, calls, scale)
        counted = {}
        if valgrind.is_there():
            counting = [*calls, *(one.call for one in floors)]
            counted = valgrind.instructions(binary, counting, scale.servers)
    beside = {one.call.name: [ours.name for ours in one.ours] for one in floors}
    return Commands(timed, counted, [call.name for call in peer_calls], beside)


def _timed(binary: Binary, calls: list[Call], scale: Scale) -> dict[tuple[str, int], Timed]:
    found: dict[tuple[str, int], list[Timed]] = {}
    with ExitStack() as stack:
        servers = {
            setup: stack.enter_context(serving(binary, setup))
            for setup in dict.fromkeys(call.setup for call in calls)
        }
        for server in servers.values():
            pin(server)
        for call in calls:
            _prepare(servers[call.setup], call)
        # How many calls take as long as is wanted.
        counts = {
            (call, pipeline): round(
                scale.seconds * _run(servers[call.setup], call, pipeline, 0).calls_per_second
            )
            for call in calls
            for pipeline in PIPELINES
        }
        for _ in range(scale.rounds):
            for pipeline in PIPELINES:
                for call in calls:
                    server, count = servers[call.setup], counts[call, pipeline]
                    once = _run(server, call, pipeline, count)
                    found.setdefault((call.name, pipeline), []).append(
                        Timed(once.calls_per_second, once.server_ns)
                    )
    return {
        which: Timed(
            statistics.median(one.calls_per_second for one in rounds),
            statistics.median(one.server_ns for one in rounds),
        )
        for which, rounds in found.items()
    }


def _prepare(server: Measured, call: Call) -> None:
    prepare(server, call)
    with Pipe(server.port) as pipe:
        # That it does what its name says.
        pipe.run(call.encoded, call.lines, call.begins)


def _run(server: Measured, call: Call, pipeline: int, count: int) -> Benchmark:
    (words,) = call.commands
    return Benchmark(server, words, max(count, 4 * pipeline * CONNECTIONS), pipeline)
