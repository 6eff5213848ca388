"""Runs the suite on every server within reach of the package registries, and prints a table.

What cannot differ by server runs on the first one only, as in `make test`.

The servers: PyPI's Redis 6.2 and Valkey 9, the system's redis-server, and those of Debian trixie
and sid, each from a folder that debootstrap fills (outside the tree; it needs root, and is kept).
"""

import argparse
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from debian_folder import server
from outcomes import OUTCOMES, REPOSITORY, of_pytest

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
    found = [("`make test`", path) for path in binaries.available()]
    for suite, program in product(SUITES, PROGRAMS):
        try:
            found.append((f"Debian {suite}", server(suite, program, PROGRAMS)))
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            print(f"not tested on {program} of Debian {suite}: {error}", file=sys.stderr)
    return found


def run(path: Path, arguments: list[str]) -> Run:
    """Runs the suite on one server."""
    _, cases = of_pytest(arguments, {"SERVER": str(path)})
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
    for origin, one in runs:
        counts = " | ".join(str(one.outcomes[what]) for what in OUTCOMES)
        print(f"| {one.server} | {origin} | {counts} |")
    print("\nskipped:")
    for _, one in runs:
        for reason, count in one.reasons.items():
            print(f"* {one.server}: {count}, {reason}")
    return any(one.outcomes["failed"] or not one.outcomes["passed"] for _, one in runs)


if __name__ == "__main__":
    sys.exit(main())
