"""Measures everything, and writes docs/benchmarks.md and its charts from it.

--quick and --only write to target/bench/ instead, so that the published file is always whole.
"""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench import callgrind, commands, decisions, growth, memory, report
from bench.calls import Peer
from bench.charts import Charts
from bench.report import Results
from bench.scale import FULL, QUICK
from support import binaries
from support.binaries import Binary
from support.server import REPOSITORY


def main() -> None:
    asked = arguments(sys.argv[1:])
    binary = Binary.at(asked.server) if asked.server else binaries.chosen()
    scale = QUICK if asked.quick else FULL
    is_whole = not asked.quick and not asked.only
    folder = REPOSITORY / "docs" if is_whole else REPOSITORY / "target" / "bench"
    server = f"{binary.name} on {os.cpu_count()} CPUs"
    print(f"measuring {server}, into {folder.relative_to(REPOSITORY)}/")
    if not callgrind.is_there():
        print("instructions are not counted: valgrind is not installed")

    charts = Charts(folder / "charts", server)
    results = Results()
    for section in [asked.only] if asked.only else report.SECTIONS:
        start = time.monotonic()
        match section:
            case "decisions":
                results.decisions = decisions.measure(binary, scale)
                charts.decisions(results.decisions)
            case "commands":
                results.commands = commands.measure(binary, scale, asked.peer)
                charts.commands(results.commands)
                charts.against_lua(results.commands)
            case "memory":
                results.memory = memory.measure(binary, scale, asked.peer)
                charts.memory(results.memory)
            case "growth":
                results.growth = growth.measure(binary, scale)
                charts.growth(results.growth)
        print(f"{section}: {time.monotonic() - start:.0f} seconds", flush=True)
    (folder / "benchmarks.md").write_text(report.write(server, scale, results))
    print(f"written: {(folder / 'benchmarks.md').relative_to(REPOSITORY)}")


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="little of everything, in a minute")
    parser.add_argument("--only", choices=report.SECTIONS, help="one section")
    parser.add_argument("--server", help="the server to measure on (default: as for `make test`)")
    parser.add_argument(
        "--peer",
        type=Peer.parse,
        action="append",
        default=[],
        metavar="NAME=PATH.so",
        help="another module to measure beside; NAME=PATH.so=LINES=COMMAND if it has another "
        "command than CL.THROTTLE: LINES are those of its reply, {key} stands for the key",
    )
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
