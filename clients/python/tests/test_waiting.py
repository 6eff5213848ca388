"""Blocking calls wait in the server's queue, on a connection of their own."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis
from support import poll
from support.clock import Clock
from support.server import Server

from limiters import Make, limiters_of
from redis_ratelimit import Concurrency, DeniedError, Fixed, Limiter, UnavailableError, aio

LEASE = Concurrency(1, 30)

Background = Callable[[Callable[[], Any]], "Future[Any]"]


@pytest.fixture
def background(admin: redis.Redis) -> Iterator[Background]:
    """Returns a function that starts a blocking call, and returns when it waits in the server."""
    with ThreadPoolExecutor(1) as pool:

        def start(blocking_call: Callable[[], Any]) -> "Future[Any]":
            before = blocked_clients(admin)
            future = pool.submit(blocking_call)
            poll.until(lambda: blocked_clients(admin) > before or future.done(), "the call waits")
            return future

        yield start
        # Releases calls that a test has left in the queue.
        admin.delete("pool")


@pytest.fixture
def full_pool(admin: redis.Redis) -> redis.Redis:
    """Client of a server on which another holder has the only lease."""
    admin.execute_command("RL.ACQUIRE", "pool", 1, 30, "another")
    return admin


AcquireCalls = Callable[[], int]


@pytest.fixture
def acquire_calls(full_pool: redis.Redis) -> AcquireCalls:
    """Returns a function that returns the number of RL.ACQUIRE calls of the test, as the module
    counts them: the server counts blocking calls at their beginning or end, depending on its
    version.
    """

    def calls() -> int:
        return int(full_pool.info("ratelimit_commands")["ratelimit_rl.acquire"]["calls"])

    before = calls()
    return lambda: calls() - before


def blocked_clients(admin: redis.Redis) -> int:
    return admin.info("clients")["blocked_clients"]


def holders(admin: redis.Redis) -> set[str]:
    info = admin.execute_command("RL.INFO", "pool")
    if info is None:
        return set()
    return {holder for holder, *_ in dict(zip(info[::2], info[1::2], strict=True))["leases"]}


def hold_lease(limiter: Any, **options: Any) -> Callable[[], str]:
    def holds() -> str:
        with limiter.lease("pool", LEASE, "me", **{"wait": None, **options}):
            return "done"

    return holds


# Threads and asyncio


def test_one_call_waits_for_the_lease(
    limiter: Any, full_pool: redis.Redis, acquire_calls: AcquireCalls, background: Background
) -> None:
    future = background(hold_lease(limiter))
    full_pool.execute_command("RL.RELEASE", "pool", "another")
    assert future.result(10) == "done"
    assert acquire_calls() == 1
    assert holders(full_pool) == set()


def test_waiter_is_denied_after_its_timeout(
    limiter: Any,
    full_pool: redis.Redis,
    acquire_calls: AcquireCalls,
    background: Background,
    clock: Clock,
) -> None:
    future = background(hold_lease(limiter, wait=5))
    clock.advance("4.9s")
    assert not future.done()
    assert blocked_clients(full_pool) == 1
    clock.advance("0.2s")
    with pytest.raises(DeniedError) as denied:
        future.result(10)
    assert denied.value.decision.wait == pytest.approx(24.9, abs=0.1)
    assert acquire_calls() == 1


def test_lease_without_wait_is_denied_at_once(limiter: Any, acquire_calls: AcquireCalls) -> None:
    with pytest.raises(DeniedError):
        hold_lease(limiter, wait=0)()
    assert acquire_calls() == 1


def test_cost_above_the_limit_does_not_wait(limiter: Any) -> None:
    with (
        pytest.raises(DeniedError) as denied,
        limiter.lease("pool", Concurrency(1, 30, cost=2)),
    ):
        pytest.fail("a lease above the limit was granted")
    assert denied.value.decision.wait is None


def test_wait_may_exceed_the_timeout_of_a_call(
    make: Make, full_pool: redis.Redis, acquire_calls: AcquireCalls, background: Background
) -> None:
    future = background(hold_lease(make(timeout=0.05)))
    # Longer than the timeout of a call, however busy the machine is.
    time.sleep(0.2)
    assert not future.done()
    full_pool.execute_command("RL.RELEASE", "pool", "another")
    assert future.result(10) == "done"
    assert acquire_calls() == 1


def test_silent_server_is_an_outage_after_the_wait(
    make: Make, server: Server, full_pool: redis.Redis, background: Background
) -> None:
    assert holders(full_pool) == {"another"}
    started_at = time.monotonic()
    future = background(hold_lease(make(timeout=0.1, resends=0), wait=0.5))
    with server.suspended(), pytest.raises(UnavailableError):
        future.result(30)
    assert time.monotonic() - started_at >= 0.5


def test_waiter_reconnects_after_a_lost_connection(
    limiter: Any, full_pool: redis.Redis, acquire_calls: AcquireCalls, background: Background
) -> None:
    future = background(hold_lease(limiter))
    lose_and_wait_again(full_pool, acquire_calls, 2)
    full_pool.execute_command("RL.RELEASE", "pool", "another")
    assert future.result(10) == "done"


def lose_and_wait_again(admin: redis.Redis, acquire_calls: AcquireCalls, times: int) -> None:
    """Kills the connection of the waiting call and waits until it has been sent `times` times."""
    admin.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
    poll.until(lambda: acquire_calls() == times, "the call is resent")
    poll.until(lambda: blocked_clients(admin) == 1, "the call waits again")


def test_waiter_gives_up_after_repeated_connection_losses(
    make: Make, full_pool: redis.Redis, acquire_calls: AcquireCalls, background: Background
) -> None:
    future = background(hold_lease(make(clock=lambda: 1000.0)))
    lose_and_wait_again(full_pool, acquire_calls, 2)
    full_pool.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(UnavailableError):
        future.result(10)


def test_resends_of_a_waiter_renew_after_a_long_wait(
    make: Make, full_pool: redis.Redis, acquire_calls: AcquireCalls, background: Background
) -> None:
    now = 1000.0
    future = background(hold_lease(make(clock=lambda: now)))
    for times in range(2, 6):
        now += 2.0
        lose_and_wait_again(full_pool, acquire_calls, times)
    full_pool.execute_command("RL.RELEASE", "pool", "another")
    assert future.result(10) == "done"


def test_waiter_continues_with_the_remaining_time(
    make: Make,
    full_pool: redis.Redis,
    acquire_calls: AcquireCalls,
    background: Background,
    clock: Clock,
) -> None:
    now = 1000.0
    future = background(hold_lease(make(clock=lambda: now), wait=10))
    now += 7.0
    clock.advance("7s")
    lose_and_wait_again(full_pool, acquire_calls, 2)
    clock.advance("2.9s")
    assert blocked_clients(full_pool) == 1
    clock.advance("0.2s")
    with pytest.raises(DeniedError):
        future.result(10)


def test_demoted_primary_is_an_outage(
    limiter: Any, full_pool: redis.Redis, acquire_calls: AcquireCalls, background: Background
) -> None:
    future = background(hold_lease(limiter))
    full_pool.execute_command("REPLICAOF", "127.0.0.1", 1)
    try:
        with pytest.raises(UnavailableError, match=r"read only|READONLY|write against"):
            future.result(10)
    finally:
        full_pool.execute_command("REPLICAOF", "NO", "ONE")
    # The unblocked call is resent once: a replica rejects it before it reaches the module.
    assert acquire_calls() == 1


def test_client_unblock_denies_the_waiter(
    limiter: Any, full_pool: redis.Redis, acquire_calls: AcquireCalls, background: Background
) -> None:
    future = background(hold_lease(limiter))
    (number,) = [
        client["id"] for client in full_pool.client_list() if client["cmd"].startswith("rl.acquire")
    ]
    full_pool.execute_command("CLIENT", "UNBLOCK", number)
    with pytest.raises(DeniedError):
        future.result(10)
    assert acquire_calls() == 1


def test_lease_granted_after_half_its_ttl_is_renewed_first(
    make: Make, full_pool: redis.Redis, acquire_calls: AcquireCalls, background: Background
) -> None:
    """The time of the grant is unknown: the process may have been suspended after the grant."""
    now = 1000.0
    future = background(hold_lease(make(clock=lambda: now)))
    now += 15.0
    full_pool.execute_command("RL.RELEASE", "pool", "another")
    assert future.result(10) == "done"
    assert acquire_calls() == 2


def test_waiters_use_no_pooled_connection(kind: str, url: str, full_pool: redis.Redis) -> None:
    count = 60  # more than the 50 connections of other calls
    if kind == "sync":

        def hold(number: int) -> None:
            with limiter.lease("pool", LEASE, f"{number}", wait=None):
                pass

        with Limiter.from_url(url, timeout=10) as limiter, ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(hold, number) for number in range(count)]
            poll.until(lambda: blocked_clients(full_pool) == count, "all wait", timeout=30)
            assert limiter.take("key", Fixed(1, 60)).source == "server"
            full_pool.execute_command("RL.RELEASE", "pool", "another")
            for future in futures:
                future.result(30)
        return

    async def all_wait() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            tasks = [
                asyncio.create_task(
                    limiter.lease("pool", LEASE, f"{number}", wait=None).__aenter__()
                )
                for number in range(count)
            ]
            while blocked_clients(full_pool) < count:
                await asyncio.sleep(0.01)
            assert (await limiter.take("key", Fixed(1, 60))).source == "server"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(all_wait())


def test_waiters_are_granted_in_order(
    kind: str, url: str, full_pool: redis.Redis, acquire_calls: AcquireCalls
) -> None:
    order: list[int] = []
    count = 8
    if kind == "sync":

        def hold(number: int) -> None:
            with limiter.lease("pool", LEASE, f"{number}", wait=None):
                order.append(number)

        with Limiter.from_url(url, timeout=10) as limiter, ThreadPoolExecutor(count) as pool:
            for number in range(count):
                pool.submit(hold, number)
                poll.until(
                    lambda number=number: blocked_clients(full_pool) == number + 1, "the call waits"
                )
            full_pool.execute_command("RL.RELEASE", "pool", "another")
    else:

        async def task(limiter: aio.Limiter, number: int) -> None:
            async with limiter.lease("pool", LEASE, f"{number}", wait=None):
                order.append(number)

        async def all_wait() -> None:
            async with aio.Limiter.from_url(url, timeout=10) as limiter:
                tasks = []
                for number in range(count):
                    tasks.append(asyncio.create_task(task(limiter, number)))
                    while blocked_clients(full_pool) <= number:
                        await asyncio.sleep(0.01)
                full_pool.execute_command("RL.RELEASE", "pool", "another")
                await asyncio.gather(*tasks)

        asyncio.run(all_wait())
    assert order == list(range(count))
    assert acquire_calls() == count


# With threads


class InterruptedWaitError(Exception):
    pass


def test_interrupted_waiter_holds_no_lease(
    url: str, full_pool: redis.Redis, background: Background
) -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedWaitError

    def interrupt_waiter() -> None:
        poll.until(lambda: blocked_clients(full_pool) == 1, "the call waits")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=interrupt_waiter)
    try:
        with Limiter.from_url(url, timeout=10) as limiter:
            thread.start()
            with pytest.raises(InterruptedWaitError):
                hold_lease(limiter)()
            poll.until(lambda: blocked_clients(full_pool) == 0, "the call has left the queue")
            # No late reply for the previous call is left on a connection.
            future = background(hold_lease(limiter))
            full_pool.execute_command("RL.RELEASE", "pool", "another")
            assert future.result(10) == "done"
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()
    assert holders(full_pool) == set()


# With asyncio


def test_cancelled_waiter_leaves_the_queue(url: str, full_pool: redis.Redis) -> None:
    async def cancelled() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            for times in range(3):
                task = asyncio.create_task(
                    limiter.lease("pool", LEASE, f"{times}", wait=None).__aenter__()
                )
                while blocked_clients(full_pool) == 0:
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                while blocked_clients(full_pool) > 0:
                    await asyncio.sleep(0.01)
            # No late reply for the previous calls is left on a connection.
            task = asyncio.create_task(limiter.lease("pool", LEASE, "me", wait=None).__aenter__())
            while blocked_clients(full_pool) == 0:
                await asyncio.sleep(0.01)
            full_pool.execute_command("RL.RELEASE", "pool", "another")
            lease = await task
            assert holders(full_pool) == {"me"}
            await lease.__aexit__(None, None, None)

    asyncio.run(cancelled())
    assert holders(full_pool) == set()


def test_wait_ends_with_the_callers_timeout(url: str, full_pool: redis.Redis) -> None:
    async def wait_with_timeout() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            await asyncio.wait_for(limiter.lease("pool", LEASE, wait=None).__aenter__(), 0.05)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(wait_with_timeout())
    poll.until(lambda: blocked_clients(full_pool) == 0, "the call has left the queue")
    assert holders(full_pool) == {"another"}


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_clients_of_both_libraries_wait(
    kind: str,
    scheme: str,
    server: Server,
    full_pool: redis.Redis,
    acquire_calls: AcquireCalls,
    background: Background,
) -> None:
    for make in limiters_of(kind, f"{scheme}://127.0.0.1:{server.port}"):
        future = background(hold_lease(make()))
        full_pool.execute_command("RL.RELEASE", "pool", "another")
        assert future.result(10) == "done"
    assert acquire_calls() == 1
