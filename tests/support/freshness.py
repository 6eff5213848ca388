"""Freshness of a module, so that no test runs on a build older than the sources."""

import re
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@cache
def why_stale(module: Path) -> str | None:
    """Returns a message if a module is older than its sources, as listed by cargo. Returns None for
    a module that was built elsewhere, without a list or with other files.
    """
    listed = module.with_suffix(".d")
    if not module.is_file() or not listed.is_file():
        return None
    built = module.stat().st_mtime_ns
    _, _, files = listed.read_text().partition(": ")
    for name in re.split(r"(?<!\\)\s+", files.strip()):
        source = Path(name.replace("\\ ", " "))
        if not source.is_relative_to(REPOSITORY):
            continue
        if not source.exists() or source.stat().st_mtime_ns > built:
            command = "cargo build --locked" if module.parent.name == "debug" else "make build"
            relation = "is older than" if source.exists() else "was built with the deleted"
            return f"{module} {relation} {source.relative_to(REPOSITORY)}: run `{command}`"
    return None
