"""Limits kept in this process, for while the server is away."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, floor
from typing import Any, NamedTuple

from redis_ratelimit.decision import NEVER, Decision
from redis_ratelimit.limits import Concurrency, Key, Limit, Policy


class Charge(NamedTuple):
    """What a call asks of one limit."""

    key: Key
    limit: Limit
    cost: float


class Local:
    """A bucket for each limit of each key, of this process's `share` of the limit.

    With a share of one in the number of processes, all of them together allow about what the server
    would have. The numbers of a policy are the server's: calls by one go by `otherwise`, and
    without it they pass. So do concurrency limits, which nobody here could release. At most `most`
    buckets are remembered, those asked about last.
    """

    def __init__(
        self,
        share: float = 1.0,
        *,
        otherwise: Limit | None = None,
        most: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0, up to 1, not {share!r}")
        self._share = share
        self._otherwise = otherwise
        self._most = most
        self._clock = clock
        # When a bucket will be full again: all that needs to be known of it.
        self._full_at: OrderedDict[tuple[Key, str], float] = OrderedDict()
        # What was charged here and may be settled.
        self._ids: OrderedDict[Key, list[Charge]] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, charges: Sequence[Charge]) -> list[Charge]:
        """Those that can be decided here."""
        found = []
        for charge in charges:
            if isinstance(charge.limit, Policy):
                if self._otherwise is not None:
                    found.append(charge._replace(limit=self._otherwise))
            elif not isinstance(charge.limit, Concurrency):
                found.append(charge)
        return found

    def take(
        self,
        charges: Sequence[Charge],
        *,
        upto: bool = False,
        force: bool = False,
        look: bool = False,
        id: Key | None = None,
    ) -> list[Decision]:
        """All are charged or none is. `charges` are known ones."""
        with self._lock:
            if upto:
                charges = self._that_fit(charges)
            decisions = [self._decision(charge) for charge in charges]
            if upto:
                units = [int(charge.cost) if all(decisions) else 0 for charge in charges]
                decisions = [
                    replace(one, granted=n) for one, n in zip(decisions, units, strict=True)
                ]
            if look or not (force or all(decisions)):
                return decisions
            if id is not None:
                self._ids[id] = list(charges)
                self._forget(self._ids)
            for charge in charges:
                self._add(charge, charge.cost)
            after = [self._decision(charge._replace(cost=0)) for charge in charges]
            return [
                replace(left, allowed=one.allowed, wait_ms=one.wait_ms, granted=one.granted)
                for one, left in zip(decisions, after, strict=True)
            ]

    def give_back(self, charges: Sequence[Charge]) -> list[Decision]:
        with self._lock:
            for charge in charges:
                self._add(charge, -charge.cost)
            return [self._decision(charge) for charge in charges]

    def settle(self, id: Key, cost: float) -> list[Decision] | None:
        """In place of what was charged, unless that is always the same. None: not charged here."""
        with self._lock:
            charges = self._ids.pop(id, None)
            if charges is None:
                return None
            for charge in charges:
                if charge.limit.cost is None:
                    self._add(charge, cost - charge.cost)
            return [
                replace(self._decision(charge._replace(cost=0)), allowed=True, wait_ms=0)
                for charge in charges
            ]

    def _that_fit(self, charges: Sequence[Charge]) -> list[Charge]:
        own = [charge for charge in charges if charge.limit.cost is None]
        units = min(floor(min(charge.cost, self._free(charge))) for charge in own or charges)
        # If there is none: what would be granted first.
        return [
            charge._replace(cost=max(units, 1)) if charge in own else charge for charge in charges
        ]

    def _decision(self, charge: Charge) -> Decision:
        capacity, free = self._capacity(charge), self._free(charge)
        missing = charge.cost - free
        wait = NEVER if charge.cost > capacity else ceil(missing * self._seconds(charge) * 1000)
        return Decision(
            allowed=missing <= 0,
            limit=floor(capacity),
            remaining=max(floor(free), 0),
            wait_ms=0 if missing <= 0 else wait,
            reset_ms=ceil((capacity - free) * self._seconds(charge) * 1000),
            name=charge.limit.name,
            source="local",
        )

    def _add(self, charge: Charge, units: float) -> None:
        now = self._clock()
        bucket = _bucket(charge)
        full_at = max(self._full_at.pop(bucket, now), now) + units * self._seconds(charge)
        self._full_at[bucket] = full_at
        self._forget(self._full_at)

    def _forget(self, remembered: OrderedDict[Any, Any]) -> None:
        while len(remembered) > self._most:
            remembered.popitem(last=False)

    def _free(self, charge: Charge) -> float:
        reset = max(self._full_at.get(_bucket(charge), 0.0) - self._clock(), 0.0)
        # Rounded, so that what is left of ten less three is seven.
        return self._capacity(charge) - round(reset / self._seconds(charge), 6)

    def _capacity(self, charge: Charge) -> float:
        quota = charge.limit.quota
        # A share of a small limit is one unit still; a limit of 0 stays 0.
        return min(quota, max(floor(quota * self._share), 1))

    def _seconds(self, charge: Charge) -> float:
        """How long one unit takes to come back."""
        return charge.limit.window_seconds / (self._capacity(charge) or 1)


def _bucket(charge: Charge) -> tuple[Key, str]:
    return charge.key, charge.limit.label
