//! When a key may expire: never before its usage has recovered, and not much later.
//!
//! A key that expired early would forgive; one that expired late costs memory, and setting an expiry costs as much as
//! the arithmetic of a call. So an expiry has room to be late, an eighth of the recovery and a second, is left alone
//! within it, and moves as far as it may when it must, to have to move again as late as possible.

use crate::limit::Recovery;
use crate::number::{Span, Timestamp};

/// The latest expiry that a key can have, in milliseconds since the epoch: beyond what any limit can ask for (the last
/// instant, the longest wait, an eighth of it and a second), and far from overflow in the server.
pub const LATEST_EXPIRY: u64 = 1_000_000 * 86_400_000;

/// The milliseconds since the epoch within which a key may expire.
///
/// ```
/// use ratelimit_core::expiry::Expiry;
/// use ratelimit_core::{Span, Timestamp};
///
/// let expiry = Expiry::of(Timestamp::EPOCH, Span::SECOND.times(8));
/// let first = expiry.after_charge(None, false);
/// assert!((9_000..=10_000).contains(&first));
/// // A charge half a second later recovers later, but not so much that the expiry has to move.
/// let later = Expiry::of(Timestamp::EPOCH.plus(Span::from_micros(500_000)), Span::SECOND.times(8));
/// assert_eq!(later.after_charge(Some(first), false), first);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    earliest: u64,
    latest: u64,
}

impl Expiry {
    /// A millisecond at both ends is kept in reserve, for expiries that move along with a clock gone back: they move by
    /// whole milliseconds, and however many steps there are, these are off by less than one together.
    const RESERVE: u64 = 1;

    /// Of a usage that recovers `reset` after `now`.
    #[must_use]
    pub fn of(now: Timestamp, reset: Span) -> Expiry {
        let recovered = now.plus(reset);
        let latest = recovered.plus(reset.eighth()).plus(Span::SECOND).floor_millis();
        Expiry {
            earliest: recovered.ceil_millis().saturating_add(Expiry::RESERVE),
            latest: latest.saturating_sub(Expiry::RESERVE),
        }
    }

    /// Returns the latest instant at which a usage has recovered whose key expires at this millisecond.
    #[must_use]
    pub fn latest_recovery(expires_at: u64) -> Timestamp {
        let millis = expires_at.saturating_sub(Expiry::RESERVE);
        Timestamp::EPOCH.plus(Span::MILLISECOND.times(millis))
    }

    /// The expiry after a charge, in milliseconds since the epoch: the one that the key has, if it will do. One from
    /// before the clock went back never does.
    #[must_use]
    pub fn after_charge(self, present: Option<u64>, moved: bool) -> u64 {
        present.filter(|at| !moved && self.holds(*at)).unwrap_or(self.latest)
    }

    /// The expiry that a key is to be given after a charge; `None` if the one that it has will do.
    #[must_use]
    #[inline(always)]
    pub fn to_be_given(self, present: Option<u64>) -> Option<u64> {
        if present.is_some_and(|at| self.holds(at)) { None } else { Some(self.latest) }
    }

    /// Whether an expiry lies within.
    fn holds(self, at: u64) -> bool {
        (self.earliest..=self.latest).contains(&at)
    }
}

/// A clock gone back, as a usage was moved back with it.
#[derive(Clone, Copy, Debug)]
pub struct StepBack {
    /// The time after the step.
    pub now: Timestamp,
    /// By how much the usage was ahead of it.
    pub back: Span,
    /// What that has done to its recovery.
    pub recovery: Recovery,
    /// The expiry that the call's limit would have given it before the step.
    pub before: Expiry,
    /// The expiry that it gives it now.
    pub after: Expiry,
}

impl StepBack {
    /// The expiry after a step back that charged nothing, in milliseconds since the epoch.
    ///
    /// How long the usage is remembered is for the limit to say that it was last charged under, which need not be this
    /// call's. Where that recovery moves along with the clock, so does a present expiry that this call's limit has
    /// given. Any other stays: it may have been set since the clock went back, by whoever brought the key here
    /// (MIGRATE, RESTORE), and would be too early if it moved; it is too late by the step at most. Where nobody knows
    /// the recovery, it comes no later than before, so that the present expiry stays, unless it is to the millisecond
    /// what this call's limit gives: then that limit is taken for the one. (Two aligned windows of different lengths
    /// that happen to end at the same instant cannot be told apart.) In all other cases the expiry is worked out anew:
    /// where the present one is too early for this call's limit, too, or is none that a key can have.
    #[must_use]
    pub fn expiry(&self, present: Option<u64>) -> u64 {
        let by_whole_millis = self.now.plus(self.back).floor_millis().saturating_sub(self.now.floor_millis());
        let kept = match self.recovery {
            Recovery::MovesAlong => {
                present.map(|at| if self.before.holds(at) { at.saturating_sub(by_whole_millis) } else { at })
            }
            Recovery::IsHidden => present.filter(|at| *at != self.before.latest),
            Recovery::IsTold => None,
        };
        // Of what moved along, the reserve may have been used up.
        let earliest = self.after.earliest.saturating_sub(Expiry::RESERVE);
        let sound = earliest.max(self.now.floor_millis().saturating_add(1))..=LATEST_EXPIRY;
        kept.filter(|at| sound.contains(at)).unwrap_or(self.after.latest)
    }
}

#[cfg(test)]
mod tests;
