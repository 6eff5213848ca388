//! Sliding log: limits the usage in any trailing window by the timestamp of each granted call.
//!
//! **When to use it:** if no trailing window may exceed the limit, each unit of the limit must be usable, and calls are
//! few. **Cost:** memory grows with the number of calls in the window: 16 bytes per timestamp. Calls in the same
//! microsecond share an entry. **Exactness:** exact. The usage is the sum of the costs in `(now - window, now]`.
//!
//! An entry holds its timestamp and the running total: the sum of all costs up to and including its own. The sum of any
//! range is the difference of two totals, so a decision is a binary search, however many entries have expired. (A
//! denied call must not change the state, so it cannot remove expired entries.) Totals wrap. Their differences do not,
//! because the sum of a log is at most 2^63-1.
//!
//! When the clock has moved backwards, all entries are shifted by one number (`Shift`), and a peek with a time before
//! the newest entry computes that shift without storing it. Neither visits all entries.
//!
//! The effect of a call holds the change of the log (`LogDelta`), not the log.

mod log_usage;

use crate::limit::{Identity, Limit, Verdict};
use crate::number::lazy_shift::Shift;
use crate::number::{Amount, Period, Span, Timestamp};
pub use log_usage::SlidingLogUsage;
use log_usage::{LogDelta, LogEntry};
use std::fmt;

/// Sliding log limiter.
///
/// ```
/// use ratelimit_core::algorithm::log::{SlidingLog, SlidingLogUsage};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp, Usage, Verdict};
///
/// let limit = SlidingLog::new(Amount::ONE.plus(Amount::ONE), Period::parse(b"60s").unwrap());
/// let (mut usage, now) = (SlidingLogUsage::default(), Timestamp::EPOCH);
/// for second in [0, 10] {
///     limit.charge(&mut usage, now.plus(Span::SECOND.times(second)), Amount::ONE);
/// }
/// assert_eq!(usage.entries(), 2);
/// // The first entry expires when it is a minute old, exact to the microsecond.
/// let then = now.plus(Span::SECOND.times(20));
/// assert_eq!(limit.verdict(&usage, then, Amount::ONE), Verdict::After(Span::SECOND.times(40)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SlidingLog {
    limit: Amount,
    window: Period,
}

impl SlidingLog {
    /// Creates a limiter that grants at most `limit` in any trailing `window`.
    #[must_use]
    pub fn new(limit: Amount, window: Period) -> SlidingLog {
        SlidingLog { limit, window }
    }

    /// Returns this limiter with another limit.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> SlidingLog {
        SlidingLog { limit, ..self }
    }

    /// Returns the identity that stands for the limit if it has no name.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::by(self.window)
    }

    /// Returns the number of entries, from the oldest on, that have expired.
    fn expired_entries(&self, usage: &SlidingLogUsage, now: Timestamp) -> usize {
        usage.expired_entries(self.window.span(), now)
    }

    /// Returns the time at which an entry expires.
    fn expires_at(&self, entry: &LogEntry, shift: Shift) -> Timestamp {
        shift.timestamp(entry.at).plus(self.window.span())
    }

    /// Returns the sum of the entries that have not expired.
    fn used_at(&self, usage: &SlidingLogUsage, now: Timestamp) -> Amount {
        usage.sum_from(self.expired_entries(usage, now))
    }
}

impl fmt::Display for SlidingLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SLIDINGLOG {} {}", self.limit, self.window)
    }
}

impl Limit for SlidingLog {
    type Usage = SlidingLogUsage;

    fn limit(&self) -> Amount {
        self.limit
    }

    fn verdict(&self, usage: &SlidingLogUsage, now: Timestamp, cost: Amount) -> Verdict {
        if self.used_at(usage, now).excess(cost, self.limit) == Amount::ZERO {
            return Verdict::Allowed(Span::ZERO);
        }
        let Some(room) = self.limit.checked_minus(cost) else { return Verdict::Never };
        // Finds the last entry that has to expire: the first entry for which all later entries leave enough room.
        let total = usage.total();
        let last_to_expire = usage.entries.partition_point(|entry| total.wrapping_sub(entry.total) > room.millionths());
        let shift = usage.shift_at(now);
        let expiry = usage.entries.get(last_to_expire).map_or(now, |entry| self.expires_at(entry, shift));
        Verdict::After(expiry.since(now))
    }

    fn remaining(&self, usage: &SlidingLogUsage, now: Timestamp) -> Amount {
        self.limit.minus(self.used_at(usage, now))
    }

    fn reset(&self, usage: &SlidingLogUsage, now: Timestamp) -> Span {
        let shift = usage.shift_at(now);
        usage.entries.back().map_or(Span::ZERO, |newest| self.expires_at(newest, shift).since(now))
    }

    fn debt_after_charge(&self, usage: &SlidingLogUsage, now: Timestamp, cost: Amount) -> Span {
        // Only the part of the cost below saturation counts: a charge drops the rest.
        let cost = cost.min(Amount::MAX.minus(self.used_at(usage, now)));
        match self.verdict(usage, now, cost) {
            Verdict::Allowed(_) => Span::ZERO,
            // Older entries have to expire until the cost fits.
            Verdict::After(wait) => wait,
            // The charge itself has to expire.
            Verdict::Never => self.window.span(),
        }
    }

    fn charge(&self, usage: &mut SlidingLogUsage, now: Timestamp, cost: Amount) {
        let removed = self.expired_entries(usage, now);
        usage.change(LogDelta { removed, added: Some((now, cost)), ..usage.delta });
    }

    fn refund(&self, usage: &mut SlidingLogUsage, now: Timestamp, amount: Amount) {
        let removed = self.expired_entries(usage, now);
        usage.change(LogDelta { removed, refunded: amount, ..usage.delta });
    }

    fn low_water_mark(&self, usage: &SlidingLogUsage, _now: Timestamp) -> Option<Amount> {
        usage.is_saturated().then_some(Amount::ZERO)
    }

    fn entries_after_charge(&self, usage: &SlidingLogUsage, now: Timestamp) -> Option<usize> {
        let shares_entry = usage.newest_timestamp().is_some_and(|newest| newest >= now);
        let remaining_entries = usage.entries.len().saturating_sub(self.expired_entries(usage, now));
        (!shares_entry).then(|| remaining_entries.saturating_add(1))
    }
}

#[cfg(test)]
mod tests;
