"""Sliding windows, which keep charges of different times apart."""

from __future__ import annotations

from redis_ratelimit.memory.rule import (
    AFTER,
    ALLOWED_NOW,
    MAX_USAGE,
    NEVER_ALLOWED,
    Rule,
    Usage,
    Verdict,
    ceil_div,
    saturating_add,
)


class _Slider(Usage):
    """Usage of a sliding window counter: the counts of two windows, and their length."""

    def __init__(
        self, start: int = 0, window: int = 0, previous: int = 0, current: int = 0
    ) -> None:
        self.start, self.window = start, window
        self.previous, self.current = previous, current

    def rolled(self, now: int) -> _Slider:
        """Returns the usage with the window that contains `now` as the current one."""
        windows_passed = max(now - self.start, 0) // self.window if self.window else 2
        if windows_passed == 0:
            return self
        if windows_passed == 1:
            return _Slider(self.start + self.window, self.window, self.current, 0)
        return _Slider()

    def present(self, now: int) -> int:
        if self.window == 0:
            return 0
        overlap = max(self.window - max(now - self.start, 0), 0)
        return saturating_add(ceil_div(self.previous * overlap, self.window), self.current)

    def is_saturated(self) -> bool:
        return MAX_USAGE in {self.previous, self.current}

    def is_unused(self) -> bool:
        return self.previous == 0 and self.current == 0

    def ahead(self, now: int) -> int:
        return max(self.start - now, 0)

    def move_back(self, now: int) -> None:
        self.start = min(self.start, now)

    def place(self) -> int:
        return self.start

    def take_back(self, place: int | None, units: int) -> int:
        if place is None or self.is_saturated():
            return 0
        if place == self.start:
            taken = min(units, self.current)
            self.current -= taken
        elif place + self.window == self.start:
            taken = min(units, self.previous)
            self.previous -= taken
        else:
            taken = 0
        return taken


class Sliding(Rule):
    """Sliding window counter."""

    kind = "rl-slider"
    usage = _Slider

    def __init__(self, limit: int, window: int) -> None:
        super().__init__(limit, (window, 0))
        self.window = window

    def present(self, usage: _Slider, now: int) -> int:
        return usage.rolled(now).present(now)

    def verdict(self, usage: _Slider, now: int, cost: int) -> Verdict:
        rolled = usage.rolled(now)
        if rolled.present(now) + cost <= self.limit:
            return ALLOWED_NOW
        if rolled.window == 0 or cost > self.limit:
            return NEVER_ALLOWED
        room, window = self.limit - cost, rolled.window
        if room >= rolled.current:
            wait = _fade_time(rolled.previous, room - rolled.current, window)
        else:
            wait = window + _fade_time(rolled.current, room, window)
        return (AFTER, max(wait - max(now - rolled.start, 0), 0))

    def reset(self, usage: _Slider, now: int) -> int:
        rolled = usage.rolled(now)
        windows = 2 if rolled.current else 1 if rolled.previous else 0
        return max(windows * rolled.window - max(now - rolled.start, 0), 0)

    def _advance(self, usage: _Slider, now: int) -> None:
        rolled = usage.rolled(now)
        if rolled.window != self.window or rolled.is_unused():
            rolled = _Slider(now, self.window, 0, rolled.present(now))
        usage.__dict__.update(rolled.__dict__)

    def charge(self, usage: _Slider, now: int, cost: int) -> None:
        self._advance(usage, now)
        usage.current = saturating_add(usage.current, cost)

    def give_back(self, usage: _Slider, now: int, units: int) -> None:
        self._advance(usage, now)
        excess = max(units - usage.current, 0)
        usage.current = max(usage.current - units, 0)
        overlap = usage.window - max(now - usage.start, 0)
        if overlap > 0:
            usage.previous = max(usage.previous - excess * usage.window // overlap, 0)

    def settleable_usage(self, usage: _Slider, now: int) -> int | None:
        is_new = usage.window != self.window or usage.rolled(now).is_unused()
        return 0 if is_new or usage.is_saturated() else None


def _fade_time(count: int, room: int, window: int) -> int:
    """Returns the time from the start of a window until the weighted previous count `count` has
    fallen to `room`.
    """
    return max(window - room * window // count, 0) if count else 0


class _Slots(Usage):
    """Usage of a strict sliding window: counts by the number of the slot."""

    def __init__(self) -> None:
        self.window = self.written = 0
        self.counts: dict[int, int] = {}

    def width(self) -> int:
        return max(ceil_div(self.window, 60), 1)

    def leaves_at(self, slot: int) -> int:
        """Returns the time at which a slot leaves the window."""
        return (slot + 1) * self.width() - 1 + self.window

    def live_slots(self, now: int) -> list[tuple[int, int]]:
        """Returns the slots within the window and their counts, newest first."""
        newest_first = sorted(self.counts.items(), reverse=True)
        return [(slot, count) for slot, count in newest_first if now < self.leaves_at(slot)]

    def moved_slot(self, slot: int, now: int) -> int:
        """Returns the number of a slot after the clock was set back to `now`."""
        end = max((slot + 1) * self.width() - 1 - self.ahead(now), 0)
        return min(end // self.width(), now // self.width())

    def is_unused(self) -> bool:
        return not self.counts

    def ahead(self, now: int) -> int:
        return max(self.written - now, 0)

    def move_back(self, now: int) -> None:
        moved: dict[int, int] = {}
        for old, count in self.counts.items():
            slot = self.moved_slot(old, now)
            if now < self.leaves_at(slot):
                moved[slot] = saturating_add(moved.get(slot, 0), count)
        self.counts, self.written = moved, min(self.written, now)

    def place(self) -> int:
        return self.written // self.width() * self.width()

    def moved_place(self, place: int, now: int) -> int | None:
        slot = place // self.width()
        stays = (slot + 1) * self.width() - 1 >= self.ahead(now)
        return self.moved_slot(slot, now) * self.width() if stays else None

    def is_saturated(self) -> bool:
        return MAX_USAGE in self.counts.values()

    def take_back(self, place: int | None, units: int) -> int:
        if place is None or self.is_saturated():
            return 0
        return self.lower(place // self.width(), units)

    def lower(self, slot: int, units: int) -> int:
        taken = min(units, self.counts.get(slot, 0))
        if taken:
            self.counts[slot] -= taken
            if self.counts[slot] == 0:
                del self.counts[slot]
        return taken

    def recovers_in(self, now: int) -> int:
        live = self.live_slots(now)
        return self.leaves_at(live[0][0]) - now if live else 0

    def moved_recovery(self, recovers_at: int, ahead: int, now: int) -> int:
        return max(recovers_at - ahead, now + self.recovers_in(now))


class Strict(Rule):
    """Strict sliding window of 60 slots."""

    kind = "rl-strict"
    usage = _Slots

    def __init__(self, limit: int, window: int) -> None:
        super().__init__(limit, (window, 0))
        self.window = window

    def present(self, usage: _Slots, now: int) -> int:
        return min(sum(count for _, count in usage.live_slots(now)), MAX_USAGE)

    def verdict(self, usage: _Slots, now: int, cost: int) -> Verdict:
        if cost > self.limit:
            return NEVER_ALLOWED
        total = 0
        for slot, count in usage.live_slots(now):
            total += count
            if total + cost > self.limit:
                return (AFTER, usage.leaves_at(slot) - now)
        return ALLOWED_NOW

    def reset(self, usage: _Slots, now: int) -> int:
        return usage.recovers_in(now)

    def _advance(self, usage: _Slots, now: int) -> None:
        counts = dict(usage.live_slots(now))
        if usage.window != self.window:
            present = self.present(usage, now)
            usage.window = self.window
            counts = {now // usage.width(): present} if present else {}
        usage.counts, usage.written = counts, now

    def charge(self, usage: _Slots, now: int, cost: int) -> None:
        self._advance(usage, now)
        slot = now // usage.width()
        usage.counts[slot] = saturating_add(usage.counts.get(slot, 0), cost)

    def give_back(self, usage: _Slots, now: int, units: int) -> None:
        self._advance(usage, now)
        for slot in sorted(usage.counts):
            units -= usage.lower(slot, units)

    def settleable_usage(self, usage: _Slots, now: int) -> int | None:
        del now
        return 0 if usage.window != self.window or usage.is_saturated() else None


class _Entries(Usage):
    """Usage of a sliding log: the times and costs of charges, oldest first."""

    def __init__(self) -> None:
        self.entries: list[list[int]] = []

    def total(self) -> int:
        return sum(cost for _, cost in self.entries)

    def is_unused(self) -> bool:
        return not self.entries

    def ahead(self, now: int) -> int:
        return max(self.entries[-1][0] - now, 0) if self.entries else 0

    def move_back(self, now: int) -> None:
        back, moved = self.ahead(now), list[list[int]]()
        for before, cost in self.entries:
            at = max(before - back, 0)
            if moved and moved[-1][0] == at:
                moved[-1][1] += cost
            else:
                moved.append([at, cost])
        self.entries = moved

    def place(self) -> int | None:
        return self.entries[-1][0] if self.entries else None

    def take_back(self, place: int | None, units: int) -> int:
        entry = next((one for one in self.entries if one[0] == place), None)
        if entry is None or self.total() == MAX_USAGE:
            return 0
        taken = min(units, entry[1])
        entry[1] -= taken
        self.entries = [one for one in self.entries if one[1]]
        return taken


class SlidingLog(Rule):
    """Sliding window log."""

    kind = "rl-reqlog"
    usage = _Entries

    def __init__(self, limit: int, window: int) -> None:
        super().__init__(limit, (window, 0))
        self.window = window

    def present(self, usage: _Entries, now: int) -> int:
        return sum(cost for at, cost in usage.entries if at + self.window > now)

    def verdict(self, usage: _Entries, now: int, cost: int) -> Verdict:
        if self.present(usage, now) + cost <= self.limit:
            return ALLOWED_NOW
        if cost > self.limit:
            return NEVER_ALLOWED
        newer = 0
        for at, units in reversed(usage.entries):
            newer += units
            if newer + cost > self.limit:
                return (AFTER, max(at + self.window - now, 0))
        return ALLOWED_NOW

    def reset(self, usage: _Entries, now: int) -> int:
        return max(usage.entries[-1][0] + self.window - now, 0) if usage.entries else 0

    def _forget(self, usage: _Entries, now: int) -> None:
        usage.entries = [one for one in usage.entries if one[0] + self.window > now]

    def charge(self, usage: _Entries, now: int, cost: int) -> None:
        self._forget(usage, now)
        cost = min(cost, MAX_USAGE - usage.total())
        if usage.entries and usage.entries[-1][0] == now:
            usage.entries[-1][1] += cost
        elif cost:
            usage.entries.append([now, cost])

    def give_back(self, usage: _Entries, now: int, units: int) -> None:
        self._forget(usage, now)
        for entry in usage.entries:
            taken = min(units, entry[1])
            entry[1] -= taken
            units -= taken
        usage.entries = [one for one in usage.entries if one[1]]

    def settleable_usage(self, usage: _Entries, now: int) -> int | None:
        del now
        return 0 if usage.total() == MAX_USAGE else None
