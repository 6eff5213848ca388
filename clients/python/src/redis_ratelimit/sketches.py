"""Calls with a sketch as their limit: the key of the call is an item of the sketch's key."""

from __future__ import annotations

from collections.abc import Collection

from redis_ratelimit.ids import Once
from redis_ratelimit.limits import Ban, Limit
from redis_ratelimit.quantities import Duration, Key

MERGED = (
    "a sketch cannot tell apart again what it has merged: no item is settled, given back, reset, "
    "banned or charged once"
)


def key_of(limits: Collection[Limit]) -> Key | None:
    """Returns the key of the sketch, or None if the limits are not a sketch."""
    for limit in limits:
        if limit.sketch_key is not None:
            if len(limits) > 1:
                raise ValueError("a sketch is alone in its key: take_all has several keys")
            return limit.sketch_key
    return None


def refuse(limits: Collection[Limit]) -> None:
    """Raises ValueError if the limits are a sketch."""
    if key_of(limits) is not None:
        raise ValueError(MERGED)


def refuse_options(*, once: Once, ttl: Duration | None, ban: Ban | None = None) -> None:
    """Raises ValueError for options of a call that a sketch does not support."""
    if once not in {None, False} or ttl is not None or ban is not None:
        raise ValueError(MERGED)


def require_distinct_keys(keys: Collection[Key]) -> None:
    """Raises ValueError for a key that occurs twice, as with two items of one sketch."""
    if len(set(keys)) < len(keys):
        raise ValueError("a call has each key once, and so one item of a sketch")


def local_key(key: Key, item: Key | None) -> Key:
    """Returns the key under which this process counts during an outage."""
    if item is None:
        return key
    return b" ".join(one.encode() if isinstance(one, str) else one for one in (key, item))
