"""Ends of aligned windows: multiples of their length, or weeks, months, quarters and years.

Days and months are counted from the 1st of March of year 0, so that a leap day is the last of its
year (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
"""

from __future__ import annotations

DAY = 86_400_000_000
_DAYS_BEFORE_EPOCH = 719_468

# Number of months of each calendar window; 0 for a week.
CALENDAR = {"1w": 0, "1mo": 1, "3mo": 3, "1y": 12}


class AlignedWindows:
    """Boundaries of aligned windows. `offset` is the difference from UTC in microseconds, `anchor`
    the day on which months begin.
    """

    def __init__(self, window: int, calendar: str | None, offset: int, anchor: int) -> None:
        self.window, self.calendar, self.offset, self.anchor = window, calendar, offset, anchor
        self.key = (calendar, offset, anchor)

    def end(self, instant: int) -> int:
        """Returns the end of the window that contains an instant."""
        if self.calendar is None:
            return instant + self.window - (instant + self.offset) % self.window
        local = instant + _DAYS_BEFORE_EPOCH * DAY + self.offset
        return instant + self._next_begin(local // DAY, CALENDAR[self.calendar]) * DAY - local

    def _next_begin(self, day: int, months: int) -> int:
        """Returns the day on which the next window of `months` months, or of a week, begins."""
        if months == 0:
            # Day 0 was a Wednesday, and month 0 a March.
            return day + 7 - (day + 2) % 7
        month = _month_of(day)
        first_month = month - (month + 2) % months
        begin = self._begin_in(first_month)
        return begin if day < begin else self._begin_in(first_month + months)

    def _begin_in(self, month: int) -> int:
        return min(_first_day(month) + self.anchor, _first_day(month + 1)) - 1


def _month_of(day: int) -> int:
    era, day_of_era = divmod(day, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    year = era * 400 + year_of_era
    return year * 12 + ((day - _first_day(year * 12)) * 5 + 2) // 153


def _first_day(month: int) -> int:
    year, month_of_year = divmod(month, 12)
    return year * 365 + year // 4 + year // 400 - year // 100 + (month_of_year * 153 + 2) // 5
