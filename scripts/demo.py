"""Draws six algorithms under the same bursty traffic, on a real server.

The script moves the server's clock, so that a minute takes a second or two and every run draws the
same picture.
"""

import argparse
import random
import sys
import tempfile
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from redis import Redis
from tqdm import tqdm

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support import binaries  # noqa: E402
from support.clock import UNITS_US, Clock, build_library  # noqa: E402
from support.server import Server  # noqa: E402

LIMIT, WINDOW, END = 10, 10.0, 60.0

# Number of intervals between samples of the remaining units. Each call is followed by another one.
SAMPLES = 300

# Colours of Wong, which readers with any colour vision can distinguish.
GREEN, RED, BLUE, GREY = "#009e73", "#d55e00", "#0072b2", "#999999"


@dataclass
class Lane:
    """Algorithm with the results of its calls. Times are in seconds."""

    title: str
    lesson: str
    command: tuple[str | int, ...]
    # Times at which admitted calls may act, and at which denied calls were made.
    admitted: list[float] = field(default_factory=list)
    denied: list[float] = field(default_factory=list)
    # Pairs of a time and the amount that remains then.
    remaining: list[tuple[float, int]] = field(default_factory=list)

    @property
    def spec(self) -> tuple[str | int, ...]:
        """Returns the spec for RL.PEEK: the command's name without its prefix, and its words."""
        name, *words = self.command
        return (str(name).removeprefix("RL."), *words)

    def call(self, client: Redis, time: float) -> None:
        name, *words = self.command
        allowed, _, _, wait_ms, _ = client.execute_command(name, self.title, *words)
        if allowed:
            self.admitted.append(time + wait_ms / 1000)
        else:
            self.denied.append(time)

    def sample(self, client: Redis, time: float) -> None:
        _, _, remaining, _, _ = client.execute_command("RL.PEEK", self.title, *self.spec)
        self.remaining.append((time, remaining))

    def in_trailing_window(self, time: float) -> int:
        """Returns the number of calls that have acted in the window that ends at `time`. The
        window is shorter by a millisecond, because waits are rounded up to whole milliseconds.
        """
        return sum(time - WINDOW + 0.001 < acted_at <= time for acted_at in self.admitted)

    @property
    def most_in_a_window(self) -> int:
        return max(map(self.in_trailing_window, self.admitted))


def lanes() -> list[Lane]:
    rate = (LIMIT, f"{WINDOW:.0f}s")
    bucket = (LIMIT, *rate)
    return [
        Lane(
            "RL.FIXED ALIGNED",
            "two bursts across a boundary both pass",
            ("RL.FIXED", *rate, "ALIGNED"),
        ),
        Lane("RL.SLIDING", "an estimate: near the limit, not a promise", ("RL.SLIDING", *rate)),
        Lane(
            "RL.SLIDING STRICT",
            "never more than the limit, in constant memory",
            ("RL.SLIDING", *rate, "STRICT"),
        ),
        Lane(
            "RL.SLIDINGLOG",
            "never more than the limit, to the microsecond",
            ("RL.SLIDINGLOG", *rate),
        ),
        Lane("RL.TOKENBUCKET", "a burst, then the rate", ("RL.TOKENBUCKET", *bucket)),
        Lane(
            "RL.LEAKYBUCKET",
            "a queue: admitted calls act evenly spaced",
            ("RL.LEAKYBUCKET", *bucket),
        ),
    ]


def traffic() -> list[float]:
    """Returns times of calls: two bursts around a boundary of windows, a flood, a steady stream."""
    rng = random.Random(1)
    times = [8.6 + 0.1 * call for call in range(12)]
    times += [10.2 + 0.1 * call for call in range(12)]
    times += [22 + 5 * rng.random() ** 2 for _ in range(25)]
    times += [32 + 0.7 * call for call in range(36)]
    return sorted(times)


def measure(server: Server, clock: Clock) -> list[Lane]:
    results, calls = lanes(), traffic()
    samples = [END * step / SAMPLES for step in range(SAMPLES + 1)]
    steps = sorted(
        [(time, Lane.call) for time in calls]
        + [(time, Lane.sample) for time in [*samples, *calls]],
        key=itemgetter(0),
    )
    # The traffic starts at a boundary of windows.
    start = clock.now - clock.now % int(WINDOW * UNITS_US["s"]) + int(WINDOW * UNITS_US["s"])
    with server.client() as client:
        for time, step in tqdm(steps, desc="calls and samples", unit="", mininterval=0.5):
            clock.set(start + round(time * UNITS_US["s"]))
            for lane in results:
                step(lane, client, time)
    return results


def draw(results: list[Lane], server: str, path: Path) -> None:
    figure, rows = plt.subplots(
        len(results), 1, figsize=(10, 12), sharex=True, layout="constrained"
    )
    for lane, axes in zip(results, rows, strict=True):
        draw_lane(lane, axes)
    figure.legend(
        *rows[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9
    )
    rows[-1].set_xlabel("seconds")
    figure.suptitle(
        f"The same {len(traffic())} calls under a limit of {LIMIT} in {WINDOW:.0f} s "
        f"({server}; its clock moved by the script)",
        fontsize=11,
    )
    figure.savefig(path, dpi=110)


def draw_lane(lane: Lane, axes: Axes) -> None:
    instants = [END * step / 1200 for step in range(1201)]
    in_window = [lane.in_trailing_window(instant) for instant in instants]
    axes.fill_between(instants, in_window, step="post", color=BLUE, alpha=0.25, linewidth=0,
                      label=f"acted in the last {WINDOW:.0f} s")  # fmt: skip
    axes.axhline(LIMIT, color=BLUE, linewidth=0.8, linestyle="--")
    times, remaining = zip(*lane.remaining, strict=True)
    axes.step(times, remaining, where="post", color=GREY, linewidth=1, label="remaining")
    top = 2.1 * LIMIT
    axes.scatter(
        lane.admitted,
        [top] * len(lane.admitted),
        marker="|",
        s=60,
        color=GREEN,
        label="admitted, when it acts",
    )
    axes.scatter(
        lane.denied, [top * 1.12] * len(lane.denied), marker="|", s=60, color=RED, label="denied"
    )
    axes.set_title(f"{lane.title}: {lane.lesson}", loc="left", fontsize=10, fontweight="bold")
    axes.set_title(f"most in a window: {lane.most_in_a_window}", loc="right", fontsize=9)
    axes.set(xlim=(0, END), ylim=(0, top * 1.25), yticks=[0, LIMIT, 2 * LIMIT])
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path, help="a PNG file")
    arguments = parser.parse_args()
    binary = binaries.chosen()
    with tempfile.TemporaryDirectory(prefix="ratelimit-") as directory:
        clock = Clock(build_library(Path(directory)), Path(directory, "clock"))
        with Server(binary, clock=clock) as server:
            results = measure(server, clock)
    draw(results, binary.name, arguments.picture)
    print(f"\n{'':18}  admitted  denied  most in a window of {WINDOW:.0f} s")
    for lane in results:
        counts = f"{len(lane.admitted):>8}  {len(lane.denied):>6}  {lane.most_in_a_window:>4}"
        print(f"{lane.title:18}  {counts}  {lane.lesson}")
    print(f"\nthe picture: {arguments.picture}")


if __name__ == "__main__":
    main()
