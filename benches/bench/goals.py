"""What is wished for, beside what was measured."""

from collections.abc import Iterator
from dataclasses import dataclass

from bench import budgets, growth, memory
from bench.calls import ADMITTED
from bench.commands import Commands
from bench.growth import Growth
from bench.memory import Memory

# How much more a call may cost when there is more, and still count as the same. It is a time.
FLAT = 1.25
# A ratio below this is told the other way round.
SMALL = 0.5
MEMORY_TO_LUA = 0.85
PEER_TO_OURS = 3


@dataclass(frozen=True)
class Goal:
    what: str
    goal: str
    measured: str
    is_met: bool
    # The same, had the command computed nothing; if that was measured.
    at_best: str = ""


def of_commands(found: Commands) -> Iterator[Goal]:
    """The goals of the file that `make bench-check` reads, in instructions."""
    if not found.instructions:
        return
    counted = found.instructions
    # Of a command that computes nothing, in the place of each of ours that has one.
    nothing = {ours.name: counted[floor.call.name] for floor in found.floors for ours in floor.ours}
    wished = [budget for budget in budgets.load().budgets if budget.goal is not None]
    for verdict in budgets.compare(wished, counted):
        call, to = verdict.budget.call, verdict.budget.to
        goal, ratio = verdict.budget.goal, verdict.ratio
        best = nothing[call] / counted[to] if call in nothing else None
        if goal >= SMALL:
            words = f"{call}, as a multiple of {to}", f"at most {goal:g}", f"{ratio:.2f}"
            at_best = f"{best:.2f}" if best else ""
        else:
            words = f"{to}, as a multiple of {call}", f"at least {1 / goal:.3g}", f"{1 / ratio:.1f}"
            at_best = f"{1 / best:.1f}" if best else ""
        yield Goal(*words, verdict.reaches_goal, at_best)
    for peer in found.peers:
        ratio = counted[peer] / counted[ADMITTED.name]
        yield Goal(
            f"{peer}, as a multiple of {ADMITTED.name}",
            f"at least {PEER_TO_OURS}",
            f"{ratio:.2f}",
            ratio >= PEER_TO_OURS,
            f"{counted[peer] / nothing[ADMITTED.name]:.2f}",
        )


def of_memory(found: Memory) -> Iterator[Goal]:
    ours = found.ours[memory.BUCKET.name]
    others = {memory.LUA_BUCKET.name: (found.others[memory.LUA_BUCKET.name], MEMORY_TO_LUA)}
    others |= {name: (value, 1.0) for name, value in found.peers.items()}
    for name, (value, goal) in others.items():
        yield Goal(
            f"memory a key of {memory.BUCKET.name}, as a multiple of {name}",
            f"at most {goal:g}",
            f"{ours / value:.3f}",
            ours / value <= goal,
        )


def of_growth(found: Growth) -> Iterator[Goal]:
    few, many = (pick(count for _, count in found.by_keys) for pick in (min, max))
    ours, reference = (
        found.by_keys[name, many] / found.by_keys[name, few]
        for name in (growth.BUCKET, growth.SET_EX)
    )
    yield Goal(
        f"server CPU of {growth.BUCKET} with {many:,} keys, as a multiple of that with {few:,} (a "
        "server with many keys misses its caches, whatever it does: so beside SET EX)",
        f"at most {FLAT} times as much growth as SET EX's",
        f"{ours:.2f} (SET EX {reference:.2f})",
        ours <= FLAT * reference,
    )
    sizes = sorted({size for _, size in found.by_size})
    for name, most in ((growth.RENEWAL, 1_000), (growth.LEASE, 1_000), (growth.LOG, 100_000)):
        size = max(size for size in sizes if size <= most)
        ratio = found.by_size[name, size] / found.by_size[name, sizes[0]]
        kind = "entries" if name == growth.LOG else "leases"
        yield Goal(
            f"server CPU of {name} with {size:,} {kind}, as a multiple of that with {sizes[0]}",
            f"at most {FLAT}",
            f"{ratio:.2f}",
            ratio <= FLAT,
        )
