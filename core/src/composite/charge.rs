//! Charges of a key after an evaluation: all limits of a call are charged, or none is.

use super::composite_evaluation::{CompositeEvaluation, Outcome, PerSpec};
use super::idempotency::IdempotencyRecords;
use super::limit_evaluation::forces;
use super::{Component, ComponentChange, ComponentIdentity, CompositeUsage};
use crate::algorithm::any::{AnyLimit, AnyUsage, PlainUsage, with_limit, with_usage};
use crate::algorithm::leases::ConcurrencyUsage;
use crate::composite::idempotency::{Charge, RecordedCall};
use crate::evaluate::{Change, Request};
use crate::limit::{Limit, Usage, Verdict};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::syntax::{CompositeRequest, Idempotency, Spec};
use crate::usage_kind::UsageKind;
use std::any::Any;

impl CompositeEvaluation {
    /// Charges a plain key that stays plain. The usage must not be later than `now`.
    pub fn charge_plain<U: PlainUsage>(&self, request: &CompositeRequest, usage: &mut U, now: Timestamp) {
        for (spec, evaluation) in
            request.specs.iter().zip(&self.limits).filter(|(_, evaluation)| evaluation.index.is_some())
        {
            with_limit!(spec, limit => apply(evaluation.evaluation.change, limit, usage, now));
        }
        let usage: &mut dyn Any = usage;
        if let (true, Some(leases)) = (self.releases_lease, usage.downcast_mut::<ConcurrencyUsage>()) {
            leases.release(&holders_by_id(request), now);
        }
    }
}

/// Returns the holder of each lease that the call takes by a policy: the id of the call.
fn holders_by_id<'a>(request: &CompositeRequest<'a>) -> Vec<&'a [u8]> {
    request.specs.iter().filter(|spec| spec.is_held_by_id()).map(|spec| spec.holder_or_item).collect()
}

impl CompositeUsage {
    /// Applies the changes of an evaluation, or counts the strike. The state must not be later than `now`.
    pub fn charge(&mut self, request: &CompositeRequest, evaluation: &CompositeEvaluation, now: Timestamp) {
        let once = request.idempotency.once().filter(|_| evaluation.records_id(request));
        self.begin(now, once.map(|(id, _)| id));
        match evaluation.outcome {
            Outcome::Passes | Outcome::Repeated(_) => self.charge_all(request, evaluation, now),
            Outcome::Settles => self.settle(request, evaluation, now),
            Outcome::Denied { is_strike: true } => {
                if let Some(rule) = request.ban {
                    self.extras_mut().change_ban(|ban| ban.strike(rule, now));
                }
            }
            Outcome::Denied { .. } | Outcome::Banned(_) | Outcome::LostLease | Outcome::Settled | Outcome::Unknown => {}
        }
        if evaluation.releases_lease {
            self.release_leases(&holders_by_id(request), now);
        }
        self.end(now);
    }

    fn charge_all(&mut self, request: &CompositeRequest, evaluation: &CompositeEvaluation, now: Timestamp) {
        let records_id = evaluation.records_id(request);
        let mut charges: PerSpec<Charge> = PerSpec::new();
        for (spec, limit) in request.specs.iter().zip(&evaluation.limits) {
            let change = limit.evaluation.change;
            let index = match change {
                Change::Nothing => None,
                Change::Charge(_) => limit.index.or_else(|| self.add(spec)),
                Change::Refund(_) => limit.index,
            };
            let Some(index) = index else { continue };
            let claims = self.claim(index, spec);
            let Some(component) = self.components.get_mut(index) else { continue };
            component.set_change(match limit.index {
                None => ComponentChange::Created,
                Some(_) if claims => ComponentChange::UsageAndIdentity,
                Some(_) => ComponentChange::Usage,
            });
            let records = self.extras.as_mut().map(|extras| &mut extras.records);
            with_limit!(spec, limit => component.record_and_apply_change(records, limit, change, now));
            component.extend_recovery(spec.slower_limit, now);
            if let (true, Change::Charge(cost)) = (records_id && component.kind() != UsageKind::Concurrency, change) {
                let records = &mut self.extras.get_or_insert_default().records;
                charges.extend(with_usage!(&component.usage, usage => records.charge(component.serial(), usage, cost)));
            }
        }
        if let (Some(once), true) = (request.idempotency.once(), records_id) {
            let enforced = evaluation.limits.iter().filter(|limit| !limit.shadow);
            let holds = enforced.filter_map(|limit| match limit.evaluation.verdict {
                Verdict::Allowed(hold) => Some(hold),
                Verdict::After(_) | Verdict::Never => None,
            });
            let (hold, forced) = (holds.max().unwrap_or_default(), forces(&evaluation.limits));
            self.record_call(once, hold, evaluation.granted(request), forced, &charges, now);
        }
    }

    /// Records a call under `id` for `ttl`.
    pub(super) fn record_call(
        &mut self,
        (id, ttl): (&[u8], Period),
        hold: Span,
        granted: Option<Amount>,
        forced: bool,
        charges: &[Charge],
        now: Timestamp,
    ) {
        let (expires_at, hold_until) = (now.plus(ttl.span()).min(Timestamp::MAX), now.plus(hold).min(Timestamp::MAX));
        let call = RecordedCall { expires_at, hold_until, settled: false, forced, granted, charges };
        debug_assert!(call.is_sound(now), "{call:?} cannot be decoded");
        self.extras_mut().records.record_call(id, &call);
    }

    /// Adds a component for the limit of a spec and returns the index of the component.
    fn add(&mut self, spec: &Spec) -> Option<usize> {
        let usage = AnyUsage::unused(spec.limit.kind())?;
        // The component has no identity until it is claimed.
        self.push(Component::new(self.free_serial(), usage, Timestamp::EPOCH));
        self.components.len().checked_sub(1)
    }

    /// Sets the identity of a component to that of the limit of a spec, if the component is unclaimed. Returns `true`
    /// if it was unclaimed.
    fn claim(&mut self, index: usize, spec: &Spec) -> bool {
        let is_unclaimed = self.components.get(index).is_some_and(Component::is_unclaimed);
        if is_unclaimed {
            self.set_identity(index, ComponentIdentity::of(spec));
        }
        is_unclaimed
    }

    fn settle(&mut self, request: &CompositeRequest, evaluation: &CompositeEvaluation, now: Timestamp) {
        let Idempotency::Settle { id, amount } = request.idempotency else { return };
        let Some(extras) = &mut self.extras else { return };
        let Some(charges) = extras.records.settle(id, now) else { return };
        for charge in &charges {
            // The charge is not corrected if its spec has a cost of its own, or if its limit is not in the call.
            let spec = request.specs.iter().zip(&evaluation.limits).find_map(|(spec, limit)| {
                let is_charged = self.components.get(limit.index?)?.serial() == charge.component;
                (is_charged && !spec.has_own_cost && amount != charge.cost).then_some(spec)
            });
            let component = self.components.iter_mut().find(|component| component.serial() == charge.component);
            let (Some(spec), Some(component)) = (spec, component) else {
                extras.records.forget(charge);
                continue;
            };
            with_limit!(spec, limit => component.settle(&mut extras.records, limit, charge, amount, now));
            component.extend_recovery(spec.slower_limit, now);
            component.set_change(ComponentChange::Usage);
        }
    }
}

impl CompositeRequest<'_> {
    /// Returns the time until a plain key has fully recovered, under the limit of its kind in the call. Without such a
    /// limit, returns the time known to the usage, or zero.
    #[must_use]
    pub fn reset_of_plain<U: PlainUsage>(&self, usage: &U, now: Timestamp) -> Span {
        let Some(spec) = self.specs.iter().find(|spec| spec.limit.kind() == U::KIND) else {
            return usage.time_to_recovery(now);
        };
        let reset = with_limit!(spec, limit => reset_of(limit, usage, now));
        // The scale may end before the usage has recovered.
        let slower = spec.slower_limit.map(|limit| Spec::of(*limit, Request::Take(Amount::ZERO)));
        slower.map_or(reset, |spec| reset.max(with_limit!(spec, limit => reset_of(limit, usage, now))))
    }
}

/// Returns the time until the usage has fully recovered under the limit; zero if the usage is of another kind.
fn reset_of<L: Limit>(limit: &L, usage: &dyn Any, now: Timestamp) -> Span {
    usage.downcast_ref().map_or(Span::ZERO, |usage| limit.recovery(usage, now))
}

/// Applies a change to the usage if the usage is of the limit's kind.
fn apply<L: Limit>(change: Change, limit: &L, usage: &mut dyn Any, now: Timestamp) {
    if let Some(usage) = usage.downcast_mut() {
        change.apply(limit, usage, now);
    }
}

impl Component {
    /// Applies a change, whose effect on the settlement of earlier charges has been recorded.
    pub(super) fn apply_change<L: Limit<Usage: PlainUsage>>(&mut self, limit: &L, change: Change, now: Timestamp) {
        let Some(usage) = L::Usage::of_mut(&mut self.usage) else { return };
        change.apply(limit, usage, now);
        self.recovers_at = now.plus(limit.reset(usage, now)).min(Timestamp::MAX);
        // A replica replaces an unused state by the default.
        if usage.is_unused() {
            *usage = L::Usage::default();
        }
    }

    /// Records how a change restricts the settlement of earlier charges, and applies the change.
    fn record_and_apply_change<L: Limit<Usage: PlainUsage>>(
        &mut self,
        records: Option<&mut IdempotencyRecords>,
        limit: &L,
        change: Change,
        now: Timestamp,
    ) {
        if let (Some(usage), Some(records)) = (L::Usage::of(&self.usage), records) {
            records.before_change(self.serial(), limit, usage, now, change);
        }
        self.apply_change(limit, change, now);
    }

    /// Extends the time of recovery to that under `slower_limit`, if there is one.
    fn extend_recovery(&mut self, slower_limit: Option<&AnyLimit>, now: Timestamp) {
        let Some(limit) = slower_limit else { return };
        let spec = Spec::of(*limit, Request::Take(Amount::ZERO));
        let reset = with_usage!(&self.usage, usage => with_limit!(spec, limit => reset_of(limit, usage, now)));
        self.recovers_at = self.recovers_at.max(now.plus(reset).min(Timestamp::MAX));
    }

    /// Changes the usage as if the cost of the charge had been `amount`.
    fn settle<L: Limit<Usage: PlainUsage>>(
        &mut self,
        records: &mut IdempotencyRecords,
        limit: &L,
        charge: &Charge,
        amount: Amount,
        now: Timestamp,
    ) {
        let Some(usage) = L::Usage::of_mut(&mut self.usage) else { return };
        records.settle_charge(usage, charge, charge.cost.minus(amount));
        self.record_and_apply_change(Some(records), limit, Change::of(amount.minus(charge.cost)), now);
    }
}
