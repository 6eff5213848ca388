//! Fast path for the most common calls: charges of rate limits whose components all exist, with no option except ONCE
//! with a new id. Other calls take the slow path (`composite_evaluation.rs`, `charge.rs`, `answer.rs`), which has the
//! same result but takes about twice as many instructions.

use super::answer::FirstToRunOut;
use super::composite_evaluation::PerSpec;
use super::idempotency::{Charge, IdempotencyRecords};
use super::{Component, ComponentChange, CompositeUsage, Extras};
use crate::algorithm::any::{PlainUsage, with_limit, with_usage};
use crate::evaluate::{Change, Request};
use crate::limit::{Decision, Limit, Taken, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, Idempotency, MAX_SPECS, Purpose, Spec};
use crate::usage_kind::UsageKind;

/// Evaluation of a call on the fast path.
#[derive(Clone, Debug)]
pub struct FastEvaluation {
    /// Index of each limit's component.
    indexes: [u8; MAX_SPECS],
    /// `true` for each limit that denies the call.
    denying: [bool; MAX_SPECS],
    /// Verdict with the longest wait.
    verdict: Verdict,
    /// Index of the first limit with the longest wait.
    longest_wait: usize,
    /// Number of ids after the call, if it records one.
    id_count_after: Option<usize>,
}

impl FastEvaluation {
    /// Returns the number of ids after the call, if it records one.
    #[must_use]
    pub fn id_count_after(&self) -> Option<usize> {
        self.id_count_after
    }

    /// Returns `true` if the call is denied.
    #[must_use]
    pub fn denies(&self) -> bool {
        !self.verdict.allowed()
    }

    /// Returns the kind of each limit, with `true` if it denies the call.
    pub fn limits<'a>(&'a self, request: &'a CompositeRequest) -> impl Iterator<Item = (UsageKind, bool)> + 'a {
        request.specs.iter().zip(self.denying).map(|(spec, denies)| (spec.limit.kind(), denies))
    }
}

impl CompositeUsage {
    /// Evaluates a call on the fast path. Returns `None` if the call has to take the slow path.
    #[must_use]
    pub fn evaluate_fast(&self, request: &CompositeRequest, now: Timestamp) -> Option<FastEvaluation> {
        let is_simple = request.purpose == Purpose::Charge && !request.each && request.ban.is_none();
        if !is_simple || !self.extras().is_none_or(Extras::has_no_ban_state) || now < self.written {
            return None;
        }
        let id_count_after = match request.idempotency {
            Idempotency::Every => None,
            Idempotency::Once { id, .. } => Some(self.id_count_with(id, now)?),
            Idempotency::Settle { .. } => return None,
        };
        let verdict = Verdict::Allowed(Span::ZERO);
        let (indexes, denying) = ([0; MAX_SPECS], [false; MAX_SPECS]);
        let mut evaluation = FastEvaluation { indexes, denying, verdict, longest_wait: 0, id_count_after };
        let results = evaluation.indexes.iter_mut().zip(&mut evaluation.denying);
        for (position, (spec, (index, denies))) in request.specs.iter().zip(results).enumerate() {
            let cost = spec.fast_path_cost()?;
            *index = u8::try_from(self.claimed_index_of(spec, position)?).ok()?;
            let component = self.components.get(usize::from(*index))?;
            let verdict = with_limit!(spec, limit => limit.verdict(PlainUsage::of(&component.usage)?, now, cost));
            *denies = !verdict.allowed();
            if verdict > evaluation.verdict {
                (evaluation.verdict, evaluation.longest_wait) = (verdict, position);
            }
        }
        Some(evaluation)
    }

    /// Returns the number of ids after `id` is recorded; `None` if `id` has been recorded before.
    #[inline(never)]
    fn id_count_with(&self, id: &[u8], now: Timestamp) -> Option<usize> {
        let Some(extras) = self.extras() else { return Some(1) };
        extras.records.find(id, now).is_none().then(|| extras.records.len_with_another(now))
    }

    /// Returns the decision on a denied call.
    #[must_use]
    pub fn deny_fast(&self, request: &CompositeRequest, evaluation: &FastEvaluation, now: Timestamp) -> Decision {
        self.answer_fast(request, evaluation, evaluation.longest_wait, now)
    }

    /// Charges all limits of a granted call and returns the decision. Records the changes for an effect only if
    /// `records_effect` is `true`.
    pub fn charge_fast(
        &mut self,
        request: &CompositeRequest,
        evaluation: &FastEvaluation,
        records_effect: bool,
        now: Timestamp,
    ) -> Decision {
        let once = request.idempotency.once();
        self.begin(now, once.map(|(id, _)| id));
        let mut first_to_run_out = FirstToRunOut(None);
        let mut charges: PerSpec<Charge> = PerSpec::new();
        for (position, (spec, index)) in request.specs.iter().zip(evaluation.indexes).enumerate() {
            let Some(component) = self.components.get_mut(usize::from(index)) else { continue };
            // Always matches: `evaluate_fast` accepts no other requests.
            let Request::Take(cost) = spec.request else { continue };
            if records_effect {
                component.set_change(ComponentChange::Usage);
            }
            let records = self.extras.as_deref_mut().map(|extras| &mut extras.records);
            let remaining = with_limit!(spec, limit => component.charge(records, limit, cost, now));
            first_to_run_out.add(remaining, cost, position);
            if once.is_some() {
                let records = &mut self.extras.get_or_insert_default().records;
                charges.extend(with_usage!(&component.usage, usage => records.charge(component.serial(), usage, cost)));
            }
        }
        if let (Some(once), Verdict::Allowed(hold)) = (once, evaluation.verdict) {
            self.record_call(once, hold, None, false, &charges, now);
        }
        let governing = first_to_run_out.into_value().unwrap_or_default();
        let decision = self.answer_fast(request, evaluation, governing, now);
        self.end(now);
        decision
    }

    /// Returns the decision of the call, with the remaining amount and the reset of the limit at the index `governing`.
    fn answer_fast(
        &self,
        request: &CompositeRequest,
        evaluation: &FastEvaluation,
        governing: usize,
        now: Timestamp,
    ) -> Decision {
        let verdict = evaluation.verdict;
        let decision = || {
            let (spec, index) = request.specs.get(governing).zip(evaluation.indexes.get(governing))?;
            let component = self.components.get(usize::from(*index))?;
            with_limit!(spec, limit => {
                let usage = PlainUsage::of(&component.usage)?;
                let (remaining, reset) = (limit.remaining(usage, now), limit.reset(usage, now));
                Some(Decision { verdict, limit: limit.limit(), remaining, reset, granted: None }.with_keep(spec.keep))
            })
        };
        decision().unwrap_or_else(|| Decision::unlimited(verdict))
    }
}

impl Component {
    /// Charges the component and returns the remaining amount.
    #[inline(always)]
    fn charge<L: Limit<Usage: PlainUsage>>(
        &mut self,
        records: Option<&mut IdempotencyRecords>,
        limit: &L,
        cost: Amount,
        now: Timestamp,
    ) -> Amount {
        let serial = self.serial();
        let Some(usage) = L::Usage::of_mut(&mut self.usage) else { return Amount::ZERO };
        if let Some(records) = records {
            records.before_change(serial, limit, usage, now, Change::Charge(cost));
        }
        if let Some(Taken::Charged(decision, after)) = limit.take(usage, now, cost) {
            *usage = after;
            self.recovers_at = now.plus(decision.reset).min(Timestamp::MAX);
            return decision.remaining;
        }
        Component::apply_change(self, limit, Change::Charge(cost), now);
        L::Usage::of(&self.usage).map_or(Amount::ZERO, |usage| limit.remaining(usage, now))
    }
}

impl Spec<'_> {
    /// Returns the cost if the limit is eligible for the fast path: an enforced rate limit without a scale and without
    /// entries.
    fn fast_path_cost(&self) -> Option<Amount> {
        match self.request {
            Request::Take(cost)
                if cost != Amount::ZERO && !self.limit.grows() && !self.shadow && self.slower_limit.is_none() =>
            {
                Some(cost)
            }
            _ => None,
        }
    }
}
