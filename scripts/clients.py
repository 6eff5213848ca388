"""Asks every client library that this machine can have what docs/clients.md says of it, and prints
which were asked. Its arguments are pytest's, such as -k redis-py.
"""

import re
import sys
from collections import Counter, defaultdict

from outcomes import OUTCOMES, of_pytest

TESTS = ["tests/scaffolding/test_client_libraries.py", "tests/test_resent_calls.py"]

# As tests/support/libraries.py begins to say why.
NOT_ASKED = "not asked"


def main() -> int:
    ended, cases = of_pytest([*TESTS, *sys.argv[1:]], {"RATELIMIT_CLIENTS": "all"})
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, str] = {}
    for case in cases:
        if library := re.search(r"\[(.+)\]$", case.name):
            outcomes[library[1]][case.outcome] += 1
            if case.reason.startswith(NOT_ASKED):
                reasons[library[1]] = case.reason
    print("\n| library | passed | failed | skipped | |\n|---|---|---|---|---|")
    for library, counts in sorted(outcomes.items(), key=lambda found: found[0].lower()):
        numbers = " | ".join(str(counts[what]) for what in OUTCOMES)
        print(f"| {library} | {numbers} | {reasons.get(library, '')} |")
    print(f"\nasked: {len(outcomes.keys() - reasons.keys())} of {len(outcomes)} libraries")
    return ended


if __name__ == "__main__":
    sys.exit(main())
