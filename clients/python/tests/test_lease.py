"""A place is held while the work runs, and the work ends when the place is lost."""

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

PLACES = Concurrency(2, 30)
# Short, for what happens at its end; it is renewed so often that a busy machine does not lose it.
SHORT = Concurrency(1, 2)


def holders(admin: redis.Redis, key: str = "pool") -> set[str]:
    told = admin.execute_command("RL.INFO", key)
    if told is None:
        return set()
    facts = dict(zip(told[::2], told[1::2], strict=True))
    return {holder for holder, *_ in facts["leases"]}


def renewals(admin: redis.Redis) -> int:
    return int(admin.info("commandstats").get("cmdstat_rl.acquire", {"calls": 0})["calls"])


# Of both kinds


def test_a_place_is_held_for_the_block(limiter: Any, admin: redis.Redis) -> None:
    with limiter.lease("pool", PLACES, "me"):
        with limiter.lease("pool", PLACES) as second:
            assert holders(admin) == {"me", second.holder}
            with pytest.raises(DeniedError) as denied, limiter.lease("pool", PLACES, wait=0):
                pytest.fail("there is no room")
            assert denied.value.decision.limit == 2
        assert holders(admin) == {"me"}
    assert holders(admin) == set()


def test_with_a_fence_it_has_a_token_larger_than_those_before(limiter: Any) -> None:
    tokens = []
    for _ in range(3):
        with limiter.lease("lock", Concurrency(1, 30), fence=True) as lease:
            tokens.append(lease.token)
    assert 1_600_000_000_000_000 < tokens[0] < tokens[1] < tokens[2]
    with limiter.lease("lock", Concurrency(1, 30)) as lease:
        assert lease.token is None


def test_it_is_released_if_the_work_fails(limiter: Any, admin: redis.Redis) -> None:
    with pytest.raises(ZeroDivisionError), limiter.lease("pool", PLACES):
        raise ZeroDivisionError
    assert holders(admin) == set()


def test_it_is_renewed_while_the_work_runs(kind: str, url: str, admin: redis.Redis) -> None:
    admin.config_resetstat()
    if kind == "sync":
        with Limiter.from_url(url, timeout=10) as limiter, limiter.lease("pool", SHORT) as lease:
            poll.until(lambda: renewals(admin) >= 3, "it is renewed", timeout=20)
            lease.check()
        return

    async def work() -> None:
        async with (
            aio.Limiter.from_url(url, timeout=10) as limiter,
            limiter.lease("pool", SHORT) as lease,
        ):
            beats = 0

            async def beat() -> None:
                nonlocal beats
                beats += 1

            lease.on_renewal = beat
            while renewals(admin) < 3:
                await asyncio.sleep(0.01)
            lease.check()
            assert beats >= 1

    asyncio.run(work())


# With threads


def test_a_thread_is_told_that_the_server_is_away(url: str, server: Server) -> None:
    with (
        Limiter.from_url(url, timeout=10) as limiter,
        pytest.raises(LeaseLostError),
        limiter.lease("pool", SHORT) as lease,
    ):
        assert not lease.lost
        server.stop("kill")
        poll.until(lambda: lease.lost, "it is lost")
        with pytest.raises(LeaseLostError):
            lease.check()


def test_a_lease_whose_renewal_has_another_token_is_lost(url: str, admin: redis.Redis) -> None:
    """It had expired, and another may have had its place meanwhile."""
    with (
        # By the clock alone it would never be lost.
        Limiter.from_url(url, timeout=10, clock=lambda: 1000.0) as limiter,
        pytest.raises(LeaseLostError),
        limiter.lease("lock", SHORT, fence=True) as lease,
    ):
        admin.delete("lock")
        poll.until(lambda: lease.lost, "it is lost")
    assert holders(admin, "lock") == set()


def test_a_thread_is_told_that_another_has_the_place(url: str, admin: redis.Redis) -> None:
    with (
        # By the clock alone it would never be lost.
        Limiter.from_url(url, timeout=10, clock=lambda: 1000.0) as limiter,
        pytest.raises(LeaseLostError),
        limiter.lease("pool", SHORT) as lease,
    ):
        admin.delete("pool")
        admin.execute_command("RL.ACQUIRE", "pool", 1, 30, "another")
        poll.until(lambda: lease.lost, "it is lost")
    # The place of the other is not given back.
    assert holders(admin) == {"another"}


def test_a_process_that_was_frozen_has_lost_it(url: str) -> None:
    now = 1000.0
    with (
        Limiter.from_url(url, timeout=10, clock=lambda: now) as limiter,
        pytest.raises(LeaseLostError),
        limiter.lease("pool", PLACES) as lease,
    ):
        assert not lease.lost
        # The last of the ttl is for stopping the work.
        now += 0.8 * 30 - 0.1
        assert not lease.lost
        now += 0.2
        assert lease.lost


def test_a_renewal_that_comes_too_late_is_none(url: str) -> None:
    """The work may have stopped in the meantime."""
    now = 1000.0
    with (
        Limiter.from_url(url, timeout=10, clock=lambda: now) as limiter,
        pytest.raises(LeaseLostError),
        limiter.lease("pool", SHORT) as lease,
    ):
        do = lease._do

        def late(call: Any) -> Any:
            nonlocal now
            reply = do(call)
            now += 0.3
            return reply

        lease._do = late
        # Asked while it is held, and granted for longer; but the answer takes its time.
        now += 1.5
        lease._thread.join(20)
        assert now == 1001.8
        assert lease.lost


def test_the_error_of_the_work_comes_first(url: str, server: Server) -> None:
    with (
        Limiter.from_url(url, timeout=10) as limiter,
        pytest.raises(ZeroDivisionError),
        limiter.lease("pool", SHORT) as lease,
    ):
        server.stop("kill")
        poll.until(lambda: lease.lost, "it is lost")
        raise ZeroDivisionError


# With asyncio


@asynccontextmanager
async def place(url: str, **options: Any) -> AsyncIterator[aio.AsyncLease]:
    async with (
        aio.Limiter.from_url(url, **{"timeout": 10, **options}) as limiter,
        limiter.lease("pool", SHORT, "me") as lease,
    ):
        yield lease


def test_work_is_cancelled_when_the_server_is_away(url: str, server: Server) -> None:
    async def work() -> None:
        async with place(url, timeout=0.1):
            server.stop("kill")
            await asyncio.sleep(3600)

    with pytest.raises(LeaseLostError):
        asyncio.run(work())


def test_work_is_cancelled_when_another_has_the_place(url: str, admin: redis.Redis) -> None:
    async def work() -> None:
        async with place(url):
            admin.delete("pool")
            admin.execute_command("RL.ACQUIRE", "pool", 1, 30, "another")
            await asyncio.sleep(3600)

    with pytest.raises(LeaseLostError):
        asyncio.run(work())
    assert holders(admin) == {"another"}


def test_who_catches_the_loss_goes_on(url: str, server: Server) -> None:
    """The cancellation is over with the block: what comes after it is not cancelled."""

    async def work() -> str:
        try:
            async with place(url, timeout=0.1):
                server.stop("kill")
                await asyncio.sleep(3600)
        except LeaseLostError:
            await asyncio.sleep(0)
        return "went on"

    assert asyncio.run(work()) == "went on"


def test_work_that_is_cancelled_by_others_is_cancelled(url: str, admin: redis.Redis) -> None:
    async def work() -> None:
        async with place(url):
            await asyncio.sleep(3600)

    async def cancel() -> None:
        task = asyncio.create_task(work())
        while holders(admin) != {"me"}:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    # And its place is free at once.
    assert holders(admin) == set()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="nobody counts who has cancelled")
def test_who_is_cancelled_when_it_is_lost_is_cancelled(url: str) -> None:
    async def work() -> None:
        async with place(url) as lease:
            task = asyncio.current_task()
            assert task

            def both() -> None:
                lease._held_until = 0.0
                lease._expire()
                task.cancel()

            asyncio.get_running_loop().call_soon(both)
            await asyncio.sleep(3600)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())


def test_who_is_cancelled_while_asking_holds_nothing(url: str, admin: redis.Redis) -> None:
    def is_asking(command: str) -> bool:
        return command in {client["cmd"].partition("|")[0] for client in admin.client_list()}

    async def work() -> None:
        async with aio.Limiter.from_url(url, timeout=10) as limiter:
            await limiter.check()
            admin.execute_command("CLIENT PAUSE", 10_000, "WRITE")
            task = asyncio.create_task(limiter.lease("pool", PLACES, wait=None).__aenter__())
            while not is_asking("rl.acquire"):
                await asyncio.sleep(0.01)
            task.cancel()
            while not is_asking("rl.release"):
                await asyncio.sleep(0.01)
            admin.execute_command("CLIENT UNPAUSE")
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(work())
    assert holders(admin) == set()


def test_work_with_a_timeout_of_its_own(url: str, admin: redis.Redis) -> None:
    async def work() -> None:
        async with place(url):
            await asyncio.wait_for(asyncio.sleep(3600), 0.01)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(work())
    assert holders(admin) == set()


def test_without_a_server_there_is_no_place(make: Any, server: Server) -> None:
    limiter = make(on_outage="open")
    server.stop("kill")
    with pytest.raises(UnavailableError), limiter.lease("pool", PLACES):
        pytest.fail("nobody has given it")
