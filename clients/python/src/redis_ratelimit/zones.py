"""Offsets of named time zones, for aligned windows."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import cache
from zoneinfo import ZoneInfo


def zone_offset(zone: str, at: datetime | None = None) -> str:
    """Returns the `offset` for windows of `Fixed` that follow the days of a time zone:
    `Fixed(1000, "1d", aligned=True, offset=zone_offset("Europe/Berlin"))`.

    It is the zone's smallest offset in the year of `at` (now), and does not change when clocks do.
    Days begin at midnight in winter and at 1:00 in summer. The current offset would grant a day
    twice when clocks go back.

    Raises ValueError if there is no zone of this name, or no database of time zones (on Windows,
    install tzdata).
    """
    return _smallest(zone, (at or datetime.now(timezone.utc)).astimezone(timezone.utc).year)


@cache
def _smallest(zone: str, year: int) -> str:
    try:
        zone_info = ZoneInfo(zone)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"no time zone {zone!r}: name one such as 'Europe/Berlin'") from error
    new_year = datetime(year, 1, 1, tzinfo=timezone.utc)
    # Samples once a week, as every offset lasts for weeks.
    days = (new_year + timedelta(days=day) for day in range(0, 365, 7))
    offsets = (day.astimezone(zone_info).utcoffset() or timedelta() for day in days)
    minutes = min(offsets) // timedelta(minutes=1)
    hours, minutes_of_hour = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02}:{minutes_of_hour:02}"
