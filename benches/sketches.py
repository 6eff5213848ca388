"""Measures the calls of honest users that a sketch of addresses denies, by its size.

The traffic is that of tests/support/addresses.py. With --attached, there are a replica, an AOF and
a snapshot, which must have the same bytes in the end. It prints the rows of the table in
docs/sketches.md; --chart draws the picture.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from matplotlib.figure import Figure

from support import binaries
from support.addresses import CAPACITY, Minute, Traffic
from support.clock import Clock, build_library
from support.saving import wait_until_saved
from support.server import Server
from support.workload import digests

# Sizes for a million addresses, for which 1 MB is typical.
SIZES = ("512kb", "768kb", "1mb", "2mb")
# Bytes of a key per address, the same for RL.TOKENBUCKET and redis-cell (docs/benchmarks.md).
BYTES_A_KEY = 145
# Kilobytes of each size for a million addresses.
KILOBYTES = {"512kb": 512, "768kb": 768, "1mb": 1024, "2mb": 2048}


def measure(folder: Path, addresses: int, size: str, *, attached: bool) -> list[Minute]:
    clock = Clock(build_library(folder), folder / "clock")
    settings = {"appendonly": "yes", "appendfsync": "everysec"} if attached else {}
    with Server(binaries.chosen(), clock=clock, **settings) as server:
        replica = server.replica() if attached else None
        traffic = Traffic(addresses, size)
        with server.client() as client:
            first = traffic.minute(client, clock, 1)
            if replica is not None:
                # The snapshot is written during the calls of the next minute.
                client.bgsave()
            second = traffic.minute(client, clock, 2)
        print(f"{traffic.check_greedy()} greedy users were granted no more than their limit")
        if replica is not None:
            _check_agreement(server, replica)
        return [first, second]


def _check_agreement(server: Server, replica: Server) -> None:
    with server.client() as client:
        wait_until_saved(client)
        expected = digests(client, [b"k"])
        replica.wait_for_sync()
        with replica.client() as other:
            assert digests(other, [b"k"]) == expected, "the replica differs"
    for way in ("kill", "save"):
        server.restart(way)
        with server.client() as client:
            assert digests(client, [b"k"]) == expected, f"the loaded data differs: {way}"
    print("the replica, the AOF and a snapshot agree byte for byte")


def row(minutes: list[Minute]) -> str:
    first, second = (f"{minute.honest_denied / minute.honest_calls:.1%}" for minute in minutes)
    unseen = ", ".join(f"{minute.unseen_denied:.2f}" for minute in minutes)
    memory = f"{minutes[-1].memory / 1e6:.1f} MB"
    addresses, size = minutes[0].addresses, minutes[0].size
    return f"| {addresses:,} | {size} | {first} | {second} | {unseen} | {memory} |"


def draw(results: list[list[Minute]], server: str, path: Path) -> None:
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    colours = ("#0072B2", "#E69F00", "#009E73")
    counts = sorted({minutes[0].addresses for minutes in results})
    for addresses, colour in zip(counts, colours, strict=False):
        second_minutes = [minutes[-1] for minutes in results if minutes[0].addresses == addresses]
        points = sorted(
            (minute.memory, minute.honest_denied / minute.honest_calls) for minute in second_minutes
        )
        axes.plot(
            [memory for memory, _ in points],
            [100 * denied for _, denied in points],
            color=colour, marker="o", label=f"{addresses:,} addresses in a sketch",
        )  # fmt: skip
        axes.plot(addresses * BYTES_A_KEY, 0, color=colour, marker="s", markersize=9, linestyle="",
                  label=f"a key per address ({BYTES_A_KEY} bytes)")  # fmt: skip
    axes.set_xscale("log")
    ticks = [2**power * 131_072 for power in range(0, 11, 2)]
    axes.set_xticks(ticks, [f"{tick / 2**20:g} MB" for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.set_ylim(-4, 100)
    axes.set_xlabel("memory (log scale)")
    axes.set_ylabel("honest calls denied in the second minute, %")
    axes.grid(color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    figure.suptitle(
        f"Addresses of 5 calls a minute, honest users of 40, a limit of {CAPACITY} a minute",
        x=0.01, ha="left",
    )  # fmt: skip
    figure.text(0.01, -0.03, f"{server}; its clock moved by the script.", fontsize=8.5,
                color="#555555")  # fmt: skip
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--addresses", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--sizes", nargs="*", help="(default: around 1 MB for a million addresses)")
    parser.add_argument("--attached", action="store_true", help="a replica, an AOF, a snapshot")
    parser.add_argument("--chart", type=Path, help="an SVG file to draw")
    options = parser.parse_args()
    results = []
    for addresses in options.addresses:
        for size in options.sizes or [
            f"{KILOBYTES[size] * addresses // 1_000_000}kb" for size in SIZES
        ]:
            with tempfile.TemporaryDirectory() as folder:
                results.append(measure(Path(folder), addresses, size, attached=options.attached))
            print(row(results[-1]), flush=True)
    if options.chart:
        draw(results, binaries.chosen().name, options.chart)


if __name__ == "__main__":
    main()
