"""Limits of this process, as a fallback during an outage of the server."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor
from typing import Any, NamedTuple

from redis_ratelimit import forks
from redis_ratelimit.decision import NEVER, Decision
from redis_ratelimit.limits import Concurrency, Limit, Policy
from redis_ratelimit.memory.options import UNIT
from redis_ratelimit.memory.pools import Bucket, Pool
from redis_ratelimit.memory.rule import AFTER, ALLOWED, ceil_div
from redis_ratelimit.quantities import Key
from redis_ratelimit.rates import AnyLimit, limit_of

# Maximum number of limits whose `Bucket` is cached.
_MAX_LIMITS = 1000


class Charge(NamedTuple):
    """Charge of a call to one limit."""

    key: Key
    limit: Limit
    cost: float


class Local:
    """Fallback limits in this process: a bucket for each limit of each key, with this process's
    `share` of the limit.

    With a share of one divided by the number of processes, all processes together allow about as
    much as the server. Only the server knows the limits of a policy: `otherwise` applies in place
    of a policy; without it, such calls are allowed. Calls with a concurrency limit are allowed, as
    leases could not be released here. At most `most` buckets are kept, the most recently used.
    """

    _lock = forks.lock()

    def __init__(
        self,
        share: float = 1.0,
        *,
        otherwise: AnyLimit | None = None,
        most: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be above 0, up to 1, not {share!r}")
        self._share = share
        self._otherwise = None if otherwise is None else limit_of(otherwise)
        self._most = most
        self._clock = clock
        self._bucket = lru_cache(_MAX_LIMITS)(self._bucket_of)
        self._buckets: OrderedDict[tuple[Key, str], Pool] = OrderedDict()
        # Charges of this process that may be settled, by id.
        self._ids: OrderedDict[Key, list[Charge]] = OrderedDict()
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        forks.forget(self, "_lock")

    def decidable(self, charges: Sequence[Charge]) -> list[Charge]:
        """Returns the charges that this process can decide."""
        decidable = []
        for charge in charges:
            if isinstance(charge.limit, Policy):
                if self._otherwise is not None:
                    decidable.append(charge._replace(limit=self._otherwise))
            elif not isinstance(charge.limit, Concurrency):
                decidable.append(charge)
        return decidable

    def take(
        self,
        charges: Sequence[Charge],
        *,
        upto: bool = False,
        force: bool = False,
        is_peek: bool = False,
        id: Key | None = None,
    ) -> list[Decision]:
        """Charges all limits or none. `charges` come from `decidable`."""
        with self._lock:
            if upto:
                charges = self._fitting(charges)
            decisions = [self._decision(charge) for charge in charges]
            if upto:
                granted = [int(charge.cost) if all(decisions) else 0 for charge in charges]
                decisions = [
                    replace(one, granted=units)
                    for one, units in zip(decisions, granted, strict=True)
                ]
            if is_peek or not (force or all(decisions)):
                return decisions
            if id is not None:
                self._ids[id] = list(charges)
                self._evict(self._ids)
            for charge in charges:
                self._add(charge, _millionths(charge.cost, ceil))
            decisions_after = [self._decision(charge._replace(cost=0)) for charge in charges]
            # The wait of a forced charge lasts until usage is within the limit again.
            return [
                replace(remaining, allowed=one.allowed, granted=one.granted)
                for one, remaining in zip(decisions, decisions_after, strict=True)
            ]

    def give_back(self, charges: Sequence[Charge]) -> list[Decision]:
        with self._lock:
            for charge in charges:
                self._add(charge, -_millionths(charge.cost, floor))
            decisions_after = [self._decision(charge._replace(cost=0)) for charge in charges]
            return [replace(one, allowed=True, wait_ms=0) for one in decisions_after]

    def settle(self, id: Key, cost: float) -> list[Decision] | None:
        """Corrects a charge to `cost`, except for limits with a cost of their own. Returns None if
        this process did not charge the id.
        """
        with self._lock:
            charges = self._ids.pop(id, None)
            if charges is None:
                return None
            for charge in charges:
                if charge.limit.cost is None:
                    self._add(charge, _millionths(cost, ceil) - _millionths(charge.cost, ceil))
            return [
                replace(self._decision(charge._replace(cost=0)), allowed=True, wait_ms=0)
                for charge in charges
            ]

    def _fitting(self, charges: Sequence[Charge]) -> list[Charge]:
        """Lowers the cost of a call with `upto` to the whole units that all limits allow."""
        adjustable = [charge for charge in charges if charge.limit.cost is None]
        free = [self._decision(charge).remaining or 0 for charge in adjustable or charges]
        units = floor(min([*free, *(charge.cost for charge in adjustable or charges)]))
        # Without a free unit, decide as for a cost of one unit.
        return [
            charge._replace(cost=max(units, 1)) if charge in adjustable else charge
            for charge in charges
        ]

    def _decision(self, charge: Charge) -> Decision:
        bucket, pool, now = self._bucket(charge.limit), self._pool(charge), self._now()
        kind, wait = bucket.verdict(pool, now, _millionths(charge.cost, ceil))
        return Decision(
            allowed=kind == ALLOWED,
            limit=bucket.limit // UNIT,
            remaining=bucket.remaining(pool, now) // UNIT,
            wait_ms=0 if kind == ALLOWED else ceil_div(wait, 1000) if kind == AFTER else NEVER,
            reset_ms=ceil_div(bucket.reset(pool, now), 1000),
            name=charge.limit.name,
            source="local",
        )

    def _add(self, charge: Charge, units: int) -> None:
        bucket, pool, now = self._bucket(charge.limit), self._pool(charge), self._now()
        pool.move_back(now)
        if units > 0:
            bucket.charge(pool, now, units)
        else:
            bucket.give_back(pool, now, -units)
        self._buckets[_bucket_key(charge)] = pool
        self._buckets.move_to_end(_bucket_key(charge))
        self._evict(self._buckets)

    def _evict(self, entries: OrderedDict[Any, Any]) -> None:
        while len(entries) > self._most:
            entries.popitem(last=False)

    def _pool(self, charge: Charge) -> Pool:
        pool = self._buckets.get(_bucket_key(charge))
        if pool is None:
            return Pool()
        self._buckets.move_to_end(_bucket_key(charge))
        return pool

    def _bucket_of(self, limit: Limit) -> Bucket:
        quota = _millionths(limit.quota, floor)
        # The share of a small limit is at least one unit; a limit of 0 stays 0.
        capacity = min(quota, max(round(quota * Fraction(self._share)), UNIT))
        rate = (capacity or UNIT) / (Fraction(repr(limit.window_seconds)) * UNIT)
        return Bucket(capacity, rate.numerator, rate.denominator, queues=False)

    def _now(self) -> int:
        return round(self._clock() * UNIT)


def _bucket_key(charge: Charge) -> tuple[Key, str]:
    limit = charge.limit
    return charge.key, limit.name or " ".join(map(str, [limit.algorithm, *limit._arguments()]))


def _millionths(units: float, round_to_int: Callable[[Fraction], int]) -> int:
    """Returns the shortest decimal form of `units` in millionths, as the server counts."""
    return round_to_int(Fraction(repr(float(units))) * UNIT)
