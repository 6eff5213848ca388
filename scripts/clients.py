"""Asks every client library that this machine can have what docs/clients.md says of it, and prints
which were asked. Its arguments are pytest's, such as -k redis-py.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

REPOSITORY = Path(__file__).parents[1]
TESTS = ["tests/test_client_libraries.py", "tests/test_resent_calls.py"]

# As tests/support/libraries.py begins to say why.
NOT_ASKED = "not asked"


def main() -> int:
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "--numprocesses=auto"),
                *(f"--junitxml={report.name}", *TESTS, *sys.argv[1:]),
            ],
            cwd=REPOSITORY,
            env=os.environ | {"RATELIMIT_CLIENTS": "all"},
            check=False,
        )
        cases = list(ET.parse(report.name).iter("testcase"))
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, str] = {}
    for case in cases:
        if library := re.search(r"\[(.+)\]$", case.get("name", "")):
            failed = case.find("failure") is not None or case.find("error") is not None
            skip = case.find("skipped")
            outcome = "failed" if failed else "passed" if skip is None else "skipped"
            outcomes[library[1]][outcome] += 1
            reason = "" if skip is None else skip.get("message", "")
            if reason.startswith(NOT_ASKED):
                reasons[library[1]] = reason
    print("\n| library | passed | failed | skipped | |\n|---|---|---|---|---|")
    for library, counts in sorted(outcomes.items(), key=lambda found: found[0].lower()):
        numbers = " | ".join(str(counts[what]) for what in ("passed", "failed", "skipped"))
        print(f"| {library} | {numbers} | {reasons.get(library, '')} |")
    print(f"\nasked: {len(outcomes.keys() - reasons.keys())} of {len(outcomes)} libraries")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
