//! Timestamps and durations in whole microseconds. Time is always an argument: nothing here reads a clock.

use crate::number::decimal;
use crate::number::decimal::Scaled;
use std::fmt;
use std::num::NonZeroU64;

/// Microseconds in a day.
const DAY: u64 = 86_400_000_000;

/// Timestamp: microseconds since the Unix epoch, from 0 to 365000 days.
///
/// ```
/// use ratelimit_core::{Period, Span, Timestamp};
///
/// let now = Timestamp::from_clock(1_700_000_000_123_456);
/// let minute = Period::parse(b"1m").unwrap();
/// let opened = now.aligned(minute);
/// assert_eq!(opened.micros(), 1_699_999_980_000_000);
/// assert_eq!(opened.plus(now.since(opened)), now);
/// assert_eq!(opened.since(now), Span::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Earliest timestamp.
    pub const EPOCH: Timestamp = Timestamp(0);
    /// Latest timestamp: 365000 days after the epoch.
    pub const MAX: Timestamp = Timestamp(365_000 * DAY);

    /// Creates a timestamp from a reading of a clock, clamped to the valid range.
    #[must_use]
    pub fn from_clock(micros: i64) -> Timestamp {
        Timestamp(u64::try_from(micros).unwrap_or(0).min(Timestamp::MAX.0))
    }

    /// Creates a timestamp from microseconds since the epoch. Returns `None` outside the valid range.
    #[must_use]
    pub fn from_micros(micros: u64) -> Option<Timestamp> {
        (micros <= Timestamp::MAX.0).then_some(Timestamp(micros))
    }

    /// Returns the microseconds since the epoch.
    #[must_use]
    pub fn micros(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time from `earlier` to `self`, or `None` if `earlier` is later.
    #[must_use]
    pub fn checked_since(self, earlier: Timestamp) -> Option<Span> {
        self.0.checked_sub(earlier.0).map(Span)
    }

    /// Returns the timestamp `span` later. The result may exceed [`Timestamp::MAX`]: such a timestamp can be compared
    /// and waited for, but not stored.
    #[must_use]
    pub fn plus(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_add(span.0))
    }

    /// Returns the timestamp `span` earlier, but not before the epoch.
    #[must_use]
    pub fn minus(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_sub(span.0))
    }

    /// Returns the latest multiple of `period` since the epoch that is not after `self`.
    #[must_use]
    pub fn aligned(self, period: Period) -> Timestamp {
        Timestamp(self.0.saturating_sub(self.0 % period.0))
    }

    /// Returns the milliseconds since the epoch, rounded down.
    #[must_use]
    pub fn floor_millis(self) -> u64 {
        self.0 / 1000
    }

    /// Returns the milliseconds since the epoch, rounded up.
    #[must_use]
    pub fn ceil_millis(self) -> u64 {
        self.0.div_ceil(1000)
    }
}

/// Returns the microseconds in a unit of time. Without a unit, a number counts seconds.
#[inline]
fn micros_in(unit: &[u8]) -> Option<u64> {
    match unit {
        b"us" => Some(1),
        b"ms" => Some(1_000),
        b"s" | b"" => Some(1_000_000),
        b"m" => Some(60_000_000),
        b"h" => Some(3_600_000_000),
        b"d" => Some(DAY),
        _ => None,
    }
}

/// Returns `true` if `text` is a number with an optional unit of time. The range is not checked.
#[must_use]
pub fn is_duration(text: &[u8]) -> bool {
    decimal::after_number(text).is_some_and(|unit| micros_in(unit).is_some())
}

impl fmt::Display for Span {
    /// Formats the duration like an argument, in the largest unit that divides it: `1m`, `90s`, `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0");
        }
        let units = ["d", "h", "m", "s", "ms", "us"];
        let counts = units.into_iter().filter_map(|unit| Some((self.0, micros_in(unit.as_bytes())?, unit)));
        let mut dividing = counts.filter(|(span, micros, _)| span.is_multiple_of(*micros));
        dividing
            .next()
            .map_or(Ok(()), |(span, micros, unit)| write!(f, "{}{unit}", span.checked_div(micros).unwrap_or(span)))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.span().fmt(f)
    }
}

/// Duration in microseconds.
///
/// ```
/// use ratelimit_core::Span;
///
/// assert_eq!(Span::parse(b"1.5h"), Some(Span::SECOND.times(5400)));
/// assert_eq!(Span::parse(b"250us").map(Span::ceil_millis), Some(1));
/// assert_eq!(Span::parse(b"an hour"), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(u64);

impl Span {
    /// Duration of zero.
    pub const ZERO: Span = Span(0);
    /// Smallest positive span: 1 microsecond.
    pub const MICROSECOND: Span = Span(1);
    /// Span of 1 millisecond.
    pub const MILLISECOND: Span = Span(1_000);
    /// Span of 1 second.
    pub const SECOND: Span = Span(1_000_000);
    /// Upper bound of durations in replies: 365000 days.
    pub const MAX: Span = Span(365_000 * DAY);
    /// Longest full recovery of a limit: 36500 days.
    pub const MAX_RECOVERY: Span = Span(36_500 * DAY);
    /// Longest duration that an argument may have: 3650 days.
    pub const MAX_ARGUMENT: Span = Span(3_650 * DAY);

    /// Creates a duration from microseconds.
    #[must_use]
    pub fn from_micros(micros: u64) -> Span {
        Span(micros)
    }

    /// Parses a duration argument that may be 0 (`0`, `60`, `100ms`, `1.5h`), rounded up to whole microseconds.
    ///
    /// Returns `None` unless `text` is a duration that is 0 or from 1us to 3650d.
    #[must_use]
    #[inline]
    pub fn parse(text: &[u8]) -> Option<Span> {
        if let Some((count, unit)) = decimal::split_short_integer(text)
            && let Some(micros) = micros_in(unit)
        {
            let span = Span(count.saturating_mul(micros));
            return (span <= Span::MAX_ARGUMENT).then_some(span);
        }
        Span::parse_any(text)
    }

    #[cold]
    fn parse_any(text: &[u8]) -> Option<Span> {
        let scaled = decimal::parse_scaled(text, micros_in)?;
        let below_a_microsecond = matches!(scaled, Scaled { floor: 0, inexact: true });
        (!below_a_microsecond && !scaled.exceeds(Span::MAX_ARGUMENT.0)).then(|| Span(scaled.ceil()))
    }

    /// Returns the duration in microseconds.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Returns the duration in milliseconds, rounded up.
    #[must_use]
    pub fn ceil_millis(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }

    /// Returns the difference, or zero if `other` is longer.
    #[must_use]
    pub const fn minus(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }

    /// Returns the duration multiplied by `factor`.
    #[must_use]
    pub const fn times(self, factor: u64) -> Span {
        Span(self.0.saturating_mul(factor))
    }

    /// Returns an eighth of the duration, rounded down.
    #[must_use]
    pub fn eighth(self) -> Span {
        Span(self.0 / 8)
    }

    /// Returns the number of whole `period`s in the duration.
    #[must_use]
    pub fn whole_periods(self, period: Period) -> u64 {
        self.0 / period.0
    }
}

/// Duration from 1us to 3650d: never 0, so that it can be a divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(NonZeroU64);

impl Period {
    /// Parses a duration argument from 1us to 3650d (`60`, `0.5`, `100ms`, `1.5h`), rounded up to whole microseconds.
    pub fn parse(text: &[u8]) -> Option<Period> {
        Span::parse(text).and_then(Period::new)
    }

    /// Creates a period. Returns `None` unless `span` is from 1us to 3650d.
    #[must_use]
    pub fn new(span: Span) -> Option<Period> {
        (span <= Span::MAX_ARGUMENT).then(|| NonZeroU64::new(span.0).map(Period)).flatten()
    }

    /// Returns the period in microseconds.
    #[must_use]
    pub fn micros(self) -> NonZeroU64 {
        self.0
    }

    /// Returns the period as a [`Span`].
    #[must_use]
    pub fn span(self) -> Span {
        Span(self.0.get())
    }
}

#[cfg(test)]
mod tests;
