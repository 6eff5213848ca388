"""A decision of four kinds, beside each other, from 1 to 256 clients; and what each lets in."""

import math
import statistics
from dataclasses import dataclass

from bench import load
from bench.calls import Script
from bench.scale import Scale
from bench.servers import Measured, serving
from bench.wire import ReplyError
from support.binaries import Binary

# In the order they are shown in, with what benches/load calls them.
APPROACHES = {
    "RL.TOKENBUCKET": "native",
    "Lua (EVALSHA)": "script",
    "three plain commands": "plain",
    "WATCH/MULTI/EXEC": "watch",
}
CLIENTS = [1, 16, 64, 256]
SCRIPT = Script.named("token_bucket")
HOT, OWN = "one hot key", "a key for each client"


@dataclass(frozen=True)
class Bucket:
    """A burst, refilled at so many a second."""

    capacity: int
    refill: int

    def at_most(self, seconds: float) -> int:
        """What it may let in within so many seconds."""
        return math.floor(self.capacity + self.refill * seconds)


# More than can be asked for: every decision is to admit.
PLENTY = Bucket(1_000_000, 1_000_000)

TIGHT = Bucket(10, 10)
SECONDS = 3
# Long enough that the unit due after 3 seconds is asked for; the next one is not due yet.
TIGHT_SECONDS = SECONDS + 0.05
TIGHT_CLIENTS = 64


@dataclass(frozen=True)
class Cost:
    """Of a decision."""

    microseconds: float
    commands: float
    median_ms: float
    p99_ms: float
    server_microseconds: float


@dataclass(frozen=True)
class Granted:
    """In the over-grant test."""

    granted: int
    # By the arithmetic, in the time that it took.
    at_most: int
    asked: int
    commands: float


@dataclass(frozen=True)
class Decisions:
    # By approach, keys and number of clients.
    costs: dict[tuple[str, str, int], Cost]
    granted: dict[str, Granted]


def measure(binary: Binary, scale: Scale) -> Decisions:
    with serving(binary) as server:
        load.pin(server)
        server.admin.execute_command(*SCRIPT.load)
        costs = {
            (approach, keys, clients): cost
            for keys in (HOT, OWN)
            for clients in CLIENTS
            for approach, cost in _side_by_side(server, keys, clients, scale).items()
        }
        return Decisions(costs, {approach: _granted(server, approach) for approach in APPROACHES})


def _side_by_side(server: Measured, keys: str, clients: int, scale: Scale) -> dict[str, Cost]:
    """Each approach once a round, so that all meet the same noise."""
    rounds = [
        {approach: _cost(server, approach, keys, clients, scale) for approach in APPROACHES}
        for _ in range(scale.rounds)
    ]
    return {approach: _median([one[approach] for one in rounds]) for approach in APPROACHES}


def _median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*map(_fields, costs), strict=True)))


def _fields(cost: Cost) -> tuple[float, ...]:
    return tuple(vars(cost).values())


def _run(
    server: Measured, approach: str, keys: str, clients: int, seconds: float, bucket: Bucket
) -> dict[str, float]:
    server.admin.flushall()
    words = (APPROACHES[approach], "hot" if keys == HOT else "own", bucket.capacity, bucket.refill)
    return load.run(server, "decide", server.port, clients, seconds, *words, SCRIPT.sha)


def _cost(server: Measured, approach: str, keys: str, clients: int, scale: Scale) -> Cost:
    found = _run(server, approach, keys, clients, scale.seconds, PLENTY)
    if found["granted"] < found["decisions"]:
        raise ReplyError(f"{approach} denied what it has plenty of")
    return Cost(
        microseconds=found["seconds"] / found["decisions"] * 1e6,
        commands=found["commands"] / found["decisions"],
        median_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
        server_microseconds=found["server_seconds"] / found["decisions"] * 1e6,
    )


def _granted(server: Measured, approach: str) -> Granted:
    found = _run(server, approach, HOT, TIGHT_CLIENTS, TIGHT_SECONDS, TIGHT)
    return Granted(
        found["granted"],
        TIGHT.at_most(found["seconds"]),
        found["decisions"],
        found["commands"] / found["decisions"],
    )
