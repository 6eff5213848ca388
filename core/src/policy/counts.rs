//! Counts of the outcomes of a policy's calls: for operators, on this server alone.

use crate::limit::Decision;
use crate::number::Amount;
use crate::syntax::Purpose;
use std::cell::Cell;

/// How many calls had which outcome.
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

/// The outcome of one call, as the counters of its policy take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is counted for itself")]
pub struct CountedOutcome {
    /// Whether it asked for anything: a look, a give-back and a settlement are calls, and no more.
    pub charges: bool,
    /// Whether it may go on.
    pub admitted: bool,
    /// Whether 80 % of the governing limit is used now.
    pub near: bool,
    /// Whether a limit in the shadow would have denied it.
    pub shadow_denied: bool,
    /// Whether a ban denied it.
    pub banned: bool,
    /// Whether its id had been charged before.
    pub repeated: bool,
}

impl CountedOutcome {
    /// The outcome of a call that plain limits decided.
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

/// Whether at most a fifth remains.
fn is_near(remaining: Amount, limit: Amount) -> bool {
    remaining.millionths().saturating_mul(5) <= limit.millionths()
}

impl Counts {
    /// One more call.
    #[inline(always)]
    pub fn count(&self, outcome: &CountedOutcome) {
        one_more(&self.calls);
        if outcome.repeated {
            one_more(&self.repeated);
        } else if outcome.charges {
            one_more(if outcome.admitted { &self.admitted } else { &self.denied });
            if outcome.admitted && outcome.near {
                one_more(&self.near);
            }
            if outcome.shadow_denied {
                one_more(&self.shadow_denied);
            }
            if outcome.banned {
                one_more(&self.banned);
            }
        }
    }

    /// How many calls there were.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.get()
    }

    /// Each count, by the name that it has for operators.
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
fn one_more(count: &Cell<u64>) {
    count.set(count.get().wrapping_add(1));
}

#[cfg(test)]
mod tests;
