//! Evaluation of a single limit at a plain key or a missing one.

use super::commit::{Applied, Apply, KeyEvaluation, check_entries, commit, count_limit};
use crate::redis::guard;
use crate::redis::key::Writable;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{
    AnyUsage, Change, Decision, Evaluation, Limit, PlainUsage, Request, Span, Taken, Timestamp, Usage, UsageKind,
    evaluate,
};

/// Outcome of a request under one limit. Nothing has been changed yet.
pub struct OneLimit {
    kind: UsageKind,
    /// `true` if the charge creates the key.
    creates: bool,
    outcome: Outcome,
}

enum Outcome {
    /// Granted, with the state after the charge.
    Granted(Decision, AnyUsage),
    /// Denied; the usage stays as it is.
    Denied(Decision),
    /// Not decided in one step ([`Limit::take`]).
    Evaluated {
        evaluation: Evaluation,
        /// Number of entries after the charge; `None` if the charge adds none.
        entries: Option<usize>,
        /// `true` if there are more entries after the charge than before.
        grows: bool,
        /// `true` if the usage is ahead of the clock and moves back with it.
        moves_back: bool,
    },
}

impl OneLimit {
    /// Evaluates a request at a usage. `missing` is `true` if there is no key.
    #[inline(always)]
    pub fn evaluate<L>(limit: &L, usage: &L::Usage, missing: bool, request: Request, now: Timestamp) -> OneLimit
    where
        L: Limit<Usage: PlainUsage>,
    {
        guard::panic_test_point();
        let kind = L::Usage::KIND;
        if let Request::Take(cost) = request
            && let Some(taken) = limit.take(usage, now, cost)
        {
            return match taken {
                Taken::Charged(decision, after) => {
                    OneLimit { kind, creates: missing, outcome: Outcome::Granted(decision, after.into_any()) }
                }
                Taken::Denied(decision) => OneLimit { kind, creates: false, outcome: Outcome::Denied(decision) },
            };
        }
        let evaluation = evaluate(limit, usage, now, request);
        let charges = matches!(evaluation.change, Change::Charge(_));
        let entries = if charges { limit.entries_after_charge(usage, now) } else { None };
        let grows = entries.is_some_and(|entries| entries > usage.entries());
        let outcome = Outcome::Evaluated { evaluation, entries, grows, moves_back: usage.is_after(now) };
        OneLimit { kind, creates: charges && missing, outcome }
    }

    /// Returns `true` if the commit may write to the key.
    #[inline(always)]
    pub fn may_write(&self) -> bool {
        self.changes() || matches!(self.outcome, Outcome::Evaluated { moves_back: true, .. })
    }

    #[inline(always)]
    fn changes(&self) -> bool {
        match &self.outcome {
            Outcome::Granted(..) => true,
            Outcome::Denied(_) => false,
            Outcome::Evaluated { evaluation, .. } => evaluation.change != Change::Nothing,
        }
    }

    /// Returns the decision of a call that changes nothing.
    pub fn answer<L: Limit>(&self, limit: &L, request: Request, usage: &L::Usage, now: Timestamp) -> Decision {
        self.evaluation(request).decision(limit, usage, now, false)
    }

    /// Applies the change of the call to its key if `changes_key` is `true`. In either case, moves timestamps back if
    /// the clock has moved backwards.
    #[inline(always)]
    pub fn commit<L, K>(self, limit: &L, request: Request, mut key: K, changes_key: bool, now: Timestamp) -> Decision
    where
        L: Limit<Usage: PlainUsage>,
        K: Writable<Usage = L::Usage>,
    {
        match self.outcome {
            Outcome::Granted(decision, after) if changes_key && !key.may_have_changed() => {
                if let Some(after) = L::Usage::from_any(after) {
                    *key.usage_mut() = after;
                }
                guard::panic_test_point();
                let expiry = Expiry::of(now, decision.reset);
                key.commit(|current| expiry.after_charge(current, false), now);
                decision
            }
            Outcome::Denied(decision) if !key.may_have_changed() => decision,
            outcome => OneLimit { outcome, ..self }.commit_evaluated(limit, request, key, changes_key, now),
        }
    }

    #[inline(never)]
    fn commit_evaluated<L, K>(&self, limit: &L, request: Request, key: K, changes_key: bool, now: Timestamp) -> Decision
    where
        L: Limit,
        K: Writable<Usage = L::Usage>,
    {
        commit(key, &LimitCharge { limit, evaluation: self.evaluation(request) }, changes_key, now)
    }

    /// Charges a usage that is not stored in a key yet and has no timestamp later than `now`.
    pub fn apply<L: Limit>(
        &self,
        limit: &L,
        request: Request,
        usage: &mut L::Usage,
        now: Timestamp,
    ) -> Applied<Decision> {
        LimitCharge { limit, evaluation: self.evaluation(request) }.charge(usage, now)
    }

    fn evaluation(&self, request: Request) -> Evaluation {
        match &self.outcome {
            Outcome::Evaluated { evaluation, .. } => *evaluation,
            Outcome::Granted(decision, _) | Outcome::Denied(decision) => {
                Evaluation::all_or_nothing(decision.verdict, request.cost())
            }
        }
    }
}

impl KeyEvaluation for OneLimit {
    #[inline(always)]
    fn denies(&self) -> bool {
        match &self.outcome {
            Outcome::Granted(..) => false,
            Outcome::Denied(_) => true,
            Outcome::Evaluated { evaluation, .. } => evaluation.denies(),
        }
    }

    #[inline(always)]
    fn check_room(&self) -> Result<(), Error> {
        match self.outcome {
            Outcome::Evaluated { entries: Some(entries), .. } => check_entries(self.kind, entries),
            _ => Ok(()),
        }
    }

    #[inline(always)]
    fn grows(&self) -> bool {
        self.creates || matches!(self.outcome, Outcome::Evaluated { grows: true, .. })
    }

    #[inline(always)]
    fn changes_key(&self, allowed: bool) -> bool {
        allowed && self.changes()
    }

    #[inline(always)]
    fn count(&self, allowed: bool) {
        count_limit(self.kind, self.denies(), allowed, self.creates);
    }
}

/// Charge of a plain key under one limit.
struct LimitCharge<'l, L> {
    limit: &'l L,
    evaluation: Evaluation,
}

impl<L: Limit> LimitCharge<'_, L> {
    #[inline(always)]
    fn charge(&self, usage: &mut L::Usage, now: Timestamp) -> Applied<Decision> {
        self.evaluation.change.apply(self.limit, usage, now);
        let answer = self.evaluation.decision(self.limit, usage, now, true);
        let reset = if L::IS_READ_PARTIALLY { self.limit.recovery(usage, now) } else { answer.reset };
        Applied { answer, reset }
    }
}

impl<L: Limit> Apply for LimitCharge<'_, L> {
    type Usage = L::Usage;
    type Answer = Decision;

    #[inline(always)]
    fn apply(&self, usage: &mut L::Usage, now: Timestamp) -> Option<Applied<Decision>> {
        Some(self.charge(usage, now))
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
