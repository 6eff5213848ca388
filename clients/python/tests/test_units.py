"""Units of a hot key are charged in batches, spent in this process, and given back if unspent."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from support import poll
from support.clock import Clock
from support.proxy import LossyProxy
from support.server import Server

from limiters import FrozenClock, Make
from redis_ratelimit import (
    Decision,
    Fixed,
    Limiter,
    Local,
    SlidingLog,
    TokenBucket,
    UnavailableError,
    aio,
)

BUCKET = TokenBucket(1000, 10)


@pytest.fixture
def now() -> FrozenClock:
    return FrozenClock()


def take_calls(admin: redis.Redis) -> int:
    return int(admin.info("commandstats").get("cmdstat_rl.take", {"calls": 0})["calls"])


def remaining(admin: redis.Redis, key: str = "hot") -> int:
    return int(admin.execute_command("RL.PEEK", key, *BUCKET.spec(), "COST", 0)[2])


def spend_until_in_hand(units: Any, number: int) -> None:
    """Spends `number` units, so that `number - 1` further units are in hand. The clock of the
    limiter has to stand still.
    """
    assert units.take(cost=number - 1)
    assert units.take()
    assert units.in_hand == number - 1


def test_batches_grow_from_one_with_the_rate(
    make: Make, admin: redis.Redis, now: FrozenClock
) -> None:
    admin.config_resetstat()
    units = make(clock=now).units("hot", BUCKET, peers=1)
    decisions = []
    for _ in range(250):
        now.seconds += 0.001
        decisions.append(units.take())
    assert all(decisions)
    # 1, 2, 4 and so on, up to half of a thousand a second.
    assert 5 <= take_calls(admin) <= 20
    units.close()
    assert (remaining(admin), units.in_hand) == (750, 0)
    assert decisions[-1].limit == 1000
    units.close()
    assert remaining(admin) == 750


def test_batch_is_at_most_a_hundredth_of_the_limit(
    make: Make, admin: redis.Redis, now: FrozenClock
) -> None:
    units = make(clock=now).units("hot", BUCKET)
    for _ in range(100):
        assert units.take()
        assert units.in_hand <= 10 + 3  # requested with a third of the last batch in hand
    few = make(clock=now).units("few", BUCKET, batch=2)
    assert all(few.take() and few.in_hand <= 2 for _ in range(50))
    units.close()
    few.close()
    assert (remaining(admin), remaining(admin, "few")) == (900, 950)


def test_unspent_units_are_given_back_at_close(
    make: Make, admin: redis.Redis, now: FrozenClock
) -> None:
    with make(clock=now).units("hot", BUCKET, peers=1) as units:
        spend_until_in_hand(units, 30)
        assert remaining(admin) == 1000 - 29 - 30
    assert remaining(admin) == 970


def test_recovered_units_are_not_given_back_again(
    make: Make, admin: redis.Redis, clock: Clock, now: FrozenClock
) -> None:
    """If only 100 had been charged, they would have recovered within 10 seconds."""
    with make(clock=now).units("hot", BUCKET, peers=1) as units:
        spend_until_in_hand(units, 100)
        clock.advance("10.5s")
        admin.execute_command("RL.TAKE", "hot", "COST", 20, *BUCKET.spec())
    # A negative cost of 99 would also give back the 20 units of the other call.
    assert remaining(admin) == 980


def test_threads_together_spend_exactly_the_limit(url: str) -> None:
    limit = Fixed(500, "1d")
    with Limiter.from_url(url, timeout=10) as limiter, ThreadPoolExecutor(8) as pool:
        shared = [limiter.units("hot", limit, keep=3600, peers=3) for _ in range(3)]
        decisions = list(pool.map(lambda n: shared[n % 3].take(), range(900)))
        passed = sum(map(bool, decisions))
        for units in shared:
            units.close()
        assert passed <= 500
        assert limiter.peek("hot", limit).remaining == 500 - passed


def test_tasks_share_one_call(url: str, admin: redis.Redis) -> None:
    async def decide() -> list[Decision]:
        async with (
            aio.Limiter.from_url(url, timeout=10) as limiter,
            limiter.units("hot", Fixed(80, "1d")) as units,
        ):
            return await asyncio.gather(*(units.take() for _ in range(100)))

    admin.config_resetstat()
    decisions = asyncio.run(decide())
    assert Counter(map(bool, decisions)) == {True: 80, False: 20}
    # The grant was short: waiting callers are denied without another call.
    assert take_calls(admin) == 1


def test_threads_share_calls(url: str, server: Server, admin: redis.Redis) -> None:
    with Limiter.from_url(url, timeout=60) as limiter, ThreadPoolExecutor(32) as pool:
        units = limiter.units("hot", Fixed(80, "1d"))
        assert units.take()
        admin.config_resetstat()
        with server.suspended():
            takes = [pool.submit(units.take) for _ in range(32)]
            poll.until(lambda: len(units._waiting) == 32, "all threads wait")
        assert all(take.result() for take in takes)
        # One call for the first thread, and one for the others.
        assert take_calls(admin) <= 2


def test_next_batch_is_requested_before_the_last_is_spent(
    make: Make, admin: redis.Redis, now: FrozenClock
) -> None:
    units = make(clock=now).units("hot", BUCKET, peers=1)
    spend_until_in_hand(units, 31)
    admin.config_resetstat()
    # Down to a third of the batch; each take raises the rate a little.
    for _ in range(19):
        assert units.take()
    assert units.take()  # runs the event loop of asyncio
    poll.until(lambda: take_calls(admin) == 1, "a batch is requested")


def test_exhausted_limit_denies_at_once_and_is_retried_after_pauses(
    make: Make, admin: redis.Redis, clock: Clock, now: FrozenClock
) -> None:
    """Twice as many callers as the limit allows, for five seconds."""
    units = make(clock=now).units("hot", TokenBucket(200, 200), peers=1)
    admin.config_resetstat()
    granted = 0
    for _ in range(2000):
        now.seconds += 0.0025
        clock.advance("2500us")
        granted += units.take().allowed
    # The burst of 200, and 200 a second, except for the last pause. After two empty grants, for
    # example on a busy machine, a pause lasts up to 1.5 seconds.
    assert 900 <= granted <= 1200
    # 8 calls until batches have their size, 8 spare, and one for each pause of at least 0.25
    # seconds.
    assert take_calls(admin) <= 8 + 8 + 20


def test_denied_units_are_remembered_for_their_wait(
    make: Make, admin: redis.Redis, clock: Clock, now: FrozenClock
) -> None:
    units = make(clock=now).units("hot", TokenBucket(5, 1, "2s"))
    assert [units.take().allowed for _ in range(5)] == [True] * 5
    # Nothing was granted, so no call is sent until there is a unit, plus a random pause.
    assert 2.0 <= units.take().wait <= 2.125
    admin.config_resetstat()
    now.seconds += 1.5
    assert 0.5 <= units.take().wait <= 0.625
    assert take_calls(admin) == 0
    now.seconds += 0.7
    clock.advance("2.2s")
    assert units.take()


def test_raised_limit_is_noticed(make: Make, admin: redis.Redis, now: FrozenClock) -> None:
    limiter = make(clock=now)
    units = limiter.units("hot", Fixed(1, "1d"))
    assert [units.take().allowed for _ in range(2)] == [True, False]
    assert 86_000 < units.take().wait <= 86_400
    admin.delete("hot")
    now.seconds += 10.2
    assert units.take()


def test_cost_above_the_limit_is_denied_forever(
    make: Make, admin: redis.Redis, now: FrozenClock
) -> None:
    units = make(clock=now).units("hot", Fixed(3, "1d"))
    assert units.take(4).wait is None
    units.close()
    assert units.take(3).allowed or units.take(3).wait is not None
    admin.config_resetstat()
    assert units.take(4).wait is None
    assert take_calls(admin) == 0


def test_unspent_units_expire(make: Make, admin: redis.Redis, now: FrozenClock) -> None:
    """Units that are not spent in time are given back and can no longer be spent."""
    units = make(clock=now).units("hot", BUCKET, peers=1)
    spend_until_in_hand(units, 50)
    assert remaining(admin) == 1000 - 49 - 50
    now.seconds += 1.1
    assert units.in_hand == 0
    assert units.take()

    def are_given_back() -> bool:
        assert units.take()  # runs the event loop of asyncio
        return remaining(admin) + units.in_hand <= 950 and remaining(admin) > 901

    poll.until(are_given_back, "the units are given back")


def test_idle_process_gives_units_back(url: str, admin: redis.Redis) -> None:
    def is_given_back() -> bool:
        return remaining(admin) == 1000 - 20 - 1

    with Limiter.from_url(url, timeout=10) as limiter:
        units = limiter.units("hot", BUCKET, peers=1, keep=0.05)
        assert units.take(cost=20)
        assert units.take()
        poll.until(is_given_back, "a thread gives units back")

    async def idle() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            units = limiter.units("hot", BUCKET, peers=1, keep=0.05)
            assert await units.take(cost=20)
            assert await units.take()
            while not is_given_back():
                await asyncio.sleep(0.01)

    admin.delete("hot")
    asyncio.run(asyncio.wait_for(idle(), poll.TIMEOUT))


def test_lost_replies_charge_no_unit_twice(make: Make, server: Server, admin: redis.Redis) -> None:
    with LossyProxy(server.port, 2).running() as proxy:
        options = {"resends": 100, "failures": 10**6}
        limiter = make(f"redis://127.0.0.1:{proxy.port}", **options)
        with limiter.units("hot", BUCKET, batch=7, keep=3600) as units:
            assert sum(bool(units.take()) for _ in range(100)) == 100
        assert proxy.lost > 10
    assert remaining(admin) == 900


def test_outage_decides_single_requests(make: Make, server: Server) -> None:
    local = make(on_outage=Local(share=0.5)).units("hot", Fixed(10, "1h"))
    opened = make(on_outage="open").units("hot", Fixed(10, "1h"))
    closed = make(on_outage="closed").units("hot", Fixed(10, "1h"))
    raising = make(on_outage="raise").units("hot", Fixed(10, "1h"))
    server.stop("kill")
    assert [local.take().allowed for _ in range(7)] == [True] * 5 + [False] * 2
    assert opened.take().source == "none"
    assert not closed.take()
    with pytest.raises(UnavailableError):
        raising.take()
    local.close()


def test_available_units_are_spent_in_an_outage(
    make: Make, server: Server, now: FrozenClock
) -> None:
    units = make(on_outage="closed", clock=now).units("hot", Fixed(100, "1h"), peers=1)
    spend_until_in_hand(units, 5)
    server.stop("kill")
    assert [units.take().allowed for _ in range(5)] == [True] * 4 + [False]


def test_waiting_callers_share_a_failed_request() -> None:
    """Otherwise the callers would wait for a timeout each, one after the other."""
    sent = []

    def send(call: Any) -> None:
        sent.append(call)
        raise UnavailableError("no reply")

    with (
        Limiter.from_url("redis://127.0.0.1:1", on_outage="closed") as limiter,
        ThreadPoolExecutor(16) as pool,
    ):
        units = limiter.units("hot", Fixed(100, "1h"))
        # A first request in flight, for which the other threads wait.
        units._execute, units._is_requesting = send, True
        takes = [pool.submit(units.take) for _ in range(16)]
        poll.until(lambda: len(units._waiting) == 16, "all threads wait")
        with units._changed:
            units._fetch()
        assert {take.result().source for take in takes} == {"none"}
        assert len(sent) == 1


def test_cancelled_task_leaves_units_to_others(url: str, admin: redis.Redis) -> None:
    async def decide() -> None:
        async with (
            aio.Limiter.from_url(url, timeout=10) as limiter,
            limiter.units("hot", Fixed(1000, "1d")) as units,
        ):
            first, second = (asyncio.ensure_future(units.take()) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            assert await second
            await asyncio.gather(first, return_exceptions=True)
            assert first.cancelled()

    asyncio.run(decide())
    assert int(admin.execute_command("RL.PEEK", "hot", "FIXED", 1000, "1d")[2]) >= 997


def test_limit_below_one_grants_no_unit(limiter: Any) -> None:
    assert limiter.units("hot", SlidingLog(0, 10)).take().wait is None


@pytest.mark.parametrize("option", ["batch", "peers"])
@pytest.mark.parametrize("number", [0, -1, 0.5, "2"])
def test_option_that_is_no_number_from_1_is_rejected(
    limiter: Any, option: str, number: Any
) -> None:
    with pytest.raises(ValueError, match=f"{option} must be"):
        limiter.units("hot", BUCKET, **{option: number})


@pytest.mark.parametrize("cost", [0, -5, 0.5, True - 1, float("nan")])
def test_only_whole_units_are_spent(make: Any, now: FrozenClock, cost: Any) -> None:
    with make(clock=now).units("key", Fixed(100, 60), peers=1) as units:
        spend_until_in_hand(units, 5)
        with pytest.raises(ValueError, match="whole number"):
            units.take(cost)
        assert units.in_hand == 4
