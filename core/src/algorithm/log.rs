//! The sliding log: every admitted call's time is kept, so a trailing window is counted exactly.
//!
//! The usage is the sum of the costs in `(now - window, now]`. When to use it: where both the guarantee and every
//! last unit of the limit matter, and calls are few. Its price: memory grows with the calls in the window, 16 bytes
//! an instant (calls of the same microsecond share an entry).
//!
//! An entry holds its instant and the running total up to and with it, not its own cost: the sum of any stretch is
//! the difference of two totals, so a decision is a binary search, however long the log is and however much of it is
//! out of date. (A denied call must not tidy up: it changes nothing.) Totals wrap; their differences do not, since
//! what is in the log never exceeds 2^63-1.
//!
//! A clock gone back moves all entries back by one number (`Shift`), and a look from before the newest entry adds to
//! it in passing, so neither costs more in a long log.
//!
//! What is propagated of a call is what it changed (`LogDelta`), not the log.

mod log_usage;

use crate::limit::{Identity, Limit, Verdict};
use crate::number::lazy_shift::Shift;
use crate::number::{Amount, Period, Span, Timestamp};
pub use log_usage::SlidingLogUsage;
use log_usage::{LogDelta, LogEntry};
use std::fmt;

/// A log's numbers.
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
/// // The first leaves when it is a minute old, to the microsecond.
/// let then = now.plus(Span::SECOND.times(20));
/// assert_eq!(limit.verdict(&usage, then, Amount::ONE), Verdict::After(Span::SECOND.times(40)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SlidingLog {
    limit: Amount,
    window: Period,
}

impl SlidingLog {
    /// At most `limit` in any trailing `window`.
    #[must_use]
    pub fn new(limit: Amount, window: Period) -> SlidingLog {
        SlidingLog { limit, window }
    }

    /// This log with another limit.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> SlidingLog {
        SlidingLog { limit, ..self }
    }

    /// Whether what is used recovers by a rate, which a scale changes.
    pub const RECOVERS_BY_RATE: bool = false;

    /// This log with its limit times `factor`, rounded down.
    #[must_use]
    pub fn scaled(self, factor: Amount) -> SlidingLog {
        self.limited_to(self.limit.times(factor))
    }

    /// What it is known by without a name.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::by(self.window)
    }

    /// How many entries, from the oldest on, no longer count.
    fn out_of_date(&self, usage: &SlidingLogUsage, now: Timestamp) -> usize {
        usage.out_of_date(self.window.span(), now)
    }

    /// When an entry stops counting.
    fn leaves(&self, entry: &LogEntry, shift: Shift) -> Timestamp {
        shift.instant(entry.at).plus(self.window.span())
    }

    /// What counts now.
    fn present(&self, usage: &SlidingLogUsage, now: Timestamp) -> Amount {
        usage.sum_from(self.out_of_date(usage, now))
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
        if self.present(usage, now).excess(cost, self.limit) == Amount::ZERO {
            return Verdict::Allowed(Span::ZERO);
        }
        let Some(room) = self.limit.checked_minus(cost) else { return Verdict::Never };
        // The first entry that what comes after it leaves room for: it is the last that has to leave the window.
        let end = usage.total();
        let last_to_leave = usage.entries.partition_point(|entry| end.wrapping_sub(entry.total) > room.millionths());
        let shift = usage.shift_at(now);
        let leaves = usage.entries.get(last_to_leave).map_or(now, |entry| self.leaves(entry, shift));
        Verdict::After(leaves.since(now))
    }

    fn remaining(&self, usage: &SlidingLogUsage, now: Timestamp) -> Amount {
        self.limit.minus(self.present(usage, now))
    }

    fn reset(&self, usage: &SlidingLogUsage, now: Timestamp) -> Span {
        let shift = usage.shift_at(now);
        usage.entries.back().map_or(Span::ZERO, |newest| self.leaves(newest, shift).since(now))
    }

    fn debt_after_charge(&self, usage: &SlidingLogUsage, now: Timestamp, cost: Amount) -> Span {
        // What of it counts: `add` drops what is past saturation.
        let cost = cost.min(Amount::MAX.minus(self.present(usage, now)));
        match self.verdict(usage, now, cost) {
            Verdict::Allowed(_) => Span::ZERO,
            // The others have to leave until it fits beside what is left of them,
            Verdict::After(wait) => wait,
            // or it has to leave itself.
            Verdict::Never => self.window.span(),
        }
    }

    fn charge(&self, usage: &mut SlidingLogUsage, now: Timestamp, cost: Amount) {
        let forgotten = self.out_of_date(usage, now);
        usage.change(LogDelta { forgotten, added: Some((now, cost)), ..usage.delta });
    }

    fn give_back(&self, usage: &mut SlidingLogUsage, now: Timestamp, amount: Amount) {
        let forgotten = self.out_of_date(usage, now);
        usage.change(LogDelta { forgotten, given_back: amount, ..usage.delta });
    }

    fn low(&self, usage: &SlidingLogUsage, _now: Timestamp) -> Option<Amount> {
        usage.is_saturated().then_some(Amount::ZERO)
    }

    fn entries_after_charge(&self, usage: &SlidingLogUsage, now: Timestamp) -> Option<usize> {
        let shared = usage.newest().is_some_and(|newest| newest >= now);
        let kept = usage.entries.len().saturating_sub(self.out_of_date(usage, now));
        (!shared).then(|| kept.saturating_add(1))
    }
}

#[cfg(test)]
mod tests;
