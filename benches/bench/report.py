"""docs/benchmarks.md: the texts of benches/text, filled with tables of what was measured."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from string import Template

from bench import goals, growth
from bench.approaches import APPROACHES
from bench.callgrind import PIPELINE
from bench.calls import ADMITTED, AGAINST_LUA, GET, INCR, LISTENED, OURS, SET_EX
from bench.commands import PIPELINES, Commands
from bench.decisions import CLIENTS, HOT, OWN, TIGHT, TIGHT_CLIENTS, TIGHT_SECONDS, Decisions
from bench.growth import Growth
from bench.memory import Memory
from bench.scale import Scale

TEXTS = Path(__file__).parents[1] / "text"


@dataclass
class Results:
    """Of every section that was measured."""

    decisions: Decisions | None = None
    commands: Commands | None = None
    memory: Memory | None = None
    growth: Growth | None = None


SECTIONS = [field.name for field in fields(Results)]


def write(server: str, scale: Scale, results: Results) -> str:
    parts = [
        _text("top", server=server, rounds=scale.rounds, pipeline=PIPELINE, goals=_goals(results))
    ]
    if results.decisions:
        parts.append(_decisions(results.decisions))
    if results.commands:
        parts.append(_commands(results.commands))
    if results.memory:
        parts.append(_memory(results.memory))
    if results.growth:
        parts.append(_growth(results.growth))
    return "\n".join([*parts, _text("again")])


def _text(name: str, **values: object) -> str:
    return Template((TEXTS / f"{name}.md").read_text()).substitute(values)


def _goals(results: Results) -> str:
    found = [
        *(goals.of_commands(results.commands) if results.commands else []),
        *(goals.of_memory(results.memory) if results.memory else []),
        *(goals.of_growth(results.growth) if results.growth else []),
    ]
    rows = [
        [one.what, one.goal, one.measured, "yes" if one.is_met else "**no**", one.at_best]
        for one in found
    ]
    heads = "what| goal| measured| met| if it computed nothing"
    return _table(heads, rows) if rows else "(None of them was measured.)"


def _decisions(found: Decisions) -> str:
    granted = [
        [
            name,
            f"{one.granted:,}",
            f"{one.at_most:,}",
            f"{one.asked:,}",
            _number(one.commands),
        ]
        for name, one in found.granted.items()
    ]
    return _text(
        "decisions",
        most=max(CLIENTS),
        hot=_decision_costs(found, HOT),
        own=_decision_costs(found, OWN),
        clients=TIGHT_CLIENTS,
        capacity=TIGHT.capacity,
        refill=TIGHT.refill,
        seconds=TIGHT_SECONDS,
        granted=_table(
            "approach| let in:| may pass:| decisions asked for:| Redis calls a decision:", granted
        ),
    )


def _decision_costs(found: Decisions, keys: str) -> str:
    rows = [
        [f"{clients}", approach, *map(_number, vars(found.costs[approach, keys, clients]).values())]
        for clients in CLIENTS
        for approach in APPROACHES
    ]
    return _table(
        "clients:| approach| microseconds a decision:| Redis calls a decision:| median, ms:"
        "| 99th percentile, ms:| server CPU, microseconds a decision:",
        rows,
    )


def _commands(found: Commands) -> str:
    names = [SET_EX.name, GET.name, INCR.name, *(call.name for call in OURS), *found.peers]
    # Pairs: the first is what the second is measured by.
    listened = [call.name for call in LISTENED]
    bases = [listened[number - number % 2] for number in range(len(listened))]
    speeds = [
        [name, *(f"{found.timed[name, many].calls_per_second:,.0f}" for many in PIPELINES)]
        for name in names
    ]
    return _text(
        "commands",
        costs=_costs(found, names, [SET_EX.name] * len(names)),
        speeds=_table("call" + "".join(f"| pipeline of {many}:" for many in PIPELINES), speeds),
        listened=_costs(found, listened, bases),
        floors=_floors(found),
        lua=_against_lua(found),
    )


def _costs(found: Commands, names: list[str], bases: list[str]) -> str:
    heads = "call"
    columns = []
    if found.instructions:
        heads += "| instructions:| x SET EX:"
        columns.append(found.instructions)
    for many in PIPELINES:
        heads += f"| server ns, pipeline of {many}:| x SET EX:"
        columns.append(found.server_ns(many))
    rows = []
    for name, base in zip(names, bases, strict=True):
        cells = [(f"{of[name]:,.0f}", f"{of[name] / of[base]:.2f}") for of in columns]
        rows.append([name, *(cell for pair in cells for cell in pair)])
    return _table(heads, rows)


def _floors(found: Commands) -> str:
    if not found.instructions:
        return "(Without valgrind there are no instructions to show.)"
    of = found.instructions
    rows = [
        [
            floor.call.name,
            f"{of[floor.call.name]:,.0f}",
            f"{of[floor.call.name] / of[SET_EX.name]:.2f}",
            ours.name,
            f"{of[ours.name]:,.0f}",
            f"{of[ours.name] - of[floor.call.name]:,.0f}",
        ]
        for floor in found.floors
        for ours in floor.ours
    ]
    return _table(
        "computes nothing| instructions:| x SET EX:| beside it| instructions:| the module's own:",
        rows,
    )


def _against_lua(found: Commands) -> str:
    heads = "command| in Lua"
    columns = []
    if found.instructions:
        heads += "| instructions:| in Lua:| Lua, times as many:"
        columns.append(found.instructions)
    heads += "| server ns, pipeline of 16:| in Lua:| Lua, times as long:"
    columns.append(found.server_ns(16))
    rows = []
    for ours, lua in AGAINST_LUA:
        pairs = [(of[ours.name], of[lua.name]) for of in columns]
        cells = [(f"{a:,.0f}", f"{b:,.0f}", f"{b / a:.1f}") for a, b in pairs]
        rows.append([ours.name, lua.name, *(cell for three in cells for cell in three)])
    return _table(heads, rows)


def _memory(found: Memory) -> str:
    states = found.ours | found.peers | found.others
    base = states[ADMITTED.name]
    rows = [[name, f"{value:,.0f}", f"{value / base:.2f}"] for name, value in states.items()]
    table = _table(f"state| bytes:| x {ADMITTED.name}:", rows)
    return _text("memory", keys=f"{found.keys:,}", states=table)


def _growth(found: Growth) -> str:
    by_keys = []
    for count in sorted({count for _, count in found.by_keys}):
        ours, base = (found.by_keys[name, count] for name in (growth.BUCKET, growth.SET_EX))
        by_keys.append([f"{count:,}", f"{ours:,.0f}", f"{base:,.0f}", f"{ours / base:.2f}"])
    kinds = (growth.LOG, growth.RENEWAL, growth.LEASE)
    by_size = [
        [f"{size:,}", *(f"{found.by_size[name, size]:,.0f}" for name in kinds)]
        for size in sorted({size for _, size in found.by_size})
    ]
    return _text(
        "growth",
        pipeline=growth.BATCH,
        keys=_table(f"keys:| {growth.BUCKET}:| {growth.SET_EX}:| x SET EX:", by_keys),
        sizes=_table("entries or leases:" + "".join(f"| {kind}:" for kind in kinds), by_size),
    )


def _table(heads: str, rows: Iterable[list[str]]) -> str:
    """`name| number:`: a column whose head ends in a colon is put to the right."""
    names = [head.strip() for head in heads.split("|")]
    marks = ["--:" if name.endswith(":") else ":--" for name in names]
    lines = [[name.removesuffix(":") for name in names], marks, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
