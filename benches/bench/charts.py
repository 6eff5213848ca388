"""The charts, as SVG. The same measurements give the same bytes."""

from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter

from bench import growth, openloop
from bench.calls import ADMITTED, AGAINST_LUA, LUA_BUCKET, SET_EX
from bench.commands import Commands
from bench.decisions import (
    APPROACHES,
    CLIENTS,
    HOT,
    OWN,
    TIGHT,
    TIGHT_CLIENTS,
    TIGHT_SECONDS,
    Cost,
    Decisions,
)
from bench.growth import Growth
from bench.memory import Memory
from bench.openloop import OpenLoop
from bench.valgrind import PIPELINE
from bench.waiting import JOB_MS, PLACES, SHARES, WAYS, WORKERS, Waiting

mpl.rcParams |= {
    "svg.hashsalt": "redis-ratelimit",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "figure.titlesize": 13,
}

# Okabe and Ito's, which the colour-blind can tell apart. Ours is always blue, SET EX always grey.
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#888888"
COLOURS = dict(zip(APPROACHES, (BLUE, ORANGE, GREEN, PURPLE), strict=True))
STYLES = ((GREEN, "D"), (BLUE, "o"), (PURPLE, "^"), (ORANGE, "s"), (GREY, "v"))
MARKERS = dict(zip(APPROACHES, "osD^", strict=True))
# A line that another one lies on is wider than that, so that it is seen beneath.
WIDTHS = (4.5, 2, 2.4, 1)


class Charts:
    """Where they go, and what they say they were measured on."""

    def __init__(self, folder: Path, server: str) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._server = server

    def _save(self, figure: Figure, name: str, title: str, bottom: float = 0.03) -> None:
        """`bottom` is left free, of the height, for the note and what stands above it."""
        figure.suptitle(title, x=0.01, ha="left")
        note = f"{self._server}, all measured in one run. Ratios count, not absolute times."
        figure.text(0.01, 0.005, note, fontsize=8.5, color="#555555")
        figure.tight_layout(rect=(0, bottom, 1, 1))
        figure.savefig(self._folder / f"{name}.svg", metadata={"Date": None})

    def decisions(self, found: Decisions) -> None:
        self._by_clients(
            found,
            "decision-time",
            "Time a decision, by how many clients ask at once",
            "microseconds a decision",
            lambda cost: cost.microseconds,
        )
        self._by_clients(
            found,
            "decision-calls",
            "Redis calls a decision, retries included",
            "Redis calls a decision",
            lambda cost: cost.commands,
        )
        self._by_clients(
            found,
            "decision-p99",
            "How long the slowest hundredth of decisions takes (99th percentile)",
            "milliseconds",
            lambda cost: cost.p99_ms,
        )
        figure = Figure(figsize=(9, 3.2))
        axes = figure.subplots()
        granted = found.granted
        _bars(
            axes,
            [(name, one.granted, f"{one.granted:,}") for name, one in granted.items()],
            list(COLOURS.values()),
        )
        at_most = TIGHT.at_most(TIGHT_SECONDS)
        axes.axvline(at_most, color="black", linestyle="--", linewidth=1.2)
        _plain(axes.xaxis)
        axes.set_xlabel(f"requests let in; dashed: the {at_most} that the limit allows")
        self._save(
            figure,
            "over-grant",
            f"What {TIGHT_CLIENTS} clients get out of one bucket in {TIGHT_SECONDS} seconds: "
            f"burst {TIGHT.capacity}, {TIGHT.refill} a second",
        )

    def _by_clients(
        self,
        found: Decisions,
        name: str,
        title: str,
        unit: str,
        of: Callable[[Cost], float],
    ) -> None:
        figure = Figure(figsize=(10, 4.4))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, keys in zip(panels, (HOT, OWN), strict=True):
            for approach, width in zip(APPROACHES, WIDTHS, strict=True):
                values = [of(found.costs[approach, keys, clients]) for clients in CLIENTS]
                axes.plot(
                    CLIENTS,
                    values,
                    color=COLOURS[approach],
                    marker=MARKERS[approach],
                    linewidth=width,
                    markersize=4 + 1.5 * width,
                    label=approach,
                )
            axes.set_title(keys, loc="left")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(CLIENTS)
            _plain(axes.xaxis)
            _plain(axes.yaxis)
            axes.minorticks_off()
            axes.set_xlabel("clients (log scale)")
        panels[0].set_ylabel(f"{unit} (log scale)")
        panels[0].legend()
        self._save(figure, name, title)

    def commands(self, found: Commands) -> None:
        self._both(
            found,
            "commands",
            "What a call costs the server, beside SET EX",
            [(name, name, SET_EX.name) for name in found.names],
            "a call, as a multiple of SET EX (dashed)",
        )

    def against_lua(self, found: Commands) -> None:
        self._both(
            found,
            "lua",
            "A limit in Lua beside the same as a command",
            [(f"{lua.name}\n/ {ours.name}", lua.name, ours.name) for ours, lua in AGAINST_LUA],
            "a decision in Lua, as a multiple of the command's (dashed)",
        )

    def _both(
        self,
        found: Commands,
        name: str,
        title: str,
        pairs: list[tuple[str, str, str]],
        label: str,
    ) -> None:
        """Instructions and time side by side: of the second as a multiple of the third."""
        measures = [(f"server CPU time, pipeline of {PIPELINE}", found.server_ns(PIPELINE), ORANGE)]
        if found.instructions:
            measures.insert(0, ("instructions", found.instructions, BLUE))
        figure = Figure(figsize=(9, 1.5 + 0.42 * len(pairs)))
        axes = figure.subplots()
        height = 0.8 / len(measures)
        for number, (what, of, colour) in enumerate(measures):
            ratios = [of[call] / of[to] for _, call, to in pairs]
            places = [place + (number - 0.5) * height for place in range(len(pairs))]
            drawn = axes.barh(places, ratios, height=height, color=colour, label=what)
            # The box keeps the dashed line out of the number.
            box = {"fc": "white", "ec": "none", "pad": 0.3}
            labels = [f"{ratio:.2f}" for ratio in ratios]
            axes.bar_label(drawn, labels, padding=4, fontsize=8, bbox=box, zorder=3)
        axes.set_yticks(range(len(pairs)), [head for head, _, _ in pairs])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
        axes.margins(x=0.12, y=0.01)
        axes.axvline(1, color="black", linestyle="--", linewidth=1.2)
        axes.set_xlabel(label)
        # Above the bars, whatever their length.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(measures), borderaxespad=0.2)
        self._save(figure, name, title)

    def openloop(self, found: OpenLoop) -> None:
        figure = Figure(figsize=(10, 4.4))
        panels = figure.subplots(1, 2, sharey=True)
        styles = {SET_EX: (GREY, "s"), ADMITTED: (BLUE, "o"), LUA_BUCKET: (ORANGE, "D")}
        titles = {"p50_ms": "median", "p99_ms": "99 of 100 are faster"}
        for axes, (part, title) in zip(panels, titles.items(), strict=True):
            for (call, (colour, marker)), width in zip(styles.items(), WIDTHS[:3], strict=True):
                values = [found.latencies[call.name, rate, part] for rate in openloop.RATES]
                axes.plot(
                    openloop.RATES,
                    values,
                    color=colour,
                    marker=marker,
                    linewidth=width,
                    markersize=4 + 1.5 * width,
                    label=call.name,
                )
            axes.set_title(title, loc="left")
            axes.set_yscale("log")
            _plain(axes.xaxis)
            _plain(axes.yaxis)
            axes.set_xlabel("requests a second")
        panels[0].set_ylabel("milliseconds (log scale)")
        panels[0].legend()
        self._save(figure, "latency", "How long a reply takes, at a steady rate of requests")

    def memory(self, found: Memory) -> None:
        groups = ((found.ours, BLUE), (found.peers, ORANGE), (found.others, GREY))
        bars = [
            (name, value, f"{value:,.0f}") for group, _ in groups for name, value in group.items()
        ]
        colours = [colour for group, colour in groups for _ in group]
        figure = Figure(figsize=(9, 5.2))
        axes = figure.subplots()
        _bars(axes, bars, colours)
        _plain(axes.xaxis)
        axes.set_xlabel("bytes for one user, key name and expiry included")
        self._save(figure, "memory", f"Memory for one user, with {found.keys:,} of them")

    def growth(self, found: Growth) -> None:
        figure = Figure(figsize=(10, 4.4))
        left, right = figure.subplots(1, 2)
        _lines(
            left,
            found.by_keys,
            {growth.BUCKET: (BLUE, "o"), growth.SET_EX: (GREY, "s")},
            "calls on random keys",
            "keys (log scale)",
        )
        _lines(
            right,
            found.by_size,
            dict(zip(growth.BY_SIZE, STYLES, strict=True)),
            "calls on one key",
            "entries, leases or idempotency keys (log scale)",
        )
        left.set_ylabel("server CPU, nanoseconds")
        self._save(figure, "growth", "What a call costs the server as the data grows")

    def waiting(self, found: Waiting) -> None:
        figure = Figure(figsize=(10, 7.2))
        (use, calls), (waits, jobs) = figure.subplots(2, 2)
        colours = dict(zip(WAYS, (BLUE, GREEN, PURPLE, ORANGE), strict=True))
        ways = {name: run.way for name, run in found.runs.items()}
        shades = list(colours.values())
        bars = [(name, way.in_use * 100, f"{way.in_use:.0%}") for name, way in ways.items()]
        _bars(use, bars, shades)
        use.set_title("How full the pool is", loc="left")
        use.set_xlabel("of the time of all places, what went into jobs, in %")
        bars = [(name, way.calls_per_job, f"{way.calls_per_job:.1f}") for name, way in ways.items()]
        _bars(calls, bars, shades)
        calls.set_title("Calls a job", loc="left")
        calls.set_yticklabels([])
        calls.set_xlabel("to get a place and to give it back")
        for name, run in found.runs.items():
            style = {"color": colours[name], "label": name}
            # Some have a place within less than a log scale is to show.
            waits.plot([max(wait, 0.1) for wait in run.waits], SHARES, **style)
            jobs.plot(range(1, len(run.jobs) + 1), run.jobs, **style)
        waits.set_xscale("log")
        _plain(waits.xaxis)
        waits.set_title("How long it takes to be served", loc="left")
        waits.set_xlabel("milliseconds (log scale)")
        waits.set_ylabel("% are served within it")
        jobs.set_title("Jobs of each worker", loc="left")
        jobs.set_xlabel("workers, by how many jobs they got")
        jobs.set_ylabel("jobs")
        jobs.set_ylim(bottom=0)
        # Below both, as in each corner of a panel there is a line.
        figure.legend(
            *jobs.get_legend_handles_labels(),
            loc="lower center",
            bbox_to_anchor=(0.5, 0.03),
            ncols=len(ways),
        )
        title = f"{WORKERS} workers on a pool of {PLACES}, jobs of {JOB_MS} ms"
        self._save(figure, "waiting", title, bottom=0.07)


def _lines(
    axes: Axes,
    found: dict[tuple[str, int], float],
    styles: dict[str, tuple[str, str]],
    title: str,
    label: str,
) -> None:
    for name, (colour, marker) in styles.items():
        points = [(count, value) for (of, count), value in found.items() if of == name]
        axes.plot(*zip(*points, strict=True), color=colour, marker=marker, label=name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left")
    axes.set_xlabel(label)
    # 100k, 10M: there is no room for the noughts.
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _plain(axes.yaxis)
    axes.minorticks_off()
    axes.legend()


def _bars(
    axes: Axes,
    bars: Iterable[tuple[str, float, str]],
    colours: list[str],
) -> None:
    """From top to bottom, each with its number beside it."""
    names, values, labels = zip(*bars, strict=True)
    drawn = axes.barh(names, values, color=colours, height=0.75)
    axes.bar_label(drawn, labels, padding=5, bbox={"fc": "white", "ec": "none", "pad": 0.6})
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    axes.margins(x=0.12)


def _plain(axis: mpl.axis.Axis) -> None:
    """Numbers as people write them, not powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
