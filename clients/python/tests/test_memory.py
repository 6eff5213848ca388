"""`Limiter.local()`: a limiter without a server. test_traces.py compares its decisions."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import httpx
import pytest

from limiters import BlockingLimiter
from redis_ratelimit import (
    Ban,
    CallError,
    Concurrency,
    DeniedError,
    Fixed,
    LeakyBucket,
    Limiter,
    ManualClock,
    Policy,
    SetupError,
    Sketch,
    Sliding,
    SlidingLog,
    TokenBucket,
    aio,
)
from redis_ratelimit.asgi import RateLimitMiddleware


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2024, 2, 29, 12, tzinfo=timezone.utc))


@pytest.fixture
def local(kind: str, clock: ManualClock) -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    limiter = Limiter.local(clock=clock) if kind == "sync" else None
    yield limiter or BlockingLimiter(aio.Limiter.local(clock=clock), loop)
    loop.close()


@pytest.mark.parametrize(
    "limit",
    [
        TokenBucket(2, 1, "1m"),
        Fixed(2, "1m"),
        Fixed(2, "1d", aligned=True),
        Fixed(2, "1mo", aligned=True, offset="+09:00", anchor=31),
        Sliding(2, "1m"),
        Sliding(2, "1m", strict=True),
        SlidingLog(2, "1m"),
    ],
    ids=str,
)
def test_denied_call_passes_after_its_wait(local: Any, clock: ManualClock, limit: Any) -> None:
    assert [local.take("k", limit).allowed for _ in range(3)] == [True, True, False]
    clock.advance(local.take("k", limit).wait - 0.001)
    assert not local.take("k", limit)
    clock.advance("1ms")
    assert local.take("k", limit)


def test_leaky_bucket_delays_calls(local: Any) -> None:
    queue = LeakyBucket(3, 1, "2s")
    assert [local.take("k", queue).wait for _ in range(4)] == [0, 2, 4, 2]


def test_all_limits_are_charged_or_none(local: Any) -> None:
    second, day = TokenBucket(2, 2, "1s", name="second"), Fixed(3, "1d", name="day")
    assert local.take("k", second, day, cost=2, each=True).remaining == 0
    denied = local.take("k", second, day, each=True)
    assert [(one.name, one.remaining) for one in denied.each] == [("second", 0), ("day", 1)]
    assert local.take_all({"a": Fixed(5, "1m"), "b": Fixed(1, "1m")}, cost=1)
    assert not local.take_all({"a": Fixed(5, "1m"), "b": Fixed(1, "1m")}, cost=1)
    assert local.peek("a", Fixed(5, "1m")).remaining == 4


def test_options_of_a_call_apply(local: Any) -> None:
    limit = TokenBucket(10, 10, "1m")
    assert local.take("k", limit, cost=0.5).remaining == 9
    assert local.take("k", limit, cost=20, upto=True).granted == 9
    assert local.take("k", limit, max_wait="10s").wait == 3
    assert not local.take("k", limit, cost=3, force=True)
    assert local.give_back("k", limit, cost=3).remaining == 0
    assert not local.peek("other", limit, cost=9, keep="20%")
    assert local.reset("k")
    assert local.peek("k", limit).remaining == 10


def test_charge_counts_once_and_is_settled(local: Any) -> None:
    limit = Fixed(100, "1m")
    assert local.take("k", limit, cost=40, once="a").remaining == 60
    assert local.take("k", limit, cost=40, once="a").remaining == 60
    assert local.settle("k", limit, id="a", cost=10).remaining == 90
    assert not local.settle("k", limit, id="nobody", cost=10)


def test_bound_limits_decide(local: Any, clock: ManualClock) -> None:
    api = local.limit("api", Fixed(1, "1m"))
    assert api.take("alice")
    assert api.take("bob")
    with pytest.raises(DeniedError):
        api.take("alice").require()
    clock.advance("1m")
    assert api.take("alice")


def test_wait_advances_the_manual_clock(local: Any, clock: ManualClock) -> None:
    limit = TokenBucket(1, 1, "1h")
    assert local.take("k", limit)
    started_at = clock()
    assert local.take("k", limit, wait=7200)
    assert clock() - started_at == pytest.approx(3600, abs=0.01)
    assert not local.take("k", limit, wait=60)


def test_lease_is_held_until_it_is_released_or_expires(local: Any, clock: ManualClock) -> None:
    pool = Concurrency(1, "30s")
    with local.lease("pool", pool, wait=0) as lease:
        assert lease.holder
        with pytest.raises(DeniedError), local.lease("pool", pool, "other", wait=0):
            pass
    assert local.take("pool", pool, holder="other")
    assert not local.take("pool", pool, holder="third")
    clock.advance(30)
    assert local.take("pool", pool, holder="third")
    assert local.release("pool", "third") == 1


def test_fencing_tokens_grow(local: Any) -> None:
    tokens = []
    for _ in range(2):
        with local.lease("pool", Concurrency(1, "30s"), wait=0, fence=True) as lease:
            tokens.append(lease.token)
    assert tokens[0] < tokens[1]


def test_leases_are_given_in_order_of_arrival() -> None:
    limiter, pool, order = Limiter.local(), Concurrency(1, "1h"), list[int]()
    first = limiter.lease("pool", pool, wait=None)
    first.__enter__()

    def work(number: int) -> None:
        with limiter.lease("pool", pool, wait=None):
            order.append(number)

    queues = limiter._transport._memory._queues
    threads = [threading.Thread(target=work, args=[number]) for number in range(3)]
    for number, thread in enumerate(threads):
        thread.start()
        while len(queues.get(b"pool", [])) <= number:
            pass
    # The waiters are granted the lease in the order in which they arrived.
    first.__exit__(None, None, None)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2]


def test_waiting_task_gets_the_lease_of_another() -> None:
    async def main() -> list[str]:
        limiter, pool, order = aio.Limiter.local(), Concurrency(1, "1h"), list[str]()

        async def work(name: str) -> None:
            async with limiter.lease("pool", pool, wait=None):
                order.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(*[work(name) for name in "abc"])
        return order

    assert asyncio.run(main()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "call",
    [
        lambda local: local.take("k", Policy("plan")),
        lambda local: local.take("k", Sketch(5, 5, "1m", key="addresses")),
        lambda local: local.take("k", Fixed(5, "1m"), ban=Ban(1, "1m", "1h")),
        lambda local: local.ban("k", "1h"),
        lambda local: local.policies.set("plan", Fixed(5, "1m")),
    ],
    ids=["policy", "sketch", "strikes", "ban", "setting a policy"],
)
def test_server_only_features_are_rejected(local: Any, call: Callable[[Any], Any]) -> None:
    with pytest.raises(CallError, match="need a server"):
        call(local)


def test_malformed_calls_raise_the_servers_errors(local: Any) -> None:
    with pytest.raises(CallError, match="different windows"):
        local.take("k", Fixed(5, "1m"), Fixed(6, "60s"))
    assert local.take("k", Fixed(1000, "1m"))
    with pytest.raises(SetupError, match="WRONGTYPE"):
        local.take("k", SlidingLog(1000, "1m"))


def test_units_are_spent_in_batches(local: Any) -> None:
    units = local.units("hot", Fixed(10, "1m"), batch=4)
    assert [units.take().allowed for _ in range(11)] == [True] * 10 + [False]


def test_expired_keys_are_removed(clock: ManualClock) -> None:
    limiter = Limiter.local(clock=clock)
    for number in range(3000):
        limiter.take(f"k{number}", Fixed(5, "1s"))
        clock.advance("10ms")
    assert len(limiter._transport._memory._keys) < 2000


def test_middleware_needs_no_server(clock: ManualClock) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async def main() -> list[int]:
        limiter = aio.Limiter.local(clock=clock)
        limited = RateLimitMiddleware(app, limit=limiter.limit("site", Fixed(2, "1m")))
        transport = httpx.ASGITransport(limited)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            codes = [(await client.get("/")).status_code for _ in range(3)]
            clock.advance("1m")
            return [*codes, (await client.get("/")).status_code]

    assert asyncio.run(main()) == [200, 200, 429, 200]
