//! The changes that a look has announced: all limits of a call are charged, or none is.

use super::composite_evaluation::{CompositeEvaluation, Outcome};
use super::idempotency::IdempotencyRecords;
use super::limit_evaluation::forces;
use super::{Component, ComponentChange, ComponentIdentity, CompositeUsage};
use crate::algorithm::any::{AnyLimit, AnyUsage, Single, with_limit, with_usage};
use crate::algorithm::leases::ConcurrencyUsage;
use crate::composite::idempotency::{Charge, RecordedCall};
use crate::evaluate::{Change, Request};
use crate::kind::Kind;
use crate::limit::{Limit, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, Idempotency, Spec};
use std::any::Any;

impl CompositeEvaluation {
    /// Charges a plain key, which goes on as that. Nothing later than `now` is in it.
    pub fn charge_plain<U: Single>(&self, request: &CompositeRequest, usage: &mut U, now: Timestamp) {
        for (spec, evaluation) in
            request.specs.iter().zip(&self.limits).filter(|(_, evaluation)| evaluation.place.is_some())
        {
            with_limit!(spec, limit => apply(evaluation.evaluation.change(), limit, usage, now));
        }
        if let (true, Some(leases)) = (self.releases, as_leases(usage)) {
            leases.release(&holders_by_id(request), now);
        }
    }
}

/// A plain key's usage, if it holds leases.
fn as_leases(usage: &mut dyn Any) -> Option<&mut ConcurrencyUsage> {
    usage.downcast_mut()
}

/// The holders of a policy's leases: the id of the call.
fn holders_by_id<'a>(request: &CompositeRequest<'a>) -> Vec<&'a [u8]> {
    request.specs.iter().filter(|spec| spec.is_held_by_id()).map(|spec| spec.holder).collect()
}

impl CompositeUsage {
    /// Makes the changes that a look has announced, or counts its strike. Nothing later than `now` is in it.
    pub fn charge(&mut self, request: &CompositeRequest, evaluation: &CompositeEvaluation, now: Timestamp) {
        let id = match request.idempotency {
            Idempotency::Once { id, .. } if evaluation.records_id(request) => Some(id),
            _ => None,
        };
        self.begin(now, id);
        match evaluation.outcome {
            Outcome::Passes | Outcome::Repeated(_) => self.charge_all(request, evaluation, now),
            Outcome::Settles => self.settle(request, evaluation, now),
            Outcome::Denied { strikes: true } => {
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
        let remembers = evaluation.records_id(request);
        let mut charges = Vec::new();
        for (spec, limit) in request.specs.iter().zip(&evaluation.limits) {
            let change = limit.evaluation.change();
            let place = match change {
                Change::Nothing => continue,
                Change::Charge(_) => limit.place.unwrap_or_else(|| self.add(spec)),
                Change::GiveBack(_) => match limit.place {
                    Some(place) => place,
                    None => continue,
                },
            };
            let claims = self.claim(place, spec);
            let Some(component) = self.components.get_mut(place) else { continue };
            component.note(match limit.place {
                None => ComponentChange::Made,
                Some(_) if claims => ComponentChange::Named,
                Some(_) => ComponentChange::Usage,
            });
            let records = self.extras.as_mut().map(|extras| &mut extras.records);
            with_limit!(spec, limit => component.change_recorded(records, limit, change, now));
            if let Some(slower) = spec.slower {
                component.recovers_under(slower, now);
            }
            if let (true, Change::Charge(cost)) = (remembers && component.kind() != Kind::Concurrency, change) {
                let records = &mut self.extras.get_or_insert_default().records;
                charges.extend(with_usage!(&component.usage, usage => records.charge(component.serial(), usage, cost)));
            }
        }
        if let Idempotency::Once { id, ttl } = request.idempotency
            && remembers
        {
            let ruling = evaluation.limits.iter().filter(|limit| !limit.shadow);
            let holds = ruling.filter_map(|limit| match limit.evaluation.verdict() {
                Verdict::Allowed(hold) => Some(hold),
                Verdict::After(_) | Verdict::Never => None,
            });
            let remembered = RecordedCall {
                expires_at: now.plus(ttl.span()).min(Timestamp::MAX),
                hold_until: now.plus(holds.max().unwrap_or_default()).min(Timestamp::MAX),
                settled: false,
                forced: forces(&evaluation.limits),
                granted: evaluation.granted(request),
                charges: charges.into(),
            };
            debug_assert!(remembered.is_sound(now), "{remembered:?} cannot be read");
            self.extras_mut().records.remember(id, &remembered);
        }
    }

    /// A component for the limit of a spec: its place.
    fn add(&mut self, spec: &Spec) -> usize {
        let serial = self.free_serial();
        let usage = with_limit!(spec, limit => unused_of(limit));
        // Known by nothing until it is claimed.
        self.push(Component::new(serial, usage, Timestamp::EPOCH));
        self.components.len().saturating_sub(1)
    }

    /// Makes a component known by what the limit of a spec is known by, if it is by nothing yet.
    fn claim(&mut self, place: usize, spec: &Spec) -> bool {
        let claims = self.components.get(place).is_some_and(Component::is_unclaimed);
        if claims {
            self.name(place, ComponentIdentity::of(spec));
        }
        claims
    }

    fn settle(&mut self, request: &CompositeRequest, evaluation: &CompositeEvaluation, now: Timestamp) {
        let Idempotency::Settle { id, amount } = request.idempotency else { return };
        let Some(extras) = &mut self.extras else { return };
        let Some(charges) = extras.records.settle(id, now) else { return };
        for charge in &charges {
            // A spec with a cost of its own keeps what it charged, and so does a limit that is not named any more.
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
            component.note(ComponentChange::Usage);
        }
    }
}

impl CompositeRequest<'_> {
    /// How long until a plain key has recovered, under the call's limit of its kind. If it has none, as the usage knows
    /// by itself, or not at all.
    #[must_use]
    pub fn reset_of_plain<U: Single>(&self, usage: &U, now: Timestamp) -> Span {
        let Some(spec) = self.specs.iter().find(|spec| spec.limit.kind() == U::KIND) else {
            return usage.time_to_recovery(now);
        };
        let reset = with_limit!(spec, limit => reset_of(limit, usage, now));
        // Until then the scale may have ended.
        let slower = spec.slower.map(|limit| Spec::of(*limit, Request::Take(Amount::ZERO)));
        slower.map_or(reset, |spec| reset.max(with_limit!(spec, limit => reset_of(limit, usage, now))))
    }
}

/// How long until the usage has recovered under the limit; 0 if the usage is of another kind.
fn reset_of<L: Limit>(limit: &L, usage: &dyn Any, now: Timestamp) -> Span {
    usage.downcast_ref().map_or(Span::ZERO, |usage| limit.recovery(usage, now))
}

/// Makes the change to the usage, if that is of the limit's kind.
fn apply<L: Limit>(change: Change, limit: &L, usage: &mut dyn Any, now: Timestamp) {
    if let Some(usage) = usage.downcast_mut() {
        change.apply(limit, usage, now);
    }
}

fn unused_of<L: Limit>(_limit: &L) -> AnyUsage
where
    L::Usage: Single,
{
    L::Usage::default().into_any()
}

impl Component {
    /// Makes a change, where no charge may be settled.
    pub(super) fn change_unrecorded<L: Limit>(&mut self, limit: &L, change: Change, now: Timestamp)
    where
        L::Usage: Single,
    {
        self.change_recorded(None, limit, change, now);
    }

    /// Makes a change, which may lower what can be settled of earlier charges.
    fn change_recorded<L: Limit>(
        &mut self,
        records: Option<&mut IdempotencyRecords>,
        limit: &L,
        change: Change,
        now: Timestamp,
    ) where
        L::Usage: Single,
    {
        let serial = self.serial();
        let Some(usage) = L::Usage::of_mut(&mut self.usage) else { return };
        if let Some(records) = records {
            records.before(serial, limit, usage, now, change);
        }
        change.apply(limit, usage, now);
        self.recovers_at = now.plus(limit.reset(usage, now)).min(Timestamp::MAX);
        as_propagated(usage);
    }

    /// Stays at least as long as it needs under that limit too: the one that it was charged under may end before.
    fn recovers_under(&mut self, limit: &AnyLimit, now: Timestamp) {
        let spec = Spec::of(*limit, Request::Take(Amount::ZERO));
        let reset = with_usage!(&self.usage, usage => with_limit!(spec, limit => reset_of(limit, usage, now)));
        self.recovers_at = self.recovers_at.max(now.plus(reset).min(Timestamp::MAX));
    }

    /// Makes usage what it would be had a charge been of `amount`.
    fn settle<L: Limit>(
        &mut self,
        records: &mut IdempotencyRecords,
        limit: &L,
        charge: &Charge,
        amount: Amount,
        now: Timestamp,
    ) where
        L::Usage: Single,
    {
        let serial = self.serial();
        let Some(usage) = L::Usage::of_mut(&mut self.usage) else { return };
        // What lies before `now` is counted as of now first.
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

/// One of nothing is one never seen: nothing else is propagated of it.
fn as_propagated(usage: &mut impl Usage) {
    if usage.is_unused() {
        *usage = Default::default();
    }
}
