"""Bounds of a key's expiry: no earlier than its reset, and at most an eighth and a second later."""

from redis import Redis

from support.clock import Clock
from support.workload import state


def expires_at(redis: Redis, key: str = "k") -> int:
    return state(redis)[key.encode()].expires_at


def check_expiry(redis: Redis, clock: Clock, reset_ms: int, key: str = "k") -> None:
    """Checks the expiry of a key. `reset_ms` is from the reply to the latest charge."""
    expiry = expires_at(redis, key) * 1000
    # The reply is rounded up by less than a millisecond.
    assert expiry > clock.now + (reset_ms - 1) * 1000
    assert expiry <= clock.now + reset_ms * 1000 * 9 // 8 + 1_000_000
    if clock.now % 1000 == 0:
        assert expiry >= clock.now + reset_ms * 1000
