"""Leases of a concurrency limit: held by a block of work, renewed while it runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any
from uuid import uuid4

from redis_ratelimit.call import Call
from redis_ratelimit.calls import Calls
from redis_ratelimit.decision import Decision, DeniedError
from redis_ratelimit.errors import LeaseLostError, RateLimitError
from redis_ratelimit.limits import Concurrency
from redis_ratelimit.quantities import Key, seconds

log = logging.getLogger("redis_ratelimit")

# What of the ttl is for work; the rest is for stopping it, while the lease is still its own.
WORKING = 0.8


class _Terms:
    """What both kinds of lease share: whose it is, and how long it holds by this process's clock.

    A lease by itself stops nobody: the server only stops counting a holder that has not renewed.
    """

    def __init__(
        self,
        calls: Calls,
        key: Key,
        limit: Concurrency,
        holder: Key | None,
        wait: float | None,
        clock: Callable[[], float],
        fence: bool = False,
    ) -> None:
        if not isinstance(limit, Concurrency):
            raise TypeError(f"a lease is of a limit such as Concurrency(2, ttl=30), not {limit!r}")
        self.key = key
        # With `fence`, larger than that of every lease before: storage that compares it refuses a
        # stale holder.
        self.token: int | None = None
        # Two of one name would share a lease.
        self.holder = uuid4().hex if holder is None else holder
        self._calls = calls
        self._limit = limit
        self._wait = wait
        self._clock = clock
        self._fence = fence
        self._ttl = seconds(limit.ttl, "ttl")
        self._held_until = 0.0
        self._first = 0.0

    @property
    def lost(self) -> bool:
        """Whether it could not be renewed in time: stop, somebody else may have it soon."""
        return self._clock() >= self._held_until

    def check(self) -> None:
        """Raises LeaseLostError if it is lost."""
        if self.lost:
            raise LeaseLostError(self.holder)

    def _acquiring(self, until: float | None) -> Call[Decision]:
        return self._calls.acquire(
            self.key, self._limit, self.holder, fence=self._fence, until=until
        )

    def _renewing(self) -> Call[Decision]:
        return self._calls.acquire(
            self.key, self._limit, self.holder, fence=self._fence, insists=True
        )

    def _releasing(self) -> Call[int]:
        return self._calls.release(self.key, [self.holder])

    def _begun(self, decision: Decision, asked_at: float) -> bool:
        """Whether the work can begin: not if so much of the ttl may be over that the lease has to
        be renewed first. When it was granted is not known, and that it was asked for at
        `asked_at`. DeniedError if there was no room.
        """
        if not decision.allowed:
            raise DeniedError(decision)
        self.token = decision.token
        self._hold(asked_at)
        passed = self._clock() - asked_at
        self._first = max(0.0, self._next(renewed=True) - passed)
        return passed < self._ttl / 2

    def _until(self) -> float | None:
        """When the waiting for a place ends; None if there is none."""
        if self._wait is None:
            return float("inf")
        return self._clock() + self._wait if self._wait > 0 else None

    def _is_renewed(self, decision: Decision) -> bool:
        """Whether it is the same lease. One with another token is a new one: the first had expired,
        and another may have had its place meanwhile.
        """
        return decision.allowed and decision.token == self.token

    def _hold(self, asked_at: float) -> None:
        # The lease began after it was asked for, so it ends after this.
        self._held_until = asked_at + WORKING * self._ttl

    def _next(self, renewed: bool) -> float:
        """Until the next renewal: a third of the ttl, and sooner if the last one failed."""
        return self._ttl / 3 if renewed else self._ttl / 20


class Lease(_Terms):
    """`with limiter.lease("pool", Concurrency(2, 30), wait=10) as lease:` holds a place until the
    block ends, and renews it three times in each ttl, in a thread.

    No thread can stop another, so the work asks: `lease.lost`, or `lease.check()`, which raises.
    The block raises LeaseLostError at its end if the lease was lost in it.
    """

    def __init__(self, do: Callable[[Call[Any]], Any], *terms: Any) -> None:
        super().__init__(*terms)
        self._do = do
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        until = self._until()
        while True:
            asked_at = self._clock()
            try:
                decision: Decision = self._do(self._acquiring(until))
            except RateLimitError:
                raise
            except BaseException:
                # A signal, perhaps. It may have been granted all the same.
                with suppress(RateLimitError):
                    self._do(self._releasing())
                raise
            if self._begun(decision, asked_at):
                break
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = self.lost
        self._done.set()
        # A renewal under way has to end first: after the release it would take the place again.
        self._thread.join()
        with suppress(RateLimitError):  # then it expires by itself
            self._do(self._releasing())
        if lost and kind is None:
            raise LeaseLostError(self.holder)

    def _renew(self) -> None:
        pause = self._first
        while not self._done.wait(pause) and not self.lost:
            asked_at = self._clock()
            try:
                decision: Decision = self._do(self._renewing())
            except RateLimitError:
                pause = self._next(renewed=False)  # for as long as it is held
                continue
            if not self._is_renewed(decision):
                # It had expired, and another has it, or has had it.
                self._held_until = 0.0
                return
            pause = self._next(renewed=True)
            # One that came too late is none: the work may have stopped.
            if not self.lost:
                self._hold(asked_at)


class AsyncLease(_Terms):
    """`async with limiter.lease("pool", Concurrency(2, 30), wait=10) as lease:` holds a place until
    the block ends, and renews it three times in each ttl.

    If it cannot, because the server is away or the process was frozen, the block is cancelled while
    the lease is still its own, and raises LeaseLostError.
    """

    # Called with every renewal: for whatever else has to be kept alive as long.
    on_renewal: Callable[[], Awaitable[object]] | None = None

    def __init__(self, do: Callable[[Call[Any]], Awaitable[Any]], *terms: Any) -> None:
        super().__init__(*terms)
        self._do = do
        self._done = asyncio.Event()
        self._expired = False

    async def __aenter__(self) -> AsyncLease:
        until = self._until()
        while True:
            asked_at = self._clock()
            try:
                decision: Decision = await self._do(self._acquiring(until))
            except asyncio.CancelledError:
                # It may have been granted all the same.
                with suppress(RateLimitError):
                    await self._do(self._releasing())
                raise
            if self._begun(decision, asked_at):
                break
        task = asyncio.current_task()
        assert task is not None  # this is one
        self._work = task
        self._loop = asyncio.get_running_loop()
        self._alarm = self._loop.call_later(self._held_until - self._clock(), self._expire)
        self._beat = self._loop.create_task(self._renew())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._alarm.cancel()
        self._done.set()
        # From Python 3.11 on, whoever cancels says when that is over.
        is_ours = self._expired and getattr(self._work, "uncancel", lambda: 0)() == 0
        try:
            # A renewal under way has to end first: after the release it would take the place again.
            await self._beat
        except asyncio.CancelledError:
            # Ours may come only here, if the block had ended without waiting for anything.
            if not is_ours:
                raise
        finally:
            with suppress(RateLimitError):  # then it expires by itself
                await self._do(self._releasing())
        if is_ours and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise LeaseLostError(self.holder) from error

    def _expire(self) -> None:
        if not self.lost:  # it was renewed since the alarm was set
            self._alarm = self._loop.call_later(self._held_until - self._clock(), self._expire)
            return
        self._expired = True
        self._work.cancel()

    async def _renew(self) -> None:
        pause = self._first
        while not self._done.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._done.wait(), pause)
                return
            if self._expired:
                return
            asked_at = self._clock()
            try:
                decision: Decision = await self._do(self._renewing())
            except RateLimitError:
                pause = self._next(renewed=False)  # for as long as it is held
                continue
            pause = self._next(renewed=True)
            if self._done.is_set() or self._expired:
                return
            if not self._is_renewed(decision):
                # It had expired, and another has it, or has had it. So now.
                self._held_until = 0.0
                self._alarm.cancel()
                self._expire()
                return
            self._hold(asked_at)
            if self.on_renewal is not None:
                try:
                    await asyncio.wait_for(self.on_renewal(), self._ttl / 3)
                except Exception as error:
                    log.warning("on_renewal of %s: %r", self.holder, error)
