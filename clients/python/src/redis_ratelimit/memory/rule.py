"""Interfaces of the algorithms: `Rule`, the limit of a call, and `Usage`, the state of a key.

Units are whole millionths and times whole microseconds, as on the server. Rounding is against the
caller, and waits are exact to the microsecond.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Any

# Upper bounds at which usage, in millionths, and times, in microseconds, saturate.
MAX_USAGE = 2**63 - 1
DAY = 86_400_000_000
LATEST = 365_000 * DAY

# Outcome, and wait in microseconds. The greater of two verdicts has the longer wait. The wait of an
# allowed call is its hold.
Verdict = tuple[int, int]
ALLOWED, AFTER, NEVER = 0, 1, 2
ALLOWED_NOW: Verdict = (ALLOWED, 0)
NEVER_ALLOWED: Verdict = (NEVER, 0)


def ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


class Usage(ABC):
    """State of one limit. The default is "never used"."""

    @abstractmethod
    def is_unused(self) -> bool: ...

    @abstractmethod
    def ahead(self, now: int) -> int:
        """Returns how far the last change is ahead of `now`, or 0. Positive only after the clock
        was set back.
        """

    @abstractmethod
    def move_back(self, now: int) -> None:
        """Shifts all timestamps after the clock was set back to `now`."""

    def place(self) -> int | None:
        """Returns the place of the newest charge, if usage keeps charges apart."""
        return None

    def moved_place(self, place: int, now: int) -> int | None:
        """Returns the place of a charge after `move_back`, or None if it is before the epoch."""
        back = self.ahead(now)
        return place - back if place >= back else None

    @abstractmethod
    def take_back(self, place: int | None, units: int) -> int:
        """Takes back up to `units` of the charge at `place`, and returns the units taken back."""

    def moved_recovery(self, recovers_at: int, ahead: int, now: int) -> int:
        """Returns the instant of recovery after the clock was set back by `ahead` to `now`."""
        del now
        return max(recovers_at - ahead, 0)


class Rule(ABC):
    """Parameters of a limit. `key` distinguishes limits of one algorithm on a key."""

    # Name of the key type on the server that stores the usage.
    kind: str
    # Class of the usage.
    usage: type[Usage]
    limit: int
    # `True` if MAXWAIT can admit a call with a wait.
    can_wait = False
    # `True` if only a holder without a lease passes (NX).
    nx = False

    def __init__(self, limit: int, key: object) -> None:
        self.limit = limit
        self.key = key

    @abstractmethod
    def verdict(self, usage: Any, now: int, cost: int) -> Verdict: ...

    @abstractmethod
    def present(self, usage: Any, now: int) -> int:
        """Returns the current usage, rounded up."""

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
    def settleable_usage(self, usage: Any, now: int) -> int | None:
        """Returns the usage up to which earlier charges can still be settled, or None if usage
        keeps charges apart.
        """

    def debt_after(self, usage: Any, now: int, cost: int) -> int:
        """Returns the time until usage would be within the limit again if `cost` were charged."""
        if cost:
            usage = deepcopy(usage)
            self.charge(usage, now, cost)
        kind, wait = self.verdict(usage, now, 0)
        return wait if kind == AFTER else 0


def saturating_add(used: int, units: int) -> int:
    return min(used + units, MAX_USAGE)
