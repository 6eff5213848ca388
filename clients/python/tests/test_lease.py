"""A lease is held while the work runs, and the work ends when the lease is lost."""

# ruff: noqa: PT012  it is the end of the block that raises

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
from support import poll
from support.server import Server

from redis_ratelimit import (
    Concurrency,
    DeniedError,
    LeaseLostError,
    Limiter,
    UnavailableError,
    aio,
)

LEASES = Concurrency(2, 30)
# Short, for tests of expiry. It is renewed so often that it is not lost on a busy machine.
SHORT = Concurrency(1, 2)


def holders(admin: redis.Redis, key: str = "pool") -> set[str]:
    info = admin.execute_command("RL.INFO", key)
    if info is None:
        return set()
    fields = dict(zip(info[::2], info[1::2], strict=True))
    return {holder for holder, *_ in fields["leases"]}


def acquire_calls(admin: redis.Redis) -> int:
    return int(admin.info("commandstats").get("cmdstat_rl.acquire", {"calls": 0})["calls"])


# Threads and asyncio


def test_lease_is_held_for_the_block(limiter: Any, admin: redis.Redis) -> None:
    with limiter.lease("pool", LEASES, "me"):
        with limiter.lease("pool", LEASES) as second:
            assert holders(admin) == {"me", second.holder}
            with pytest.raises(DeniedError) as denied, limiter.lease("pool", LEASES, wait=0):
                pytest.fail("a lease above the limit was granted")
            assert denied.value.decision.limit == 2
        assert holders(admin) == {"me"}
    assert holders(admin) == set()


def test_fencing_token_is_larger_than_earlier_tokens(limiter: Any) -> None:
    tokens = []
    for _ in range(3):
        with limiter.lease("lock", Concurrency(1, 30), fence=True) as lease:
            tokens.append(lease.token)
    assert 1_600_000_000_000_000 < tokens[0] < tokens[1] < tokens[2]
    with limiter.lease("lock", Concurrency(1, 30)) as lease:
        assert lease.token is None


def test_lease_is_released_if_the_work_fails(limiter: Any, admin: redis.Redis) -> None:
    with pytest.raises(ZeroDivisionError), limiter.lease("pool", LEASES):
        raise ZeroDivisionError
    assert holders(admin) == set()


def test_lease_is_renewed_while_the_work_runs(kind: str, url: str, admin: redis.Redis) -> None:
    admin.config_resetstat()
    if kind == "sync":
        with Limiter.from_url(url, timeout=10) as limiter, limiter.lease("pool", SHORT) as lease:
            poll.until(lambda: acquire_calls(admin) >= 3, "the lease is renewed", timeout=20)
            lease.check()
        return

    async def work() -> None:
        async with (
            aio.Limiter.from_url(url, timeout=10) as limiter,
            limiter.lease("pool", SHORT) as lease,
        ):
            renewals = 0

            async def count_renewal() -> None:
                nonlocal renewals
                renewals += 1

            lease.on_renewal = count_renewal
            while acquire_calls(admin) < 3:
                await asyncio.sleep(0.01)
            lease.check()
            assert renewals >= 1

    asyncio.run(work())


# With threads


def test_lease_of_a_thread_is_lost_in_an_outage(url: str, server: Server) -> None:
    with (
        Limiter.from_url(url, timeout=10) as limiter,
        pytest.raises(LeaseLostError),
        limiter.lease("pool", SHORT) as lease,
    ):
        assert not lease.lost
        server.stop("kill")
        poll.until(lambda: lease.lost, "the lease is lost")
        with pytest.raises(LeaseLostError):
            lease.check()


def test_lease_is_lost_if_its_renewal_has_another_token(url: str, admin: redis.Redis) -> None:
    """The lease had expired, and another holder may have had its place meanwhile."""
    with (
        # By the clock alone the lease would never be lost.
        Limiter.from_url(url, timeout=10, clock=lambda: 1000.0) as limiter,
        pytest.raises(LeaseLostError),
        limiter.lease("lock", SHORT, fence=True) as lease,
    ):
        admin.delete("lock")
        poll.until(lambda: lease.lost, "the lease is lost")
    assert holders(admin, "lock") == set()


def test_lease_of_a_thread_is_lost_to_another_holder(url: str, admin: redis.Redis) -> None:
    with (
        # By the clock alone the lease would never be lost.
        Limiter.from_url(url, timeout=10, clock=lambda: 1000.0) as limiter,
        pytest.raises(LeaseLostError),
        limiter.lease("pool", SHORT) as lease,
    ):
        admin.delete("pool")
        admin.execute_command("RL.ACQUIRE", "pool", 1, 30, "another")
        poll.until(lambda: lease.lost, "the lease is lost")
    # The lease of the other holder is not released.
    assert holders(admin) == {"another"}


def test_lease_of_a_suspended_process_is_lost(url: str) -> None:
    now = 1000.0
    with (
        Limiter.from_url(url, timeout=10, clock=lambda: now) as limiter,
        pytest.raises(LeaseLostError),
        limiter.lease("pool", LEASES) as lease,
    ):
        assert not lease.lost
        # The last fifth of the ttl is for stopping the work.
        now += 0.8 * 30 - 0.1
        assert not lease.lost
        now += 0.2
        assert lease.lost


def test_late_renewal_does_not_count(url: str) -> None:
    """The work may have stopped in the meantime."""
    now = 1000.0
    with (
        Limiter.from_url(url, timeout=10, clock=lambda: now) as limiter,
        pytest.raises(LeaseLostError),
        limiter.lease("pool", SHORT) as lease,
    ):
        execute = lease._execute

        def delayed(call: Any) -> Any:
            nonlocal now
            reply = execute(call)
            now += 0.3
            return reply

        lease._execute = delayed
        # The renewal is requested while the lease is held, but the reply is late.
        now += 1.5
        lease._thread.join(20)
        assert now == 1001.8
        assert lease.lost


def test_error_of_the_work_is_raised_before_the_loss(url: str, server: Server) -> None:
    with (
        Limiter.from_url(url, timeout=10) as limiter,
        pytest.raises(ZeroDivisionError),
        limiter.lease("pool", SHORT) as lease,
    ):
        server.stop("kill")
        poll.until(lambda: lease.lost, "the lease is lost")
        raise ZeroDivisionError


# With asyncio


@asynccontextmanager
async def held_lease(url: str, **options: Any) -> AsyncIterator[aio.AsyncLease]:
    async with (
        aio.Limiter.from_url(url, **{"timeout": 10, **options}) as limiter,
        limiter.lease("pool", SHORT, "me") as lease,
    ):
        yield lease


def test_work_is_cancelled_in_an_outage(url: str, server: Server) -> None:
    async def work() -> None:
        async with held_lease(url, timeout=0.1):
            server.stop("kill")
            await asyncio.sleep(3600)

    with pytest.raises(LeaseLostError):
        asyncio.run(work())


def test_work_is_cancelled_when_another_holder_has_the_lease(url: str, admin: redis.Redis) -> None:
    async def work() -> None:
        async with held_lease(url):
            admin.delete("pool")
            admin.execute_command("RL.ACQUIRE", "pool", 1, 30, "another")
            await asyncio.sleep(3600)

    with pytest.raises(LeaseLostError):
        asyncio.run(work())
    assert holders(admin) == {"another"}


def test_work_continues_after_catching_the_loss(url: str, server: Server) -> None:
    """The cancellation ends with the block: code after it is not cancelled."""

    async def work() -> str:
        try:
            async with held_lease(url, timeout=0.1):
                server.stop("kill")
                await asyncio.sleep(3600)
        except LeaseLostError:
            await asyncio.sleep(0)
        return "went on"

    assert asyncio.run(work()) == "went on"


def test_cancellation_by_other_code_is_passed_on(url: str, admin: redis.Redis) -> None:
    async def work() -> None:
        async with held_lease(url):
            await asyncio.sleep(3600)

    async def cancel() -> None:
        task = asyncio.create_task(work())
        while holders(admin) != {"me"}:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    # The lease is released at once.
    assert holders(admin) == set()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio does not count cancellations")
def test_cancellation_at_the_loss_is_passed_on(url: str) -> None:
    async def work() -> None:
        async with held_lease(url) as lease:
            task = asyncio.current_task()
            assert task

            def lose_and_cancel() -> None:
                lease._held_until = 0.0
                lease._expire()
                task.cancel()

            asyncio.get_running_loop().call_soon(lose_and_cancel)
            await asyncio.sleep(3600)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())


def test_cancelled_acquire_holds_no_lease(url: str, admin: redis.Redis) -> None:
    def is_in_flight(command: str) -> bool:
        return command in {client["cmd"].partition("|")[0] for client in admin.client_list()}

    async def work() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            await limiter.check()
            admin.execute_command("CLIENT PAUSE", 10_000, "WRITE")
            task = asyncio.create_task(limiter.lease("pool", LEASES, wait=None).__aenter__())
            while not is_in_flight("rl.acquire"):
                await asyncio.sleep(0.01)
            task.cancel()
            while not is_in_flight("rl.release"):
                await asyncio.sleep(0.01)
            admin.execute_command("CLIENT UNPAUSE")
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(work())
    assert holders(admin) == set()


def test_timeout_of_the_work_is_passed_on(url: str, admin: redis.Redis) -> None:
    async def work() -> None:
        async with held_lease(url):
            await asyncio.wait_for(asyncio.sleep(3600), 0.01)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(work())
    assert holders(admin) == set()


def test_lease_needs_the_server(make: Any, server: Server) -> None:
    limiter = make(on_outage="open")
    server.stop("kill")
    with pytest.raises(UnavailableError), limiter.lease("pool", LEASES):
        pytest.fail("a lease was granted without a server")
