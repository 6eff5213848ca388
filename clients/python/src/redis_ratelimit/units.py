"""Units of a hot key, taken from the server many at a time and spent in this process."""

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
from redis_ratelimit.denials import UNHEARD
from redis_ratelimit.errors import CallError, FullError, RateLimitError, UnavailableError
from redis_ratelimit.limits import Limit
from redis_ratelimit.pending import pending
from redis_ratelimit.quantities import Key

# For how many seconds beyond their own the server remembers what units were granted: so long may
# giving them back be late.
SETTLED_LATE = 10.0


@dataclass
class _Grant:
    """What one call was granted."""

    id: Key
    left: int
    spent: int
    until: float


class _Hand:
    """What both kinds share: the units in hand, and what was last said of the limit.

    The server has charged every unit before it is spent here, so all processes together never spend
    more than it grants. Units not spent within `keep` seconds are given back instead: a process
    cannot save them up and spend them on top of later ones. They are given back by SETTLE, as if
    only what was spent had been charged from the beginning.
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
        sketches.refuse(limits)  # what is not spent could not be given back
        self.key = key
        self._calls = calls
        self._limits = limits
        self._batch = batch
        self._keep = keep
        self._clock = clock
        self._grants: deque[_Grant] = deque()
        self._expired: deque[_Grant] = deque()
        # Costs of the callers in line: what they need is asked for at once.
        self._line: deque[int] = deque()
        # What the server said last, and when it may be asked again after a grant was short.
        self._said = Decision(True, 0, 0, 0, 0, limits=tuple(limits))
        self._denied_until = 0.0
        # Until when a policy is not asked again whether it has FORCE.
        self._facts_until = 0.0
        forks.knows(self)

    def forked(self) -> None:
        """The other process has the units, and gives back what it does not spend."""
        self._grants.clear()
        self._expired.clear()
        self._line.clear()

    @property
    def in_hand(self) -> int:
        now = self._clock()
        return sum(grant.left for grant in self._grants if now < grant.until)

    def _spend(self, cost: int) -> Decision | None:
        """None: there are not enough in hand."""
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
            self._said,
            allowed=True,
            remaining=(self._said.remaining or 0) + left - cost,
            wait_ms=0,
        )

    def _refused(self) -> Decision | None:
        """While it is no use to ask."""
        return self._denied() if self._clock() < self._denied_until else None

    def _denied(self) -> Decision:
        left = max(self._denied_until - self._clock(), 0)
        wait_ms = NEVER if self._said.wait_ms == NEVER else ceil(left * 1000)
        return replace(self._said, allowed=False, remaining=self.in_hand, wait_ms=wait_ms)

    def _wanted(self, cost: int) -> int:
        """Returns how many units to ask for: a batch, or what all callers in line need."""
        return max(self._batch, cost, sum(self._line.copy()))

    def _asking(self, wanted: int) -> Call[Decision]:
        call = self._calls.take(
            self.key,
            self._limits,
            cost=wanted,
            upto=True,
            once=True,
            ttl=self._keep + SETTLED_LATE,
        )
        # Without the server it is one request that is decided, not a batch. Without an id nothing
        # could be given back.
        return replace(call, without=None, unnamed=None)

    def _facts(self) -> Call[Decision] | None:
        """Returns the call that asks a policy whether it has FORCE, if it is to be asked."""
        if not words.is_policy(self._limits) or self._clock() < self._facts_until:
            return None
        return self._calls.policy_facts(self.key, self._limits)

    def _refuse_forced(self, told: Decision) -> None:
        """Refuses a policy that would grant any number of units."""
        if told.forced:
            raise CallError(waits.FORCED)
        self._facts_until = self._clock() + UNHEARD

    def _granted(self, decision: Decision, asked_at: float, wanted: int) -> None:
        units = decision.granted or 0
        assert decision.id is not None  # `_asking` has it
        self._said = replace(decision, granted=None, id=None, limits=tuple(self._limits))
        if units:
            # They were charged after they were asked for, so they expire in time.
            self._grants.append(_Grant(decision.id, units, 0, asked_at + self._keep))
        if units < wanted:
            # The limit is used up. Whoever asks at once is granted a unit or two, and a line of
            # callers that each wait for such a grant would only grow.
            wait = self._keep if decision.wait is None else decision.wait
            self._denied_until = self._clock() + max(wait, self._pause(decision.reset or 0.0))

    def _pause(self, reset: float) -> float:
        """Returns for how many seconds not to ask after a short grant, longer than what the limit
        needs for another one. Processes that were denied together ask one after the other.
        """
        return min(self._keep / 10, reset / 4) * uniform(1, 1.5)

    def _without(self, cost: int, error: Undecided) -> Decision:
        call = self._calls.take(self.key, self._limits, cost=cost, once=False)
        assert call.without is not None  # a take has it
        return call.without(error).but(limits=tuple(self._limits))

    def _settling(self, grant: _Grant) -> Call[Decision]:
        return self._calls.settle(self.key, self._limits, id=grant.id, cost=grant.spent)

    def _unspent(self) -> list[_Grant]:
        """All that are to be given back at the end."""
        found = [*self._expired, *(grant for grant in self._grants if grant.left)]
        self._expired.clear()
        self._grants.clear()
        return found


def _checked(cost: int) -> None:
    if not isinstance(cost, int) or cost < 1:
        raise ValueError(f"cost must be a whole number of units from 1, not {cost!r}")


class Units(_Hand):
    """`units = limiter.units("global", TokenBucket(10_000, 10_000), batch=100)`, then
    `units.take()` for each request: a call in `batch` requests. For threads. `close`, or a `with`
    block, gives back what was not spent.
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
        self._line.append(cost)
        with self._lock:  # one asks; all others wait for what it gets
            try:
                return self._taken(cost)
            finally:
                self._line.remove(cost)

    def _taken(self, cost: int) -> Decision:
        decision = self._spend(cost) or self._refused()
        if decision is not None:
            return decision
        try:
            facts = self._facts()
            if facts is not None:
                self._refuse_forced(self._do(facts))
            asked_at, wanted = self._clock(), self._wanted(cost)
            self._granted(self._do(self._asking(wanted)), asked_at, wanted)
        except (UnavailableError, FullError) as error:
            return self._without(cost, error)
        while self._expired:
            with suppress(RateLimitError):  # they come back by themselves
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


class AsyncUnits(_Hand):
    """`Units` for asyncio: `await units.take()`, `await units.close()` or `async with`."""

    def __init__(self, do: Callable[[Call[Any]], Awaitable[Any]], *terms: Any) -> None:
        super().__init__(*terms)
        self._do = do
        # A lock is of one loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    def _guard(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
            self._line.clear()
        return self._lock

    @pending
    async def take(self, cost: int = 1) -> Decision:
        # Nothing waits in between, so units in hand need no lock.
        _checked(cost)
        decision = self._spend(cost) or self._refused()
        if decision is not None:
            return decision
        guard = self._guard()
        self._line.append(cost)
        try:
            async with guard:  # one asks; all others wait for what it gets
                return await self._taken(cost)
        finally:
            with suppress(ValueError):  # of another loop
                self._line.remove(cost)

    async def _taken(self, cost: int) -> Decision:
        decision = self._spend(cost) or self._refused()
        if decision is not None:
            return decision
        try:
            facts = self._facts()
            if facts is not None:
                self._refuse_forced(await self._do(facts))
            asked_at, wanted = self._clock(), self._wanted(cost)
            self._granted(await self._do(self._asking(wanted)), asked_at, wanted)
        except (UnavailableError, FullError) as error:
            return self._without(cost, error)
        while self._expired:
            with suppress(RateLimitError):  # they come back by themselves
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
