"""Chart of processes that take units in batches, by their demand."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.charts import BLUE, ORANGE, show_full_numbers
from bench.fleet import Figures, Fleet


def draw(path: Path, ratios: Sequence[float], lines: Mapping[Fleet, Sequence[Figures]]) -> None:
    """Draws calls and admitted units against the ratio of demand to limit."""
    figure = Figure(figsize=(10, 4.4))
    calls, admitted = figure.subplots(1, 2)
    for (fleet, runs), colour in zip(lines.items(), (BLUE, ORANGE), strict=True):
        name = f"{fleet.processes:,} processes, {fleet.limit:,} a second"
        style = {"color": colour, "marker": "o", "markersize": 4, "label": name}
        calls.plot(ratios, [run.calls_per_thousand_granted for run in runs], **style)
        admitted.plot(ratios, [run.admitted for run in runs], **style)
        calls.axhline(fleet.least_calls, color=colour, linestyle=":", linewidth=1.2)
    calls.set_yscale("log")
    calls.set_yticks([10, 20, 50, 100, 200, 500, 1000, 2000])
    show_full_numbers(calls.yaxis)
    calls.set_title("Calls a thousand granted units (dotted: the bound)", loc="left")
    admitted.set_ylim(0.9, 1.01)
    admitted.set_title("Admitted, of what one bucket would admit", loc="left")
    for axes in (calls, admitted):
        axes.set_xscale("log")
        axes.set_xticks([0.25, 0.5, 1, 2, 5, 10])
        show_full_numbers(axes.xaxis)
        axes.minorticks_off()
        axes.set_xlabel("demand, of the limit (log scale)")
    admitted.legend(loc="lower right")
    figure.suptitle("Units of one limit, taken in batches", x=0.01, ha="left")
    figure.text(0.01, 0.005, "Simulated, 0.5 ms away.", fontsize=8.5, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, metadata={"Date": None})
