"""The fallback limits of this process decide as the server would."""

import random
from decimal import Decimal
from typing import Any

import pytest
import redis
from support.clock import Clock
from support.server import Server

from redis_ratelimit import Fixed, LeakyBucket, Limit, Limiter, Local, TokenBucket
from redis_ratelimit.local import Charge

# Numbers that are exact as floats: the server counts in integers.
LIMITS = [0, 1, 2, 10, 0.5, 2.5, 0.000001, 1000, 10**9, 10**12]
RATES = [1, 3, 0.5, 1000, 10**12]
COSTS = [0, 1, 2, 3, 0.1, 0.25, 0.000001, 0.0000001, 7, 999, 10**12]


@pytest.mark.parametrize("seed", range(60))
def test_local_bucket_decides_like_the_server(server: Server, clock: Clock, seed: int) -> None:
    pick = random.Random(seed)
    capacity, refill = pick.choice(LIMITS), pick.choice(RATES)
    # The server rejects a refill slower than a hundred years.
    refill = refill if capacity / refill < 10**5 else capacity
    limit = TokenBucket(capacity, refill, pick.choice([1, 60, "1h"]))
    # Floats of this size have no fractions, and the units that drain in a millisecond are not
    # exact, so time stands still.
    is_huge = capacity >= 10**9 or refill >= 10**9
    seconds = 0.0
    local = Local(clock=lambda: seconds)
    url = f"redis://127.0.0.1:{server.port}"
    with Limiter.from_url(url, timeout=10, remember_denials=False) as limiter:
        for step in range(60):
            options: dict[str, Any] = {}
            cost = pick.choice([*COSTS, capacity, capacity / 2])
            cost = int(cost) if is_huge else cost
            operation = pick.choice(["take", "take", "take", "force", "upto", "peek", "give back"])
            if operation in {"force", "upto"}:
                options[operation] = True
            if operation == "force" and not is_huge:
                # More would saturate the server's time.
                cost = min(cost, 10**5)
            if operation == "upto":
                cost = max(int(cost), 1)
            charges = [Charge("key", limit, float(cost))]
            if operation == "give back":
                cost = cost or 1
                expected = limiter.give_back("key", limit, cost=cost)
                (decided_here,) = local.give_back([Charge("key", limit, float(cost))])
            elif operation == "peek":
                expected = limiter.peek("key", limit, cost=cost)
                (decided_here,) = local.take(charges, is_peek=True)
            else:
                expected = limiter.take("key", limit, cost=cost, once=False, **options)
                (decided_here,) = local.take(charges, **options)
            decisions = [
                (one.allowed, one.limit, one.remaining, one.granted, one.wait_ms < 0)
                for one in (expected, decided_here)
            ]
            assert decisions[0] == decisions[1], (seed, step, limit, operation, cost)
            for one, other in (
                (expected.wait_ms, decided_here.wait_ms),
                (expected.reset_ms, decided_here.reset_ms),
            ):
                assert abs(one - other) <= max(1, one * 1e-6), (seed, step, limit, operation, cost)
            if pick.random() < 0.5 and not is_huge:
                milliseconds = pick.choice([1, 10, 1000, 60_000, max(decided_here.wait_ms, 0)])
                milliseconds = min(milliseconds, 10**9)
                clock.advance(f"{milliseconds}ms")
                seconds += milliseconds / 1000


@pytest.mark.parametrize(
    "limit", [Fixed(0, 60), TokenBucket(0, 1), LeakyBucket(0, 10, "1m"), Fixed(0.4, 60)]
)
@pytest.mark.parametrize("share", [1, 0.25, 0.001])
def test_zero_limit_denies_every_call(limit: Limit, share: float) -> None:
    seconds = 0.0
    local = Local(share, clock=lambda: seconds)
    for _ in range(5):
        (denied,) = local.take([Charge("key", limit, 1)])
        assert (denied.allowed, denied.limit, denied.remaining) == (False, 0, 0)
        assert denied.wait is None
        seconds += 3600
    assert local.take([Charge("key", limit, 0)])[0].allowed
    # A forced charge drains.
    assert not local.take([Charge("key", limit, 5)], force=True)[0].allowed
    assert not local.take([Charge("key", limit, 0)])[0].allowed
    seconds += 3600
    assert local.take([Charge("key", limit, 0)])[0].allowed


@pytest.mark.parametrize("quota", [10**12, 10**9])
def test_huge_limit_counts_single_units(quota: int) -> None:
    local = Local(clock=lambda: 123_456.789)
    limit = TokenBucket(quota, quota)
    assert local.take([Charge("key", limit, quota - 3)])[0].remaining == 3
    admitted = [local.take([Charge("key", limit, 1)])[0].allowed for _ in range(5)]
    assert admitted == [True] * 3 + [False] * 2


def test_fractions_add_up() -> None:
    local = Local(clock=lambda: 1e9 / 7)
    limit = Fixed(0.3, 60)
    admitted = [local.take([Charge("key", limit, 0.1)])[0].allowed for _ in range(4)]
    assert admitted == [True] * 3 + [False]
    # A cost below the server's resolution is rounded up to a millionth, and a limit is rounded
    # down.
    tiny = Fixed(float(Decimal("0.0000019")), 60)
    admitted = [local.take([Charge("tiny", tiny, 1e-7)])[0].allowed for _ in range(3)]
    assert admitted == [True, False, False]


def test_shares_add_up_to_the_limit() -> None:
    for quota, processes in ((10, 4), (49, 49), (100, 7), (3, 3)):
        local = Local(1 / processes, clock=lambda: 0.0)
        limit = Fixed(quota, 60)
        passed = 0
        while local.take([Charge("key", limit, 0.01)])[0].allowed:
            passed += 1
        assert passed == pytest.approx(100 * quota / processes, abs=1)


def test_limits_with_two_periods_have_separate_usage(server: Server, admin: redis.Redis) -> None:
    with Limiter.from_url(f"redis://127.0.0.1:{server.port}", timeout=10) as limiter:
        limits = TokenBucket(10, 10, 1), TokenBucket(10, 10, 60)
        decision = limiter.take("key", *limits, each=True)
    local = Local(clock=lambda: 0.0)
    decided_here = local.take([Charge("key", limit, 1) for limit in limits])
    assert (
        [one.remaining for one in decision.each]
        == [one.remaining for one in decided_here]
        == [9, 9]
    )
    assert admin.exists("key")


def test_recently_used_bucket_is_kept() -> None:
    local = Local(most=3, clock=lambda: 0.0)
    limit = Fixed(1, 60)
    assert local.take([Charge("eve", limit, 1)])[0].allowed
    for number in range(20):
        assert local.take([Charge(number.to_bytes(2, "big"), limit, 1)])[0].allowed
        assert not local.take([Charge("eve", limit, 1)])[0].allowed
