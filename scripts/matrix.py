"""Runs the server tests on every available server, and prints a table.

Tests that cannot differ by server run on the first server only, as in `make test`.

The servers are PyPI's Redis 6.2 and Valkey 9, the system's redis-server, and the servers of Debian
trixie and sid, in folders that debootstrap creates (in the user's cache; this needs root).
"""

import argparse
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from debian_folder import server
from outcomes import OUTCOMES, REPOSITORY, run_pytest

sys.path.insert(0, str(REPOSITORY / "tests"))

from support import binaries

SUITES = ["trixie", "sid"]
PROGRAMS = ["redis-server", "valkey-server"]


@dataclass
class Run:
    """Outcomes of the suite on one server."""

    server: str
    outcomes: Counter[str]
    # Reasons of skips, with the number of tests for each.
    reasons: Counter[str]


def servers() -> list[tuple[str, Path]]:
    """Returns the servers, each with its origin."""
    reachable = [("`make test`", path) for path in binaries.available()]
    for suite, program in product(SUITES, PROGRAMS):
        try:
            reachable.append((f"Debian {suite}", server(suite, program, PROGRAMS)))
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            print(f"not tested on {program} of Debian {suite}: {error}", file=sys.stderr)
    return reachable


def run(path: Path, arguments: list[str]) -> Run:
    """Runs the suite on one server."""
    _, cases = run_pytest(arguments, {"SERVER": str(path)})
    outcomes = Counter(case.outcome for case in cases)
    reasons = Counter(case.reason for case in cases if case.outcome == "skipped")
    name = str(binaries.Binary.at(path)).partition(" (")[0]
    return Run(name, outcomes, reasons)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pytest", nargs="*", help="arguments for pytest")
    arguments = parser.parse_args()

    runs = []
    for origin, path in servers():
        runs.append((origin, run(path, [*arguments.pytest, *(["-m", "not once"] if runs else [])])))
    print("\n| server | from | passed | failed | skipped |\n|---|---|---|---|---|")
    for origin, result in runs:
        counts = " | ".join(str(result.outcomes[outcome]) for outcome in OUTCOMES)
        print(f"| {result.server} | {origin} | {counts} |")
    print("\nskipped:")
    for _, result in runs:
        for reason, count in result.reasons.items():
            print(f"* {result.server}: {count}, {reason}")
    return any(result.outcomes["failed"] or not result.outcomes["passed"] for _, result in runs)


if __name__ == "__main__":
    sys.exit(main())
