"""Units of a hot key, taken from the server in batches and spent in this process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from random import uniform
from typing import Any

from redis_ratelimit import forks, sketches, waits, words
from redis_ratelimit.call import Call, Undecided
from redis_ratelimit.calls import Calls
from redis_ratelimit.decision import NEVER, Decision
from redis_ratelimit.denials import UNTRACKED
from redis_ratelimit.errors import CallError, FullError, RateLimitError, UnavailableError
from redis_ratelimit.limits import Limit
from redis_ratelimit.pending import pending
from redis_ratelimit.quantities import Key

# Seconds beyond `keep` for which the server remembers a grant, so that units can be given back
# late.
SETTLED_LATE = 10.0


@dataclass
class _Grant:
    """Units granted to one call."""

    id: Key
    left: int
    spent: int
    until: float


class _BaseUnits:
    """Common base of units: the available units, and the last decision of the server.

    The server has charged every unit before it is spent here, so all processes together never spend
    more than it grants. Units not spent within `keep` seconds are given back, so that a process
    cannot save them up and spend them on top of later ones. They are given back by SETTLE, as if
    only the spent units had been charged from the beginning.
    """

    def __init__(
        self,
        calls: Calls,
        key: Key,
        limits: Sequence[Limit],
        batch: int,
        keep: float,
        clock: Callable[[], float],
    ) -> None:
        if batch < 1:
            raise ValueError(f"batch must be a number of units, not {batch!r}")
        words.refuse_no_limits(limits, key)
        sketches.refuse(limits)  # unspent units could not be given back
        self.key = key
        self._calls = calls
        self._limits = limits
        self._batch = batch
        self._keep = keep
        self._clock = clock
        self._grants: deque[_Grant] = deque()
        self._expired: deque[_Grant] = deque()
        # Costs of the waiting callers, which are requested together.
        self._queue: deque[int] = deque()
        # Last decision of the server, and the earliest time of the next request after a short
        # grant.
        self._last = Decision(True, 0, 0, 0, 0, limits=tuple(limits))
        self._denied_until = 0.0
        # Time until which it is known that the policy has no FORCE.
        self._facts_until = 0.0
        forks.knows(self)

    def forked(self) -> None:
        """Forgets the units, which the parent process spends or gives back."""
        self._grants.clear()
        self._expired.clear()
        self._queue.clear()

    @property
    def in_hand(self) -> int:
        """Number of units that can be spent without a call."""
        now = self._clock()
        return sum(grant.left for grant in self._grants if now < grant.until)

    def _spend(self, cost: int) -> Decision | None:
        """Spends units. Returns None if there are not enough."""
        now = self._clock()
        while self._grants and (now >= self._grants[0].until or self._grants[0].left == 0):
            grant = self._grants.popleft()
            if grant.left:
                self._expired.append(grant)
        left = sum(grant.left for grant in self._grants)
        if left < cost:
            return None
        wanted = cost
        for grant in self._grants:
            taken = min(grant.left, wanted)
            grant.left -= taken
            grant.spent += taken
            wanted -= taken
        return replace(
            self._last,
            allowed=True,
            remaining=(self._last.remaining or 0) + left - cost,
            wait_ms=0,
        )

    def _refused(self) -> Decision | None:
        """Returns a denial while the server must not be asked again."""
        return self._denied() if self._clock() < self._denied_until else None

    def _denied(self) -> Decision:
        left = max(self._denied_until - self._clock(), 0)
        wait_ms = NEVER if self._last.wait_ms == NEVER else ceil(left * 1000)
        return replace(self._last, allowed=False, remaining=self.in_hand, wait_ms=wait_ms)

    def _wanted(self, cost: int) -> int:
        """Returns the number of units to request: a batch, or the cost of all waiting callers."""
        return max(self._batch, cost, sum(self._queue.copy()))

    def _request(self, wanted: int) -> Call[Decision]:
        call = self._calls.take(
            self.key,
            self._limits,
            cost=wanted,
            upto=True,
            once=True,
            ttl=self._keep + SETTLED_LATE,
        )
        # During an outage each request is decided by itself, not a batch. Without an idempotency
        # key, units could not be given back.
        return replace(call, without=None, unnamed=None)

    def _facts(self) -> Call[Decision] | None:
        """Returns the call that asks if a policy has FORCE, or None if that is known."""
        if not words.is_policy(self._limits) or self._clock() < self._facts_until:
            return None
        return self._calls.policy_facts(self.key, self._limits)

    def _refuse_forced(self, facts: Decision) -> None:
        """Raises CallError for a policy with FORCE, which would grant any number of units."""
        if facts.forced:
            raise CallError(waits.FORCED)
        self._facts_until = self._clock() + UNTRACKED

    def _granted(self, decision: Decision, sent_at: float, wanted: int) -> None:
        units = decision.granted or 0
        assert decision.id is not None  # `_request` has one
        self._last = replace(decision, granted=None, id=None, limits=tuple(self._limits))
        if units:
            # They were charged after `sent_at`, so they expire early rather than late.
            self._grants.append(_Grant(decision.id, units, 0, sent_at + self._keep))
        if units < wanted:
            # The limit is exhausted. An immediate retry would be granted a unit or two, and a queue
            # of callers that each wait for such a grant would only grow.
            wait = self._keep if decision.wait is None else decision.wait
            self._denied_until = self._clock() + max(wait, self._pause(decision.reset or 0.0))

    def _pause(self, reset: float) -> float:
        """Returns the seconds to pause after a short grant, longer than the limit needs for another
        unit. The random part spreads processes that were denied together.
        """
        return min(self._keep / 10, reset / 4) * uniform(1, 1.5)

    def _without(self, cost: int, error: Undecided) -> Decision:
        call = self._calls.take(self.key, self._limits, cost=cost, once=False)
        assert call.without is not None  # every take has one
        return call.without(error).but(limits=tuple(self._limits))

    def _settling(self, grant: _Grant) -> Call[Decision]:
        return self._calls.settle(self.key, self._limits, id=grant.id, cost=grant.spent)

    def _unspent(self) -> list[_Grant]:
        """Removes and returns all grants that have unspent units."""
        found = [*self._expired, *(grant for grant in self._grants if grant.left)]
        self._expired.clear()
        self._grants.clear()
        return found


def _checked(cost: int) -> None:
    if not isinstance(cost, int) or cost < 1:
        raise ValueError(f"cost must be a whole number of units from 1, not {cost!r}")


class Units(_BaseUnits):
    """Units of a hot key, for threads:
    `units = limiter.units("global", TokenBucket(10_000, 10_000), batch=100)`.

    `units.take()` for each request sends one call for `batch` requests. `close`, or a `with` block,
    gives unspent units back.
    """

    _lock = forks.lock()

    def __init__(self, do: Callable[[Call[Any]], Any], *terms: Any) -> None:
        super().__init__(*terms)
        self._do = do
        self.forked()

    def forked(self) -> None:
        super().forked()
        forks.forget(self, "_lock")

    def take(self, cost: int = 1) -> Decision:
        _checked(cost)
        self._queue.append(cost)
        with self._lock:  # one caller requests units, the others wait for them
            try:
                return self._taken(cost)
            finally:
                self._queue.remove(cost)

    def _taken(self, cost: int) -> Decision:
        decision = self._spend(cost) or self._refused()
        if decision is not None:
            return decision
        try:
            facts = self._facts()
            if facts is not None:
                self._refuse_forced(self._do(facts))
            sent_at, wanted = self._clock(), self._wanted(cost)
            self._granted(self._do(self._request(wanted)), sent_at, wanted)
        except (UnavailableError, FullError) as error:
            return self._without(cost, error)
        while self._expired:
            with suppress(RateLimitError):  # otherwise the usage recovers by itself
                self._do(self._settling(self._expired.popleft()))
        return self._spend(cost) or self._denied()

    def close(self) -> None:
        with self._lock:
            for grant in self._unspent():
                with suppress(RateLimitError):
                    self._do(self._settling(grant))

    def __enter__(self) -> Units:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncUnits(_BaseUnits):
    """Units of a hot key, for asyncio: `await units.take()`, and `await units.close()` or
    `async with`.
    """

    def __init__(self, do: Callable[[Call[Any]], Awaitable[Any]], *terms: Any) -> None:
        super().__init__(*terms)
        self._do = do
        # Event loop of the lock.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    def _guard(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
            self._queue.clear()
        return self._lock

    @pending
    async def take(self, cost: int = 1) -> Decision:
        # There is no await in between, so spending units needs no lock.
        _checked(cost)
        decision = self._spend(cost) or self._refused()
        if decision is not None:
            return decision
        guard = self._guard()
        self._queue.append(cost)
        try:
            async with guard:  # one caller requests units, the others wait for them
                return await self._taken(cost)
        finally:
            with suppress(ValueError):  # cleared by another event loop
                self._queue.remove(cost)

    async def _taken(self, cost: int) -> Decision:
        decision = self._spend(cost) or self._refused()
        if decision is not None:
            return decision
        try:
            facts = self._facts()
            if facts is not None:
                self._refuse_forced(await self._do(facts))
            sent_at, wanted = self._clock(), self._wanted(cost)
            self._granted(await self._do(self._request(wanted)), sent_at, wanted)
        except (UnavailableError, FullError) as error:
            return self._without(cost, error)
        while self._expired:
            with suppress(RateLimitError):  # otherwise the usage recovers by itself
                await self._do(self._settling(self._expired.popleft()))
        return self._spend(cost) or self._denied()

    async def close(self) -> None:
        async with self._guard():
            for grant in self._unspent():
                with suppress(RateLimitError):
                    await self._do(self._settling(grant))

    async def __aenter__(self) -> AsyncUnits:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
