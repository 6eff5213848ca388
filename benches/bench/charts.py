"""Charts as SVG. The same measurements give the same bytes."""

from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.decisions import APPROACHES, CLIENTS, OURS, Decisions
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

# Colours of Okabe and Ito, which colour-blind readers can distinguish. The module is always blue.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
COLOURS = dict(zip(APPROACHES, (BLUE, ORANGE, GREEN, PURPLE), strict=True))
MARKERS = dict(zip(APPROACHES, "osD^", strict=True))
# A line that is covered by another line is wider, so that it stays visible.
WIDTHS = (4.5, 2, 2.4, 1)


class Charts:
    """Folder of the charts, and the server that they name."""

    def __init__(self, folder: Path, server: str) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._server = server

    def _save(self, figure: Figure, name: str, title: str, bottom: float = 0.03) -> None:
        """Saves a figure. `bottom` is the share of the height that is kept free for the note."""
        figure.suptitle(title, x=0.01, ha="left")
        note = f"{self._server}, all measured in one run. Ratios count, not absolute times."
        figure.text(0.01, 0.005, note, fontsize=8.5, color="#555555")
        figure.tight_layout(rect=(0, bottom, 1, 1))
        figure.savefig(self._folder / f"{name}.svg", metadata={"Date": None})

    def draw_decisions(self, results: Decisions) -> None:
        ratios = {key: pair.ratio for key, pair in results.pairs.items()}
        ratios |= {(OURS, clients): 1.0 for clients in CLIENTS}
        figure = Figure(figsize=(10, 4.4))
        panels = figure.subplots(1, 2)
        titles = {f"server CPU time, x {OURS}": ratios, "Redis calls": results.calls}
        for axes, (title, figures) in zip(panels, titles.items(), strict=True):
            for approach, width in zip(APPROACHES, WIDTHS, strict=True):
                axes.plot(
                    CLIENTS,
                    [figures[approach, clients] for clients in CLIENTS],
                    color=COLOURS[approach],
                    marker=MARKERS[approach],
                    linewidth=width,
                    markersize=4 + 1.5 * width,
                    label=approach,
                )
            axes.set_title(title, loc="left")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(CLIENTS)
            show_full_numbers(axes.xaxis)
            show_full_numbers(axes.yaxis)
            axes.minorticks_off()
            axes.set_xlabel("clients (log scale)")
        panels[0].legend()
        self._save(figure, "decisions", "A decision, by how many clients ask at once")

    def draw_waiting(self, results: Waiting) -> None:
        figure = Figure(figsize=(10, 7.2))
        (use, calls), (waits, jobs) = figure.subplots(2, 2)
        colours = dict(zip(WAYS, (BLUE, GREEN, PURPLE, ORANGE), strict=True))
        ways = {name: run.way for name, run in results.runs.items()}
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
        for name, run in results.runs.items():
            style = {"color": colours[name], "label": name}
            # Waits below 0.1 ms are shown as 0.1 ms on the log scale.
            waits.plot([max(wait, 0.1) for wait in run.waits], SHARES, **style)
            jobs.plot(range(1, len(run.jobs) + 1), run.jobs, **style)
        waits.set_xscale("log")
        show_full_numbers(waits.xaxis)
        waits.set_title("How long it takes to be served", loc="left")
        waits.set_xlabel("milliseconds (log scale)")
        waits.set_ylabel("% are served within it")
        jobs.set_title("Jobs of each worker", loc="left")
        jobs.set_xlabel("workers, by how many jobs they got")
        jobs.set_ylabel("jobs")
        jobs.set_ylim(bottom=0)
        # The legend is below the panels, because lines cross every corner of the panels.
        figure.legend(
            *jobs.get_legend_handles_labels(),
            loc="lower center",
            bbox_to_anchor=(0.5, 0.03),
            ncols=len(ways),
        )
        title = f"{WORKERS} workers on a pool of {PLACES}, jobs of {JOB_MS} ms"
        self._save(figure, "waiting", title, bottom=0.07)


def _bars(
    axes: Axes,
    bars: Iterable[tuple[str, float, str]],
    colours: list[str],
) -> None:
    """Draws bars from top to bottom, each with its label."""
    names, values, labels = zip(*bars, strict=True)
    drawn = axes.barh(names, values, color=colours, height=0.75)
    axes.bar_label(drawn, labels, padding=5, bbox={"fc": "white", "ec": "none", "pad": 0.6})
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    axes.margins(x=0.12)


def show_full_numbers(axis: mpl.axis.Axis) -> None:
    """Formats numbers in full, not as powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
