"""Calls by a sketch: the key of a call is an item, and the sketch has the key on the server."""

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
    """The key of the sketch that the limits are, if they are one."""
    for limit in limits:
        if limit.sketch_key is not None:
            if len(limits) > 1:
                raise ValueError("a sketch is alone in its key: take_all has several keys")
            return limit.sketch_key
    return None


def refuse(limits: Collection[Limit]) -> None:
    """For what no sketch can do."""
    if key_of(limits) is not None:
        raise ValueError(MERGED)


def only_charged(*, once: Once, ttl: Duration | None, ban: Ban | None = None) -> None:
    """Refuses what else comes with a call."""
    if once not in {None, False} or ttl is not None or ban is not None:
        raise ValueError(MERGED)


def each_once(keys: Collection[Key]) -> None:
    if len(set(keys)) < len(keys):
        raise ValueError("a call has each key once, and so one item of a sketch")


def whose(key: Key, item: Key | None) -> Key:
    """Whose usage it is, where this process counts."""
    if item is None:
        return key
    return b" ".join(one.encode() if isinstance(one, str) else one for one in (key, item))
