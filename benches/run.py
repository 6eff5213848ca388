"""Runs all benchmarks, and writes docs/benchmarks.md and its chart.

The page is written to target/bench/. In a full run (all sections, or one with --keep), the figures
of each section are written to benches/measured/ as soon as they are complete, and docs/ is written
from these at the end. A section that fails, or whose figures contradict each other, is not updated.
"""

import argparse
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Set
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
from bench.record import BenchmarkRun, WaitingRun
from bench.report import Results
from bench.scale import FULL, QUICK, Scale
from support import binaries
from support.binaries import Binary
from support.server import REPOSITORY


def main() -> None:
    options = arguments(sys.argv[1:])
    if options.redraw:
        redraw()
        return
    binary = Binary.at(options.server) if options.server else binaries.chosen()
    scale = QUICK if options.quick else FULL
    is_full = not options.quick and (options.keep or not options.only)
    folder = REPOSITORY / "target" / "bench"
    server = f"{binary.name} on {os.cpu_count()} CPUs"
    print(f"measuring {server}")
    load_average, *_ = os.getloadavg()
    # Exits now if a load generator is not available.
    load.benchmark_program(), load.program()
    if not valgrind.is_installed():
        print("instructions are not counted: valgrind is not installed")

    shutil.rmtree(folder, ignore_errors=True)
    previous = record.read(BenchmarkRun) if is_full else None
    if previous and previous.server != server:
        if options.keep:
            sys.exit(f"the kept figures were measured on another server: {previous.server}")
        previous = None
    stored_results = previous.results if previous else Results()
    renewed: set[str] = set()
    page_results = replace(stored_results) if options.keep else Results()
    failed = []
    for section in [options.only] if options.only else report.SECTIONS:
        start = time.monotonic()
        try:
            result = measure(section, binary, scale, options.peer)
        except Exception:  # The other sections are measured anyway.
            traceback.print_exc()
            failed.append(f"{section} could not be measured")
            continue
        print(f"{section}: {time.monotonic() - start:.0f} seconds", flush=True)
        setattr(page_results, section, result)
        if contradictory := list(report.contradictions(result)):
            print("too much noise for meaningful times:", *contradictory, sep="\n  ", flush=True)
            failed.append(f"{section} was measured with too much noise")
            continue
        setattr(stored_results, section, result)
        if is_full:
            renewed.add(section)
            max_load = load_of_page(load_average, previous, renewed)
            # Later sections may fail or be interrupted.
            record.write(BenchmarkRun(server, max_load, scale, stored_results), record.FOLDER)
    max_load = load_of_page(load_average, previous if options.keep else None, renewed)
    run = BenchmarkRun(server, max_load, scale, page_results)
    finish(run, folder, options.only, is_full, failed)


def finish(
    run: BenchmarkRun, folder: Path, only: str | None, is_full: bool, failed: list[str]
) -> None:
    """Writes the pages, and exits with an error if a section failed."""
    page = write(run, folder)
    if only:
        print(page)
    print(f"written: {(folder / 'benchmarks.md').relative_to(REPOSITORY)}")
    if is_full:
        redraw()
        print("and docs/benchmarks.md")
    if failed:
        print(f"all figures are in {record.write(run, folder).relative_to(REPOSITORY)}")
        sys.exit("; ".join(failed))


def load_of_page(load_average: float, previous: BenchmarkRun | None, renewed: Set[str]) -> float:
    """Returns the load average that the page names. Until every section is renewed, that is the
    higher one of this run and the previous run.
    """
    if previous is None or renewed.issuperset(report.SECTIONS):
        return load_average
    return max(load_average, previous.load)


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


def write(run: BenchmarkRun, folder: Path) -> str:
    """Writes the page and its chart, and returns the page."""
    charts = Charts(folder / "charts", run.server)
    if run.results.decisions:
        charts.draw_decisions(run.results.decisions)
    page = report.write(run.server, run.scale, run.results, run.load)
    (folder / "benchmarks.md").write_text(page)
    return page


def redraw() -> None:
    """Writes the pages in docs/ and their charts from the last measurements."""
    docs = REPOSITORY / "docs"
    write(record.read(BenchmarkRun), docs)
    waits = record.read(WaitingRun)
    Charts(docs / "charts", waits.server).draw_waiting(waits.found)
    (docs / "waiting.md").write_text(
        waiting_page.write(waits.server, waits.size, waits.found, waits.load)
    )


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="short versions of all sections, in a minute"
    )
    parser.add_argument("--redraw", action="store_true", help="write docs/ from benches/measured/")
    parser.add_argument("--only", choices=report.SECTIONS, help="one section")
    parser.add_argument(
        "--keep", action="store_true", help="with --only: keep the figures of the other sections"
    )
    parser.add_argument("--server", help="the server to measure on (default: as for `make test`)")
    parser.add_argument(
        "--peer",
        type=Peer.parse,
        action="append",
        default=[],
        metavar="NAME=PATH.so",
        help="another module to compare with. NAME=PATH.so=LINES=COMMAND if its command is not "
        "CL.THROTTLE: LINES is the number of lines of its reply, {key} stands for the key. The "
        "command must allow every call, and create a key that lives for minutes",
    )
    options = parser.parse_args(words)
    if options.keep and not options.only:
        parser.error("--keep goes with --only")
    return options


if __name__ == "__main__":
    main()
