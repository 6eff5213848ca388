//! Changes announced by an evaluation: all limits of a call are charged, or none is.

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
            request.specs.iter().zip(&self.limits).filter(|(_, evaluation)| evaluation.place.is_some())
        {
            with_limit!(spec, limit => apply(evaluation.evaluation.change, limit, usage, now));
        }
        if let (true, Some(leases)) = (self.releases, as_leases(usage)) {
            leases.release(&holders_by_id(request), now);
        }
    }
}

/// Returns the usage of a plain key as leases, if it is one.
fn as_leases(usage: &mut dyn Any) -> Option<&mut ConcurrencyUsage> {
    usage.downcast_mut()
}

/// Returns the holders of the leases of a policy: the id of the call.
fn holders_by_id<'a>(request: &CompositeRequest<'a>) -> Vec<&'a [u8]> {
    request.specs.iter().filter(|spec| spec.is_held_by_id()).map(|spec| spec.holder).collect()
}

impl CompositeUsage {
    /// Makes the changes announced by an evaluation, or counts its strike. The state must not be later than `now`.
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
        if evaluation.releases {
            self.release_leases(&holders_by_id(request), now);
        }
        self.end(now);
    }

    fn charge_all(&mut self, request: &CompositeRequest, evaluation: &CompositeEvaluation, now: Timestamp) {
        let records_id = evaluation.records_id(request);
        let mut charges: PerSpec<Charge> = PerSpec::new();
        for (spec, limit) in request.specs.iter().zip(&evaluation.limits) {
            let change = limit.evaluation.change;
            let place = match change {
                Change::Nothing => continue,
                Change::Charge(_) => limit.place.unwrap_or_else(|| self.add(spec)),
                Change::Refund(_) => match limit.place {
                    Some(place) => place,
                    None => continue,
                },
            };
            let claims = self.claim(place, spec);
            let Some(component) = self.components.get_mut(place) else { continue };
            component.set_change(match limit.place {
                None => ComponentChange::Made,
                Some(_) if claims => ComponentChange::Named,
                Some(_) => ComponentChange::Usage,
            });
            let records = self.extras.as_mut().map(|extras| &mut extras.records);
            with_limit!(spec, limit => component.change_recorded(records, limit, change, now));
            if let Some(slower) = spec.slower {
                component.recovers_under(slower, now);
            }
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
            self.remember(once, hold, evaluation.granted(request), forced, &charges, now);
        }
    }

    /// Records a call with an id, which it keeps for a time.
    pub(super) fn remember(
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
        debug_assert!(call.is_sound(now), "{call:?} cannot be read");
        self.extras_mut().records.remember(id, &call);
    }

    /// Adds a component for the limit of a spec and returns its index.
    fn add(&mut self, spec: &Spec) -> usize {
        let serial = self.free_serial();
        let usage = with_limit!(spec, limit => unused_of(limit));
        // The component has no identity until it is claimed.
        self.push(Component::new(serial, usage, Timestamp::EPOCH));
        self.components.len().saturating_sub(1)
    }

    /// Sets the identity of an unclaimed component to that of the limit of a spec; returns `true` if it was unclaimed.
    fn claim(&mut self, place: usize, spec: &Spec) -> bool {
        let claims = self.components.get(place).is_some_and(Component::is_unclaimed);
        if claims {
            self.set_identity(place, ComponentIdentity::of(spec));
        }
        claims
    }

    fn settle(&mut self, request: &CompositeRequest, evaluation: &CompositeEvaluation, now: Timestamp) {
        let Idempotency::Settle { id, amount } = request.idempotency else { return };
        let Some(extras) = &mut self.extras else { return };
        let Some(charges) = extras.records.settle(id, now) else { return };
        for charge in &charges {
            // A spec with a cost of its own keeps its charge, and so does a limit that is not in the call.
            let of_charge = request.specs.iter().zip(&evaluation.limits).find_map(|(spec, limit)| {
                let place = limit.place.filter(|_| !spec.own_cost)?;
                (self.components.get(place)?.serial() == charge.component).then_some((spec, place))
            });
            let settled = of_charge.filter(|_| amount != charge.cost);
            let Some((spec, component)) =
                settled.and_then(|(spec, place)| Some((spec, self.components.get_mut(place)?)))
            else {
                extras.records.forget(charge);
                continue;
            };
            with_limit!(spec, limit => component.settle(&mut extras.records, limit, charge, amount, now));
            if let Some(slower) = spec.slower {
                component.recovers_under(slower, now);
            }
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
        let slower = spec.slower.map(|limit| Spec::of(*limit, Request::Take(Amount::ZERO)));
        slower.map_or(reset, |spec| reset.max(with_limit!(spec, limit => reset_of(limit, usage, now))))
    }
}

/// Returns the time until the usage has fully recovered under the limit; zero if the usage is of another kind.
fn reset_of<L: Limit>(limit: &L, usage: &dyn Any, now: Timestamp) -> Span {
    usage.downcast_ref().map_or(Span::ZERO, |usage| limit.recovery(usage, now))
}

/// Applies a change to the usage if it is of the kind of the limit.
fn apply<L: Limit>(change: Change, limit: &L, usage: &mut dyn Any, now: Timestamp) {
    if let Some(usage) = usage.downcast_mut() {
        change.apply(limit, usage, now);
    }
}

fn unused_of<L: Limit>(_limit: &L) -> AnyUsage
where
    L::Usage: PlainUsage,
{
    L::Usage::default().into_any()
}

impl Component {
    /// Applies a change, before which the lows of earlier charges have been recorded.
    pub(super) fn apply_change<L: Limit>(&mut self, limit: &L, change: Change, now: Timestamp)
    where
        L::Usage: PlainUsage,
    {
        let Some(usage) = L::Usage::of_mut(&mut self.usage) else { return };
        change.apply(limit, usage, now);
        self.recovers_at = now.plus(limit.reset(usage, now)).min(Timestamp::MAX);
        as_propagated(usage);
    }

    /// Applies a change, which may lower the amounts of earlier charges that can be settled.
    fn change_recorded<L: Limit>(
        &mut self,
        records: Option<&mut IdempotencyRecords>,
        limit: &L,
        change: Change,
        now: Timestamp,
    ) where
        L::Usage: PlainUsage,
    {
        if let (Some(usage), Some(records)) = (L::Usage::of(&self.usage), records) {
            records.before(self.serial(), limit, usage, now, change);
        }
        self.apply_change(limit, change, now);
    }

    /// Extends the recovery to that under another limit, which may be later than under the limit of the charge.
    fn recovers_under(&mut self, limit: &AnyLimit, now: Timestamp) {
        let spec = Spec::of(*limit, Request::Take(Amount::ZERO));
        let reset = with_usage!(&self.usage, usage => with_limit!(spec, limit => reset_of(limit, usage, now)));
        self.recovers_at = self.recovers_at.max(now.plus(reset).min(Timestamp::MAX));
    }

    /// Changes the usage to what it would be had the charge been `amount`.
    fn settle<L: Limit>(
        &mut self,
        records: &mut IdempotencyRecords,
        limit: &L,
        charge: &Charge,
        amount: Amount,
        now: Timestamp,
    ) where
        L::Usage: PlainUsage,
    {
        let serial = self.serial();
        let Some(usage) = L::Usage::of_mut(&mut self.usage) else { return };
        // State before `now` is first counted as of `now`.
        records.settle_charge(usage, charge, charge.cost.minus(amount));
        if amount > charge.cost {
            let more = Change::Charge(amount.minus(charge.cost));
            records.before(serial, limit, usage, now, more);
            more.apply(limit, usage, now);
        }
        self.recovers_at = now.plus(limit.reset(usage, now)).min(Timestamp::MAX);
        as_propagated(usage);
    }
}

/// Resets an unused usage to the default, because replicas know no other unused state.
fn as_propagated(usage: &mut impl Usage) {
    if usage.is_unused() {
        *usage = Default::default();
    }
}
