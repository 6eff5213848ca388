"""Measures everything, and writes docs/benchmarks.md and its chart from it.

The page goes to target/bench/. Of what was measured in full (all sections, or with --keep, one),
the figures of each section go to benches/measured/ as soon as they are there, and docs/ is drawn
from these at the end. A section that fails, or whose figures contradict each other, stays as it
was.
"""

import argparse
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench import (
    commands,
    decisions,
    growth,
    load,
    memory,
    persistence,
    record,
    report,
    valgrind,
    valkey,
    waiting_page,
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
    last = record.read(Everything) if is_whole else None
    if last and last.server != server:
        if asked.keep:
            sys.exit(f"what is kept was measured on another server: {last.server}")
        last = None
    kept = last.results if last else Results()
    # The times that are kept are of a machine as busy as it was then.
    busy = max(others, last.load) if asked.keep and last else others
    shown = replace(kept) if asked.keep else Results()
    failed = []
    for section in [asked.only] if asked.only else report.SECTIONS:
        start = time.monotonic()
        try:
            found = measure(section, binary, scale, asked.peer)
        except Exception:  # The other sections are measured all the same.
            traceback.print_exc()
            failed.append(f"{section} could not be measured")
            continue
        print(f"{section}: {time.monotonic() - start:.0f} seconds", flush=True)
        setattr(shown, section, found)
        if wrong := list(report.contradictions(found)):
            print("too much noise for times that mean something:", *wrong, sep="\n  ", flush=True)
            failed.append(f"{section} was measured with too much noise")
            continue
        setattr(kept, section, found)
        if is_whole:
            # What comes later may fail, or be broken off.
            record.write(Everything(server, busy, scale, kept), record.FOLDER)
    run = Everything(server, busy, scale, shown)
    page = write(run, folder)
    if asked.only:
        print(page)
    print(f"written: {(folder / 'benchmarks.md').relative_to(REPOSITORY)}")
    if is_whole:
        redraw()
        print("and docs/benchmarks.md")
    if failed:
        print(f"all figures are in {record.write(run, folder).relative_to(REPOSITORY)}")
        sys.exit("; ".join(failed))


def measure(section: str, binary: Binary, scale: Scale, peers: list[Peer]) -> object:
    """Returns the results of a section."""
    by_section: dict[str, Callable[[], object]] = {
        "production": lambda: commands.production(binary, scale),
        "commands": lambda: commands.measure(binary, scale, peers),
        "valkey": lambda: valkey.measure(scale),
        "decisions": lambda: decisions.measure(binary, scale),
        "memory": lambda: memory.measure(binary, scale, peers),
        "persistence": lambda: persistence.measure(binary, scale),
        "growth": lambda: growth.measure(binary, scale),
    }
    return by_section[section]()


def write(run: Everything, folder: Path) -> str:
    """Writes the page and its chart, and returns the page."""
    charts = Charts(folder / "charts", run.server)
    if run.results.decisions:
        charts.decisions(run.results.decisions)
    page = report.write(run.server, run.scale, run.results, run.load)
    (folder / "benchmarks.md").write_text(page)
    return page


def redraw() -> None:
    """Writes the pages in docs/ and their charts from what was measured last."""
    docs = REPOSITORY / "docs"
    write(record.read(Everything), docs)
    waits = record.read(Waits)
    Charts(docs / "charts", waits.server).waiting(waits.found)
    (docs / "waiting.md").write_text(
        waiting_page.write(waits.server, waits.size, waits.found, waits.load)
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
