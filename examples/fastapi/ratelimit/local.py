"""Limits kept in this process, for while Redis is away."""

import time
from collections import OrderedDict
from collections.abc import Sequence
from math import ceil

from ratelimit.limits import Charge, Decision


class LocalLimits:
    """A token bucket for each limit of each key, of this process's share of the limit.

    With a share of one in the number of processes, all of them together allow about what Redis
    would have. At most `most` buckets are remembered, those asked about last.
    """

    def __init__(self, share: float = 1.0, most: int = 10_000) -> None:
        self._share = share
        self._most = most
        # When a bucket will be full again: all that needs to be known of it.
        self._full_at: OrderedDict[tuple[str, str], float] = OrderedDict()

    def take(self, charges: Sequence[Charge]) -> list[Decision]:
        """All are charged or none is, as in RL.MTAKE."""
        if all(self._look(charge).allowed for charge in charges):
            charged = [self.charge(charge, charge.cost) for charge in charges]
            return [decision._replace(allowed=1, wait_ms=0) for decision in charged]
        return [self._look(charge) for charge in charges]

    def charge(self, charge: Charge, units: int) -> Decision:
        """Whether it fits or not; a negative number gives back."""
        now = time.monotonic()
        bucket = self._bucket(charge)
        full_at = max(self._full_at.pop(bucket, now), now) + units * self._seconds(charge)
        self._full_at[bucket] = full_at
        while len(self._full_at) > self._most:
            self._full_at.popitem(last=False)
        return self._look(charge)

    def settle(self, charge: Charge, used: int) -> Decision:
        """In place of what was charged, unless that is always the same."""
        return self.charge(charge, used - charge.cost if charge.limit.cost is None else 0)

    def _look(self, charge: Charge) -> Decision:
        capacity, seconds = self._capacity(charge), self._seconds(charge)
        reset = max(self._full_at.get(self._bucket(charge), 0.0) - time.monotonic(), 0.0)
        # Rounded a little, so that what is left of ten less three is seven.
        remaining = max(int(capacity - reset / seconds + 1e-6), 0)
        wait = reset + charge.cost * seconds - capacity * seconds
        wait_ms = -1 if charge.cost > capacity else max(ceil(wait * 1000), 0)
        allowed = charge.cost <= remaining
        return Decision(
            int(allowed), capacity, remaining, 0 if allowed else wait_ms, ceil(reset * 1000)
        )

    def _bucket(self, charge: Charge) -> tuple[str, str]:
        return charge.key, charge.limit.name

    def _capacity(self, charge: Charge) -> int:
        return max(int(charge.limit.quota * self._share), 1)

    def _seconds(self, charge: Charge) -> float:
        """How long one unit takes to come back."""
        return charge.limit.window / self._capacity(charge)
