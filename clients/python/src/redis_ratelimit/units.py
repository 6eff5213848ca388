"""Units of a hot key, taken from the server in batches and spent in this process."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from random import random
from typing import Any
from weakref import ref

from redis_ratelimit import forks, sketches, waits, words
from redis_ratelimit.batching import Batching, Grant, Reply
from redis_ratelimit.call import Call, Undecided
from redis_ratelimit.calls import Calls
from redis_ratelimit.decision import NEVER, Decision
from redis_ratelimit.denials import UNTRACKED_SECONDS
from redis_ratelimit.errors import CallError, FullError, RateLimitError, UnavailableError
from redis_ratelimit.limits import Limit
from redis_ratelimit.pending import pending
from redis_ratelimit.quantities import Key

# Seconds beyond `keep` for which the server can settle a grant, so that units can be given back
# late.
SETTLE_GRACE = 10.0


@dataclass(eq=False)
class _Waiter:
    """Take that waits for units."""

    cost: int
    # Decision or error, for threads.
    answer: Decision | Exception | None = None
    # Receiver of the answer, for asyncio.
    future: asyncio.Future[Decision] | None = None

    def receive(self, answer: Decision | Exception) -> None:
        self.answer = answer
        if self.future is None or self.future.done():  # its caller was cancelled
            return
        if isinstance(answer, Exception):
            self.future.set_exception(answer)
        else:
            self.future.set_result(answer)


class _BaseUnits:
    """Common base of units: decisions by the units in hand, and the requests for more.

    The server has charged every unit before it is spent here, so all processes together never spend
    more than the server grants. Units not spent within `keep` seconds are given back, so that a
    process cannot save them up and spend them on top of later units. SETTLE gives them back as if
    only the spent units had been charged from the beginning.
    """

    def __init__(
        self,
        calls: Calls,
        key: Key,
        limits: Sequence[Limit],
        batch: int | None,
        keep: float,
        peers: int | None,
        clock: Callable[[], float],
    ) -> None:
        for name, number in (("batch", batch), ("peers", peers)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise ValueError(f"{name} must be a whole number from 1, not {number!r}")
        words.require_limits(limits, key)
        sketches.refuse(limits)  # unspent units could not be given back
        self.key = key
        self._calls = calls
        self._limits = limits
        self._keep = keep
        self._clock = clock
        self._batching = Batching(keep, batch, peers)
        self._waiting: deque[_Waiter] = deque()
        # `True` while a request is in flight.
        self._is_requesting = False
        # Last decision of the server.
        self._last_decision = Decision(True, 0, 0, 0, 0, limits=tuple(limits))
        # Time until which it is known that the policy has no FORCE.
        self._unforced_until = 0.0
        forks.register(self)

    def reset_after_fork(self) -> None:
        """Forgets the units: the parent process spends them or gives them back."""
        self._batching.forget()
        self._waiting.clear()
        self._is_requesting = False

    @property
    def in_hand(self) -> int:
        """Number of units that can be spent without a call."""
        return self._batching.in_hand(self._clock())

    def _demand(self, cost: int) -> Decision | None:
        """Counts a take, and decides it if no call is needed."""
        now = self._clock()
        self._batching.record_demand(cost, now)
        return self._decide(cost, now)

    def _decide(self, cost: int, now: float) -> Decision | None:
        batching, last_decision = self._batching, self._last_decision
        if batching.spend(cost, now):
            remaining = (last_decision.remaining or 0) + batching.in_hand(now)
            return last_decision.but(allowed=True, remaining=remaining, wait_ms=0)
        if batching.denies(cost, now):
            return self._deny(cost, now)
        return None

    def _deny(self, cost: int, now: float) -> Decision:
        wait = self._batching.wait(cost, now)
        return self._last_decision.but(
            allowed=False,
            remaining=self._batching.in_hand(now),
            wait_ms=NEVER if wait is None else max(ceil(wait * 1000), 1),
        )

    def _is_due(self) -> bool:
        """Returns `True` if a batch is to be requested before the units in hand are spent."""
        return not self._is_requesting and self._batching.is_due(self._clock())

    def _next_request(self) -> tuple[Call[Decision], int, float]:
        """Returns a request for units, the number of units, and the time of the request."""
        now = self._clock()
        requested = self._batching.plan_request(sum(waiter.cost for waiter in self._waiting), now)
        call = self._calls.take(
            self.key,
            self._limits,
            cost=requested,
            upto=True,
            once=True,
            ttl=self._keep + SETTLE_GRACE,
        )
        # During an outage each request is decided by itself, not a batch. Without an idempotency
        # key, units could not be given back.
        return replace(call, fallback=None, without_id=None), requested, now

    def _policy_check(self) -> Call[Decision] | None:
        """Returns the call that asks if a policy has FORCE, or None if that is known."""
        if not words.is_policy(self._limits) or self._clock() < self._unforced_until:
            return None
        return self._calls.policy_facts(self.key, self._limits)

    def _refuse_forced(self, facts: Decision) -> None:
        """Raises CallError for a policy with FORCE, which would grant any number of units."""
        if facts.forced:
            raise CallError(waits.FORCED_POLICY)
        self._unforced_until = self._clock() + UNTRACKED_SECONDS

    def _record_reply(self, decision: Decision, requested: int, sent_at: float) -> None:
        """Records the reply to a request, and answers the waiting takes, first come, first served.
        Takes that began after the request may have to wait for the next reply.
        """
        assert decision.id is not None  # `_next_request` sets `once`
        self._is_requesting = False
        self._last_decision = replace(decision, granted=None, id=None, limits=tuple(self._limits))
        # A denied call grants nothing, even if its policy now has FORCE and so charges it.
        granted = decision.granted or 0 if decision.allowed else 0
        reply = Reply(
            decision.id,
            granted,
            decision.limit or 0,
            decision.remaining or 0,
            decision.wait,
            decision.reset or 0.0,
        )
        now = self._clock()
        self._batching.record_reply(reply, requested, sent_at, now, random())
        while self._waiting:
            answer = self._decide(self._waiting[0].cost, now)
            if answer is None:
                break
            self._waiting.popleft().receive(answer)

    def _record_failure(self, error: Exception) -> None:
        """Answers all waiting takes after a request that failed."""
        self._is_requesting = False
        self._batching.record_failure(self._clock())
        while self._waiting:
            waiter = self._waiting.popleft()
            if isinstance(error, (UnavailableError, FullError)):
                waiter.receive(self._fallback(waiter.cost, error))
            else:
                waiter.receive(error)

    def _fallback(self, cost: int, error: Undecided) -> Decision | Exception:
        call = self._calls.take(self.key, self._limits, cost=cost, once=False)
        assert call.fallback is not None  # every call of `take` has a fallback
        try:
            return call.fallback(error).but(limits=tuple(self._limits))
        except RateLimitError as raised:  # `on_outage` is "raise"
            return raised

    def _settle_call(self, grant: Grant) -> Call[Decision]:
        return self._calls.settle(self.key, self._limits, id=grant.id, cost=grant.spent)


def _check_cost(cost: int) -> None:
    if not isinstance(cost, int) or cost < 1:
        raise ValueError(f"cost must be a whole number of units from 1, not {cost!r}")


class Units(_BaseUnits):
    """Units of a hot key, for threads: `limiter.units("global", TokenBucket(10_000, 10_000))`.

    `units.take()` for each request sends one call for a batch of requests. A thread requests the
    next batch before the last one is spent, and gives back units that expire. `close`, or the end
    of a `with` block, gives back the remaining units.
    """

    # Lock of all fields, which is notified when a request ends.
    _changed = forks.condition()

    def __init__(self, execute: Callable[[Call[Any]], Any], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._execute = execute
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        super().reset_after_fork()
        forks.forget(self, "_changed")
        self._is_working = False
        self._alarm: threading.Timer | None = None

    def take(self, cost: int = 1) -> Decision:
        _check_cost(cost)
        with self._changed:
            decision = self._demand(cost)
            if self._batching.has_expired or self._is_due():
                self._start_work()
            if decision is not None:
                return decision
            waiter = _Waiter(cost)
            self._waiting.append(waiter)
            try:
                while waiter.answer is None:
                    # One of the waiting threads requests units for all of them.
                    if self._is_requesting:
                        self._changed.wait()
                    else:
                        self._fetch()
            finally:
                if waiter in self._waiting:  # its thread was interrupted, for example by a signal
                    self._waiting.remove(waiter)
        if isinstance(waiter.answer, Exception):
            raise waiter.answer
        return waiter.answer

    def _fetch(self) -> None:
        """Requests units and answers the waiting takes. Releases the lock during the calls."""
        self._is_requesting = True
        try:
            facts = self._policy_check()
            if facts is not None:
                self._refuse_forced(self._send_unlocked(facts))
            call, requested, sent_at = self._next_request()
            self._record_reply(self._send_unlocked(call), requested, sent_at)
            self._set_alarm()
        except Exception as error:
            self._record_failure(error)
        finally:
            self._is_requesting = False
            self._changed.notify_all()

    def _send_unlocked(self, call: Call[Any]) -> Any:
        self._changed.release()
        try:
            return self._execute(call)
        finally:
            self._changed.acquire()

    def _start_work(self) -> None:
        if not self._is_working:
            thread = threading.Thread(target=self._work, name="units", daemon=True)
            self._is_working = _try_to_start(thread)

    def _work(self) -> None:
        """Gives expired units back, and requests a batch if it is due."""
        with self._changed:
            try:
                if self._is_due():
                    self._fetch()
                self._give_back(self._batching.take_expired())
            finally:
                self._is_working = False
                self._changed.notify_all()

    def _set_alarm(self) -> None:
        """Starts a timer that gives the oldest units back even if no take follows."""
        expires_at = self._batching.expires_at
        if self._alarm is None and expires_at is not None:
            wait = max(expires_at - self._clock(), 0.001)
            # A weak reference, so that the timer does not keep abandoned units alive.
            alarm = threading.Timer(wait, _expire_units, [ref(self)])
            alarm.daemon = True
            self._alarm = alarm if _try_to_start(alarm) else None

    def _expire(self) -> None:
        with self._changed:
            self._alarm = None
            self._batching.in_hand(self._clock())
            self._set_alarm()
            if self._batching.has_expired:
                self._start_work()

    def _give_back(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            if grant.unspent:
                with suppress(RateLimitError):  # otherwise the usage recovers by itself
                    self._send_unlocked(self._settle_call(grant))

    def close(self) -> None:
        with self._changed:
            while self._is_requesting or self._is_working:
                self._changed.wait()
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
            self._give_back(self._batching.take_all())

    def __enter__(self) -> Units:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _try_to_start(thread: threading.Thread) -> bool:
    """Starts a thread. Returns `False` if the interpreter shuts down and starts no threads."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _expire_units(units: ref[Units]) -> None:
    referent = units()
    if referent is not None:
        referent._expire()


class AsyncUnits(_BaseUnits):
    """Units of a hot key, for asyncio: `await units.take()`, and `await units.close()` or
    `async with`. A task requests the next batch before the last one is spent.
    """

    def __init__(self, execute: Callable[[Call[Any]], Awaitable[Any]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._execute = execute
        # Event loop of the tasks, the timer and the waiting takes.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None

    def reset_after_fork(self) -> None:
        super().reset_after_fork()
        self._loop = None

    def _in_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Requests and timers of another event loop never end.
            self._loop, self._alarm, self._is_requesting = loop, None, False
            self._tasks.clear()
            self._waiting.clear()
        return loop

    @pending
    async def take(self, cost: int = 1) -> Decision:
        # No other task runs before the first `await`, so spending units needs no lock.
        _check_cost(cost)
        loop = self._in_loop()
        decision = self._demand(cost)
        if self._batching.has_expired:
            self._start(self._give_back(self._batching.take_expired()))
        if decision is not None:
            if self._is_due():
                self._start_fetching()
            return decision
        waiter = _Waiter(cost, future=loop.create_future())
        self._waiting.append(waiter)
        if not self._is_requesting:
            self._start_fetching()
        assert waiter.future is not None
        try:
            return await waiter.future
        finally:
            if waiter in self._waiting:  # it was cancelled
                self._waiting.remove(waiter)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_fetching(self) -> None:
        self._is_requesting = True
        self._start(self._fetch())

    async def _fetch(self) -> None:
        """Requests units until every waiting take is answered."""
        try:
            facts = self._policy_check()
            if facts is not None:
                self._refuse_forced(await self._execute(facts))
            call, requested, sent_at = self._next_request()
            self._record_reply(await self._execute(call), requested, sent_at)
            self._set_alarm()
        except Exception as error:
            self._record_failure(error)
        if self._waiting:
            self._start_fetching()

    def _set_alarm(self) -> None:
        """Starts a timer that gives the oldest units back even if no take follows."""
        expires_at = self._batching.expires_at
        if self._alarm is None and expires_at is not None:
            wait = max(expires_at - self._clock(), 0.001)
            self._alarm = asyncio.get_running_loop().call_later(wait, self._expire)

    def _expire(self) -> None:
        self._alarm = None
        self._batching.in_hand(self._clock())
        self._set_alarm()
        if self._batching.has_expired:
            self._start(self._give_back(self._batching.take_expired()))

    async def _give_back(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            if grant.unspent:
                with suppress(RateLimitError):  # otherwise the usage recovers by itself
                    await self._execute(self._settle_call(grant))

    async def close(self) -> None:
        self._in_loop()
        while self._tasks:
            await asyncio.wait(self._tasks.copy())
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        await self._give_back(self._batching.take_all())

    async def __aenter__(self) -> AsyncUnits:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
