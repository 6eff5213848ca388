"""docs/benchmarks.md: the texts of benches/text, filled with tables of what was measured."""

from dataclasses import dataclass, fields
from itertools import permutations

from bench import goals, growth, memory, openloop, pages, persistence
from bench.calls import (
    ADMITTED,
    AGAINST_LUA,
    DENIED,
    LISTENED,
    LUA_BUCKET,
    SET_EX,
)
from bench.commands import PIPELINES, Commands
from bench.decisions import (
    APPROACHES,
    CLIENTS,
    HOT,
    TIGHT,
    TIGHT_CLIENTS,
    TIGHT_SECONDS,
    Decisions,
)
from bench.growth import Growth
from bench.load import CONNECTIONS
from bench.memory import Memory
from bench.openloop import OpenLoop
from bench.persistence import Persistence
from bench.scale import Scale
from bench.valgrind import PIPELINE
from bench.valkey import Valkey

# What is said first.
HEADLINE = [ADMITTED, DENIED, LUA_BUCKET]
# Of what is not ours, which rows the table of memory has; the chart beside it has all.
BESIDE_OURS = [memory.STRING, memory.LUA_BUCKET.name]


@dataclass
class Results:
    """Of every section that was measured."""

    commands: Commands | None = None
    valkey: Valkey | None = None
    openloop: OpenLoop | None = None
    decisions: Decisions | None = None
    memory: Memory | None = None
    persistence: Persistence | None = None
    growth: Growth | None = None


SECTIONS = [field.name for field in fields(Results)]


def write(server: str, scale: Scale, results: Results, load: float) -> str:
    """`load` is how many other programs were at work when it began."""
    headline = _headline(results.commands) if results.commands else ""
    timed = pages.text("paired" if _is_paired(results.commands) else "medians", rounds=scale.rounds)
    top = {"server": server, "headline": headline, "timed": timed.strip(), "busy": pages.busy(load)}
    parts = [pages.text("top", **top)]
    if results.commands:
        parts.append(_commands(results.commands))
    if results.valkey:
        parts.append(_valkey(results.valkey))
    if results.openloop:
        parts.append(_openloop(results.openloop, scale))
    if results.decisions:
        parts.append(_decisions(results.decisions))
    if results.memory:
        parts.append(_memory(results.memory))
    if results.persistence:
        parts.append(_persistence(results.persistence))
    if results.growth:
        parts.append(_growth(results.growth))
    return "\n".join([*parts, pages.text("again"), pages.text("goals", **_goals(results))])


def _is_paired(found: Commands | None) -> bool:
    """Whether each call was measured between two runs of SET EX, as all are since that is done."""
    return found is None or bool(found.beside(PIPELINE))


@dataclass(frozen=True)
class Contradiction:
    """Two figures of a run that cannot both be: whoever reads them learns of the machine's noise,
    not of the calls.
    """

    # Whose times are to be measured again.
    calls: frozenset[str]
    text: str

    def __str__(self) -> str:
        return self.text


def contradictions(found: Commands) -> list[Contradiction]:
    """Times that cannot be: of a call that takes far fewer instructions than one that is shown
    beside it, and more time; or that are farther from the pairs than these from each other.
    """
    of = found.instructions
    return _outside_of_the_pairs(found) + [
        Contradiction(
            frozenset({fewer, more}),
            f"{fewer} takes {of[fewer] / of[more]:.2f} times the instructions of {more}, "
            f"and {times[fewer] / times[more]:.2f} times its time, in pipelines of {many}",
        )
        for many in TOLD_APART
        for times in [found.server_ns(many)]
        for fewer, more in permutations(times, 2)
        if of and (fewer in LISTENERS) == (more in LISTENERS)
        if of[fewer] < FAR_FEWER * of[more] and times[fewer] > MORE_TIME * times[more]
    ]


def _outside_of_the_pairs(found: Commands) -> list[Contradiction]:
    """Calls of which the two times that are shown have another ratio than the pairs, by more than
    their spread: the times are not of one machine at one speed.
    """
    return [
        Contradiction(
            frozenset({name}),
            f"{name} takes {ratio:.2f} times the time of {base}, "
            f"and {beside.least:.2f} to {beside.most:.2f} times in pairs, in pipelines of {many}",
        )
        for many in TOLD_APART
        for times in [found.server_ns(many)]
        for name, beside in found.beside(many).items()
        for base in [next((base for base in BASES if name in BASES[base]), SET_EX.name)]
        for ratio in [times[name] / times[base]]
        if not beside.has(ratio)
    ]


# They have a table of their own.
LISTENERS = {call.name for call in LISTENED}
# What SET EX is measured beside, on a server of other settings, by its name there.
BASES: dict[str, set[str]] = {}
for _call in LISTENED:
    BASES.setdefault(SET_EX.on(_call.setup).name, set()).add(_call.name)
# One at a time, a call is mostly the reading and writing of its connection, and chance: that time
# says nothing.
TOLD_APART = [many for many in PIPELINES if many > 1]
FAR_FEWER, MORE_TIME = 0.6, 1.15


def _headline(found: Commands) -> str:
    """How many times the instructions of SET EX the decisions take that everybody asks about."""
    of = found.instructions
    if not of:
        return ""
    names = [*(call.name for call in HEADLINE), *found.peers]
    told = ", ".join(f"{of[name] / of[SET_EX.name]:.2f} ({name})" for name in names)
    return (
        f" A decision takes this multiple of the instructions of `SET string value EX 60`: {told}."
    )


def _goals(results: Results) -> dict[str, str]:
    found = [
        *(goals.of_commands(results.commands) if results.commands else []),
        *(goals.of_valkey(results.valkey) if results.valkey else []),
        *(goals.of_memory(results.memory) if results.memory else []),
        *(goals.of_persistence(results.persistence) if results.persistence else []),
        *(goals.of_aof(results.persistence) if results.persistence else []),
        *(goals.of_growth(results.growth) if results.growth else []),
    ]
    missed = [[one.what, one.goal, one.measured] for one in found if not one.is_met]
    if not missed:
        return {"goals": f"All {len(found)} are met."}
    table = pages.table("what| at most:| measured:", missed)
    return {"goals": f"{len(missed)} of {len(found)} goals are not met:\n\n{table}"}


def _openloop(found: OpenLoop, scale: Scale) -> str:
    def told(call: str, rate: int) -> str:
        return ", ".join(pages.number(found.latencies[call, rate, part]) for part in openloop.PARTS)

    rows = [
        [f"{rate:,}", *(told(call.name, rate) for call in openloop.CALLS)]
        for rate in (openloop.RATES[0], openloop.RATES[-1])
    ]
    heads = "requests a second:" + "".join(f"| {call.name}:" for call in openloop.CALLS)
    return pages.text(
        "openloop",
        connections=CONNECTIONS,
        seconds=f"{scale.open_seconds:g}",
        latencies=pages.table(heads, rows),
    )


def _persistence(found: Persistence) -> str:
    rows = []
    for kind in (persistence.RELOAD, persistence.REWRITE):
        base, ours = (found.seconds[kind, name] for name in persistence.KEYS)
        rows.append([kind, f"{base:.2f}", f"{ours:.2f}", f"{ours / base:.2f}"])
    heads = f"what| {persistence.SET_EX}, s:| {persistence.BUCKET}, s:| x {persistence.SET_EX}:"
    text = pages.text("persistence", keys=f"{found.keys:,}", seconds=pages.table(heads, rows))
    if not found.aof_bytes:
        return text
    sizes = [[name, f"{size:.0f}"] for name, size in found.aof_bytes.items()]
    return text + pages.text("aof", bytes=pages.table("call| bytes of AOF a call:", sizes))


def _decisions(found: Decisions) -> str:
    return pages.text(
        "decisions",
        most=max(CLIENTS),
        hot=_decision_costs(found, HOT),
        clients=TIGHT_CLIENTS,
        capacity=TIGHT.capacity,
        refill=TIGHT.refill,
        seconds=TIGHT_SECONDS,
        most_granted=f"{max(one.granted for one in found.granted.values()):,}",
    )


def _decision_costs(found: Decisions, keys: str) -> str:
    rows = [
        [
            approach,
            *map(pages.number, (cost.microseconds, cost.commands, cost.median_ms, cost.p99_ms)),
        ]
        for approach in APPROACHES
        for cost in [found.costs[approach, keys, CLIENTS[-1]]]
    ]
    return pages.table(
        "approach| microseconds a decision:| Redis calls a decision:| median, ms:"
        "| 99th percentile, ms:",
        rows,
    )


def _commands(found: Commands) -> str:
    names = found.names
    listened = [call.name for call in LISTENED]
    # Each beside SET EX under its own conditions.
    bases = [SET_EX.on(call.setup).name for call in LISTENED]
    return pages.text(
        "commands",
        connections=CONNECTIONS,
        pipeline=PIPELINE,
        costs=_beside_set_ex(found, names, [SET_EX.name] * len(names)),
        listened=_beside_set_ex(found, listened, bases),
        floors=_floors(found),
        lua=_against_lua(found),
    )


def _beside_set_ex(found: Commands, names: list[str], bases: list[str]) -> str:
    """A row for each call, with multiples of SET EX: of times, the median of the pairs."""
    heads, rows = "call", [[name] for name in names]
    if of := found.instructions:
        heads += f"| instructions:| x {SET_EX.name}:"
        for row, base in zip(rows, bases, strict=True):
            (name,) = row
            row += [f"{of[name]:,.0f}", f"{of[name] / of[base]:.2f}"]
    heads += f"| server CPU time, ns:| x {SET_EX.name}:"
    times, beside = found.server_ns(PIPELINE), found.beside(PIPELINE)
    for row, base in zip(rows, bases, strict=True):
        name = row[0]
        pairs = beside.get(name)
        ratio = f"{times[name] / times[base]:.2f}"
        if pairs:
            ratio = f"{pairs.median:.2f} ({pairs.least:.2f}-{pairs.most:.2f})"
        row += [f"{times[name]:,.0f}", ratio]
    return pages.table(heads, rows)


def _floors(found: Commands) -> str:
    if not found.instructions:
        return "(Without valgrind there are no instructions to show.)"
    of = found.instructions
    rows = [
        [
            floor,
            f"{of[floor]:,.0f}",
            name,
            f"{of[name] - of[floor]:,.0f}",
        ]
        for floor, ours in found.floors.items()
        for name in ours
    ]
    return pages.table(
        "computes nothing| instructions:| a call that does all that| instructions more:",
        rows,
    )


def _valkey(found: Valkey) -> str:
    of = found.instructions
    rows = [[name, f"{count:,.0f}", f"{count / of[SET_EX.name]:.2f}"] for name, count in of.items()]
    table = pages.table(f"call| instructions:| x {SET_EX.name}:", rows)
    return pages.text("valkey", server=found.server, costs=table)


def _against_lua(found: Commands) -> str:
    heads = "command| in Lua"
    columns = []
    if found.instructions:
        heads += "| instructions:"
        columns.append(found.instructions)
    heads += "| server CPU time, ns:"
    columns.append(found.server_ns(PIPELINE))
    rows = [
        [ours.name, lua.name, *(f"{of[lua.name]:,.0f}" for of in columns)]
        for ours, lua in AGAINST_LUA
    ]
    return pages.table(heads, rows)


def _memory(found: Memory) -> str:
    others = {name: found.others[name] for name in BESIDE_OURS}
    states = found.ours | found.peers | others
    table = pages.table("state| bytes:", [[name, f"{size:,.0f}"] for name, size in states.items()])
    return pages.text("memory", keys=f"{found.keys:,}", states=table)


def _told(counts: set[int]) -> list[int]:
    """Those that have a row: which a goal names. The chart has the others."""
    return sorted(counts & {min(counts), goals.MANY, max(counts)})


def _growth(found: Growth) -> str:
    by_keys = []
    for count in _told({count for _, count in found.by_keys}):
        ours, base = (found.by_keys[name, count] for name in (growth.BUCKET, growth.SET_EX))
        by_keys.append([f"{count:,}", f"{ours:,.0f}", f"{base:,.0f}", f"{ours / base:.2f}"])
    by_size = [
        [f"{size:,}", *(f"{found.by_size[name, size]:,.0f}" for name in growth.BY_SIZE)]
        for size in _told({size for _, size in found.by_size})
    ]
    return pages.text(
        "growth",
        pipeline=growth.BATCH,
        keys=pages.table(f"keys:| {growth.BUCKET}:| {growth.SET_EX}:| x SET EX:", by_keys),
        sizes=pages.table(
            "| ".join(
                f"{head}:" for head in ("entries, leases or idempotency keys", *growth.BY_SIZE)
            ),
            by_size,
        ),
    )
