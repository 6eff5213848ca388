"""What is aimed at, beside what was measured."""

from collections.abc import Iterator
from dataclasses import dataclass

from bench import budgets, growth, memory, persistence
from bench.calls import ADMITTED, DELAY, LIMIT, LIMIT_FOUR, LIMIT_IN_USE, SET_EX
from bench.commands import Commands
from bench.growth import Growth
from bench.memory import Memory
from bench.persistence import Persistence
from bench.valkey import Valkey

# How much more a call may cost when there is more, and still count as the same. It is a time.
FLAT = 1.25
# Leases or idempotency keys of one key, with which a call costs what it costs with one.
MANY = 1_000
MEMORY_TO_LUA = 0.85
# The server's processor time, in pipelines of so many.
TIME_TO_SET_EX = {ADMITTED.name: 1.0, LIMIT.name: 0.91, DELAY.name: 0.76, LIMIT_FOUR.name: 1.15}
PIPELINE = 100
# The instructions on Valkey.
VALKEY_TO_SET_EX = {ADMITTED.name: 0.88, LIMIT.name: 0.73, DELAY.name: 0.62}
# Bytes a key.
BYTES = {
    memory.BUCKET.name: 145,
    memory.TWO_LIMITS.name: 230,
    memory.FOUR_LIMITS.name: 330,
    memory.LEASE.name: 260,
    memory.IDEMPOTENT.name: 330,
}
# What a call adds to the AOF.
AOF_BYTES = {LIMIT_IN_USE.name: 83, LIMIT_FOUR.name: 190}
# As a multiple of the processor time of as many keys of SET EX.
PERSISTENCE = {persistence.RELOAD: 1.6, persistence.REWRITE: 2.0}


@dataclass(frozen=True)
class Goal:
    what: str
    # As words, which say more than a number where that is needed.
    goal: str
    measured: str
    is_met: bool


def _at_most(what: str, goal: float, measured: float) -> Goal:
    return Goal(what, f"{goal:g}", f"{measured:.4g}", measured <= goal)


def of_commands(found: Commands) -> Iterator[Goal]:
    """In instructions, the goals of the file that `make bench-check` reads; and in time."""
    if counted := found.instructions:
        # A goal may be newer than the figures.
        wanted = [
            budget
            for budget in budgets.load().budgets
            if budget.goal is not None and {budget.call, budget.to} <= counted.keys()
        ]
        for verdict in budgets.compare(wanted, counted):
            what = f"instructions of {verdict.budget.call}, x {verdict.budget.to}"
            yield _at_most(what, verdict.budget.goal, verdict.ratio)
    of = found.beside(PIPELINE)
    for name, goal in TIME_TO_SET_EX.items():
        if name in of:
            what = f"server CPU time of {name}, x {SET_EX.name}, in pipelines of {PIPELINE}"
            yield _at_most(what, goal, of[name].median)


def of_valkey(found: Valkey) -> Iterator[Goal]:
    of = found.instructions
    for name, goal in VALKEY_TO_SET_EX.items():
        what = f"instructions of {name} on {found.server}, x {SET_EX.name} there"
        yield _at_most(what, goal, of[name] / of[SET_EX.name])


def of_memory(found: Memory) -> Iterator[Goal]:
    for name, goal in BYTES.items():
        if name in found.ours:
            yield _at_most(f"memory, bytes a key, {name}", goal, found.ours[name])
    ours = found.ours[memory.BUCKET.name]
    others = {memory.LUA_BUCKET.name: (found.others[memory.LUA_BUCKET.name], MEMORY_TO_LUA)}
    others |= {name: (value, 1.0) for name, value in found.peers.items()}
    for name, (value, goal) in others.items():
        yield _at_most(f"memory a key, {memory.BUCKET.name}, x {name}", goal, ours / value)


def of_persistence(found: Persistence) -> Iterator[Goal]:
    for kind, goal in PERSISTENCE.items():
        ours, base = (
            found.seconds[kind, name] for name in (persistence.BUCKET, persistence.SET_EX)
        )
        yield _at_most(
            f"server CPU time, {kind} of {found.keys:,} buckets, x as many {SET_EX.name} keys",
            goal,
            ours / base,
        )


def of_aof(found: Persistence) -> Iterator[Goal]:
    for name, goal in AOF_BYTES.items():
        if name in found.aof_bytes:
            yield _at_most(f"AOF, bytes a call of {name}", goal, found.aof_bytes[name])


def of_growth(found: Growth) -> Iterator[Goal]:
    few, many = (pick(count for _, count in found.by_keys) for pick in (min, max))
    ours, reference = (
        found.by_keys[name, many] / found.by_keys[name, few]
        for name in (growth.BUCKET, growth.SET_EX)
    )
    yield Goal(
        f"server CPU time of {growth.BUCKET} with {many:,} keys, x that with {few:,}",
        f"{FLAT} x that of {growth.SET_EX}, which misses the processor's caches too",
        f"{ours:.2f}, and {growth.SET_EX} {reference:.2f}",
        ours <= FLAT * reference,
    )
    sizes = sorted({size for _, size in found.by_size})
    for name, most, kind in (
        (growth.RENEWAL, MANY, "leases"),
        (growth.LEASE, MANY, "leases"),
        (growth.LOG, 100_000, "entries"),
        (growth.REPEATED, MANY, "idempotency keys"),
        (growth.BESIDE, MANY, "idempotency keys"),
    ):
        size = max(size for size in sizes if size <= most)
        ratio = found.by_size[name, size] / found.by_size[name, sizes[0]]
        yield _at_most(
            f"server CPU time of {name} with {size:,} {kind}, x that with {sizes[0]}", FLAT, ratio
        )
