"""Processor time, instructions and code of calls, compared with SET EX on the same settings."""

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import floor, valgrind
from bench.calls import ALL, NEW_KEYS, PRODUCTION, SET_EX, Call, Peer, prepare
from bench.load import CONNECTIONS, Benchmark, pin
from bench.pairs import Pair, alternate
from bench.scale import Scale
from bench.servers import MeasuredServer, serving
from bench.valgrind import PIPELINE, Count
from bench.wire import Pipe
from support.binaries import Binary


@dataclass(frozen=True)
class Costs:
    """Costs of calls, by the call's name."""

    # Server processor time compared with that of SET EX, which has no pair of its own.
    pairs: dict[str, Pair]
    # Counts of instructions. Empty without valgrind.
    counts: dict[str, Count]


@dataclass(frozen=True)
class Commands:
    """Costs of all calls that are not shown under the conditions of production."""

    costs: Costs
    # Calls of the modules that the user has named.
    peers: list[str]
    # Names of the module's calls, by the name of the call in benches/floor.c that does the same
    # work.
    floors: dict[str, list[str]] = field(default_factory=dict)


def production(binary: Binary, scale: Scale) -> Costs:
    """Measures the calls of the first table."""
    return _costs(binary, PRODUCTION, scale)


def measure(binary: Binary, scale: Scale, peers: Iterable[Peer]) -> Commands:
    """Measures all other calls."""
    peer_calls = [peer.call for peer in peers]
    calls = [SET_EX, *(call for call in [*ALL, *peer_calls] if call not in PRODUCTION)]
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        floors = floor.floors(floor.build(Path(directory)))
        costs = _costs(binary, calls, scale, [entry.call for entry in floors])
    calls_by_floor = {entry.call.name: [ours.name for ours in entry.ours] for entry in floors}
    return Commands(costs, [call.name for call in peer_calls], calls_by_floor)


def _costs(
    binary: Binary, calls: list[Call], scale: Scale, count_only: Iterable[Call] = ()
) -> Costs:
    """Measures `calls`. Only counts instructions of the calls in `count_only`."""
    timed = [call for call in calls if call.is_one_command and call not in NEW_KEYS]
    pairs = {}
    for setup in dict.fromkeys(call.setup for call in timed):
        pairs |= _pairs(binary, [call for call in timed if call.setup == setup], scale)
    counts = {}
    if valgrind.is_installed():
        counts = valgrind.counts(binary, [*calls, *count_only], scale.servers)
    return Costs(pairs, counts)


def _pairs(binary: Binary, calls: list[Call], scale: Scale) -> dict[str, Pair]:
    """Times calls in turn with SET EX, on one server with their setup."""
    with ExitStack() as stack:
        server = stack.enter_context(serving(binary, calls[0].setup))
        pin(server)
        reference, *runs = (
            _prepared_run(server, call, scale)
            for call in [SET_EX, *(call for call in calls if not call.is_set_ex)]
        )
        names = [call.name for call in calls if not call.is_set_ex]
        return alternate(reference, dict(zip(names, runs, strict=True)), scale.rounds)


def _prepared_run(server: MeasuredServer, call: Call, scale: Scale) -> "partial[float]":
    """Prepares a call. Returns a function that runs it for the time of a round."""
    prepare(server, call)
    with Pipe(server.port) as pipe:
        # Checks that the reply is the expected one.
        pipe.run(call.encoded, call.lines, call.reply_prefix)
    min_count = 4 * PIPELINE * CONNECTIONS
    calls_per_second = Benchmark(server, call.commands[0], min_count, PIPELINE).calls_per_second
    return partial(_time, server, call, max(min_count, round(scale.seconds * calls_per_second)))


def _time(server: MeasuredServer, call: Call, count: int) -> float:
    return Benchmark(server, call.commands[0], count, PIPELINE).server_ns
