"""Limits under a name, and what a decision can do."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis
from support.server import Server

from kinds import Make
from redis_ratelimit import Concurrency, DeniedError, Fixed, Limiter, TokenBucket, aio

LIMIT = Fixed(3, "1h")


def test_a_limit_under_a_name(url: str, admin: redis.Redis) -> None:
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


def test_what_all_share(url: str, admin: redis.Redis) -> None:
    with Limiter.from_url(url, timeout=10) as limiter:
        mails = limiter.limit("mails", LIMIT)
        assert mails.take().remaining == 2

        @mails()
        def mail() -> int:
            return 7

        assert mail() == 7
        assert admin.keys() == ["mails"]
        assert mails.peek().remaining == 1


def test_leases_and_units_of_a_limit_under_a_name(url: str, admin: redis.Redis) -> None:
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


def test_leases_and_units_of_a_limit_under_a_name_with_asyncio(url: str) -> None:
    async def main() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            async with limiter.limit("pool", Concurrency(1, "1h")).lease("exports") as lease:
                lease.check()
            async with limiter.limit("hot", LIMIT).units("all", batch=2) as units:
                assert await units.take()

    asyncio.run(main())


def test_a_limit_under_a_name_with_asyncio(url: str) -> None:
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


def test_a_decorator(url: str) -> None:
    with Limiter.from_url(url, timeout=10) as limiter:

        @limiter.limit("jobs", Fixed(1, "1h"))("everybody")
        def job() -> int:
            return 7

        assert job() == 7
        with pytest.raises(DeniedError) as raised:
            job()
        assert raised.value.decision.limit == 1


def test_a_decision_settles_its_charge(url: str) -> None:
    with Limiter.from_url(url, timeout=10, prefix="p:") as limiter:
        decision = limiter.take("llm", TokenBucket(10_000, 10_000, "1h"), cost=4000)
        assert decision.require() is decision
        assert decision.settle(1200).remaining == 8800
        with pytest.raises(ValueError, match="has an id"):
            limiter.take("llm", Fixed(1, "1h", name="a"), once=False).settle(1)


def test_a_denied_call_may_wait(limiter: Any, clock: Any) -> None:
    clock.run()
    bucket = TokenBucket(1, 1, "200ms")
    began = time.monotonic()
    assert limiter.take("key", bucket)
    assert limiter.take("key", bucket, wait=20)
    assert time.monotonic() - began > 0.19
    # What comes too late, or never, is not waited for: it would take longer than a test may.
    bucket = TokenBucket(1, 1, "1h")
    assert limiter.take("slow", bucket)
    assert not limiter.take("slow", bucket, wait=1000)
    assert not limiter.take("slow", bucket, cost=2, wait=1000)


def test_a_decision_without_the_server_says_so(make: Make, server: Server) -> None:
    limiter = make()
    assert not limiter.take("key", LIMIT).degraded
    server.stop("kill")
    decision = limiter.take("key", LIMIT)
    assert decision.degraded
    assert (decision.limit, decision.remaining, decision.reset) == (None, None, None)
