"""Draws offered and admitted requests, latency and scale of the simulation over time.

    python chart.py controller.svg

`make demo` in the repository runs it, because it needs matplotlib.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from simulation import (
    END,
    SLOW_FROM,
    SLOW_UNTIL,
    TARGET_MS,
    Second,
    capacity,
    server_with_clock,
    simulate_all,
)

mpl.rcParams |= {
    # Constant, so that two runs write the same bytes.
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

# Colours of Okabe and Ito, which colour-blind readers can distinguish.
BLUE, ORANGE, GREEN, GREY, BLACK = "#0072B2", "#E69F00", "#009E73", "#888888", "#000000"


def draw(runs: dict[str, list[Second]], server: str, path: Path) -> None:
    figure = Figure(figsize=(12, 7), layout="constrained")
    rows = figure.subplots(3, len(runs), sharex=True, sharey="row", height_ratios=[3, 3, 2])
    for (name, seconds), column in zip(runs.items(), zip(*rows, strict=True), strict=True):
        column[0].set_title(name, loc="left", fontweight="bold")
        draw_run(seconds, *column)
    for axes, label in zip(
        rows[:, 0], ("requests a second", "p99, milliseconds\n(log scale)", "scale"), strict=True
    ):
        axes.set_ylabel(label)
    # Below the panels, because lines cross every corner of them.
    handles = [line for axes in rows[:2, 0] for line in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower right", ncols=len(handles), fontsize=9)
    for axes in rows[-1]:
        axes.set_xlabel("seconds")
    figure.suptitle(
        "A policy scaled by its backend's latency, while the backend is slow (shaded)",
        x=0.01, ha="left",
    )  # fmt: skip
    figure.text(0.01, -0.03, f"{server}; its clock moved by the script, the backend simulated.",
                fontsize=8.5, color="#555555")  # fmt: skip
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def draw_run(seconds: list[Second], rates: Axes, latency: Axes, scale: Axes) -> None:
    times = [second.at for second in seconds]
    for axes in (rates, latency, scale):
        axes.axvspan(SLOW_FROM, SLOW_UNTIL, color=GREY, alpha=0.15, linewidth=0)
        axes.set_xlim(0, END)
    capacity_times = [at / 10 for at in range(END * 10)]
    rates.plot(capacity_times, [capacity(at) for at in capacity_times], color=BLACK, linestyle="--",
               linewidth=1.2, label="what the backend can do")  # fmt: skip
    # Wider than the admitted line, which covers it while nothing is denied.
    rates.plot(times, [second.offered for second in seconds], color=GREY, linewidth=4, alpha=0.5,
               solid_joinstyle="round", label="offered")  # fmt: skip
    rates.plot(times, [second.admitted for second in seconds], color=BLUE, label="admitted")
    rates.set_ylim(bottom=0)
    latency.plot(times, [second.p99_ms for second in seconds], color=ORANGE, label="p99")
    latency.axhline(TARGET_MS, color=BLACK, linestyle=":", linewidth=1.4, label="target")
    latency.set_yscale("log")
    latency.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    latency.minorticks_off()
    scale.plot(times, [second.scale for second in seconds], color=GREEN, drawstyle="steps-post")
    scale.set_ylim(0, 1.08)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path, help="an SVG or PNG file")
    picture = parser.parse_args().picture
    with server_with_clock() as (server, clock), server.client() as redis:
        draw(simulate_all(redis, clock), server.binary.name, picture)
    print(f"the picture: {picture}")


if __name__ == "__main__":
    main()
