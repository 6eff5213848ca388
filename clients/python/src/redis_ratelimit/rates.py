"""Limits as an application passes them: objects, or rates such as "100/minute"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from redis_ratelimit.limits import Fixed, Limit
from redis_ratelimit.quantities import Key

# A limit, or a rate such as "100/minute", which is a `Fixed`.
AnyLimit: TypeAlias = Limit | str

EXAMPLES = "Fixed(100, '1m'), Policy('api') or '100/minute'"

_SECONDS = {
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hr", "hour"), 3600),
    **dict.fromkeys(("d", "day"), 86400),
    "week": 7 * 86400,
}
_RATE = re.compile(
    r"\s*(\d+(?:\.\d+)?)\s*(?:/|\bper\b)\s*(\d+)?\s*([a-z]+)\s*", re.ASCII | re.IGNORECASE
)


def _seconds_of(text: str) -> int | None:
    """Returns the seconds of a unit of time, in the singular or the plural."""
    word = text.lower()
    return _SECONDS.get(word) or _SECONDS.get(word.removesuffix("s"))


@lru_cache(maxsize=1024)
def rate(text: str) -> Fixed:
    """Parses a rate. Raises ValueError if the text is not a rate."""
    match = _RATE.fullmatch(text)
    seconds = _seconds_of(match[3]) if match else None
    if match is None or seconds is None:
        raise ValueError(
            f"a rate is an amount and a time, such as '100/minute' or '5 per 15 minutes', not "
            f"{text!r}; several are a list"
        )
    amount = float(match[1]) if "." in match[1] else int(match[1])
    return Fixed(amount, int(match[2] or 1) * seconds)


def is_rate(text: str) -> bool:
    """Returns `True` if the text is a rate."""
    try:
        rate(text)
    except ValueError:
        return False
    return True


def limit_of(value: object) -> Limit:
    """Returns a limit itself, or parses a rate. Raises TypeError for another value, and ValueError
    for text that is not a rate.
    """
    if isinstance(value, Limit):
        return value
    if isinstance(value, str):
        return rate(value)
    if isinstance(value, (list, tuple)):
        raise TypeError(
            "several limits of one key are arguments of their own, not a list: "
            f"take(key, Fixed(100, '1m'), Fixed(1000, '1d')), not {value!r}"
        )
    raise TypeError(f"a limit is needed, such as {EXAMPLES}, not {value!r}")


def limits_of(values: tuple[AnyLimit, ...]) -> tuple[Limit, ...]:
    """Returns the limits, with rates parsed."""
    for value in values:
        if not isinstance(value, Limit):
            return tuple(map(limit_of, values))
    return values  # type: ignore[return-value]


def by_key(values: Mapping[Key, AnyLimit]) -> dict[Key, Limit]:
    """Returns the limits by their keys, with rates parsed."""
    if not isinstance(values, Mapping):
        raise TypeError(f"limits by their keys are needed, as in {{key: limit}}, not {values!r}")
    return {key: limit_of(limit) for key, limit in values.items()}


def listed(value: object) -> tuple[Limit, ...]:
    """Returns the limits of an argument that is a limit, a rate, or an iterable of these."""
    if isinstance(value, (Limit, str)):
        return (limit_of(value),)
    if isinstance(value, Iterable):
        return tuple(map(limit_of, value))
    return (limit_of(value),)
