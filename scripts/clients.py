"""Tests every client library of docs/clients.md that can be installed here, and prints a table.

The arguments are those of pytest, such as -k redis-py.
"""

import re
import sys
from collections import Counter, defaultdict

from outcomes import OUTCOMES, run_pytest

TESTS = ["tests/scaffolding/test_client_libraries.py", "tests/test_resent_calls.py"]

# Beginning of the reason for a skipped library, in tests/support/libraries.py.
NOT_TESTED = "not asked"


def main() -> int:
    status, cases = run_pytest([*TESTS, *sys.argv[1:]], {"RATELIMIT_CLIENTS": "all"})
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, str] = {}
    for case in cases:
        if library := re.search(r"\[(.+)\]$", case.name):
            outcomes[library[1]][case.outcome] += 1
            if case.reason.startswith(NOT_TESTED):
                reasons[library[1]] = case.reason
    print("\n| library | passed | failed | skipped | |\n|---|---|---|---|---|")
    for library, counts in sorted(outcomes.items(), key=lambda item: item[0].lower()):
        numbers = " | ".join(str(counts[outcome]) for outcome in OUTCOMES)
        print(f"| {library} | {numbers} | {reasons.get(library, '')} |")
    print(f"\ntested: {len(outcomes.keys() - reasons.keys())} of {len(outcomes)} libraries")
    return status


if __name__ == "__main__":
    sys.exit(main())
