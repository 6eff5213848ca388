//! Counters of the outcomes of a policy's calls on this server.

use crate::limit::Decision;
use crate::number::Amount;
use crate::syntax::Purpose;
use std::cell::Cell;

/// Counters of calls by outcome.
#[derive(Debug, Default)]
pub struct Counts {
    calls: Cell<u64>,
    admitted: Cell<u64>,
    denied: Cell<u64>,
    near: Cell<u64>,
    shadow_denied: Cell<u64>,
    banned: Cell<u64>,
    repeated: Cell<u64>,
}

/// Outcome of one call for the counters of its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each has its own counter")]
pub struct CountedOutcome {
    /// `true` if the call charges: peeks, refunds and settlements only count as calls.
    pub charges: bool,
    /// `true` if the call was admitted.
    pub admitted: bool,
    /// `true` if at least 80 % of the governing limit is used after the call.
    pub near: bool,
    /// `true` if a limit in shadow mode would have denied the call.
    pub shadow_denied: bool,
    /// `true` if a ban denied the call.
    pub banned: bool,
    /// `true` if the id of the call had been charged before.
    pub repeated: bool,
}

impl CountedOutcome {
    /// Creates the outcome of a call without limits in shadow mode, ban or id.
    #[must_use]
    #[inline(always)]
    pub fn of(decision: &Decision, purpose: Purpose) -> CountedOutcome {
        CountedOutcome {
            charges: purpose == Purpose::Charge,
            admitted: decision.verdict.allowed(),
            near: is_near(decision.remaining, decision.limit),
            shadow_denied: false,
            banned: false,
            repeated: false,
        }
    }
}

/// Returns `true` if at most a fifth of the limit remains.
fn is_near(remaining: Amount, limit: Amount) -> bool {
    remaining.millionths().saturating_mul(5) <= limit.millionths()
}

impl Counts {
    /// Counts a call.
    #[inline(always)]
    pub fn count(&self, outcome: &CountedOutcome) {
        increment(&self.calls);
        if outcome.repeated {
            increment(&self.repeated);
        } else if outcome.charges {
            increment(if outcome.admitted { &self.admitted } else { &self.denied });
            if outcome.admitted && outcome.near {
                increment(&self.near);
            }
            if outcome.shadow_denied {
                increment(&self.shadow_denied);
            }
            if outcome.banned {
                increment(&self.banned);
            }
        }
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    /// Returns the counters with the names that operators see.
    #[must_use]
    pub fn all(&self) -> [(&'static str, u64); 7] {
        [
            ("calls", self.calls.get()),
            ("admitted", self.admitted.get()),
            ("denied", self.denied.get()),
            ("near", self.near.get()),
            ("shadow_denied", self.shadow_denied.get()),
            ("banned", self.banned.get()),
            ("repeated", self.repeated.get()),
        ]
    }
}

#[inline(always)]
fn increment(count: &Cell<u64>) {
    count.set(count.get().wrapping_add(1));
}

#[cfg(test)]
mod tests;
