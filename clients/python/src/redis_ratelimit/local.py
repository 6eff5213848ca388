"""Limits kept in this process, for while the server is away."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import ceil, floor
from typing import Any, NamedTuple

from redis_ratelimit import forks
from redis_ratelimit.decision import NEVER, Decision
from redis_ratelimit.limits import Concurrency, Limit, Policy
from redis_ratelimit.quantities import Key
from redis_ratelimit.rates import AnyLimit, limit_of


class Charge(NamedTuple):
    """What a call asks of one limit."""

    key: Key
    limit: Limit
    cost: float


@dataclass
class _Bucket:
    """What has been used of a limit, as of when; it drains as the limit recovers."""

    used: float
    at: float


# The server counts in millionths.
_MILLIONTH = Decimal("0.000001")
# Sums of them as floats are off by less than this, and by less than this share of what is large.
_SLACK, _SLACK_OF_LARGE = 1e-9, 1e-15
# No longer time is told.
_LONGEST_MS = 365_000 * 86_400_000


class Local:
    """A bucket for each limit of each key, of this process's `share` of the limit.

    With a share of one in the number of processes, all of them together allow about what the server
    would have. The numbers of a policy are the server's: calls by one go by `otherwise`, and
    without it they pass. So do concurrency limits, which nobody here could release. At most `most`
    buckets are remembered, those asked about last.
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
        self._buckets: OrderedDict[tuple[Key, str], _Bucket] = OrderedDict()
        # What was charged here and may be settled.
        self._ids: OrderedDict[Key, list[Charge]] = OrderedDict()
        self.forked()
        forks.knows(self)

    def forked(self) -> None:
        forks.forget(self, "_lock")

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
            charges = [charge._replace(cost=_rounded_up(charge.cost)) for charge in charges]
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
            # Of what was forced, the wait is until usage is within the limit again.
            return [
                replace(left, allowed=one.allowed, granted=one.granted)
                for one, left in zip(decisions, after, strict=True)
            ]

    def give_back(self, charges: Sequence[Charge]) -> list[Decision]:
        with self._lock:
            for charge in charges:
                self._add(charge, -_rounded_down(charge.cost))
            after = [self._decision(charge._replace(cost=0)) for charge in charges]
            return [replace(one, allowed=True, wait_ms=0) for one in after]

    def settle(self, id: Key, cost: float) -> list[Decision] | None:
        """In place of what was charged, unless that is always the same. None: not charged here."""
        with self._lock:
            charges = self._ids.pop(id, None)
            if charges is None:
                return None
            for charge in charges:
                if charge.limit.cost is None:
                    self._add(charge, _rounded_up(cost) - charge.cost)
            return [
                replace(self._decision(charge._replace(cost=0)), allowed=True, wait_ms=0)
                for charge in charges
            ]

    def _that_fit(self, charges: Sequence[Charge]) -> list[Charge]:
        own = [charge for charge in charges if charge.limit.cost is None]
        free = [self._decision(charge).remaining or 0 for charge in own or charges]
        units = floor(min([*free, *(charge.cost for charge in own or charges)]))
        # If there is none: what would be granted first.
        return [
            charge._replace(cost=max(units, 1)) if charge in own else charge for charge in charges
        ]

    def _decision(self, charge: Charge) -> Decision:
        capacity, used, rate = self._capacity(charge), self._used(charge), self._rate(charge)
        slack = _slack(max(capacity, used))
        missing = used + charge.cost - capacity - slack
        wait = NEVER if charge.cost > capacity else _milliseconds(missing / rate)
        return Decision(
            allowed=missing <= 0,
            limit=floor(capacity),
            remaining=max(floor(capacity - used + slack), 0),
            wait_ms=0 if missing <= 0 else wait,
            reset_ms=_milliseconds(max(used - slack, 0) / rate),
            name=charge.limit.name,
            source="local",
        )

    def _add(self, charge: Charge, units: float) -> None:
        name = _name(charge)
        self._buckets[name] = _Bucket(max(self._used(charge) + units, 0.0), self._clock())
        self._buckets.move_to_end(name)
        self._forget(self._buckets)

    def _forget(self, remembered: OrderedDict[Any, Any]) -> None:
        while len(remembered) > self._most:
            remembered.popitem(last=False)

    def _used(self, charge: Charge) -> float:
        bucket = self._buckets.get(_name(charge))
        if bucket is None:
            return 0.0
        self._buckets.move_to_end(_name(charge))
        drained = max(self._clock() - bucket.at, 0.0) * self._rate(charge)
        return max(bucket.used - drained, 0.0)

    def _capacity(self, charge: Charge) -> float:
        quota = _rounded_down(charge.limit.quota)
        # A share of a small limit is one unit still; a limit of 0 stays 0.
        return min(quota, max(round(quota * self._share, 6), 1.0))

    def _rate(self, charge: Charge) -> float:
        """Units a second."""
        return (self._capacity(charge) or 1.0) / charge.limit.window_seconds


def _name(charge: Charge) -> tuple[Key, str]:
    limit = charge.limit
    return charge.key, limit.name or " ".join(map(str, [limit.algorithm, *limit._numbers()]))


def _slack(units: float) -> float:
    return _SLACK + _SLACK_OF_LARGE * units


def _milliseconds(seconds: float) -> int:
    return min(ceil(seconds * 1000), _LONGEST_MS)


def _rounded_up(units: float) -> float:
    return float(Decimal(repr(float(units))).quantize(_MILLIONTH, ROUND_CEILING))


def _rounded_down(units: float) -> float:
    return float(Decimal(repr(float(units))).quantize(_MILLIONTH, ROUND_FLOOR))
