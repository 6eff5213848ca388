"""COST 0, COST -amount, UPTO and FORCE work the same with every algorithm."""

import pytest
from redis import Redis

from support.clock import Clock
from support.workload import LIMITERS, Limiter

# Limiters that accept the options: all except leases. They recover within two hours.
OPTIONED = [limiter for limiter in LIMITERS if not limiter.has_leases]
each_limiter = pytest.mark.parametrize(
    "limiter", OPTIONED, ids=[limiter.name for limiter in OPTIONED]
)


def take(redis: Redis, limiter: Limiter, cost: object, *options: str, key: str = "k") -> list[int]:
    return redis.execute_command(*limiter.take(key, cost, *options))


def peek(redis: Redis, limiter: Limiter, cost: object, *options: str) -> list[int]:
    return redis.execute_command(*limiter.peek("k", cost, *options))


def state(redis: Redis) -> tuple:
    return redis.dump("k"), redis.pttl("k")


def check_wait(redis: Redis, clock: Clock, limiter: Limiter, wait_ms: int, cost: int) -> None:
    """Checks that a cost is denied until just before the wait is over, and then granted."""
    now = clock.now
    for ms, allowed in ((wait_ms - 1, 0), (wait_ms, 1)):
        clock.set(now + ms * 1000)
        assert peek(redis, limiter, cost)[0] == allowed, f"after {ms} of {wait_ms} ms"
    clock.set(now)


@each_limiter
def test_a_cost_of_0_is_a_peek_and_writes_nothing(redis: Redis, limiter: Limiter) -> None:
    assert take(redis, limiter, 0) == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0
    for cost, remaining in ((4, 6), (6, 0)):
        taken = take(redis, limiter, cost)
        before = state(redis)
        for zero in (0, "-0", "0.0", "0e5"):
            zero_cost = take(redis, limiter, zero)
            assert zero_cost == peek(redis, limiter, 0)
            # A full limiter is within its limit.
            assert (zero_cost[0], zero_cost[2], zero_cost[4]) == (1, remaining, taken[4])
        assert state(redis) == before


# Time until 25 used units have recovered to 10. A bucket recovers by its rate, and a fixed window
# at its end, which is the end of the hour if aligned. The previous window of SLIDING then weighs
# two fifths. A strict window has counted the charge in a minute that ends in 40 s and counts for an
# hour.
DEBT_MS = {
    "TOKENBUCKET": 5_400_000,
    "LEAKYBUCKET": 5_400_000,
    "FIXED": 3_600_000,
    "FIXED ALIGNED": 2_800_000,
    "SLIDING": 5_760_000,
    "SLIDING STRICT": 3_640_000,
    "SLIDINGLOG": 3_600_000,
    "TOKENBUCKET AS": 5_400_000,
}


@each_limiter
def test_a_forced_charge_past_the_limit_is_made_in_full(
    redis: Redis, clock: Clock, limiter: Limiter
) -> None:
    peeked = peek(redis, limiter, 25, "FORCE")
    assert (peeked[0], peeked[2], peeked[4]) == (0, 10, 0)
    forced = take(redis, limiter, 25, "FORCE")
    assert forced[:4] == [0, 10, 0, DEBT_MS[limiter.name]]
    assert peeked[3] == forced[3]
    # The wait lasts until the usage has recovered to the limit.
    assert take(redis, limiter, 0)[:4] == forced[:4]
    check_wait(redis, clock, limiter, forced[3], cost=0)


@each_limiter
def test_upto_grants_exactly_what_remains(redis: Redis, limiter: Limiter) -> None:
    for cost, remaining, granted in ((3, 7, 3), (5, 2, 5), (100, 0, 2), (100, 0, 0), (1, 0, 0)):
        reply = take(redis, limiter, cost, "UPTO")
        assert (reply[0], reply[2], reply[5]) == (int(granted > 0), remaining, granted)
    take(redis, limiter, 10, key="twin")
    assert redis.dump("k") == redis.dump("twin")


@each_limiter
def test_a_give_back_undoes_its_charge(redis: Redis, limiter: Limiter) -> None:
    take(redis, limiter, 8)
    give_back_reply = take(redis, limiter, "-2.5")
    assert (give_back_reply[0], give_back_reply[2], give_back_reply[3]) == (1, 4, 0)
    take(redis, limiter, "5.5", key="twin")
    assert redis.dump("k") == redis.dump("twin")
    assert take(redis, limiter, -5)[2] == 9
    assert take(redis, limiter, "-0.5") == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0


@each_limiter
def test_giving_back_to_a_missing_key_does_nothing(redis: Redis, limiter: Limiter) -> None:
    assert take(redis, limiter, -5) == [1, 10, 10, 0, 0]
    assert redis.exists("k") == 0


@each_limiter
@pytest.mark.parametrize("cost", [0, 100], ids=["zero", "denied"])
def test_call_without_a_charge_does_not_shorten_the_expiry(
    redis: Redis, clock: Clock, limiter: Limiter, cost: int
) -> None:
    """The call writes, as the clock moved back."""
    take(redis, limiter, 10)
    # A limit under which all usage would be forgotten in a second.
    quick = limiter._replace(spec=tuple("1s" if word == "1h" else word for word in limiter.spec))
    clock.advance("-10s")
    take(redis, quick, cost)
    clock.advance("30s")
    assert take(redis, limiter, 1)[0] == 0
