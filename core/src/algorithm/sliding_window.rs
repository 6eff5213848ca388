//! Sliding-window counter: an estimate from two counts instead of a log.
//!
//! Windows follow each other from the first admitted call after a full recovery. The usage is estimated as `previous *
//! (window - elapsed) / window + current`: the count of the previous window, weighted by its overlap with a trailing
//! window, plus the count of the current window. (Described by Cloudflare in 2017 for its rate limiting.)
//!
//! **When to use it:** the default choice for a limit per window on an API. **Known flaw:** the estimate assumes that
//! the previous window's calls were evenly distributed. In the worst case a trailing window holds nearly twice the
//! limit. **Cost:** 32 bytes and one division.
//!
//! **Exactness:** a weighted count is rounded up to a millionth before it is compared. As limits and costs are whole
//! millionths, this equals the comparison of the exact values. The estimate never increases by itself (at the end of a
//! window the current count becomes the previous one with full weight), so one division finds the first time at which a
//! cost fits.

use crate::limit::{Identity, InfoField, Limit, Usage, Verdict};
use crate::number::{Amount, Period, Span, Timestamp, ratio};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{Decoder, Encoder};
use std::fmt;
use std::num::NonZeroU64;

/// Sliding-window limiter.
///
/// ```
/// use ratelimit_core::algorithm::sliding_window::{SlidingWindow, SlidingWindowUsage};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp};
///
/// let units = |text| Amount::parse_down(text).unwrap();
/// let limit = SlidingWindow::new(units(b"100"), Period::parse(b"60s").unwrap());
/// let mut usage = SlidingWindowUsage::default();
/// limit.charge(&mut usage, Timestamp::EPOCH, units(b"80"));
/// // A quarter into the next window, three quarters of the 80 units still count.
/// let then = Timestamp::EPOCH.plus(Span::SECOND.times(75));
/// assert_eq!(limit.remaining(&usage, then), units(b"40"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SlidingWindow {
    limit: Amount,
    window: Period,
}

impl SlidingWindow {
    /// Creates a limit of about `limit` in any `window`.
    #[must_use]
    pub fn new(limit: Amount, window: Period) -> SlidingWindow {
        SlidingWindow { limit, window }
    }

    /// Returns this window with another limit.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> SlidingWindow {
        SlidingWindow { limit, ..self }
    }

    /// Returns the identity that stands for the limit if it has no name.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::by(self.window)
    }

    /// Advances the usage to `now`, ready to be charged under this limit's window.
    fn advance(&self, usage: &mut SlidingWindowUsage, now: Timestamp) {
        let rolled = usage.rolled_to(now);
        *usage = if rolled.window == self.window.span() && !rolled.is_unused() {
            rolled
        } else {
            // A window opens now, because the usage is new or was counted in windows of another length. The part of the
            // usage that still counts becomes the current count.
            SlidingWindowUsage {
                start: now,
                window: self.window.span(),
                previous: Amount::ZERO,
                current: rolled.estimate(now),
            }
        };
    }
}

impl fmt::Display for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SLIDING {} {}", self.limit, self.window)
    }
}

impl Limit for SlidingWindow {
    type Usage = SlidingWindowUsage;

    fn limit(&self) -> Amount {
        self.limit
    }

    // Until the next charge, usage counted in windows of another length decays under that length, so evaluations use
    // the stored window. A time before `start` is evaluated like `start`, as if the usage had been moved back.

    fn verdict(&self, usage: &SlidingWindowUsage, now: Timestamp, cost: Amount) -> Verdict {
        let rolled = usage.rolled_to(now);
        if rolled.estimate(now).excess(cost, self.limit) == Amount::ZERO {
            return Verdict::Allowed(Span::ZERO);
        }
        let (Some(window), Some(room)) = (Period::new(rolled.window), self.limit.checked_minus(cost)) else {
            return Verdict::Never;
        };
        // The previous count fades in the current window. If the current count alone is too large, it has to fade in
        // the next window.
        let wait = match room.checked_minus(rolled.current) {
            Some(room) => time_to_fade(rolled.previous, room, window),
            None => window.span().plus(time_to_fade(rolled.current, room, window)),
        };
        Verdict::After(wait.minus(now.since(rolled.start)))
    }

    fn remaining(&self, usage: &SlidingWindowUsage, now: Timestamp) -> Amount {
        self.limit.minus(usage.rolled_to(now).estimate(now))
    }

    fn reset(&self, usage: &SlidingWindowUsage, now: Timestamp) -> Span {
        let rolled = usage.rolled_to(now);
        let lifetime = if rolled.current != Amount::ZERO {
            rolled.window.plus(rolled.window)
        } else if rolled.previous != Amount::ZERO {
            rolled.window
        } else {
            return Span::ZERO;
        };
        lifetime.minus(now.since(rolled.start))
    }

    fn charge(&self, usage: &mut SlidingWindowUsage, now: Timestamp, cost: Amount) {
        self.advance(usage, now);
        usage.current = usage.current.plus(cost);
    }

    fn refund(&self, usage: &mut SlidingWindowUsage, now: Timestamp, amount: Amount) {
        self.advance(usage, now);
        // The current count is refunded first. Then the previous count is lowered so that the estimate decreases by the
        // remaining refund.
        let remaining_refund = amount.minus(usage.current);
        usage.current = usage.current.minus(amount);
        let overlap = usage.window.minus(now.since(usage.start));
        if let Some(overlap) = Period::new(overlap) {
            usage.previous = usage.previous.minus(remaining_refund.share_down(usage.window, overlap));
        }
    }

    fn low_water_mark(&self, usage: &SlidingWindowUsage, now: Timestamp) -> Option<Amount> {
        let reopens = usage.window != self.window.span() || usage.rolled_to(now).is_unused();
        (reopens || usage.is_saturated()).then_some(Amount::ZERO)
    }
}

/// Usage of a sliding window: 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingWindowUsage {
    /// Start of the current window.
    start: Timestamp,
    /// Length of the windows in which the usage was counted; 0 for unused usage.
    window: Span,
    /// Count of the previous window.
    previous: Amount,
    /// Count of the current window.
    current: Amount,
}

impl SlidingWindowUsage {
    /// Returns this usage with the window that contains `now` as the current window. If two windows have passed,
    /// returns an unused usage.
    fn rolled_to(&self, now: Timestamp) -> SlidingWindowUsage {
        let Some(window) = Period::new(self.window) else { return SlidingWindowUsage::default() };
        match now.since(self.start).whole_periods(window) {
            0 => *self,
            1 => SlidingWindowUsage {
                start: self.start.plus(self.window),
                window: self.window,
                previous: self.current,
                current: Amount::ZERO,
            },
            _ => SlidingWindowUsage::default(),
        }
    }

    /// Returns `true` if a count may be lower than the sum of its charges. Then no charge can be taken back, because
    /// its count may contain only a part of it.
    fn is_saturated(&self) -> bool {
        self.previous == Amount::MAX || self.current == Amount::MAX
    }

    /// Returns the estimate, rounded up to a millionth. The usage must have been rolled to `now`.
    fn estimate(&self, now: Timestamp) -> Amount {
        let Some(window) = Period::new(self.window) else { return Amount::ZERO };
        let overlap = self.window.minus(now.since(self.start));
        self.previous.share_up(overlap, window).plus(self.current)
    }
}

/// Returns the time from the start of a window until the previous `count` has faded to `room`, which is below `count`:
/// the first microsecond at which `count * (window - elapsed) / window <= room`.
fn time_to_fade(count: Amount, room: Amount, window: Period) -> Span {
    let Some(count) = NonZeroU64::new(count.millionths()) else { return Span::ZERO };
    let overlap = ratio::floor(room.millionths(), window.micros().get(), count);
    window.span().minus(Span::from_micros(overlap))
}

impl Usage for SlidingWindowUsage {
    const KIND: UsageKind = UsageKind::SlidingWindow;

    fn is_unused(&self) -> bool {
        self.previous == Amount::ZERO && self.current == Amount::ZERO
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.start.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        self.start = self.start.min(now);
    }

    /// Returns the start of the current window.
    fn place(&self) -> Option<Timestamp> {
        Some(self.start)
    }

    fn take_back(&mut self, place: Option<Timestamp>, amount: Amount) -> Amount {
        let Some(place) = place.filter(|_| !self.is_saturated()) else { return Amount::ZERO };
        let count = if place == self.start {
            &mut self.current
        } else if place.plus(self.window) == self.start {
            &mut self.previous
        } else {
            return Amount::ZERO;
        };
        let reduction = amount.min(*count);
        *count = count.minus(reduction);
        reduction
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.start.micros());
        to.integer(self.window.micros());
        to.integer(self.previous.millionths());
        to.integer(self.current.millionths());
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<SlidingWindowUsage> {
        let usage = SlidingWindowUsage {
            start: Timestamp::from_micros(from.integer()?)?,
            window: Period::new(Span::from_micros(from.integer()?))?.span(),
            previous: Amount::from_millionths(from.integer()?)?,
            current: Amount::from_millionths(from.integer()?)?,
        };
        (!usage.is_unused()).then_some(usage)
    }

    fn describe(&self, now: Timestamp, _recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        let now = now.max(self.start);
        vec![
            ("used", InfoField::Amount(self.rolled_to(now).estimate(now))),
            ("previous", InfoField::Amount(self.previous)),
            ("current", InfoField::Amount(self.current)),
            ("start", InfoField::Instant(self.start)),
            ("window", InfoField::Span(self.window)),
        ]
    }
}

#[cfg(test)]
mod tests;
