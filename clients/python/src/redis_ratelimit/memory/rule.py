"""What every algorithm has: a `Rule` is what a call brings, a `Usage` what a key stores.

All is in whole millionths and microseconds, as the server counts. Rounding is against the caller,
and waits are exact to the microsecond.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Any

# Usage, in millionths, and times, in microseconds, saturate here.
MOST = 2**63 - 1
DAY = 86_400_000_000
LATEST = 365_000 * DAY

# A verdict: of two, the greater says to wait longer. The time of an allowed call is its hold.
Verdict = tuple[int, int]
ALLOWED, AFTER, NEVER = 0, 1, 2
AT_ONCE: Verdict = (ALLOWED, 0)
NEVER_EVER: Verdict = (NEVER, 0)


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)


class Usage(ABC):
    """State of one limit. Without arguments: never used."""

    @abstractmethod
    def unused(self) -> bool: ...

    @abstractmethod
    def ahead(self, now: int) -> int:
        """Returns by how much the clock has been set back since the last change, or 0."""

    @abstractmethod
    def move_back(self, now: int) -> None:
        """Moves all instants along with a clock that was set back to `now`."""

    def place(self) -> int | None:
        """Returns the instant of the newest charge, where each charge is counted apart."""
        return None

    def moved_place(self, place: int, now: int) -> int | None:
        """Returns where a place will be after `move_back`, if not before the epoch."""
        back = self.ahead(now)
        return place - back if place >= back else None

    @abstractmethod
    def take_back(self, place: int | None, units: int) -> int:
        """Takes up to `units` of a charge back; returns how many."""

    def moved_recovery(self, recovers_at: int, ahead: int, now: int) -> int:
        """Returns the instant of recovery after a clock was set back to `now`."""
        del now
        return max(recovers_at - ahead, 0)


class Rule(ABC):
    """Numbers of a limit. `key` tells it from others of its kind on a key."""

    kind: str
    # What its usage starts as.
    usage: type[Usage]
    limit: int
    # Whether a denied caller may be told to wait (MAXWAIT).
    waits = False
    # Whether only a holder without a lease passes (NX).
    nx = False

    def __init__(self, limit: int, key: object) -> None:
        self.limit = limit
        self.key = key

    @abstractmethod
    def verdict(self, usage: Any, now: int, cost: int) -> Verdict: ...

    @abstractmethod
    def present(self, usage: Any, now: int) -> int:
        """Returns what is used now, rounded up."""

    def remaining(self, usage: Any, now: int) -> int:
        return max(self.limit - self.present(usage, now), 0)

    @abstractmethod
    def reset(self, usage: Any, now: int) -> int:
        """Returns the time until the usage has recovered."""

    @abstractmethod
    def charge(self, usage: Any, now: int, cost: int) -> None: ...

    @abstractmethod
    def give_back(self, usage: Any, now: int, units: int) -> None: ...

    @abstractmethod
    def low(self, usage: Any, now: int) -> int | None:
        """Returns the usage from which earlier charges can still be settled; None if each has a
        place of its own.
        """

    def debt_after(self, usage: Any, now: int, cost: int) -> int:
        """Returns the time until usage is within the limit once `cost` more is charged."""
        if cost:
            usage = deepcopy(usage)
            self.charge(usage, now, cost)
        kind, wait = self.verdict(usage, now, 0)
        return wait if kind == AFTER else 0


def plus(used: int, units: int) -> int:
    return min(used + units, MOST)
