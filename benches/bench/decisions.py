"""A decision of four kinds, beside each other, from 1 to 256 clients; and what each lets in."""

import statistics
from dataclasses import dataclass

from bench import load
from bench.approaches import APPROACHES, Bucket
from bench.calls import Script
from bench.scale import Scale
from bench.servers import Measured, serving
from bench.wire import ReplyError
from support.binaries import Binary

CLIENTS = [1, 16, 64, 256]
HOT, OWN = "one hot key", "a key for each client"
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
        server.admin.execute_command(*Script.named("token_bucket").load)
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


def _cost(server: Measured, approach: str, keys: str, clients: int, scale: Scale) -> Cost:
    server.admin.flushall()
    names = ["user:0" if keys == HOT else f"user:{number}" for number in range(clients)]
    deciders = [APPROACHES[approach](PLENTY, name) for name in names]
    found = load.run(server, deciders, scale.seconds, warm_up=scale.seconds / 4)
    if found.granted < found.decisions:
        raise ReplyError(f"{approach} denied what it has plenty of")
    return Cost(
        microseconds=found.seconds / found.decisions * 1e6,
        commands=found.commands / found.decisions,
        median_ms=found.latency(0.5) * 1e3,
        p99_ms=found.latency(0.99) * 1e3,
        server_microseconds=found.server_seconds / found.decisions * 1e6,
    )


def _granted(server: Measured, approach: str) -> Granted:
    server.admin.flushall()
    decide = APPROACHES[approach](TIGHT, "tight")
    found = load.run(server, [decide] * TIGHT_CLIENTS, TIGHT_SECONDS)
    return Granted(
        found.granted,
        TIGHT.at_most(found.seconds),
        found.decisions,
        found.commands / found.decisions,
    )
