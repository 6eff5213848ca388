"""Buckets and fixed windows, which store their usage as one number."""

from __future__ import annotations

import math

from redis_ratelimit.memory.calendar import AlignedWindows
from redis_ratelimit.memory.rule import (
    AFTER,
    ALLOWED,
    ALLOWED_NOW,
    LATEST,
    MAX_USAGE,
    NEVER_ALLOWED,
    Rule,
    Usage,
    Verdict,
    ceil_div,
    saturating_add,
)


class Pool(Usage):
    """Usage as one number: `used` at the instant `at`."""

    def __init__(self) -> None:
        self.used = 0
        self.at = 0

    def is_unused(self) -> bool:
        return self.used == 0

    def ahead(self, now: int) -> int:
        return max(self.at - now, 0)

    def move_back(self, now: int) -> None:
        self.at = min(self.at, now)

    def take_back(self, place: int | None, units: int) -> int:
        del place
        taken = 0 if self.used == MAX_USAGE else min(units, self.used)
        self.used -= taken
        return taken


class Bucket(Rule):
    """Token bucket, or with `queues` a leaky bucket, which delays allowed calls."""

    kind = "rl-bucket"
    usage = Pool

    def __init__(self, capacity: int, refill: int, period: int, *, queues: bool) -> None:
        super().__init__(capacity, (period, 0))
        self.refill, self.period = refill, period
        self.can_wait = not queues

    def drains_in(self, units: int) -> int:
        return min(ceil_div(units * self.period, self.refill), LATEST)

    def present(self, usage: Pool, now: int) -> int:
        return max(usage.used - max(now - usage.at, 0) * self.refill // self.period, 0)

    def verdict(self, usage: Pool, now: int, cost: int) -> Verdict:
        if self.present(usage, now) + cost <= self.limit:
            return (ALLOWED, 0 if self.can_wait else self.reset(usage, now))
        if cost > self.limit:
            return NEVER_ALLOWED
        wait = self.drains_in(usage.used + cost - self.limit) - max(now - usage.at, 0)
        return (AFTER, max(wait, 0))

    def reset(self, usage: Pool, now: int) -> int:
        return max(self.drains_in(usage.used) - max(now - usage.at, 0), 0)

    def _advance(self, usage: Pool, now: int) -> None:
        """Subtracts the drained usage, in steps of a whole number of millionths."""
        if self.present(usage, now) == 0:
            usage.used, usage.at = 0, now
            return
        divisor = math.gcd(self.period, self.refill)
        steps = (now - usage.at) // (self.period // divisor)
        usage.used -= steps * (self.refill // divisor)
        usage.at += steps * (self.period // divisor)

    def charge(self, usage: Pool, now: int, cost: int) -> None:
        self._advance(usage, now)
        usage.used = saturating_add(usage.used, cost)

    def give_back(self, usage: Pool, now: int, units: int) -> None:
        if self.present(usage, now) <= units:
            usage.used, usage.at = 0, 0
            return
        self._advance(usage, now)
        usage.used -= units

    def settleable_usage(self, usage: Pool, now: int) -> int:
        if usage.used == MAX_USAGE:
            return 0
        drained = ceil_div(max(now - usage.at, 0) * self.refill, self.period)
        return max(usage.used - drained, 0)


class _Window(Pool):
    """Usage of a fixed window. `at` is the time when it opened or, if aligned, was last charged."""

    def __init__(self) -> None:
        super().__init__()
        self.aligned = False

    def moved_recovery(self, recovers_at: int, ahead: int, now: int) -> int:
        return recovers_at if self.aligned else super().moved_recovery(recovers_at, ahead, now)


class Fixed(Rule):
    """Fixed window. `aligned_windows` are the boundaries of aligned windows; without them, a window
    opens with its first call.
    """

    kind = "rl-window"
    usage = _Window

    def __init__(self, limit: int, window: int, aligned_windows: AlignedWindows | None) -> None:
        super().__init__(limit, (window, aligned_windows.key if aligned_windows else 0))
        self.window, self.aligned_windows = window, aligned_windows

    def _end(self, usage: _Window, now: int) -> int:
        instant = min(usage.at, now)
        if self.aligned_windows is not None and (usage.aligned or self.aligned_windows.calendar):
            return self.aligned_windows.end(instant)
        return instant + self.window

    def present(self, usage: _Window, now: int) -> int:
        return usage.used if now < self._end(usage, now) else 0

    def verdict(self, usage: _Window, now: int, cost: int) -> Verdict:
        if self.present(usage, now) + cost <= self.limit:
            return ALLOWED_NOW
        return NEVER_ALLOWED if cost > self.limit else (AFTER, max(self._end(usage, now) - now, 0))

    def reset(self, usage: _Window, now: int) -> int:
        return 0 if usage.used == 0 else max(self._end(usage, now) - now, 0)

    def _advance(self, usage: _Window, now: int) -> None:
        usage.used = self.present(usage, now)
        if self.aligned_windows is not None or usage.used == 0:
            usage.at = now
        usage.aligned = self.aligned_windows is not None

    def charge(self, usage: _Window, now: int, cost: int) -> None:
        self._advance(usage, now)
        usage.used = saturating_add(usage.used, cost)

    def give_back(self, usage: _Window, now: int, units: int) -> None:
        self._advance(usage, now)
        usage.used = max(usage.used - units, 0)

    def settleable_usage(self, usage: _Window, now: int) -> int:
        return 0 if usage.used == MAX_USAGE else self.present(usage, now)
