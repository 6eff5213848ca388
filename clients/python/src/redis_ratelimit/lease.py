"""Leases of a concurrency limit: held by a block of code and renewed while it runs."""

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

# Share of the ttl after which the lease counts as lost. The remaining time is for stopping the work
# before the server grants the lease to another holder.
LOST_AFTER = 0.8


class _BaseLease:
    """Common base of leases: the holder, and the validity by this process's clock.

    The server cannot stop a holder whose lease was not renewed: it only counts it no longer.
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
        # Fencing token, larger than that of every earlier lease. Storage that compares tokens
        # rejects a stale holder.
        self.token: int | None = None
        # Unique, as two leases with one holder would be the same lease.
        self.holder = uuid4().hex if holder is None else holder
        self._calls = calls
        self._limit = limit
        self._wait = wait
        self._clock = clock
        self._fence = fence
        self._ttl = seconds(limit.ttl, "ttl")
        self._held_until = 0.0
        self._first_pause = 0.0

    @property
    def lost(self) -> bool:
        """`True` if the lease was not renewed in time. Stop: another holder may get it soon."""
        return self._clock() >= self._held_until

    def check(self) -> None:
        """Raises LeaseLostError if the lease is lost."""
        if self.lost:
            raise LeaseLostError(self.holder)

    def _acquire_call(self, deadline: float | None) -> Call[Decision]:
        return self._calls.acquire(
            self.key, self._limit, self.holder, fence=self._fence, deadline=deadline
        )

    def _renew_call(self) -> Call[Decision]:
        return self._calls.acquire(
            self.key, self._limit, self.holder, fence=self._fence, bypasses_breaker=True
        )

    def _release_call(self) -> Call[int]:
        return self._calls.release(self.key, [self.holder])

    def _record_grant(self, decision: Decision, sent_at: float) -> bool:
        """Records the decision on a lease that was requested at `sent_at`. Returns `False` if the
        lease may be so old that it must be renewed before the work begins. Raises DeniedError if it
        was denied.
        """
        if not decision.allowed:
            raise DeniedError(decision)
        self.token = decision.token
        self._extend(sent_at)
        elapsed = self._clock() - sent_at
        self._first_pause = max(0.0, self._pause(renewed=True) - elapsed)
        return elapsed < self._ttl / 2

    def _deadline(self) -> float | None:
        """Returns the deadline for acquiring the lease, or None if the call does not wait."""
        if self._wait is None:
            return float("inf")
        return self._clock() + self._wait if self._wait > 0 else None

    def _is_renewed(self, decision: Decision) -> bool:
        """Returns `True` if a renewal kept the lease. Another token means a new lease: the first
        had expired, and another holder may have had its place meanwhile.
        """
        return decision.allowed and decision.token == self.token

    def _extend(self, sent_at: float) -> None:
        # The server granted the lease after `sent_at`, so it expires there later than here.
        self._held_until = sent_at + LOST_AFTER * self._ttl

    def _pause(self, renewed: bool) -> float:
        """Returns the seconds until the next renewal: a third of the ttl, or a twentieth if the
        last renewal failed.
        """
        return self._ttl / 3 if renewed else self._ttl / 20


class Lease(_BaseLease):
    """Lease for a `with` block: `with limiter.lease("pool", Concurrency(2, 30), wait=10) as lease:`

    A thread renews it three times in each ttl until the block ends. A thread cannot stop another
    thread, so the work checks `lease.lost`, or calls `lease.check()`, which raises. The block
    raises LeaseLostError at its end if the lease was lost.
    """

    def __init__(self, execute: Callable[[Call[Any]], Any], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._execute = execute
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        deadline = self._deadline()
        while True:
            sent_at = self._clock()
            try:
                decision: Decision = self._execute(self._acquire_call(deadline))
            except RateLimitError:
                raise
            except BaseException:
                # A signal, for example. The lease may have been granted nevertheless.
                with suppress(RateLimitError):
                    self._execute(self._release_call())
                raise
            if self._record_grant(decision, sent_at):
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
        # A renewal in flight must end first: after the release it would acquire the lease again.
        self._thread.join()
        with suppress(RateLimitError):  # otherwise the lease expires
            self._execute(self._release_call())
        if lost and kind is None:
            raise LeaseLostError(self.holder)

    def _renew(self) -> None:
        pause = self._first_pause
        while not self._done.wait(pause) and not self.lost:
            sent_at = self._clock()
            try:
                decision: Decision = self._execute(self._renew_call())
            except RateLimitError:
                pause = self._pause(renewed=False)
                continue
            if not self._is_renewed(decision):
                # The lease had expired, and another holder has or had its place.
                self._held_until = 0.0
                return
            pause = self._pause(renewed=True)
            # A renewal that came too late does not count: the work may have stopped.
            if not self.lost:
                self._extend(sent_at)


class AsyncLease(_BaseLease):
    """Lease for an `async with` block:
    `async with limiter.lease("pool", Concurrency(2, 30), wait=10) as lease:`

    A task renews it three times in each ttl until the block ends. If it cannot be renewed, because
    the server is unreachable or the process was suspended, the block is cancelled while the lease
    is still valid, and raises LeaseLostError.
    """

    # Called after every renewal, to keep other resources alive as long as the lease.
    on_renewal: Callable[[], Awaitable[object]] | None = None

    def __init__(self, execute: Callable[[Call[Any]], Awaitable[Any]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._execute = execute
        self._done = asyncio.Event()
        self._expired = False

    async def __aenter__(self) -> AsyncLease:
        deadline = self._deadline()
        while True:
            sent_at = self._clock()
            try:
                decision: Decision = await self._execute(self._acquire_call(deadline))
            except asyncio.CancelledError:
                # The lease may have been granted nevertheless.
                with suppress(RateLimitError):
                    await self._execute(self._release_call())
                raise
            if self._record_grant(decision, sent_at):
                break
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in a task
        self._work = task
        self._loop = asyncio.get_running_loop()
        self._alarm = self._loop.call_later(self._held_until - self._clock(), self._expire)
        self._renewal = self._loop.create_task(self._renew())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._alarm.cancel()
        self._done.set()
        # From Python 3.11 on, `uncancel` tells our cancellation from one by other code.
        is_own_cancellation = self._expired and getattr(self._work, "uncancel", lambda: 0)() == 0
        try:
            # A renewal in flight must end first: after the release it would acquire the lease
            # again.
            await self._renewal
        except asyncio.CancelledError:
            # Our own cancellation arrives here if the block ended without awaiting anything.
            if not is_own_cancellation:
                raise
        finally:
            with suppress(RateLimitError):  # otherwise the lease expires
                await self._execute(self._release_call())
        if is_own_cancellation and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise LeaseLostError(self.holder) from error

    def _expire(self) -> None:
        if not self.lost:  # it was renewed since the alarm was set
            self._alarm = self._loop.call_later(self._held_until - self._clock(), self._expire)
            return
        self._expired = True
        self._work.cancel()

    async def _renew(self) -> None:
        pause = self._first_pause
        while not self._done.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._done.wait(), pause)
                return
            if self._expired:
                return
            sent_at = self._clock()
            try:
                decision: Decision = await self._execute(self._renew_call())
            except RateLimitError:
                pause = self._pause(renewed=False)
                continue
            pause = self._pause(renewed=True)
            if self._done.is_set() or self._expired:
                return
            if not self._is_renewed(decision):
                # The lease had expired, and another holder has or had its place: stop now.
                self._held_until = 0.0
                self._alarm.cancel()
                self._expire()
                return
            self._extend(sent_at)
            if self.on_renewal is not None:
                try:
                    await asyncio.wait_for(self.on_renewal(), self._ttl / 3)
                except Exception as error:
                    log.warning("on_renewal of %s: %r", self.holder, error)
