//! Limits whose usage has a fixed size (no log, no leases) at a composite key, with an idempotency key or without: the
//! most common composite calls.

use super::commit::{Applied, Apply, KeyEvaluation, check_entries, count_limits};
use crate::redis::key::Contents;
use crate::redis::outgoing;
use ratelimit_core::composite::{Answer, CompositeUsage, FastEvaluation};
use ratelimit_core::syntax::CompositeRequest;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Span, Timestamp, UsageKind};

/// Limits whose usage has a fixed size (no log, no leases), evaluated at a composite key that has a component for each
/// limit. The charge adds an idempotency key at most.
pub struct FastPath<'s, 'a> {
    /// Request of the call.
    pub request: &'s CompositeRequest<'a>,
    evaluation: FastEvaluation,
}

impl<'s, 'a> FastPath<'s, 'a> {
    /// Evaluates a request at a key; `None` if it needs the general evaluation.
    #[inline(always)]
    pub fn evaluate(key: &Contents, request: &'s CompositeRequest<'a>, now: Timestamp) -> Option<FastPath<'s, 'a>> {
        let evaluation = key.existing_usage::<CompositeUsage>()?.evaluate_fast(request, now)?;
        Some(FastPath { request, evaluation })
    }
}

impl KeyEvaluation for FastPath<'_, '_> {
    fn denies(&self) -> bool {
        self.evaluation.denies()
    }

    fn check_room(&self) -> Result<(), Error> {
        self.evaluation.id_count_after().map_or(Ok(()), |count| check_entries(UsageKind::Limits, count))
    }

    fn grows(&self) -> bool {
        self.evaluation.id_count_after().is_some()
    }

    fn changes_key(&self, allowed: bool) -> bool {
        allowed
    }

    fn count(&self, allowed: bool) {
        count_limits(self.evaluation.limits(self.request), self.denies(), allowed, false);
    }
}

impl Apply for FastPath<'_, '_> {
    type Usage = CompositeUsage;
    type Answer = Answer;

    fn apply(&self, usage: &mut CompositeUsage, now: Timestamp) -> Option<Applied<Answer>> {
        // A debug build checks the effect even without a consumer.
        let records_effect = cfg!(debug_assertions) || outgoing::effects_are_needed();
        let decision = usage.charge_fast(self.request, &self.evaluation, records_effect, now);
        Some(Applied { answer: Answer::of(decision), reset: usage.reset(now) })
    }

    fn answer(&self, usage: &CompositeUsage, now: Timestamp) -> Answer {
        Answer::of(usage.deny_fast(self.request, &self.evaluation, now))
    }

    fn reset(&self, usage: &CompositeUsage, now: Timestamp) -> Span {
        usage.reset(now)
    }
}
