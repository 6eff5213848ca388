"""Tables of cases that all packages share."""

import json
from pathlib import Path
from typing import Any

from redis_ratelimit import (
    Concurrency,
    Fixed,
    LeakyBucket,
    Limit,
    Policy,
    Sketch,
    Sliding,
    SlidingLog,
    TokenBucket,
)

CLIENTS = Path(__file__).parents[2]


def table(name: str) -> Any:
    return json.loads((CLIENTS / f"{name}.json").read_text())


KINDS: dict[str, Any] = {
    "CONCURRENCY": Concurrency,
    "FIXED": Fixed,
    "LEAKYBUCKET": LeakyBucket,
    "POLICY": Policy,
    "SKETCH": Sketch,
    "SLIDING": Sliding,
    "SLIDINGLOG": SlidingLog,
    "TOKENBUCKET": TokenBucket,
}
KEYS, RATES = table("keys"), table("rates")


def limit_of(words: list[Any]) -> Limit:
    """Returns a limit from its form in the tables."""
    kind, *arguments = words
    options = arguments.pop() if isinstance(arguments[-1], dict) else {}
    limit: Limit = KINDS[kind](*arguments, **options)
    return limit


def limits_of(case: dict[str, Any]) -> list[Limit]:
    """Returns the limits of a case."""
    return [limit_of(words) for words in case["limits"]]
