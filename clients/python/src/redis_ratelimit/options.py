"""Options of calls, for type checkers."""

from __future__ import annotations

from typing import TypedDict

from redis_ratelimit.ids import Once
from redis_ratelimit.limits import Ban
from redis_ratelimit.quantities import Amount, Duration, Key


class PeekOptions(TypedDict, total=False):
    """Options of `Limiter.peek`."""

    cost: Amount
    upto: bool
    force: bool
    max_wait: Duration | None
    keep: Amount | str | None
    holder: Key | None
    each: bool
    ban: Ban | None


class TakeOptions(PeekOptions, total=False):
    """Options of `Limiter.take`."""

    once: Once
    ttl: Duration | None
    refundable: bool
    wait: float
