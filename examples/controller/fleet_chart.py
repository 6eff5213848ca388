"""Draws a fleet of a hundred workers whose upstream has half the capacity for a while: answered and
refused requests, and the scale of the fleet's policy.

    python fleet_chart.py fleet.svg

`make demo` in the repository runs it, because it needs matplotlib.
"""

import argparse
from pathlib import Path

from chart import BLACK, BLUE, GREEN, GREY, ORANGE
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from simulation import server_with_clock

from support.clock import START_US
from support.fleet import (
    CAPACITY,
    END,
    HALF_FROM,
    HALF_UNTIL,
    POLICY,
    RUNS,
    SECOND,
    WORKERS,
    Tally,
    capacity,
    simulate,
)


def draw(runs: dict[str, list[Tally]], server: str, path: Path) -> None:
    figure = Figure(figsize=(12, 6), layout="constrained")
    rows = figure.subplots(2, len(runs), sharex=True, sharey="row", height_ratios=[3, 2])
    for (title, tallies), column in zip(runs.items(), zip(*rows, strict=True), strict=True):
        column[0].set_title(title, loc="left", fontweight="bold")
        draw_run(tallies, *column)
    for axes, label in zip(rows[:, 0], ("requests a second", "scale"), strict=True):
        axes.set_ylabel(label)
    handles = rows[0, 0].get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside lower right", ncols=len(handles), fontsize=9)
    for axes in rows[-1]:
        axes.set_xlabel("seconds")
    figure.suptitle(
        f"{WORKERS} workers, one policy, and an upstream that can do half as much for a while "
        "(shaded)",
        x=0.01, ha="left",
    )  # fmt: skip
    figure.text(0.01, -0.03, f"{server}; its clock moved by the script, the upstream simulated.",
                fontsize=8.5, color="#555555")  # fmt: skip
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def draw_run(tallies: list[Tally], rates: Axes, scale: Axes) -> None:
    for axes in (rates, scale):
        axes.axvspan(HALF_FROM, HALF_UNTIL, color=GREY, alpha=0.15, linewidth=0)
        axes.set_xlim(0, END)
    capacity_times = [at / 10 for at in range(END * 10)]
    rates.plot(capacity_times, [capacity(round(at * SECOND)) for at in capacity_times], color=BLACK,
               linestyle="--", linewidth=1.2, label="what the upstream can do")  # fmt: skip
    times = [tally.at for tally in tallies]
    rates.plot(times, [tally.answered for tally in tallies], color=BLUE, label="answered")
    rates.plot(times, [tally.refused for tally in tallies], color=ORANGE, label="refused (429)")
    rates.set_ylim(0, 1.15 * CAPACITY)
    scale.plot(times, [tally.scale for tally in tallies], color=GREEN, drawstyle="steps-post")
    scale.set_ylim(0, 1.08)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path, help="an SVG or PNG file")
    picture = parser.parse_args().picture
    runs = {}
    with server_with_clock() as (server, clock), server.client() as redis:
        for title in RUNS:
            redis.flushall()
            redis.execute_command("RL.POLICYDEL", POLICY)
            clock.reset()
            runs[title] = simulate(redis, [redis], lambda us: clock.set(START_US + us), title=title)
        draw(runs, server.binary.name, picture)
    print(f"the picture: {picture}")


if __name__ == "__main__":
    main()
