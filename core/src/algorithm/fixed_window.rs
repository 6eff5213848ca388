//! Fixed window: `limit` per `window`.
//!
//! A window opens with the first admitted call. With ALIGNED it opens at multiples of its length since the Unix epoch,
//! or at the boundaries of a [calendar]. These boundaries may have a fixed offset from UTC.
//!
//! **When to use it:** quotas that people read off a clock ("1000 a day"). **Known flaw:** twice the limit can pass
//! around a boundary: the whole limit just before it, and the whole limit just after it. **Cost:** 16 bytes, and no
//! division unless aligned.
//!
//! The state is the usage and one timestamp: the opening of the window or, if aligned, the last charge. Aligned usage
//! counts while its timestamp lies in the current window. The mode (aligned or not) is stored too. Under a call of the
//! other mode, the usage counts until its timestamp plus the call's window or, under a calendar, until the end of the
//! window that contains its timestamp.

pub mod calendar;

use crate::limit::{Identity, InfoField, Limit, RecoverySource, Usage, Verdict};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{Decoder, Encoder};
use calendar::{Calendar, Offset};
use std::fmt;

/// Fixed window limiter.
///
/// ```
/// use ratelimit_core::algorithm::fixed_window::calendar::Offset;
/// use ratelimit_core::algorithm::fixed_window::{FixedWindow, FixedWindowUsage};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp, Verdict};
///
/// let minute = Period::parse(b"1m").unwrap();
/// let (plain, aligned) = (FixedWindow::new(Amount::ONE, minute), FixedWindow::aligned(Amount::ONE, minute, Offset::UTC));
/// let at_59 = Timestamp::EPOCH.plus(Span::SECOND.times(59));
/// let wait = |limit: FixedWindow| {
///     let mut usage = FixedWindowUsage::default();
///     limit.charge(&mut usage, at_59, Amount::ONE);
///     limit.verdict(&usage, at_59, Amount::ONE)
/// };
/// assert_eq!(wait(plain), Verdict::After(minute.span()));
/// assert_eq!(wait(aligned), Verdict::After(Span::SECOND));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FixedWindow {
    limit: Amount,
    bounds: Bounds,
}

/// Boundaries of a window.
#[derive(Clone, Copy, Debug)]
enum Bounds {
    /// The window opens with the first admitted call and lasts for this period.
    FirstCall(Period),
    /// The window is aligned to multiples of this period since the epoch.
    Multiples(Period),
    /// The window is aligned to local time.
    LocalTime(LocalBounds),
}

/// Boundaries by local time. A separate type, because most calls use the other variants of [`Bounds`], which are then
/// distinguished in one or two instructions.
#[derive(Clone, Copy, Debug)]
enum LocalBounds {
    /// Multiples of a period since 1970-01-01 00:00 local time.
    Multiples(Period, Offset),
    /// Calendar dates.
    Dates(Calendar, Offset),
}

impl LocalBounds {
    /// Returns the end of the window that contains `instant`. If `is_aligned` is `false`, the usage was stored without
    /// ALIGNED, and counts for the length of this window from `instant`, unless the window is a calendar's.
    #[inline(never)]
    fn end(self, is_aligned: bool, instant: Timestamp) -> Timestamp {
        match self {
            LocalBounds::Multiples(window, offset) if is_aligned => offset.end(window, instant),
            LocalBounds::Multiples(window, _) => instant.plus(window.span()),
            LocalBounds::Dates(calendar, offset) => calendar.end(offset, instant),
        }
    }
}

impl FixedWindow {
    /// Creates a window that opens with the first admitted call.
    #[must_use]
    pub fn new(limit: Amount, window: Period) -> FixedWindow {
        FixedWindow { limit, bounds: Bounds::FirstCall(window) }
    }

    /// Creates a window that opens at multiples of its length since the epoch, in local time with an offset from UTC.
    #[must_use]
    pub fn aligned(limit: Amount, window: Period, offset: Offset) -> FixedWindow {
        let bounds = if offset == Offset::UTC {
            Bounds::Multiples(window)
        } else {
            Bounds::LocalTime(LocalBounds::Multiples(window, offset))
        };
        FixedWindow { limit, bounds }
    }

    /// Creates a calendar window.
    #[must_use]
    pub fn calendar(limit: Amount, calendar: Calendar, offset: Offset) -> FixedWindow {
        FixedWindow { limit, bounds: Bounds::LocalTime(LocalBounds::Dates(calendar, offset)) }
    }

    /// Returns the identity that stands for the limit if it has no name. Its `words` consist of four bytes, from the
    /// lowest: 0 without ALIGNED, 1 with it, or the number of the calendar unit; the anchor, or 0 without a calendar;
    /// and two bytes of the offset.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let (micros, mode, anchor, offset) = match self.bounds {
            Bounds::FirstCall(window) => return Identity::by(window),
            Bounds::Multiples(window) => (window.micros().get(), 1, 0, Offset::UTC),
            Bounds::LocalTime(LocalBounds::Multiples(window, offset)) => (window.micros().get(), 1, 0, offset),
            Bounds::LocalTime(LocalBounds::Dates(calendar, offset)) => {
                (0, calendar.unit_number(), calendar.anchor().day(), offset)
            }
        };
        let [low, high] = offset.to_bytes();
        Identity { micros, options: u32::from_le_bytes([mode, anchor, low, high]) }
    }

    /// Returns the words of a call that select the aligned window with this identity, or `None` if the window is not
    /// aligned.
    #[must_use]
    pub fn aligned_words(identity: Identity) -> Option<String> {
        let [mode, anchor, low, high] = identity.options.to_le_bytes();
        let length = Period::new(Span::from_micros(identity.micros));
        let calendar = Calendar::from_number(mode).map(|calendar| calendar.to_string());
        let window = calendar.or_else(|| length.filter(|_| mode != 0).map(|window| window.to_string()))?;
        let offset = Offset::from_bytes([low, high]).filter(|offset| *offset != Offset::UTC);
        let offset = offset.map_or(String::new(), |offset| format!(" OFFSET {offset}"));
        let anchor = if anchor > 1 { format!(" ANCHOR {anchor}") } else { String::new() };
        Some(format!("{window} ALIGNED{offset}{anchor}"))
    }

    fn is_aligned(&self) -> bool {
        !matches!(self.bounds, Bounds::FirstCall(_))
    }

    /// Returns this window with another limit.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> FixedWindow {
        FixedWindow { limit, ..self }
    }

    /// Returns the time at which the usage stops counting, as determined at `now`.
    fn end(&self, usage: &FixedWindowUsage, now: Timestamp) -> Timestamp {
        let instant = usage.stamp.instant().min(now);
        let (start, window) = match self.bounds {
            Bounds::Multiples(window) if usage.stamp.is_aligned() => (instant.aligned(window), window),
            Bounds::FirstCall(window) | Bounds::Multiples(window) => (instant, window),
            Bounds::LocalTime(bounds) => return bounds.end(usage.stamp.is_aligned(), instant),
        };
        start.plus(window.span())
    }

    /// Returns the usage that counts at `now`.
    fn used_at(&self, usage: &FixedWindowUsage, now: Timestamp) -> Amount {
        if now < self.end(usage, now) { usage.used } else { Amount::ZERO }
    }

    /// Drops usage that no longer counts, and opens a window if none is open.
    fn advance(&self, usage: &mut FixedWindowUsage, now: Timestamp) {
        let used = self.used_at(usage, now);
        let instant = if self.is_aligned() || used == Amount::ZERO { now } else { usage.stamp.instant() };
        *usage = FixedWindowUsage { used, stamp: WindowStamp::new(instant, self.is_aligned()) };
    }
}

impl fmt::Display for FixedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = self.identity();
        let window = FixedWindow::aligned_words(identity);
        write!(f, "FIXED {} {}", self.limit, window.unwrap_or_else(|| Span::from_micros(identity.micros).to_string()))
    }
}

impl Limit for FixedWindow {
    type Usage = FixedWindowUsage;

    fn limit(&self) -> Amount {
        self.limit
    }

    #[inline]
    fn verdict(&self, usage: &FixedWindowUsage, now: Timestamp, cost: Amount) -> Verdict {
        if self.used_at(usage, now).excess(cost, self.limit) == Amount::ZERO {
            Verdict::Allowed(Span::ZERO)
        } else if cost <= self.limit {
            Verdict::After(self.end(usage, now).since(now))
        } else {
            Verdict::Never
        }
    }

    fn remaining(&self, usage: &FixedWindowUsage, now: Timestamp) -> Amount {
        self.limit.minus(self.used_at(usage, now))
    }

    fn reset(&self, usage: &FixedWindowUsage, now: Timestamp) -> Span {
        if usage.is_unused() { Span::ZERO } else { self.end(usage, now).since(now) }
    }

    fn charge(&self, usage: &mut FixedWindowUsage, now: Timestamp, cost: Amount) {
        self.advance(usage, now);
        usage.used = usage.used.plus(cost);
    }

    fn refund(&self, usage: &mut FixedWindowUsage, now: Timestamp, amount: Amount) {
        self.advance(usage, now);
        usage.used = usage.used.minus(amount);
    }

    fn low_water_mark(&self, usage: &FixedWindowUsage, now: Timestamp) -> Option<Amount> {
        Some(if usage.is_saturated() { Amount::ZERO } else { self.used_at(usage, now) })
    }
}

/// Usage of a fixed window: 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedWindowUsage {
    used: Amount,
    stamp: WindowStamp,
}

impl FixedWindowUsage {
    /// Returns `true` if `used` may be lower than the sum of its charges. Then no charge can be taken back, because
    /// `used` may contain only a part of it.
    fn is_saturated(&self) -> bool {
        self.used == Amount::MAX
    }
}

/// Timestamp and mode in one word. Timestamps are far below 2^63, so the lowest bit stores the mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WindowStamp(u64);

impl WindowStamp {
    fn new(instant: Timestamp, is_aligned: bool) -> WindowStamp {
        WindowStamp((instant.micros() << 1) | u64::from(is_aligned))
    }

    fn instant(self) -> Timestamp {
        // In range, because only `new` creates a stamp.
        Timestamp::from_micros(self.0 >> 1).unwrap_or(Timestamp::MAX)
    }

    fn is_aligned(self) -> bool {
        self.0 & 1 == 1
    }
}

impl Usage for FixedWindowUsage {
    const KIND: UsageKind = UsageKind::FixedWindow;

    fn is_unused(&self) -> bool {
        self.used == Amount::ZERO
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.stamp.instant().since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        self.stamp = WindowStamp::new(self.stamp.instant().min(now), self.stamp.is_aligned());
    }

    // The window stays open even if its usage becomes zero.
    fn take_back(&mut self, _place: Option<Timestamp>, amount: Amount) -> Amount {
        let reduction = if self.is_saturated() { Amount::ZERO } else { amount.min(self.used) };
        self.used = self.used.minus(reduction);
        reduction
    }

    fn recovery_source(&self) -> RecoverySource {
        // The length or calendar of an aligned window is not stored, so its end is unknown. The previous end is an
        // upper bound, because an earlier timestamp never lies in a later window.
        if self.stamp.is_aligned() { RecoverySource::Limit } else { RecoverySource::MovesBack }
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.used.millionths());
        to.integer(self.stamp.instant().micros());
        to.integer(u64::from(self.stamp.is_aligned()));
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<FixedWindowUsage> {
        let used = Amount::from_millionths(from.integer()?)?;
        let instant = Timestamp::from_micros(from.integer()?)?;
        let is_aligned = from.flag()?;
        (used != Amount::ZERO).then_some(FixedWindowUsage { used, stamp: WindowStamp::new(instant, is_aligned) })
    }

    fn describe(&self, now: Timestamp, recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        let is_over = recovers_at.is_some_and(|at| at <= now);
        let used = if is_over { Amount::ZERO } else { self.used };
        let (mode, stamp_name) = if self.stamp.is_aligned() { ("aligned", "charged") } else { ("plain", "start") };
        vec![
            ("used", InfoField::Amount(used)),
            ("mode", InfoField::Word(mode)),
            (stamp_name, InfoField::Instant(self.stamp.instant())),
        ]
    }
}

#[cfg(test)]
mod tests;
