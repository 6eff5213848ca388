"""Text of docs/benchmarks.md: the texts in benches/text, with tables of the measurements."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import permutations

from bench import goals, growth, pages, pairs
from bench.calls import ADMITTED, AGAINST_LUA, ALL, DENIED, LUA_BUCKET, PRODUCTION, SET_EX, Call
from bench.commands import Commands, Costs
from bench.decisions import (
    APPROACHES,
    CLIENTS,
    OURS,
    TIGHT,
    TIGHT_CLIENTS,
    TIGHT_SECONDS,
    Decisions,
)
from bench.growth import Growth
from bench.load import CONNECTIONS
from bench.memory import Memory
from bench.persistence import Persistence
from bench.scale import Scale
from bench.valgrind import PIPELINE
from bench.valkey import Valkey

# Calls of the first sentence.
HEADLINE = [ADMITTED.name, DENIED.name, LUA_BUCKET.name]
# Calls with a separate table.
SCRIPTS = {lua.name for _, lua in AGAINST_LUA}
# Name of SET EX on the setup of each call.
BASES = {call.name: SET_EX.with_setup(call.setup).name for call in PRODUCTION}
# Ratios of instructions and of times. If two calls are below the first and above the second, their
# figures contradict each other.
FAR_FEWER, MORE_TIME = 0.6, 1.15


@dataclass
class Results:
    """Results of every section that was measured, in the order of the page."""

    production: Costs | None = None
    commands: Commands | None = None
    valkey: Valkey | None = None
    decisions: Decisions | None = None
    memory: Memory | None = None
    persistence: Persistence | None = None
    growth: Growth | None = None


SECTIONS = [field.name for field in fields(Results)]


def write(server: str, scale: Scale, results: Results, load: float) -> str:
    """Returns the page. `load` is the load average at the beginning of the run."""
    costs = [results.production, results.commands.costs if results.commands else None]
    counts = {name: count for part in costs if part for name, count in part.counts.items()}
    ratios = {name: pair.ratio for part in costs if part for name, pair in part.pairs.items()}
    instructions = {name: count.least for name, count in counts.items()}
    headline = ""
    if results.production and results.commands and instructions:
        names = [*HEADLINE, *results.commands.peers]
        multiples = ", ".join(
            f"{instructions[name] / instructions[SET_EX.name]:.2f} ({name})" for name in names
        )
        headline = f" Instructions of a decision, as a multiple of those of SET EX: {multiples}."
    parts = [
        pages.text(
            "top",
            server=server,
            headline=headline,
            rounds=scale.rounds,
            connections=CONNECTIONS,
            pipeline=PIPELINE,
            busy=pages.busy_note(load),
        )
    ]
    if results.production:
        parts.append(pages.text("production", costs=_costs(results.production, BASES)))
    if results.commands:
        costs_table = _costs(results.commands.costs, {})
        floors, lua = _floors(results.commands, instructions), _against_lua(instructions, ratios)
        parts.append(pages.text("commands", costs=costs_table, floors=floors, lua=lua))
    if results.valkey:
        parts.append(_valkey(results.valkey))
    if results.decisions:
        parts.append(_decisions(results.decisions))
    if results.memory:
        parts.append(_memory(results.memory))
    if results.persistence:
        parts.append(_persistence(results.persistence))
    if results.growth:
        parts.append(_growth(results.growth))
    return "\n".join([*parts, pages.text("again"), pages.text("goals", goals=_goals(results))])


def contradictions(section: object) -> Iterator[str]:
    """Yields a line for each figure that its rounds, or another figure, contradict."""
    yield from pairs.noise(section)
    costs = section.costs if isinstance(section, Commands) else section
    if not isinstance(costs, Costs) or not costs.counts:
        return
    for fewer, more in permutations(costs.pairs, 2):
        if BASES.get(fewer) != BASES.get(more):
            continue
        counts = costs.counts[fewer].least / costs.counts[more].least
        times = costs.pairs[fewer].ratio / costs.pairs[more].ratio
        if counts < FAR_FEWER and times > MORE_TIME:
            yield (
                f"{fewer} takes {counts:.2f} times the instructions of {more}, "
                f"and {times:.2f} times its time"
            )


def _goals(results: Results) -> str:
    compared = goals.all_goals(results)
    missed = [
        [goal.description, f"{goal.at_most:g}", f"{goal.measured:.4g}"]
        for goal in compared
        if not goal.is_met
    ]
    if not missed:
        return f"All {len(compared)} are met."
    table = pages.table("what| at most:| measured:", missed)
    return f"{len(missed)} of {len(compared)} are not met:\n\n{table}"


def _costs(shown: Costs, bases: dict[str, str]) -> str:
    """Returns a table of calls, each compared with SET EX on a server with the same setup."""
    rows = []
    names = dict.fromkeys([*(call.name for call in ALL), *shown.pairs])
    # SET EX itself has rows only in the table with several setups.
    hidden = SCRIPTS if bases else {*SCRIPTS, SET_EX.name}
    for name in (name for name in names if name not in hidden):
        pair, base = shown.pairs.get(name), bases.get(name, SET_EX.name)
        if not (pair or name == base or name in shown.counts):
            continue
        row = [name]
        if shown.counts:
            count = shown.counts[name]
            row += [f"{count.least:,.0f}", f"{count.least / shown.counts[base].least:.2f}"]
            row.append(f"{count.code / 1000:.0f}")
        rows.append([*row, str(pair or ("1" if name == base else ""))])
    heads = "call| instructions:| x SET EX:| code, KB:" if shown.counts else "call"
    return pages.table(f"{heads}| server CPU time, x SET EX:", rows)


def _floors(results: Commands, instructions: dict[str, float]) -> str:
    rows = [
        [
            floor,
            f"{instructions[floor]:,.0f}",
            name,
            f"{instructions[name] - instructions[floor]:,.0f}",
        ]
        for floor, ours in results.floors.items()
        for name in ours
        if {floor, name} <= instructions.keys()
    ]
    return pages.table(
        "computes nothing| instructions:| a call that does all that| instructions more:", rows
    )


def _against_lua(instructions: dict[str, float], ratios: dict[str, float]) -> str:
    def times(figures: dict[str, float], ours: Call, lua: Call) -> str:
        is_known = {ours.name, lua.name} <= figures.keys()
        return f"{figures[lua.name] / figures[ours.name]:.1f}" if is_known else ""

    rows = [
        [ours.name, lua.name, times(instructions, ours, lua), times(ratios, ours, lua)]
        for ours, lua in AGAINST_LUA
    ]
    return pages.table("command| in Lua| x instructions:| x server CPU time:", rows)


def _valkey(results: Valkey) -> str:
    instructions = results.instructions
    rows = [
        [name, f"{count:,.0f}", f"{count / instructions[SET_EX.name]:.2f}"]
        for name, count in instructions.items()
    ]
    table = pages.table("call| instructions:| x SET EX:", rows)
    return pages.text("valkey", server=results.server, costs=table)


def _decisions(results: Decisions) -> str:
    max_clients = max(CLIENTS)
    rows = [
        [
            name,
            "1" if name == OURS else str(results.pairs[name, max_clients]),
            pages.number(results.calls[name, max_clients]),
            f"{results.granted[name]:,}",
        ]
        for name in APPROACHES
    ]
    heads = f"approach| server CPU time, x {OURS}:| Redis calls a decision:| let in:"
    return pages.text(
        "decisions",
        most=max_clients,
        clients=TIGHT_CLIENTS,
        capacity=TIGHT.capacity,
        refill=TIGHT.refill,
        seconds=TIGHT_SECONDS,
        table=pages.table(heads, rows),
    )


def _memory(results: Memory) -> str:
    states = results.ours | results.peers | results.others
    table = pages.table("state| bytes:", [[name, f"{size:,.0f}"] for name, size in states.items()])
    return pages.text("memory", keys=f"{results.keys:,}", states=table)


def _persistence(results: Persistence) -> str:
    rows = [[kind, str(pair)] for kind, pair in results.pairs.items()]
    sizes = [[name, f"{size:.0f}"] for name, size in results.aof_bytes.items()]
    return pages.text(
        "persistence",
        keys=f"{results.keys:,}",
        times=pages.table("what| server CPU time, x SET EX:", rows),
        bytes=pages.table("call| bytes of AOF a call:", sizes),
    )


def _growth(results: Growth) -> str:
    by_keys = [[f"{count:,}", str(pair)] for count, pair in results.by_keys.items()]
    sizes = sorted({size for _, size in results.by_size})
    by_size = [
        [f"{size:,}", *(str(results.by_size[name, size]) for name in growth.BY_SIZE)]
        for size in sizes
    ]
    heads = "| ".join(f"{head}:" for head in ("how many", *growth.BY_SIZE))
    return pages.text(
        "growth",
        pipeline=growth.BATCH,
        keys=pages.table(f"keys:| {growth.BUCKET}, x SET EX:", by_keys),
        sizes=pages.table(heads, by_size),
    )
