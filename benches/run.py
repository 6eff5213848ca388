"""Measures everything, and writes docs/benchmarks.md and its charts from it.

What is written goes to target/bench/. It is copied to docs/, and the figures to benches/measured/,
if all was measured in full (or with --keep, one section), and if no time contradicts the
instructions or the pairs beside it.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench import (
    commands,
    decisions,
    growth,
    load,
    memory,
    openloop,
    persistence,
    record,
    report,
    valgrind,
)
from bench.calls import Peer
from bench.charts import Charts
from bench.record import Everything, Waits
from bench.report import Results
from bench.scale import FULL, QUICK, Scale
from support import binaries
from support.binaries import Binary
from support.server import REPOSITORY


def main() -> None:
    asked = arguments(sys.argv[1:])
    if asked.redraw:
        redraw()
        return
    binary = Binary.at(asked.server) if asked.server else binaries.chosen()
    scale = QUICK if asked.quick else FULL
    is_whole = not asked.quick and (asked.keep or not asked.only)
    folder = REPOSITORY / "target" / "bench"
    server = f"{binary.name} on {os.cpu_count()} CPUs"
    print(f"measuring {server}")
    others, *_ = os.getloadavg()
    # Told now if they cannot be had.
    load.benchmark_program(), load.program()
    if not valgrind.is_there():
        print("instructions are not counted: valgrind is not installed")

    shutil.rmtree(folder, ignore_errors=True)
    last = record.read(Everything) if asked.keep else None
    if last and last.server != server:
        sys.exit(f"what is kept was measured on another server: {last.server}")
    results = last.results if last else Results()
    for section in [asked.only] if asked.only else report.SECTIONS:
        start = time.monotonic()
        measure(section, binary, scale, asked.peer, results)
        print(f"{section}: {time.monotonic() - start:.0f} seconds", flush=True)
    # The times that are kept are of a machine as busy as it was then.
    run = Everything(server, max(others, last.load) if last else others, scale, results)
    write(run, folder)
    print(f"written: {(folder / 'benchmarks.md').relative_to(REPOSITORY)}")
    wrong = report.contradictions(results.commands) if results.commands else []
    if wrong:
        print("too much noise for times that mean something:", *wrong, sep="\n  ")
    if is_whole and wrong:
        # Some fifteen minutes' work, which can still be looked at.
        told = record.write(run, folder)
        sys.exit(f"docs/benchmarks.md stays as it is; the figures are in {told}")
    if is_whole:
        record.write(run, record.FOLDER)
        shutil.copytree(folder, REPOSITORY / "docs", dirs_exist_ok=True)
        print("and copied to docs/")


def measure(
    section: str, binary: Binary, scale: Scale, peers: list[Peer], results: Results
) -> None:
    """Measures a section, and keeps it among the results."""
    match section:
        case "decisions":
            results.decisions = decisions.measure(binary, scale)
        case "commands":
            results.commands = commands.measure(binary, scale, peers)
        case "openloop":
            results.openloop = openloop.measure(binary, scale)
        case "persistence":
            results.persistence = persistence.measure(binary, scale)
        case "memory":
            results.memory = memory.measure(binary, scale, peers)
        case "growth":
            results.growth = growth.measure(binary, scale)


def write(run: Everything, folder: Path) -> None:
    """The page, and a chart of each section that was measured."""
    found = run.results
    charts = Charts(folder / "charts", run.server)
    if found.commands:
        charts.commands(found.commands)
        charts.against_lua(found.commands)
    if found.openloop:
        charts.openloop(found.openloop)
    if found.decisions:
        charts.decisions(found.decisions)
    if found.memory:
        charts.memory(found.memory)
    if found.growth:
        charts.growth(found.growth)
    page = report.write(run.server, run.scale, found, run.load)
    (folder / "benchmarks.md").write_text(page)


def redraw() -> None:
    """The pages in docs/ and their charts, from what was measured last."""
    docs = REPOSITORY / "docs"
    write(record.read(Everything), docs)
    waits = record.read(Waits)
    Charts(docs / "charts", waits.server).waiting(waits.found)
    (docs / "waiting.md").write_text(
        report.waiting(waits.server, waits.size, waits.found, waits.load)
    )


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="little of everything, in a minute")
    parser.add_argument("--redraw", action="store_true", help="write docs/ from benches/measured/")
    parser.add_argument("--only", choices=report.SECTIONS, help="one section")
    parser.add_argument(
        "--keep", action="store_true", help="with --only: keep what was measured of the others"
    )
    parser.add_argument("--server", help="the server to measure on (default: as for `make test`)")
    parser.add_argument(
        "--peer",
        type=Peer.parse,
        action="append",
        default=[],
        metavar="NAME=PATH.so",
        help="another module to measure beside; NAME=PATH.so=LINES=COMMAND if it has another "
        "command than CL.THROTTLE: LINES are those of its reply, {key} stands for the key. The "
        "command must allow every call, and leave a key that lives for minutes",
    )
    asked = parser.parse_args(words)
    if asked.keep and not asked.only:
        parser.error("--keep goes with --only")
    return asked


if __name__ == "__main__":
    main()
