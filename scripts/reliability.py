"""Writes the list of promises in docs/reliability.md from the docstrings of the tests.

The first paragraph of a module's docstring is what its tests promise, and each line that begins
with an asterisk is one promise more. tests/test_docs.py fails while the list is out of date.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
DOCUMENT = REPOSITORY / "docs/reliability.md"
BEGIN, END = "<!-- scripts/reliability.py writes from here -->", "<!-- to here -->"

# What users rely on, and the files of tests/ that check it.
TOPICS = {
    "Persistence and crashes": (
        "durability persistence stored_formats resent_calls policy_persistence"
    ),
    "Replication and failover": (
        "replication resync listeners failover policy_replication effect readable"
    ),
    "Cluster": "cluster cluster_failover policy_cluster policy_stamps",
    "Limits": "hot_key several multi limit ban transactions",
    "Clocks and expiry": "clock ttl",
    "Hostile input, defects and other modules": (
        "hostile_bytes corrupt_payloads panic neighbours threads valgrind alignment throttle acl"
    ),
    "Memory and load": "memory pressure",
    "Waiting calls": (
        "waiting waiting_faults waiting_races waiting_turns waiting_writes waiting_cluster "
        "waiting_replication"
    ),
}


def document() -> str:
    """docs/reliability.md as it should be."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return "".join([before, BEGIN, "\n\n", "\n".join(_lines()), "\n", END, after])


def _lines() -> Iterator[str]:
    for topic, names in TOPICS.items():
        yield f"### {topic}\n"
        for name in names.split():
            file = f"tests/test_{name}.py"
            promise, *more = _promises(file)
            yield f"* {promise} ([{Path(file).stem}](../{file}))"
            yield from (f"  * {one}" for one in more)
        yield ""


def _promises(file: str) -> list[str]:
    told = ast.get_docstring(ast.parse((REPOSITORY / file).read_text()))
    if not told:
        raise ValueError(f"{file} has no docstring")
    first, *_ = told.split("\n\n")
    more = re.findall(r"^\* (.*(?:\n  .*)*)", told, re.MULTILINE)
    return [" ".join(one.split()) for one in (first, *more)]


if __name__ == "__main__":
    DOCUMENT.write_text(document())
