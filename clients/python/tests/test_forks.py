"""Limiters in a forked process, and in a second event loop."""

import asyncio
import gc
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support import poll
from support.cluster import Cluster

from redis_ratelimit import Concurrency, Fixed, Limiter, Local, TokenBucket, aio
from redis_ratelimit.clients import AsyncLazyCluster

LIMIT = Fixed(2, "1h")


def in_child(work: Callable[[], bool]) -> bool:
    """Returns `True` if `work` returns `True` in a child, within 30 seconds."""
    with warnings.catch_warnings():
        # Python 3.12 warns about threads in a process that forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def exhaust(limiter: Limiter) -> None:
    """Waits until a denial is tracked and remembered for more than a second."""
    while limiter.take("key", LIMIT):
        pass
    limiter.take("key", LIMIT)
    ((denial,),) = limiter._denials._by_key.values()

    def is_tracked() -> bool:
        return limiter._denials._by_key["key"][0].ends_at > denial.received_at + 60

    poll.until(is_tracked, "the denial is tracked", timeout=20)


def test_forked_child_opens_its_own_connections(url: str, admin: redis.Redis) -> None:
    with Limiter.from_url(url, timeout=10, failures=1) as limiter:
        assert limiter.take("mine", Fixed(9, "1h")).remaining == 8
        before = admin.info("stats")["total_connections_received"]
        assert in_child(lambda: limiter.take("mine", Fixed(9, "1h")).remaining == 7)
        assert limiter.take("mine", Fixed(9, "1h")).remaining == 6
        assert admin.info("stats")["total_connections_received"] == before + 1


def test_forked_child_has_no_connection_before_its_first_call(url: str) -> None:
    """Otherwise concurrent first calls of several threads would forget each other's connections."""
    with Limiter.from_url(url, timeout=10) as limiter:
        assert limiter.take("mine", Fixed(9, "1h"))
        connections = limiter._transport._connections
        free, used = (
            connections._check_out(must_check=False),
            connections._check_out(must_check=False),
        )
        connections._give_back(free)
        try:
            assert in_child(lambda: not connections._free and connections._used == 0)
            assert (list(connections._free), connections._used) == ([free], 1)
        finally:
            connections._give_back(used)


def test_forked_child_forgets_denials(url: str) -> None:
    with Limiter.from_url(url, timeout=10) as limiter:
        exhaust(limiter)
        assert limiter.take("key", LIMIT).remembered

        def asks_again() -> bool:
            first, second = limiter.take("key", LIMIT), limiter.take("key", LIMIT)
            return (first.remembered, second.remembered) == (False, True)

        assert in_child(asks_again)


def test_forked_child_has_no_units(url: str) -> None:
    with Limiter.from_url(url, timeout=10, clock=lambda: 1000.0) as limiter:
        units = limiter.units("hot", Fixed(40, "1h"), peers=1)
        assert units.take(cost=5)
        assert units.take()
        assert units.in_hand == 5

        def takes_the_rest() -> bool:
            return units.in_hand == 0 and bool(units.take(cost=29)) and not units.take()

        assert in_child(takes_the_rest)
        assert [bool(units.take()) for _ in range(6)] == [True] * 5 + [False]


def test_forked_child_ignores_locks_of_the_parents_threads(url: str) -> None:
    local = Local()
    with Limiter.from_url(url, timeout=10, on_outage=local) as limiter:
        units = limiter.units("hot", TokenBucket(10, 10))
        exhaust(limiter)
        locks = [
            limiter._denials._lock,
            limiter._sending._nodes[""].breaker._lock,
            limiter._transport._trackers[""]._lock,
            local._lock,
            units._changed,
        ]
        for lock in locks:
            lock.acquire()

        def calls_succeed() -> bool:
            while limiter.take("key", LIMIT):
                pass
            unreachable = Limiter.from_url("redis://127.0.0.1:1", on_outage=local)
            return bool(units.take() and unreachable.take("key", LIMIT))

        try:
            assert in_child(calls_succeed)
        finally:
            for lock in locks:
                lock.release()


# Python closes the connections of the first loop, which has ended, and warns about them.
unclosed = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@unclosed
def test_second_event_loop_reconnects(url: str, admin: redis.Redis) -> None:
    in_two_loops(url, admin)
    # After the last reference is gone.
    gc.collect()


def in_two_loops(url: str, admin: redis.Redis) -> None:
    limiter = aio.Limiter.from_url(url, timeout=10, failures=1)
    pool = Concurrency(1, "1h")
    units = limiter.units("hot", Fixed(1000, "1h"))

    async def use_in_first_loop() -> None:
        while decision := await limiter.take("key", LIMIT):
            assert decision.source == "server"
        await limiter.take("key", LIMIT)
        async with limiter.lease("pool", pool, wait=10):
            pass
        await asyncio.gather(*(units.take() for _ in range(9)))
        ((denial,),) = limiter._denials._by_key.values()
        until = asyncio.get_running_loop().time() + 20
        while limiter._denials._by_key["key"][0].ends_at < denial.received_at + 60:
            assert asyncio.get_running_loop().time() < until
            await asyncio.sleep(0.01)
        assert (await limiter.take("key", LIMIT)).remembered

    async def use_in_second_loop() -> None:
        # The first loop's tracking does not report changes to this loop.
        assert (await limiter.take("key", LIMIT)).source == "server"
        async with limiter.lease("pool", pool, wait=10):
            pass
        assert all(await asyncio.gather(*(units.take() for _ in range(9))))
        await limiter.close()

    asyncio.run(use_in_first_loop())
    admin.delete("key")
    asyncio.run(use_in_second_loop())


@unclosed
def test_second_event_loop_reconnects_to_a_cluster(cluster: Cluster) -> None:
    in_two_loops_with(cluster)
    gc.collect()


def in_two_loops_with(cluster: Cluster) -> None:
    url = f"redis://127.0.0.1:{cluster.servers[0].port}"
    limiter = aio.Limiter.from_url(url, cluster=True, timeout=10, failures=1)

    async def takes() -> list[Any]:
        return [(await limiter.take(f"key:{number}", LIMIT)).source for number in range(9)]

    async def takes_and_closes() -> list[Any]:
        async with limiter:
            return await takes()

    for run in (takes, takes_and_closes):
        assert asyncio.run(run()) == ["server"] * 9


def test_concurrent_event_loops_have_a_client_each() -> None:
    class FakeCluster:
        @staticmethod
        def from_url(url: str) -> object:
            return [url]

    cluster = AsyncLazyCluster(FakeCluster, "redis://localhost", {})

    async def client_of_loop() -> Any:
        return cluster.ensure_client()

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    one, other, again = (
        loop.run_until_complete(client_of_loop()) for loop in (first, second, first)
    )
    first.close()
    second.close()
    assert one is again
    assert one is not other
    asyncio.run(client_of_loop())
    assert len(cluster._by_loop) == 1, "clients of ended loops are dropped"
