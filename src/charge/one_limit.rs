//! One limit, evaluated at a usage that is its own: of a plain key, or of a missing one.

use super::commit::{Applied, Apply};
use super::key_evaluation::{KeyEvaluation, check_entries, count_limit};
use crate::redis::guard;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Change, Decision, Evaluation, Kind, Limit, Request, Span, Timestamp, Usage, evaluate};

/// One limit, evaluated at a usage of its own.
#[derive(Clone, Copy)]
pub struct OneLimit {
    kind: Kind,
    evaluation: Evaluation,
    /// How many entries the key would have after a charge that adds one.
    entries: Option<usize>,
    /// Whether that is more than it has.
    grows: bool,
    /// Whether the key would be made.
    makes: bool,
    /// Whether the usage moves back with the clock.
    moves: bool,
}

impl OneLimit {
    /// Evaluates.
    #[inline(always)]
    pub fn at<L: Limit>(limit: &L, usage: &L::Usage, missing: bool, request: Request, now: Timestamp) -> OneLimit {
        guard::panic_test_point();
        let evaluation = evaluate(limit, usage, now, request);
        let charges = matches!(evaluation.change(), Change::Charge(_));
        let entries = if charges { limit.entries_after_charge(usage, now) } else { None };
        let grows = entries.is_some_and(|entries| entries > usage.entries());
        let (kind, makes, moves) = (L::Usage::KIND, charges && missing, usage.is_after(now));
        OneLimit { kind, evaluation, entries, grows, makes, moves }
    }

    /// Whether its commit may write to the key.
    pub fn may_write(&self) -> bool {
        self.moves || self.evaluation.change() != Change::Nothing
    }

    /// What it makes of a usage, under the limit that it was evaluated under.
    #[inline(always)]
    pub fn under<'l, L>(&self, limit: &'l L) -> UnderLimit<'l, L> {
        UnderLimit { limit, evaluation: self.evaluation }
    }
}

impl KeyEvaluation for OneLimit {
    #[inline(always)]
    fn allows(&self) -> bool {
        !self.evaluation.denies()
    }

    #[inline(always)]
    fn denies(&self) -> bool {
        self.evaluation.denies()
    }

    #[inline(always)]
    fn knows(&self) -> bool {
        false
    }

    #[inline(always)]
    fn check_room(&self) -> Result<(), Error> {
        self.entries.map_or(Ok(()), |entries| check_entries(self.kind, entries))
    }

    #[inline(always)]
    fn grows(&self) -> bool {
        self.makes || self.grows
    }

    #[inline(always)]
    fn changes_key(&self, allowed: bool) -> bool {
        allowed && self.evaluation.change() != Change::Nothing
    }

    #[inline(always)]
    fn count(&self, allowed: bool) {
        count_limit(self.kind, self.denies(), allowed, self.makes);
    }
}

/// A limit, and what it has shown at a usage.
pub struct UnderLimit<'l, L> {
    limit: &'l L,
    evaluation: Evaluation,
}

impl<L: Limit> Apply for UnderLimit<'_, L> {
    type Usage = L::Usage;
    type Answer = Decision;

    #[inline(always)]
    fn apply(&self, usage: &mut L::Usage, now: Timestamp) -> Option<Applied<Decision>> {
        self.evaluation.change().apply(self.limit, usage, now);
        let answer = self.evaluation.decision(self.limit, usage, now, true);
        let reset = if L::LOOKS_AT_A_PART { self.limit.recovery(usage, now) } else { answer.reset };
        Some(Applied { answer, reset })
    }

    #[inline(always)]
    fn answer(&self, usage: &L::Usage, now: Timestamp) -> Decision {
        self.evaluation.decision(self.limit, usage, now, false)
    }

    #[inline(always)]
    fn reset(&self, usage: &L::Usage, now: Timestamp) -> Span {
        self.limit.recovery(usage, now)
    }
}
