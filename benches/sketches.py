"""Measures addresses in a sketch: how many calls of honest users it denies, by its size.

The traffic is that of tests/support/addresses.py. With --attached, a replica, an AOF and a snapshot
are at work meanwhile, and must hold the same bytes in the end. It prints the rows of the table in
docs/sketches.md; --chart draws its picture.
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

# What a sketch of 1 MB is for a million addresses.
SIZES = ("512kb", "768kb", "1mb", "2mb")
# Of a key for each address, ours and redis-cell's alike (docs/benchmarks.md).
BYTES_A_KEY = 145
KEYS = {"512kb": 512, "768kb": 768, "1mb": 1024, "2mb": 2048}


def measure(folder: Path, addresses: int, size: str, *, attached: bool) -> list[Minute]:
    clock = Clock(build_library(folder), folder / "clock")
    settings = {"appendonly": "yes", "appendfsync": "everysec"} if attached else {}
    with Server(binaries.chosen(), clock=clock, **settings) as server:
        replica = server.replica() if attached else None
        traffic = Traffic(addresses, size)
        with server.client() as client:
            first = traffic.minute(client, clock, 1)
            if replica is not None:
                # Its child writes while the next minute's calls come in.
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
    for how in ("kill", "save"):
        server.restart(how)
        with server.client() as client:
            assert digests(client, [b"k"]) == expected, f"what was loaded differs: {how}"
    print("the replica, the AOF and a snapshot agree byte for byte")


def row(minutes: list[Minute]) -> str:
    first, second = (f"{each.honest_denied / each.honest_calls:.1%}" for each in minutes)
    unseen = ", ".join(f"{each.unseen_denied:.2f}" for each in minutes)
    one = minutes[0]
    memory = f"{minutes[-1].memory / 1e6:.1f} MB"
    return f"| {one.addresses:,} | {one.size} | {first} | {second} | {unseen} | {memory} |"


def draw(found: list[list[Minute]], server: str, path: Path) -> None:
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    colours = ("#0072B2", "#E69F00", "#009E73")
    counts = sorted({minutes[0].addresses for minutes in found})
    for addresses, colour in zip(counts, colours, strict=False):
        seconds = [minutes[-1] for minutes in found if minutes[0].addresses == addresses]
        points = sorted((each.memory, each.honest_denied / each.honest_calls) for each in seconds)
        axes.plot(
            [memory for memory, _ in points],
            [100 * denied for _, denied in points],
            color=colour, marker="o", label=f"{addresses:,} addresses in a sketch",
        )  # fmt: skip
        axes.plot(addresses * BYTES_A_KEY, 0, color=colour, marker="s", markersize=9, linestyle="",
                  label=f"a key each, ours or redis-cell's ({BYTES_A_KEY} bytes)")  # fmt: skip
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
    asked = parser.parse_args()
    found = []
    for addresses in asked.addresses:
        for size in asked.sizes or [f"{KEYS[size] * addresses // 1_000_000}kb" for size in SIZES]:
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(Path(folder), addresses, size, attached=asked.attached))
            print(row(found[-1]), flush=True)
    if asked.chart:
        draw(found, binaries.chosen().name, asked.chart)


if __name__ == "__main__":
    main()
