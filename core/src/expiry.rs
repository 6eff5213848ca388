//! Expiry of a key: never before its usage has recovered, and not much later.
//!
//! A key that expires early forgives usage, and one that expires late costs memory. Setting an expiry costs as much as
//! the arithmetic of a call. So an expiry may be late by an eighth of the recovery and a second. It is left unchanged
//! within that range, and moves to the end of the range when it must move, so that it stays unchanged as long as
//! possible.

use crate::limit::RecoverySource;
use crate::number::{Span, Timestamp};

/// Latest expiry of a key, in milliseconds since the epoch. It is later than that of any limit (the latest time of
/// recovery, an eighth of the longest reset and a second), and far from an overflow in the server.
pub const LATEST_EXPIRY: u64 = 1_000_000 * 86_400_000;

/// Range of valid expiries of a key, in milliseconds since the epoch.
///
/// ```
/// use ratelimit_core::expiry::Expiry;
/// use ratelimit_core::{Span, Timestamp};
///
/// let expiry = Expiry::of(Timestamp::EPOCH, Span::SECOND.times(8));
/// let first = expiry.after_charge(None, false);
/// assert!((9_000..=10_000).contains(&first));
/// // A charge half a second later recovers half a second later. The expiry is still in range.
/// let later = Expiry::of(Timestamp::EPOCH.plus(Span::from_micros(500_000)), Span::SECOND.times(8));
/// assert_eq!(later.after_charge(Some(first), false), first);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    earliest: u64,
    latest: u64,
}

impl Expiry {
    /// Reserve at both ends of the range, in milliseconds, for expiries that move back with the clock. They move by
    /// whole milliseconds, and the rounding errors of all steps add up to less than a millisecond.
    const RESERVE: u64 = 1;

    /// Returns the range for a usage that recovers `reset` after `now`.
    #[must_use]
    pub fn of(now: Timestamp, reset: Span) -> Expiry {
        let recovered = now.plus(reset);
        let latest = recovered.plus(reset.eighth()).plus(Span::SECOND).floor_millis();
        Expiry {
            earliest: recovered.ceil_millis().saturating_add(Expiry::RESERVE),
            latest: latest.saturating_sub(Expiry::RESERVE),
        }
    }

    /// Returns the upper bound of the time of full recovery of a usage, from the expiry of its key.
    #[must_use]
    pub fn latest_recovery(expires_at: u64) -> Timestamp {
        let millis = expires_at.saturating_sub(Expiry::RESERVE);
        Timestamp::EPOCH.plus(Span::MILLISECOND.times(millis))
    }

    /// Returns the expiry after a charge, in milliseconds since the epoch: the present expiry if it is in range. If
    /// `has_moved_back` is `true`, the present expiry is from before the clock moved backwards, and is replaced.
    #[must_use]
    pub fn after_charge(self, present: Option<u64>, has_moved_back: bool) -> u64 {
        present.filter(|at| !has_moved_back && self.contains(*at)).unwrap_or(self.latest)
    }

    /// Returns `true` if an expiry is in range.
    fn contains(self, at: u64) -> bool {
        (self.earliest..=self.latest).contains(&at)
    }
}

/// Backward step of the clock, after which a usage was moved back.
#[derive(Clone, Copy, Debug)]
pub struct StepBack {
    /// Time after the step.
    pub now: Timestamp,
    /// Span by which the usage was ahead of `now`, and by which it was moved back.
    pub moved_back: Span,
    /// Source of the time of recovery after the step.
    pub recovery: RecoverySource,
    /// Range of the expiry under the call's limit before the step.
    pub range_before: Expiry,
    /// Range of the expiry under the call's limit after the step.
    pub range_after: Expiry,
}

impl StepBack {
    /// Returns the expiry after a step back without a charge, in milliseconds since the epoch.
    ///
    /// The expiry follows the limit of the last charge, which may differ from the call's limit. With
    /// [`MovesBack`](RecoverySource::MovesBack), the recovery moves with the clock, and a present expiry that is in
    /// range for the call's limit moves too. Any other present expiry stays: MIGRATE or RESTORE may have set it after
    /// the step, and moving it would make it too early. It is too late by at most the step.
    ///
    /// With [`Limit`](RecoverySource::Limit), only the limit of the last charge knows the recovery. The recovery is not
    /// later than before the step, so the present expiry stays, unless it is exactly the one that the call's limit
    /// sets. Then the call's limit is assumed to have made the last charge. (Two aligned windows of different lengths
    /// that end at the same time cannot be distinguished.)
    ///
    /// With [`Usage`](RecoverySource::Usage), the expiry is recomputed from the time of recovery. It is also recomputed
    /// if the present one is missing, too early for the call's limit, or not a valid expiry.
    #[must_use]
    pub fn expiry(&self, present: Option<u64>) -> u64 {
        let by_whole_millis = self.now.plus(self.moved_back).floor_millis().saturating_sub(self.now.floor_millis());
        let kept_expiry = match self.recovery {
            RecoverySource::MovesBack => {
                present.map(|at| if self.range_before.contains(at) { at.saturating_sub(by_whole_millis) } else { at })
            }
            RecoverySource::Limit => present.filter(|at| *at != self.range_before.latest),
            RecoverySource::Usage => None,
        };
        // An expiry that moved back may have used up the reserve.
        let earliest = self.range_after.earliest.saturating_sub(Expiry::RESERVE);
        let valid = earliest.max(self.now.floor_millis().saturating_add(1))..=LATEST_EXPIRY;
        kept_expiry.filter(|at| valid.contains(at)).unwrap_or(self.range_after.latest)
    }
}

#[cfg(test)]
mod tests;
