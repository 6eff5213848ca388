"""Calls beside each other on one server: how many a second, and what each costs the server."""

import statistics
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from bench import floor, valgrind
from bench.calls import ALL, NEW_KEYS, OURS, REFERENCES, SET_EX, Call, Peer, prepare
from bench.load import CONNECTIONS, Benchmark, pin
from bench.scale import Scale
from bench.servers import Measured, Setup, serving
from bench.wire import Pipe
from support.binaries import Binary

PIPELINES = [1, 16, 100]
# The page shows calls in pipelines of so many. Those of fewer are in benches/measured alone, where
# medians of fewer rounds do.
PAIRED = PIPELINES[-1]
ROUNDS_UNPAIRED = 3
LEAST_SPREAD = 0.05


@dataclass(frozen=True)
class Ratio:
    """The server's time of a call as a multiple of that of the runs of SET EX next to it."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, pairs: Sequence[float]) -> "Ratio":
        return cls(statistics.median(pairs), min(pairs), max(pairs))

    def has(self, ratio: float) -> bool:
        """Whether a ratio is as near to the median as the pairs are to each other. Two times that
        were measured minutes apart differ by some percent, however near the pairs are.
        """
        spread = max(self.most - self.least, LEAST_SPREAD * self.median)
        return abs(ratio - self.median) <= spread


@dataclass(frozen=True)
class Timed:
    """Of one call. The server's time is of all its threads, its children left out.

    None in benches/measured/ is what nobody has kept of a run before there was that folder.
    """

    calls_per_second: float | None
    server_ns: float | None
    # Beside SET EX on a server of the same settings, which ran before it and after it, each time.
    # None of SET EX itself, and in pipelines of fewer than PAIRED.
    beside: "Ratio | None" = None


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

    @property
    def names(self) -> list[str]:
        """Of ours and what they are compared with; one may be newer than the figures."""
        names = [*(call.name for call in [*REFERENCES, *OURS]), *self.peers]
        return [name for name in names if (name, PIPELINES[-1]) in self.timed]

    def server_ns(self, pipeline: int) -> dict[str, float]:
        """By the call's name, when so many are sent at a time."""
        return {name: one.server_ns for (name, many), one in self.timed.items() if many == pipeline}

    def beside(self, pipeline: int) -> dict[str, Ratio]:
        """By the call's name, the multiples of SET EX when so many are sent at a time."""
        of = {name: one.beside for (name, many), one in self.timed.items() if many == pipeline}
        return {name: ratio for name, ratio in of.items() if ratio}


def measure(binary: Binary, scale: Scale, peers: Iterable[Peer]) -> Commands:
    peer_calls = [peer.call for peer in peers]
    calls = _of_one_command(peers)
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        floors = floor.floors(floor.build(Path(directory)))
        timed = _timed(binary, [call for call in calls if call not in NEW_KEYS], scale)
        counted = {}
        if valgrind.is_there():
            counting = [*calls, *(one.call for one in floors)]
            counted = valgrind.instructions(binary, counting, scale.servers)
    beside = {one.call.name: [ours.name for ours in one.ours] for one in floors}
    return Commands(timed, counted, [call.name for call in peer_calls], beside)


def timed_anew(
    binary: Binary, scale: Scale, peers: Iterable[Peer], found: Commands, names: set[str]
) -> Commands:
    """`found` with other times for the calls of these names, again beside SET EX. The machine may
    have another speed by now: the times are those of when SET EX took what it took in `found`.
    """
    again = {
        base: [call for call in others if call.name in names]
        for base, others in _by_base(_of_one_command(peers)).items()
    }
    timed = _timed(
        binary,
        [call for base, others in again.items() if others for call in (base, *others)],
        scale,
    )
    anew = {}
    for base, others in again.items():
        for which in [(call.name, many) for call in others for many in PIPELINES]:
            then, now = (of[base.name, which[1]].server_ns for of in (found.timed, timed))
            one = timed[which]
            anew[which] = replace(one, server_ns=one.server_ns * then / now)
    return replace(found, timed=found.timed | anew)


def _of_one_command(peers: Iterable[Peer]) -> list[Call]:
    calls = [*ALL, *(peer.call for peer in peers)]
    return [call for call in calls if call.is_one_command]


def _timed(binary: Binary, calls: list[Call], scale: Scale) -> dict[tuple[str, int], Timed]:
    found: dict[tuple[str, int], list[Timed]] = {}
    pairs: dict[tuple[str, int], list[float]] = {}
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
        run = partial(_counted, servers, counts, found)
        for number, pipeline in product(range(scale.rounds), PIPELINES):
            if pipeline != PAIRED and number >= ROUNDS_UNPAIRED:
                continue
            for base, others in _by_base(calls).items():
                before = run(base, pipeline)
                if pipeline != PAIRED:
                    for call in others:
                        run(call, pipeline)
                    continue
                for call in others:
                    own = run(call, pipeline)
                    after = run(base, pipeline)
                    pairs.setdefault((call.name, pipeline), []).append(2 * own / (before + after))
                    before = after
    return {
        which: Timed(
            statistics.median(one.calls_per_second for one in rounds),
            statistics.median(one.server_ns for one in rounds),
            Ratio.of(pairs[which]) if which in pairs else None,
        )
        for which, rounds in found.items()
    }


def _by_base(calls: list[Call]) -> dict[Call, list[Call]]:
    """What is compared with SET EX on a server of the same settings, or where there is none, with
    that of the default settings.
    """
    bases = {SET_EX, *(call for call in calls if call == SET_EX.on(call.setup))}
    by_base: dict[Call, list[Call]] = {}
    for call in calls:
        if call not in bases:
            own = SET_EX.on(call.setup)
            by_base.setdefault(own if own in bases else SET_EX, []).append(call)
    return by_base


def _counted(
    servers: dict[Setup, Measured],
    counts: dict[tuple[Call, int], int],
    found: dict[tuple[str, int], list[Timed]],
    call: Call,
    pipeline: int,
) -> float:
    """Runs a call, and keeps what it took; the server's time."""
    once = _run(servers[call.setup], call, pipeline, counts[call, pipeline])
    found.setdefault((call.name, pipeline), []).append(Timed(once.calls_per_second, once.server_ns))
    return once.server_ns


def _prepare(server: Measured, call: Call) -> None:
    prepare(server, call)
    with Pipe(server.port) as pipe:
        # That it does what its name says.
        pipe.run(call.encoded, call.lines, call.begins)


def _run(server: Measured, call: Call, pipeline: int, count: int) -> Benchmark:
    (words,) = call.commands
    return Benchmark(server, words, max(count, 4 * pipeline * CONNECTIONS), pipeline)
