"""Units of a hot key are charged in batches, spent in this process, and given back if unspent."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from support.clock import Clock
from support.proxy import LossyProxy
from support.server import Server

from limiters import Make
from redis_ratelimit import Decision, Fixed, Limiter, Local, SlidingLog, TokenBucket, aio

BUCKET = TokenBucket(1000, 10)


def calls(admin: redis.Redis) -> int:
    return int(admin.info("commandstats").get("cmdstat_rl.take", {"calls": 0})["calls"])


def left(admin: redis.Redis, key: str = "hot") -> int:
    return int(admin.execute_command("RL.PEEK", key, *BUCKET.spec(), "COST", 0)[2])


def test_one_call_serves_many_requests(limiter: Any, admin: redis.Redis) -> None:
    admin.config_resetstat()
    units = limiter.units("hot", BUCKET, batch=100)
    decisions = [units.take() for _ in range(250)]
    assert all(decisions)
    assert calls(admin) == 3
    assert left(admin) == 700
    assert (decisions[-1].limit, decisions[-1].remaining, units.in_hand) == (1000, 750, 50)
    units.close()
    assert left(admin) == 750
    units.close()
    assert left(admin) == 750


def test_block_gives_unspent_units_back(limiter: Any, admin: redis.Redis) -> None:
    with limiter.units("hot", BUCKET, batch=400) as units:
        assert units.take(cost=30)
    assert left(admin) == 970


def test_recovered_units_are_not_given_back_again(
    limiter: Any, admin: redis.Redis, clock: Clock
) -> None:
    """Had only 10 been charged, they would have recovered within a second: so they have."""
    with limiter.units("hot", BUCKET, batch=100) as units:
        assert units.take(cost=10)
        clock.advance("5s")
        admin.execute_command("RL.TAKE", "hot", "COST", 20, *BUCKET.spec())
    # A negative cost of 90 would raise it to 1000 and forgive the 20 of the other call.
    assert left(admin) == 980


def test_processes_together_spend_at_most_the_limit(url: str) -> None:
    limit = Fixed(500, "1d")
    with Limiter.from_url(url, timeout=10) as limiter, ThreadPoolExecutor(8) as pool:
        shared = [limiter.units("hot", limit, batch=30, keep=3600) for _ in range(3)]
        decisions = list(pool.map(lambda n: shared[n % 3].take(), range(900)))
        passed = sum(map(bool, decisions))
        in_hand = sum(units.in_hand for units in shared)
        assert passed + in_hand == 500
        for units in shared:
            units.close()
        with limiter.units("hot", limit, batch=500) as rest:
            assert passed + sum(bool(rest.take()) for _ in range(500)) == 500


def test_tasks_share_one_call(url: str, admin: redis.Redis) -> None:
    async def decide() -> list[Decision]:
        async with (
            aio.Limiter.from_url(url, timeout=10) as limiter,
            limiter.units("hot", Fixed(80, "1d"), batch=100) as units,
        ):
            return await asyncio.gather(*(units.take() for _ in range(100)))

    admin.config_resetstat()
    decisions = asyncio.run(decide())
    assert Counter(map(bool, decisions)) == {True: 80, False: 20}
    # The grant was short: waiting callers are denied without another call.
    assert calls(admin) == 1


def test_units_for_all_waiting_tasks_are_requested_together(url: str, admin: redis.Redis) -> None:
    async def decide() -> list[Decision]:
        async with (
            aio.Limiter.from_url(url, timeout=10) as limiter,
            limiter.units("hot", Fixed(1000, "1d"), batch=10) as units,
        ):
            return await asyncio.gather(*(units.take() for _ in range(300)))

    admin.config_resetstat()
    assert all(asyncio.run(decide()))
    # A batch, and then the units for all waiting callers. By batches the last one would need 30
    # calls.
    assert calls(admin) == 2


def test_exhausted_limit_denies_at_once_and_is_retried_after_pauses(
    make: Make, admin: redis.Redis, clock: Clock
) -> None:
    """Twice as many callers as the limit allows, for five seconds."""
    now = 1000.0
    limiter = make(clock=lambda: now)
    units = limiter.units("hot", TokenBucket(200, 200), batch=100)
    admin.config_resetstat()
    granted = 0
    for _ in range(2000):
        now += 0.0025
        clock.advance("2500us")
        granted += units.take().allowed
    # The burst, and 200 a second, except for the last pause.
    assert 1100 <= granted <= 1200
    # A pause takes at least a tenth of a second.
    assert calls(admin) <= 52


def test_denied_units_are_remembered_for_their_wait(
    make: Make, admin: redis.Redis, clock: Clock
) -> None:
    now = 1000.0
    limiter = make(clock=lambda: now)
    units = limiter.units("hot", TokenBucket(5, 1, "2s"), batch=10)
    assert [units.take().allowed for _ in range(5)] == [True] * 5
    admin.config_resetstat()
    # The grant was short, so no call is sent during a pause.
    assert 0.1 <= units.take().wait <= 0.15
    assert calls(admin) == 0
    now += 0.15
    waits = {units.take().wait for _ in range(10)}
    assert (calls(admin), waits) == (1, {2.0})
    now += 1.5
    assert units.take().wait == 0.5
    now += 0.6
    clock.advance("2.1s")
    assert units.take()


def test_unspent_units_expire(make: Make, admin: redis.Redis) -> None:
    """Units that are not spent in time are given back and cannot be spent any more."""
    now = 1000.0
    limiter = make(clock=lambda: now)
    units = limiter.units("hot", BUCKET, batch=100, keep=1.0)
    assert units.take(cost=40)
    now += 1.1
    assert units.in_hand == 0
    assert units.take()
    # 40 of the first hundred, and the second hundred.
    assert left(admin) == 860
    units.close()
    assert left(admin) == 959


def test_lost_replies_charge_no_unit_twice(make: Make, server: Server, admin: redis.Redis) -> None:
    with LossyProxy(server.port, 2).running() as proxy:
        options = {"resends": 100, "failures": 10**6}
        limiter = make(f"redis://127.0.0.1:{proxy.port}", **options)
        with limiter.units("hot", BUCKET, batch=7, keep=3600) as units:
            assert sum(bool(units.take()) for _ in range(100)) == 100
        assert proxy.lost > 10
    assert left(admin) == 900


def test_outage_decides_single_requests(make: Make, server: Server) -> None:
    local = make(on_outage=Local(share=0.5)).units("hot", Fixed(10, "1h"), batch=100)
    opened = make(on_outage="open").units("hot", Fixed(10, "1h"), batch=100)
    closed = make(on_outage="closed").units("hot", Fixed(10, "1h"), batch=100)
    server.stop("kill")
    assert [local.take().allowed for _ in range(7)] == [True] * 5 + [False] * 2
    assert opened.take().source == "none"
    assert not closed.take()
    local.close()


def test_available_units_are_spent_in_an_outage(make: Make, server: Server) -> None:
    units = make(on_outage="closed").units("hot", Fixed(10, "1h"), batch=5, keep=3600)
    assert units.take()
    server.stop("kill")
    assert [units.take().allowed for _ in range(5)] == [True] * 4 + [False]


def test_limit_below_one_grants_no_unit(limiter: Any) -> None:
    assert limiter.units("hot", SlidingLog(0, 10)).take().wait is None


def test_batch_below_one_is_rejected(limiter: Any) -> None:
    with pytest.raises(ValueError, match="batch must be"):
        limiter.units("hot", BUCKET, batch=0)


@pytest.mark.parametrize("cost", [0, -5, 0.5, True - 1, float("nan")])
def test_only_whole_units_are_spent(make: Any, cost: Any) -> None:
    with make().units("key", Fixed(10, 60), batch=5) as units:
        assert units.take()
        with pytest.raises(ValueError, match="whole number"):
            units.take(cost)
        assert units.in_hand == 4
