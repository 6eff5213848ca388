//! The fast path of a composite key.

use super::commit::{Applied, Apply};
use super::key_evaluation::{KeyEvaluation, count_limits};
use crate::redis::effect_demand;
use ratelimit_core::composite::{Answer, CompositeUsage, FastEvaluation};
use ratelimit_core::syntax::CompositeRequest;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Span, Timestamp};

/// Rates alone, whose components are all there: the fast path of a composite key. Nothing of it can be refused, as it
/// adds no component and no entry.
pub struct Rates<'s, 'a> {
    /// What is requested.
    pub request: &'s CompositeRequest<'a>,
    /// What was found at the key.
    pub evaluation: FastEvaluation,
}

impl KeyEvaluation for Rates<'_, '_> {
    fn allows(&self) -> bool {
        !self.evaluation.denies()
    }

    fn denies(&self) -> bool {
        self.evaluation.denies()
    }

    fn knows(&self) -> bool {
        false
    }

    fn check_room(&self) -> Result<(), Error> {
        Ok(())
    }

    fn grows(&self) -> bool {
        false
    }

    fn changes_key(&self, allowed: bool) -> bool {
        allowed
    }

    fn count(&self, allowed: bool) {
        count_limits(self.evaluation.limits(self.request), self.denies(), allowed, false);
    }
}

impl Rates<'_, '_> {
    /// Charges them; the decision, and how long until the key has recovered.
    #[inline(always)]
    pub fn charge(&self, usage: &mut CompositeUsage, now: Timestamp) -> (Decision, Span) {
        // A debug build checks what would be told, though there is nobody.
        let told = cfg!(debug_assertions) || effect_demand::any();
        let decision = usage.charge_fast(self.request, &self.evaluation, told, now);
        (decision, usage.reset(now))
    }

    /// The decision, of a call that they deny.
    #[inline(always)]
    pub fn deny(&self, usage: &CompositeUsage, now: Timestamp) -> Decision {
        usage.deny_fast(self.request, &self.evaluation, now)
    }
}

impl Apply for Rates<'_, '_> {
    type Usage = CompositeUsage;
    type Answer = Answer;

    fn apply(&self, usage: &mut CompositeUsage, now: Timestamp) -> Option<Applied<Answer>> {
        let (decision, reset) = self.charge(usage, now);
        Some(Applied { answer: Answer::of(decision), reset })
    }

    fn answer(&self, usage: &CompositeUsage, now: Timestamp) -> Answer {
        Answer::of(self.deny(usage, now))
    }

    fn reset(&self, usage: &CompositeUsage, now: Timestamp) -> Span {
        usage.reset(now)
    }
}
