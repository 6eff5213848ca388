//! The fast path of a composite key.

use super::commit::{Applied, Apply};
use super::key_evaluation::{KeyEvaluation, count_limits};
use crate::redis::effect_demand;
use ratelimit_core::composite::{Answer, CompositeUsage, FastEvaluation};
use ratelimit_core::syntax::Call;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Span, Timestamp};

/// Rates alone, whose components are all there: the fast path of a composite key. Nothing of it can be refused, as it
/// adds no component and no entry.
pub struct Rates<'s, 'a> {
    /// The call.
    pub call: &'s Call<'a>,
    /// What was found at the key.
    pub evaluation: FastEvaluation,
}

impl KeyEvaluation for Rates<'_, '_> {
    fn admits(&self) -> bool {
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

    fn goes_on(&self, allowed: bool) -> bool {
        allowed
    }

    fn count(&self, allowed: bool) {
        count_limits(self.evaluation.limits(self.call), self.denies(), allowed, false);
    }
}

impl Apply for Rates<'_, '_> {
    type Usage = CompositeUsage;
    type Answer = Answer;

    fn apply(&self, usage: &mut CompositeUsage, now: Timestamp) -> Option<Applied<Answer>> {
        // A debug build checks what would be told, though there is nobody.
        let told = cfg!(debug_assertions) || effect_demand::any();
        let answer = usage.charge_fast(self.call, &self.evaluation, told, now);
        Some(Applied { answer, reset: usage.reset(now) })
    }

    fn answer(&self, usage: &CompositeUsage, now: Timestamp) -> Answer {
        usage.deny_fast(self.call, &self.evaluation, now)
    }

    fn reset(&self, usage: &CompositeUsage, now: Timestamp) -> Span {
        usage.reset(now)
    }
}
