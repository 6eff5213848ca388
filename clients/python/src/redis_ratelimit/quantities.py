"""Amounts, durations and other words of a command: validated and formatted for the server."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import TypeAlias

# Number of units, whole or decimal, from 0 to 10**12. The server counts in millionths.
Amount: TypeAlias = int | float | Decimal
# Number of seconds, a timedelta, or text in the server's syntax: "100ms", "60s", "1.5h".
Duration: TypeAlias = int | float | str | timedelta
# Key, name, holder or id: any bytes. Text is sent as UTF-8.
Key: TypeAlias = str | bytes
# Word of a command.
Word: TypeAlias = str | bytes

MOST = 10**12

_UNITS = {
    "us": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)?")


def amount(value: Amount, description: str, *, zero: bool = True) -> str:
    """Formats an amount. Raises ValueError unless it is a number from 0 to 10**12; without `zero`,
    above 0.
    """
    try:
        exact = _decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        raise ValueError(f"{description} must be a number, not {value!r}") from None
    if not exact.is_finite() or not 0 <= exact <= MOST or (exact == 0 and not zero):
        raise ValueError(f"{description} must be a number up to {MOST}, not {value!r}")
    return f"{exact.normalize():f}"


def duration(value: Duration, description: str, *, zero: bool = False) -> str:
    """Formats a duration. Raises ValueError unless it is at most 3650 days; without `zero`, above
    0.
    """
    exact = _exact(value, description)
    if exact == 0 and not zero:
        raise ValueError(f"{description} must be above 0")
    return value if isinstance(value, str) else f"{exact.normalize():f}s"


def _decimal(value: object) -> Decimal:
    if not isinstance(value, (int, float, Decimal)):
        raise TypeError
    return Decimal(repr(value) if isinstance(value, float) else value)


def seconds(value: Duration, description: str = "duration") -> float:
    return float(_exact(value, description))


def milliseconds(value: Duration) -> str:
    """Returns a duration in milliseconds, in canonical form."""
    return f"{(_exact(value, 'duration') * 1000).normalize():f}"


def _exact(value: Duration, description: str) -> Decimal:
    """Returns a duration in seconds, rounded up to microseconds."""
    wrong = ValueError(f"{description} must be seconds, or text such as '60s', not {value!r}")
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise wrong
        exact = Decimal(match[1]) * _UNITS[match[2] or "s"]
    elif isinstance(value, timedelta):
        exact = Decimal(value // timedelta(microseconds=1)) * _UNITS["us"]
    else:
        try:
            exact = _decimal(value)
        except (InvalidOperation, TypeError, ValueError):
            raise wrong from None
    if not exact.is_finite() or not 0 <= exact <= 3650 * _UNITS["d"]:
        raise wrong
    return exact.quantize(_UNITS["us"], ROUND_CEILING)


def keep_word(value: Amount | str) -> str:
    if isinstance(value, str):
        if not value.endswith("%"):
            raise ValueError(f"keep must be an amount or a share such as '20%', not {value!r}")
        return value
    return amount(value, "keep")
