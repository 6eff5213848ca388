//! The fast path of a composite key.

use super::commit::{Applied, Apply};
use super::evaluation::{Evaluation, count_limits};
use crate::redis::listeners;
use ratelimit_core::composite::{Answer, PartsUsage, Straight};
use ratelimit_core::syntax::Call;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Span, Timestamp};

/// Rates alone, whose parts are all there: the fast path of a composite key. Nothing of it can be refused, as it adds no
/// part and no entry.
pub struct Rates<'s, 'a> {
    /// The call.
    pub call: &'s Call<'a>,
    /// What was found at the key.
    pub seen: Straight,
}

impl Evaluation for Rates<'_, '_> {
    fn admits(&self) -> bool {
        !self.seen.denies()
    }

    fn denies(&self) -> bool {
        self.seen.denies()
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
        count_limits(self.seen.limits(self.call), self.denies(), allowed, false);
    }
}

impl Apply for Rates<'_, '_> {
    type Usage = PartsUsage;
    type Answer = Answer;

    fn apply(&self, usage: &mut PartsUsage, now: Timestamp) -> Option<Applied<Answer>> {
        // A debug build checks what would be told, though there is nobody.
        let told = cfg!(debug_assertions) || listeners::any();
        let answer = usage.charge_straight(self.call, &self.seen, told, now);
        Some(Applied { answer, reset: usage.reset(now) })
    }

    fn answer(&self, usage: &PartsUsage, now: Timestamp) -> Answer {
        usage.deny_straight(self.call, &self.seen, now)
    }

    fn reset(&self, usage: &PartsUsage, now: Timestamp) -> Span {
        usage.reset(now)
    }
}
