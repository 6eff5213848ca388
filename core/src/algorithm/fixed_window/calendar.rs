//! Calendar windows: weeks, months, quarters and years, with an offset from UTC.
//!
//! **When to use it:** quotas that a contract counts in months ("100000 a month, from the 15th, in Tokyo time"). Named
//! time zones and daylight saving time are not supported, because two servers may have different time zone tables.
//! **Cost:** a few dozen multiplications and divisions by constants, no memory.
//!
//! Days and months are numbered as in Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms"
//! (<https://howardhinnant.github.io/date_algorithms.html>): from March 1 of year 0 of the Gregorian calendar, so that
//! a leap day is the last day of its year. This is far enough before the Unix epoch for all numbers to be positive, so
//! that a window that began before the epoch needs no special case.

use crate::number::{Period, Span, Timestamp};
use crate::wire::args::whole;
use std::fmt;
use std::num::NonZeroU64;

/// Microseconds in a minute.
const MINUTE: i64 = 60_000_000;
/// Microseconds in a day.
const DAY: u64 = 86_400_000_000;

/// Number of days from March 1 of year 0, a Wednesday, to the Unix epoch.
const DAYS_BEFORE_EPOCH: u64 = 719_468;

/// Fixed offset of local time from UTC.
///
/// ```
/// use ratelimit_core::algorithm::fixed_window::calendar::Offset;
/// use ratelimit_core::{Period, Span, Timestamp};
///
/// let (tokyo, day) = (Offset::parse(b"+09:00").unwrap(), Period::parse(b"1d").unwrap());
/// // Midnight in Tokyo is at 15:00 UTC.
/// assert_eq!(tokyo.end(day, Timestamp::EPOCH), Timestamp::EPOCH.plus(Span::SECOND.times(15 * 3600)));
/// assert_eq!(tokyo.to_string(), "+09:00");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    minutes: i16,
}

impl Offset {
    /// Offset of zero.
    pub const UTC: Offset = Offset { minutes: 0 };

    /// Maximum offset in either direction.
    const MAX_MINUTES: u64 = 14 * 60;

    /// Parses `+hh:mm` or `-hh:mm`, up to 14:00 in either direction.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Offset> {
        let [sign, hours @ .., b':', tens, ones] = text else { return None };
        if hours.len() != 2 {
            return None;
        }
        let minutes = whole(hours, 14)?.saturating_mul(60).saturating_add(whole(&[*tens, *ones], 59)?);
        let minutes = i16::try_from(minutes).ok().filter(|_| minutes <= Offset::MAX_MINUTES)?;
        match sign {
            b'+' => Some(Offset { minutes }),
            b'-' => Some(Offset { minutes: minutes.saturating_neg() }),
            _ => None,
        }
    }

    /// Returns the offset in minutes as two bytes in little endian, for a stored identity.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 2] {
        self.minutes.to_le_bytes()
    }

    /// Creates the offset from its [bytes](Offset::to_bytes). Returns `None` if it is out of range.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 2]) -> Option<Offset> {
        let minutes = i16::from_le_bytes(bytes);
        (u64::from(minutes.unsigned_abs()) <= Offset::MAX_MINUTES).then_some(Offset { minutes })
    }

    /// Returns the end of the window that contains `instant`. Windows begin at multiples of their length
    /// after 1970-01-01 00:00 local time.
    #[must_use]
    pub fn end(self, window: Period, instant: Timestamp) -> Timestamp {
        let length = window.micros();
        let distance = self.micros().unsigned_abs() % length;
        // Boundaries west of UTC by `distance` are the same as those east of UTC by `length - distance`.
        let east = match self.minutes {
            0.. => distance,
            ..0 => length.get().saturating_sub(distance),
        };
        let passed = instant.micros().saturating_add(east) % length;
        instant.plus(window.span().minus(Span::from_micros(passed)))
    }

    fn micros(self) -> i64 {
        i64::from(self.minutes).saturating_mul(MINUTE)
    }

    /// Returns the local time at `instant`, in microseconds since March 1 of year 0.
    fn local(self, instant: Timestamp) -> u64 {
        instant.micros().saturating_add(DAYS_BEFORE_EPOCH.saturating_mul(DAY)).saturating_add_signed(self.micros())
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, minutes) = (if self.minutes < 0 { '-' } else { '+' }, self.minutes.unsigned_abs());
        write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }
}

/// Day of the month on which months and quarters begin. In a shorter month, they begin on its last day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor(u8);

impl Anchor {
    /// First day of the month, the default.
    pub const FIRST_DAY: Anchor = Anchor(1);

    /// Parses a whole number from 1 to 31.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Anchor> {
        let day = u8::try_from(whole(text, 31)?).ok()?;
        (day != 0).then_some(Anchor(day))
    }

    /// Returns the day of the month.
    #[must_use]
    pub fn day(self) -> u8 {
        self.0
    }
}

/// Calendar window: a week from Monday, a month, a quarter (from January, April, July or October) or a year.
///
/// ```
/// use ratelimit_core::algorithm::fixed_window::calendar::{Anchor, Calendar, Offset};
/// use ratelimit_core::{Span, Timestamp};
///
/// let days = |days: u64| Timestamp::EPOCH.plus(Span::SECOND.times(days * 86_400));
/// let (month, february) = (Calendar::parse(b"1mo").unwrap(), days(31));
/// assert_eq!(month.end(Offset::UTC, february), days(31 + 28));
/// // A month that begins on the 31st begins in a shorter month on its last day.
/// let late = month.anchored(Anchor::parse(b"31").unwrap()).unwrap();
/// assert_eq!(late.end(Offset::UTC, february), days(31 + 27));
/// assert_eq!(Calendar::parse(b"2mo"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    unit: &'static Unit,
    anchor: Anchor,
}

/// Unit of calendar windows.
#[derive(Debug, PartialEq, Eq)]
struct Unit {
    /// Word in a call.
    word: &'static str,
    /// Number in a stored identity, which never changes.
    number: u8,
    /// Length in months; `None` for a week.
    months: Option<NonZeroU64>,
}

/// Week, month, quarter and year.
static UNITS: [Unit; 4] = [
    Unit { word: "1w", number: 2, months: None },
    Unit { word: "1mo", number: 3, months: NonZeroU64::new(1) },
    Unit { word: "3mo", number: 4, months: NonZeroU64::new(3) },
    Unit { word: "1y", number: 5, months: NonZeroU64::new(12) },
];

impl Calendar {
    /// Parses `1w`, `1mo`, `3mo` or `1y`. Returns `None` for any other text.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Calendar> {
        let unit = UNITS.iter().find(|unit| unit.word.as_bytes() == text)?;
        Some(Calendar { unit, anchor: Anchor::FIRST_DAY })
    }

    /// Returns this window with another anchor. Returns `None` for a week or a year.
    #[must_use]
    pub fn anchored(self, anchor: Anchor) -> Option<Calendar> {
        self.unit.months.is_some_and(|months| months.get() < 12).then_some(Calendar { anchor, ..self })
    }

    /// Returns the day of the month on which the window begins.
    #[must_use]
    pub fn anchor(self) -> Anchor {
        self.anchor
    }

    /// Returns the number of the unit in a stored identity: above 1, because 0 and 1 stand for windows without a
    /// calendar. It never changes.
    #[must_use]
    pub fn unit_number(self) -> u8 {
        self.unit.number
    }

    /// Creates the window of the unit with this [number](Calendar::unit_number), with the default anchor.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Calendar> {
        let unit = UNITS.iter().find(|unit| unit.number == number)?;
        Some(Calendar { unit, anchor: Anchor::FIRST_DAY })
    }

    /// Returns the end of the window that contains `instant`.
    #[must_use]
    pub fn end(self, offset: Offset, instant: Timestamp) -> Timestamp {
        let local = offset.local(instant);
        let day = local / DAY;
        let end_day = match self.unit.months {
            // Day 0 was a Wednesday.
            None => day.saturating_add(7).saturating_sub(day.saturating_add(2) % 7),
            Some(months) => {
                let month = month_of(day);
                // Month 0 was a March.
                let first_month = month.saturating_sub(month.saturating_add(2) % months);
                let first_day = self.first_day_in(first_month);
                if day < first_day { first_day } else { self.first_day_in(first_month.saturating_add(months.get())) }
            }
        };
        instant.plus(Span::from_micros(end_day.saturating_mul(DAY).saturating_sub(local)))
    }

    /// Returns the first day of a window that begins in this month, in days since March 1 of year 0.
    fn first_day_in(self, month: u64) -> u64 {
        let last = first_day(month.saturating_add(1)).saturating_sub(1);
        first_day(month).saturating_add(u64::from(self.anchor.0)).saturating_sub(1).min(last)
    }
}

impl fmt::Display for Calendar {
    /// Prints the word of the unit without the anchor.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.unit.word)
    }
}

/// Returns the month of a day, both counted from March of year 0 (Hinnant's `civil_from_days`).
fn month_of(day: u64) -> u64 {
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let leap_days = (day_of_era / 1460).saturating_add(day_of_era / 146_096).saturating_sub(day_of_era / 36_524);
    let year_of_era = day_of_era.saturating_sub(leap_days) / 365;
    let year = era.saturating_mul(400).saturating_add(year_of_era);
    let day_of_year = day.saturating_sub(first_day(year.saturating_mul(12)));
    let month_of_year = day_of_year.saturating_mul(5).saturating_add(2) / 153;
    year.saturating_mul(12).saturating_add(month_of_year)
}

/// Returns the first day of a month, both counted from March of year 0 (Hinnant's `days_from_civil`).
fn first_day(month: u64) -> u64 {
    let (year, month_of_year) = (month / 12, month % 12);
    let leap_days = (year / 4).saturating_add(year / 400).saturating_sub(year / 100);
    let day_of_year = month_of_year.saturating_mul(153).saturating_add(2) / 5;
    year.saturating_mul(365).saturating_add(leap_days).saturating_add(day_of_year)
}

#[cfg(test)]
mod tests;
