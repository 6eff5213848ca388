"""Bound limits, and the methods of decisions."""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import time
from typing import Any

import pytest
import redis
from support.clock import Clock
from support.server import Server

from limiters import Make
from redis_ratelimit import (
    Concurrency,
    DeniedError,
    Fixed,
    Limiter,
    SlidingLog,
    TokenBucket,
    aio,
    fields,
    tasks,
    threads,
)

LIMIT = Fixed(3, "1h")


def test_calls_of_a_bound_limit_use_its_keys(url: str, admin: redis.Redis) -> None:
    with Limiter.from_url(url, timeout=10, prefix="app:") as limiter:
        api = limiter.limit("api", LIMIT)
        assert [api.take("user").allowed for _ in range(4)] == [True] * 3 + [False]
        assert api.take("other").remaining == 2
        assert admin.keys("app:api:*")
        assert api.peek("user").remaining == 0
        api.give_back("user")
        assert api.peek("user").remaining == 1
        assert api.reset("user")
        assert not api.reset("user")
        assert api.peek("user").remaining == 3
        assert limiter.peek("api:user", LIMIT).remaining == 3
        with pytest.raises(TypeError):
            api.take(None)  # type: ignore[arg-type]


def test_bound_limit_without_who_is_shared(url: str, admin: redis.Redis) -> None:
    with Limiter.from_url(url, timeout=10) as limiter:
        mails = limiter.limit("mails", LIMIT)
        assert mails.take().remaining == 2

        @mails()
        def mail() -> int:
            return 7

        assert mail() == 7
        assert admin.keys() == ["mails"]
        assert mails.peek().remaining == 1


def test_leases_and_units_of_a_bound_limit(url: str, admin: redis.Redis) -> None:
    with Limiter.from_url(url, timeout=10) as limiter:
        pool = limiter.limit("pool", Concurrency(1, "1h"))
        with pool.lease("exports"):
            assert admin.keys() == ["pool:exports"]
            with pytest.raises(DeniedError):
                pool.lease("exports", wait=0).__enter__()
        with limiter.limit("hot", LIMIT).units(batch=2) as units:
            assert [bool(units.take()) for _ in range(4)] == [True] * 3 + [False]
        with pytest.raises(TypeError, match="not one Concurrency"):
            limiter.limit("api", LIMIT).lease("user")


def test_leases_and_units_of_a_bound_limit_with_asyncio(url: str) -> None:
    async def main() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            async with limiter.limit("pool", Concurrency(1, "1h")).lease("exports") as lease:
                lease.check()
            async with limiter.limit("hot", LIMIT).units("all", batch=2) as units:
                assert await units.take()

    asyncio.run(main())


def test_calls_of_a_bound_limit_with_asyncio(url: str) -> None:
    async def main() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            api = limiter.limit("api", LIMIT, cost=2)
            assert (await api.take("user")).remaining == 1
            assert not await api.take("user")
            assert await api.reset("user")
            decision = await api.take("user")
            assert (await decision.settle(1)).remaining == 2

            @api(key=lambda user: user)
            async def served(user: str) -> str:
                return f"hello {user}"

            assert await served("you") == "hello you"
            with pytest.raises(DeniedError):
                await served("you")

    asyncio.run(main())


def test_bound_limit_decorates_a_function(url: str) -> None:
    with Limiter.from_url(url, timeout=10) as limiter:

        @limiter.limit("jobs", Fixed(1, "1h"))("everybody")
        def job() -> int:
            return 7

        assert job() == 7
        with pytest.raises(DeniedError) as raised:
            job()
        assert raised.value.decision.limit == 1


def test_decision_settles_its_charge(url: str) -> None:
    with Limiter.from_url(url, timeout=10, prefix="p:") as limiter:
        decision = limiter.take("llm", TokenBucket(10_000, 10_000, "1h"), cost=4000)
        assert decision.require() is decision
        assert decision.settle(1200).remaining == 8800
        with pytest.raises(ValueError, match="refundable=True"):
            limiter.take("llm", Fixed(1, "1h", name="a"), once=False).settle(1)


def test_denied_call_with_wait_passes_later(limiter: Any, clock: Any) -> None:
    clock.run()
    bucket = TokenBucket(1, 1, "200ms")
    started_at = time.monotonic()
    assert limiter.take("key", bucket)
    assert limiter.take("key", bucket, wait=20)
    assert time.monotonic() - started_at > 0.19
    # A wait that is endless, or longer than allowed, does not begin: the test would time out.
    bucket = TokenBucket(1, 1, "1h")
    assert limiter.take("slow", bucket)
    assert not limiter.take("slow", bucket, wait=1000)
    assert not limiter.take("slow", bucket, cost=2, wait=1000)


def take_calls(admin: redis.Redis) -> int:
    return int(admin.info("commandstats").get("cmdstat_rl.take", {"calls": 0})["calls"])


class SimulatedTime:
    """Simulated time that passes only while all tasks sleep."""

    def __init__(self, clock: Clock) -> None:
        self.now = 0.0
        self._clock = clock
        self._due: list[tuple[float, int, asyncio.Future[None]]] = []
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._due, (self.now + seconds, len(self.slept), future))
        await future

    async def run(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Advances time until all tasks are done."""
        while not all(task.done() for task in tasks):
            # Wait until all running tasks sleep, so that no task waits for the server.
            waiting = sum(not task.done() for task in tasks)
            while len(self._due) < waiting:
                await asyncio.sleep(0.001)
                waiting = sum(not task.done() for task in tasks)
            if not waiting:
                return
            due, _, future = heapq.heappop(self._due)
            if due > self.now:
                self._clock.advance(f"{math.ceil((due - self.now) * 1e6)}us")
                self.now = due
            future.set_result(None)
            await asyncio.sleep(0)


def wait_together(
    url: str, admin: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch, limit: Any
) -> tuple[list[Any], SimulatedTime, int]:
    """Takes from 50 callers that wait for up to two minutes. Returns their decisions, the simulated
    time, and the number of calls.
    """
    simulated = SimulatedTime(clock)

    async def main() -> list[Any]:
        async with aio.Limiter.from_url(url, timeout=10, clock=lambda: simulated.now) as limiter:
            await limiter.take("warm", LIMIT)
            monkeypatch.setattr(tasks.Transport, "sleep", staticmethod(simulated.sleep))
            takes = [limiter.take("key", limit, wait=120) for _ in range(50)]
            waiting = [asyncio.ensure_future(take) for take in takes]
            await simulated.run(waiting)
            return [task.result() for task in waiting]

    before = take_calls(admin)
    decisions = asyncio.run(main())
    return decisions, simulated, take_calls(admin) - before - 1


def test_waiting_callers_of_a_bucket_reserve_units(
    url: str, admin: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = TokenBucket(1, 1, "1s")
    decisions, simulated, calls = wait_together(url, admin, clock, monkeypatch, bucket)
    assert all(decisions)
    assert {one.wait_ms for one in decisions} == {0}
    assert calls == 50
    # Each caller sleeps exactly until its reservation.
    assert sorted(simulated.slept) == [float(one) for one in range(1, 50)]


def test_waiting_callers_of_other_limits_retry_spread(
    url: str, admin: redis.Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = SlidingLog(1, "1s")
    decisions, simulated, calls = wait_together(url, admin, clock, monkeypatch, limit)
    assert sum(map(bool, decisions)) >= 45
    # Without a random part, all callers would call whenever one may pass: 1,275 calls.
    assert calls < 400
    assert len(set(simulated.slept)) > len(simulated.slept) / 2


@pytest.mark.parametrize("interrupted", ["cancelled", "killed"])
def test_interrupted_wait_gives_the_reservation_back(
    url: str, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    bucket = TokenBucket(5, 1, "1h")
    if interrupted == "cancelled":

        async def main() -> None:
            async with aio.Limiter.from_url(url, timeout=10) as waiting:
                task = asyncio.ensure_future(waiting.take("key", bucket, cost=5, wait=7200))
                while (await waiting.peek("key", bucket, cost=0)).remaining:
                    await asyncio.sleep(0.001)
                second = asyncio.ensure_future(waiting.take("key", bucket, wait=7200))
                while (await waiting.peek("key", bucket)).wait != 7200:
                    await asyncio.sleep(0.001)
                second.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await second
                assert (await waiting.peek("key", bucket)).wait == 3600
                assert await task

        asyncio.run(main())
        return
    with Limiter.from_url(url, timeout=10) as limiter:

        def sleep(_: float) -> None:
            assert limiter.peek("key", bucket).wait == 7200
            raise KeyboardInterrupt

        monkeypatch.setattr(threads.Transport, "sleep", staticmethod(sleep))
        assert limiter.take("key", bucket, cost=5, wait=7200)
        with pytest.raises(KeyboardInterrupt):
            limiter.take("key", bucket, wait=7200)
        assert limiter.peek("key", bucket).wait == 3600


def test_denial_after_a_wait_reports_the_whole_wait(limiter: Any) -> None:
    bucket = TokenBucket(1, 1, "1h")
    assert limiter.take("key", bucket, wait=5)
    denied = limiter.take("key", bucket, wait=5)
    assert (denied.allowed, denied.wait) == (False, 3600.0)
    assert limiter.take("key", bucket, cost=2, wait=5).wait is None


def test_decision_of_a_refundable_charge_is_settled(limiter: Any) -> None:
    """A charge of one unit under a large limit has an id only if it is refundable."""
    for limit in (Fixed(50, "1h"), Fixed(1000, "1h", name="a"), Fixed(1000, "2h", cost=3)):
        decision = limiter.take("key", limit, refundable=True)
        assert settle(limiter, decision, 0).remaining == limit.quota
    decision = limiter.take_all({"{a}:1": "5/hour", "{a}:2": "5000/hour"}, refundable=True)
    assert [one.remaining for one in settle(limiter, decision, 0).each] == [5, 5000]
    assert limiter.limit("api", "5000/hour").take("you", refundable=True).id
    with pytest.raises(ValueError, match="once must not be False"):
        limiter.take("key", LIMIT, refundable=True, once=False)
    with pytest.raises(ValueError, match="refundable=True"):
        limiter.take("other", Fixed(1000, "1h")).settle(0)
    assert limiter.take("denied", "1/hour")
    with pytest.raises(ValueError, match="was denied"):
        limiter.take("denied", "1/hour").settle(0)


def settle(limiter: Any, decision: Any, cost: int) -> Any:
    loop = getattr(limiter, "_loop", None)
    result = decision.settle(cost)
    return result if loop is None else loop.run_until_complete(result)


def test_refundable_charge_on_a_key_full_of_ids_is_given_back(
    limiter: Any, admin: redis.Redis
) -> None:
    admin.config_set("ratelimit.max-ids", 1)
    try:
        assert limiter.take("key", LIMIT, once="theirs")
        decision = limiter.take("key", LIMIT, refundable=True)
        assert (decision.allowed, decision.id, decision.remaining) == (True, None, 1)
        settle(limiter, decision, 0)
        assert limiter.peek("key", LIMIT).remaining == 2
    finally:
        admin.config_set("ratelimit.max-ids", 100_000)


def test_refund_of_an_undecided_charge_changes_nothing(make: Make) -> None:
    limiter = make("redis://127.0.0.1:1", on_outage="open")
    for limits in ({"key": LIMIT}, {"key": "5/hour", "other": "5000/hour"}):
        decision = limiter.take_all(limits)
        assert settle(limiter, decision, 0) is decision
    decision = limiter.take("key", "5000/hour")
    assert settle(limiter, decision, 0) is decision


def test_call_that_is_not_awaited_has_no_truth_value(url: str) -> None:
    async def main() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            api = limiter.limit("api", LIMIT)
            for call in (
                limiter.take("key", LIMIT),
                limiter.peek("key", LIMIT),
                limiter.take_all({"key": LIMIT}),
                limiter.peek_all({"key": LIMIT}),
                limiter.settle("key", LIMIT, id="id", cost=0),
                limiter.give_back("key", LIMIT),
                limiter.reset("key"),
                api.take("you"),
                api.peek("you"),
                api.reset("you"),
                limiter.units("hot", LIMIT).take(),
                (await limiter.take("key", LIMIT, cost=2)).settle(0),
            ):
                with pytest.raises(TypeError, match="decides nothing before it is awaited"):
                    bool(call)
            # Apart from its truth value it is a coroutine.
            assert await asyncio.create_task(limiter.take("a", LIMIT))
            assert await asyncio.wait_for(api.take("b"), 10)
            assert all(await asyncio.gather(limiter.take("c", LIMIT), api.take("c")))

    asyncio.run(main())


def test_lease_without_a_wait_does_not_wait(limiter: Any) -> None:
    pool = Concurrency(1, "1h")
    with limiter.lease("pool", pool):
        for lease in (limiter.lease("pool", pool), limiter.lease("pool", pool, wait=0)):
            with pytest.raises(DeniedError), lease:
                pytest.fail("a lease above the limit was granted")


def test_denied_error_is_a_response(limiter: Any) -> None:
    api = limiter.limit("api", Fixed(1, "1h"))
    api.take("you").require()
    with pytest.raises(DeniedError) as denied:
        api.take("you").require()
    assert denied.value.status == 429
    assert denied.value.headers["Retry-After"] == "3600"
    assert denied.value.headers["RateLimit-Policy"] == '"api";q=1;w=3600'
    assert json.loads(denied.value.body)["violated-policies"] == ["api"]
    assert fields(denied.value.decision)["X-RateLimit-Limit"] == "1"


def test_decision_without_the_server_is_degraded(make: Make, server: Server) -> None:
    limiter = make()
    assert not limiter.take("key", LIMIT).degraded
    server.stop("kill")
    decision = limiter.take("key", LIMIT)
    assert decision.degraded
    assert (decision.limit, decision.remaining, decision.reset) == (None, None, None)
