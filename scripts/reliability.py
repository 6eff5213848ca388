"""Writes docs/reliability.md from the docstrings of the tests: promises and their limits.

The first paragraph of a module's docstring is the promise that its tests check. Each line that
begins with an asterisk is a further promise, and each that begins with a hyphen is a limit.
tests/test_docs.py fails if the page differs.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
DOCUMENT = REPOSITORY / "docs/reliability.md"
BEGIN, END = "<!-- scripts/reliability.py writes from here -->", "<!-- to here -->"

# Headings of the page, with the test files of each.
TOPICS = {
    "Persistence and crashes": (
        "durability persistence stored_formats resent_calls policy_persistence"
    ),
    "Replication and failover": (
        "replication resync failover policy_replication effect effect_malformed"
    ),
    "Cluster": (
        "cluster cluster_moves cluster_failover policy_cluster policy_repair_cluster policy_stamps"
        " policy_steps"
    ),
    "Limits": "hot_key several multi limit ban ban_growth fencing transactions",
    "Clocks and expiry": "clock ttl ttl_clock",
    "Hostile input, defects and other modules": (
        "hostile_bytes corrupt_payloads payload_states panic neighbours neighbours_fast_path"
        " threads valgrind throttle acl"
    ),
    "Memory and load": "full_memory memory pressure full_keys defragmentation",
    "Waiting calls": (
        "waiting waiting_faults waiting_portions waiting_writes waiting_cluster waiting_replication"
    ),
}


def document() -> str:
    """Returns the expected text of docs/reliability.md."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return "".join([before, BEGIN, "\n\n", "\n".join(_lines()), "\n", END, after])


def _lines() -> Iterator[str]:
    limits = []
    for topic, names in TOPICS.items():
        yield f"### {topic}\n"
        for name in names.split():
            file = f"tests/test_{name}.py"
            promise, *further = _promises(file)
            yield f"* {promise} {_link(file)}"
            yield from (f"  * {item}" for item in further)
            limits += [f"* {limit} {_link(file)}" for limit in _items("-", file)]
        yield ""
    yield "## What is not promised\n"
    yield from limits
    yield ""


def _promises(file: str) -> list[str]:
    first, *_ = _docstring(file).split("\n\n")
    return [_in_one_line(first), *_items(r"\*", file)]


def _items(mark: str, file: str) -> list[str]:
    """Returns the paragraphs of the docstring that begin with the mark."""
    return [
        _in_one_line(item)
        for item in re.findall(rf"^{mark} (.*(?:\n  .*)*)", _docstring(file), re.MULTILINE)
    ]


def _docstring(file: str) -> str:
    docstring = ast.get_docstring(ast.parse((REPOSITORY / file).read_text()))
    if not docstring:
        raise ValueError(f"{file} has no docstring")
    return docstring


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _link(file: str) -> str:
    return f"([{Path(file).stem}](../{file}))"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
