"""Goals, compared with measurements. In a measured section, a goal without a figure is an error."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bench import budgets, growth, memory, persistence
from bench.calls import (
    ADMITTED,
    ALL,
    DELAY,
    LIMIT,
    LIMIT_FOUR,
    LIMIT_IN_USE,
    ONCE,
    PRODUCTION,
    SET_EX,
)
from bench.commands import Commands, Costs
from bench.growth import Growth
from bench.memory import Memory
from bench.persistence import Persistence
from bench.servers import AOF, REPLICA
from bench.valkey import Valkey

# Largest ratio of processor times at which a cost counts as constant.
FLAT = 1.25
# Number of leases or idempotency keys of one key at which the cost must be constant.
MANY = 1_000
MEMORY_TO_LUA = 0.85
# Instructions of RL.TOKENBUCKET, as a multiple of those of another module.
TO_PEERS = 0.4
# Server CPU time, as a multiple of that of SET EX.
TIME_TO_SET_EX = {
    ADMITTED.on(AOF).name: 1.18,
    ADMITTED.on(REPLICA).name: 1.24,
    LIMIT.on(AOF).name: 1.10,
    LIMIT.on(REPLICA).name: 1.18,
    ADMITTED.name: 1.0,
    LIMIT.name: 0.91,
    LIMIT_FOUR.name: 1.15,
}
DELAY_TO_SET_EX = 0.76
CODE_KB = {ADMITTED.on(AOF).name: 37, ONCE.on(AOF).name: 60}
# Instructions on Valkey, as a multiple of those of SET EX.
VALKEY_TO_SET_EX = {ADMITTED.name: 0.88, LIMIT.name: 0.73, DELAY.name: 0.62}
# Bytes a key.
BYTES = {
    memory.BUCKET.name: 145,
    memory.TWO_LIMITS.name: 225,
    memory.FOUR_LIMITS.name: 330,
    memory.LEASE.name: 233,
    memory.IDEMPOTENT.name: 321,
}
# Bytes that a call adds to the AOF.
AOF_BYTES = {LIMIT_IN_USE.name: 83, LIMIT_FOUR.name: 190}
# Processor time, as a multiple of that for as many keys of SET EX.
PERSISTENCE = {persistence.RELOAD: 1.6, persistence.REWRITE: 2.0}
GROWTH = [
    *((name, MANY) for name in (growth.RENEWAL, growth.LEASE, growth.REPEATED, growth.BESIDE)),
    (growth.LOG, 100_000),
]


Key = TypeVar("Key")
Value = TypeVar("Value")


class MissingFigureError(Exception):
    """Goal without a figure, although its section was measured."""


@dataclass(frozen=True)
class Goal:
    description: str
    at_most: float
    measured: float

    @property
    def is_met(self) -> bool:
        return self.measured <= self.at_most


def _figure(figures: Mapping[Key, Value], name: Key) -> Value:
    if name not in figures:
        raise MissingFigureError(f"a goal without a figure: {name}")
    return figures[name]


def of_production(found: Costs) -> Iterator[Goal]:
    for name, goal in TIME_TO_SET_EX.items():
        yield Goal(f"server CPU time of {name}, x SET EX", goal, _figure(found.pairs, name).ratio)
    if found.counts:
        for name, goal in CODE_KB.items():
            yield Goal(f"KB of code of {name}", goal, _figure(found.counts, name).code / 1000)


def of_commands(found: Commands) -> Iterator[Goal]:
    pair = _figure(found.costs.pairs, DELAY.name)
    yield Goal(f"server CPU time of {DELAY.name}, x SET EX", DELAY_TO_SET_EX, pair.ratio)


def of_instructions(production: Costs | None, commands: Commands | None) -> Iterator[Goal]:
    """Compares the goals of budgets.toml, whose calls are in one section or in both."""
    parts = [production, commands.costs if commands else None]
    alone = {call.name for call in PRODUCTION}
    calls = [alone, {call.name for call in ALL} - alone]
    measured = [(names, part.counts) for names, part in zip(calls, parts, strict=True) if part]
    names = set().union(*(names for names, _ in measured))
    counts = {name: count.least for _, part in measured for name, count in part.items()}
    if not counts:
        return
    for budget in budgets.load().budgets:
        if budget.goal is not None and {budget.call, budget.to} <= names:
            ratio = _figure(counts, budget.call) / _figure(counts, budget.to)
            yield Goal(f"instructions of {budget.call}, x {budget.to}", budget.goal, ratio)
    for peer in commands.peers if commands and production else []:
        ratio = _figure(counts, ADMITTED.name) / _figure(counts, peer)
        yield Goal(f"instructions of {ADMITTED.name}, x {peer}", TO_PEERS, ratio)


def of_valkey(found: Valkey) -> Iterator[Goal]:
    instructions = found.instructions
    for name, goal in VALKEY_TO_SET_EX.items():
        description = f"instructions of {name} on {found.server}, x {SET_EX.name} there"
        ratio = _figure(instructions, name) / instructions[SET_EX.name]
        yield Goal(description, goal, ratio)


def of_memory(found: Memory) -> Iterator[Goal]:
    for name, goal in BYTES.items():
        yield Goal(f"memory, bytes a key, {name}", goal, _figure(found.ours, name))
    ours = found.ours[memory.BUCKET.name]
    others = {memory.LUA_BUCKET.name: MEMORY_TO_LUA} | dict.fromkeys(found.peers, 1.0)
    for name, goal in others.items():
        bytes_of = _figure(found.others | found.peers, name)
        yield Goal(f"memory a key, {memory.BUCKET.name}, x {name}", goal, ours / bytes_of)


def of_persistence(found: Persistence) -> Iterator[Goal]:
    for kind, goal in PERSISTENCE.items():
        description = (
            f"server CPU time, {kind} of {found.keys:,} buckets, x as many {SET_EX.name} keys"
        )
        yield Goal(description, goal, _figure(found.pairs, kind).ratio)
    for name, goal in AOF_BYTES.items():
        yield Goal(f"AOF, bytes a call of {name}", goal, _figure(found.aof_bytes, name))


def of_growth(found: Growth) -> Iterator[Goal]:
    for count, pair in found.by_keys.items():
        description = (
            f"server CPU time of {growth.BUCKET} with {count:,} keys, x {SET_EX.name} with as many"
        )
        yield Goal(description, FLAT, pair.ratio)
    largest = max(size for _, size in found.by_size)
    for name, most in GROWTH:
        # A quick run has smaller tables.
        size = min(most, largest)
        description = f"server CPU time of {name} with {size:,} of them, x that with 1"
        yield Goal(description, FLAT, _figure(found.by_size, (name, size)).ratio)


def of_results(results: Any) -> list[Goal]:
    """Compares all sections that were measured."""
    by_section = {
        "production": of_production,
        "commands": of_commands,
        "valkey": of_valkey,
        "memory": of_memory,
        "persistence": of_persistence,
        "growth": of_growth,
    }
    found = list(of_instructions(results.production, results.commands))
    for section, goals in by_section.items():
        if (measured := getattr(results, section)) is not None:
            found += goals(measured)
    return found
