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
# Bytes of a bucket, as a multiple of those of the Lua script.
MEMORY_TO_LUA = 0.85
# Instructions of RL.TOKENBUCKET, as a multiple of those of another module.
TO_PEERS = 0.4
# Server CPU time, as a multiple of that of SET EX.
TIME_TO_SET_EX = {
    ADMITTED.with_setup(AOF).name: 1.18,
    ADMITTED.with_setup(REPLICA).name: 1.24,
    LIMIT.with_setup(AOF).name: 1.10,
    LIMIT.with_setup(REPLICA).name: 1.18,
    ADMITTED.name: 1.0,
    LIMIT.name: 0.91,
    LIMIT_FOUR.name: 1.15,
}
DELAY_TO_SET_EX = 0.76
CODE_KB = {ADMITTED.with_setup(AOF).name: 37, ONCE.with_setup(AOF).name: 60}
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
# Calls, each with the number of entries at which its cost must be constant.
GROWTH = [
    *(
        (name, MANY)
        for name in (growth.RENEWAL, growth.LEASE, growth.REPEATED, growth.WITHOUT_ONCE)
    ),
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


def production_goals(costs: Costs) -> Iterator[Goal]:
    for name, goal in TIME_TO_SET_EX.items():
        yield Goal(f"server CPU time of {name}, x SET EX", goal, _figure(costs.pairs, name).ratio)
    if costs.counts:
        for name, goal in CODE_KB.items():
            yield Goal(f"KB of code of {name}", goal, _figure(costs.counts, name).code / 1000)


def command_goals(results: Commands) -> Iterator[Goal]:
    pair = _figure(results.costs.pairs, DELAY.name)
    yield Goal(f"server CPU time of {DELAY.name}, x SET EX", DELAY_TO_SET_EX, pair.ratio)


def instruction_goals(production: Costs | None, commands: Commands | None) -> Iterator[Goal]:
    """Compares the goals of budgets.toml, whose calls are in one section or in both."""
    parts = [production, commands.costs if commands else None]
    in_production = {call.name for call in PRODUCTION}
    calls = [in_production, {call.name for call in ALL} - in_production]
    measured = [(names, part.counts) for names, part in zip(calls, parts, strict=True) if part]
    names = set().union(*(names for names, _ in measured))
    counts = {name: count.least for _, part in measured for name, count in part.items()}
    if not counts:
        return
    for budget in budgets.load().budgets:
        if budget.goal is not None and {budget.call, budget.reference} <= names:
            ratio = _figure(counts, budget.call) / _figure(counts, budget.reference)
            yield Goal(f"instructions of {budget.call}, x {budget.reference}", budget.goal, ratio)
    for peer in commands.peers if commands and production else []:
        ratio = _figure(counts, ADMITTED.name) / _figure(counts, peer)
        yield Goal(f"instructions of {ADMITTED.name}, x {peer}", TO_PEERS, ratio)


def valkey_goals(results: Valkey) -> Iterator[Goal]:
    instructions = results.instructions
    for name, goal in VALKEY_TO_SET_EX.items():
        description = f"instructions of {name} on {results.server}, x {SET_EX.name} there"
        ratio = _figure(instructions, name) / instructions[SET_EX.name]
        yield Goal(description, goal, ratio)


def memory_goals(results: Memory) -> Iterator[Goal]:
    for name, goal in BYTES.items():
        yield Goal(f"memory, bytes a key, {name}", goal, _figure(results.ours, name))
    ours = results.ours[memory.BUCKET.name]
    others = {memory.LUA_BUCKET.name: MEMORY_TO_LUA} | dict.fromkeys(results.peers, 1.0)
    for name, goal in others.items():
        bytes_of = _figure(results.others | results.peers, name)
        yield Goal(f"memory a key, {memory.BUCKET.name}, x {name}", goal, ours / bytes_of)


def persistence_goals(results: Persistence) -> Iterator[Goal]:
    for kind, goal in PERSISTENCE.items():
        description = (
            f"server CPU time, {kind} of {results.keys:,} buckets, x as many {SET_EX.name} keys"
        )
        yield Goal(description, goal, _figure(results.pairs, kind).ratio)
    for name, goal in AOF_BYTES.items():
        yield Goal(f"AOF, bytes a call of {name}", goal, _figure(results.aof_bytes, name))


def growth_goals(results: Growth) -> Iterator[Goal]:
    for count, pair in results.by_keys.items():
        description = (
            f"server CPU time of {growth.BUCKET} with {count:,} keys, x {SET_EX.name} with as many"
        )
        yield Goal(description, FLAT, pair.ratio)
    largest = max(size for _, size in results.by_size)
    for name, goal_size in GROWTH:
        # A quick run has smaller tables.
        size = min(goal_size, largest)
        description = f"server CPU time of {name} with {size:,} of them, x that with 1"
        yield Goal(description, FLAT, _figure(results.by_size, (name, size)).ratio)


def all_goals(results: Any) -> list[Goal]:
    """Compares all sections that were measured."""
    by_section = {
        "production": production_goals,
        "commands": command_goals,
        "valkey": valkey_goals,
        "memory": memory_goals,
        "persistence": persistence_goals,
        "growth": growth_goals,
    }
    compared = list(instruction_goals(results.production, results.commands))
    for section, goals in by_section.items():
        if (measured := getattr(results, section)) is not None:
            compared += goals(measured)
    return compared
