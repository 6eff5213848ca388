"""Random calls on leases get the replies of a simple model."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from support.clock import UNITS_US, Clock
from support.strategies import sequences
from support.units import UNIT, decimal, millis

SECOND = UNITS_US["s"]


@dataclass
class Oracle:
    """Table of leases. Amounts are in millionths, and times in microseconds."""

    # Expiry and units by holder.
    leases: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Time of the last change.
    written: int = 0
    # `True` if all leases have expired since the last change, so that the key may be gone.
    had_expired: bool = True

    def update(self, now: int, *, exists: bool) -> None:
        """Updates the table to the time of the next call."""
        back = self.written - now
        if self.leases and back > 0:
            self.leases = {
                holder: (expires_at - back, units)
                for holder, (expires_at, units) in self.leases.items()
            }
            self.written = now
        self.had_expired |= not self.live(now)
        if not exists:
            assert self.had_expired
            self.leases = {}

    def live(self, now: int) -> dict[str, int]:
        return {
            holder: units for holder, (expires_at, units) in self.leases.items() if now < expires_at
        }

    def acquire(self, now: int, limit: int, ttl: int, holder: str, cost: int) -> list[int]:
        def fits(time: int) -> bool:
            others = self.live(time)
            others.pop(holder, 0)
            return sum(others.values()) + cost <= limit

        allowed = cost <= self.live(now).get(holder, 0) or fits(now)
        wait = 0
        if not allowed:
            expires = (expires_at for expires_at, _ in self.leases.values() if expires_at > now)
            wait = min((millis(time - now) for time in expires if fits(time)), default=-1)
        else:
            self.leases = {holder: self.leases[holder] for holder in self.live(now)}
            self.leases[holder] = (now + ttl, cost)
            self.written, self.had_expired = now, False
        remaining = max(0, limit - sum(self.live(now).values()))
        reset = max([expires_at - now for expires_at, _ in self.leases.values()], default=0)
        return [int(allowed), limit // UNIT, remaining // UNIT, wait, millis(max(0, reset))]

    def release(self, now: int, holders: list[str]) -> int:
        released = self.live(now).keys() & set(holders)
        if released:
            self.leases = {
                holder: self.leases[holder] for holder in self.live(now) if holder not in released
            }
            self.written = now
            self.had_expired |= not self.leases
        return len(released)


holder_names = st.sampled_from("abcd")
acquires = st.tuples(
    st.sampled_from([0, 2_500_000, 4 * UNIT, 4 * UNIT, 4 * UNIT]),
    st.sampled_from([1, 500_000, 10 * SECOND, 20 * SECOND, 60 * SECOND]),
    holder_names,
    st.sampled_from([1, 300_000, UNIT, UNIT, 2 * UNIT, 3 * UNIT, 5 * UNIT]),
)
pauses = st.sampled_from(
    [
        0,
        0,
        0,
        1,
        499_999,
        SECOND,
        SECOND,
        10 * SECOND - 1,
        10 * SECOND,
        70 * SECOND,
        -1,
        -5 * SECOND,
    ]
)


# The module decides this alone, so one server is enough.
@pytest.mark.once
@given(
    steps=sequences(
        st.tuples(pauses, acquires | st.lists(holder_names, min_size=1, max_size=3)), 40
    )
)
@settings(max_examples=120)
def test_replies_equal_those_of_the_oracle(redis: Redis, clock: Clock, steps: list) -> None:
    redis.delete("k")
    clock.reset()
    oracle = Oracle()
    for pause, step in steps:
        clock.advance(pause)
        oracle.update(clock.now, exists=bool(redis.exists("k")))
        if isinstance(step, list):
            expected = oracle.release(clock.now, step)
            assert redis.execute_command("RL.RELEASE", "k", *step) == expected
        else:
            limit, ttl, holder, cost = step
            spec = (decimal(limit), f"{ttl}us", holder, "COST", decimal(cost))
            peeked = redis.execute_command("RL.PEEK", "k", "CONCURRENCY", *spec)
            expected = oracle.acquire(clock.now, limit, ttl, holder, cost)
            assert redis.execute_command("RL.ACQUIRE", "k", *spec) == expected
            assert (peeked[0], peeked[3]) == (expected[0], expected[3])
        if not oracle.live(clock.now) and isinstance(step, list) and expected:
            assert redis.exists("k") == 0
