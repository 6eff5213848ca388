//! The changes that a look has announced: all limits of a call are charged, or none is.

use super::look::{Outcome, Seen, forces};
use super::{Changed, KnownBy, Part, PartsUsage, forget};
use crate::algorithm::any::{AnyLimit, AnyUsage, Single, with_limit, with_usage};
use crate::algorithm::leases::ConcurrencyUsage;
use crate::composite::once::{Charge, Remembered};
use crate::evaluate::{Ask, Change};
use crate::kind::Kind;
use crate::limit::{Limit, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{Call, Counts, Spec};
use std::any::Any;

impl Seen {
    /// Charges a plain key, which goes on as that. Nothing later than `now` is in it.
    pub fn charge_plain<U: Single>(&self, call: &Call, usage: &mut U, now: Timestamp) {
        for (spec, seen) in call.specs.iter().zip(&self.limits).filter(|(_, seen)| seen.place.is_some()) {
            with_limit!(spec, limit => apply(seen.look.change(), limit, usage, now));
        }
        if let (true, Some(leases)) = (self.releases, as_leases(usage)) {
            leases.release(&holders_by_id(call), now);
        }
    }
}

/// A plain key's usage, if it holds leases.
fn as_leases(usage: &mut dyn Any) -> Option<&mut ConcurrencyUsage> {
    usage.downcast_mut()
}

/// Who holds the leases of a policy: the id of the call.
fn holders_by_id<'a>(call: &Call<'a>) -> Vec<&'a [u8]> {
    call.specs.iter().filter(|spec| spec.is_held_by_id()).map(|spec| spec.holder).collect()
}

impl PartsUsage {
    /// Makes the changes that a look has announced, or counts its strike. Nothing later than `now` is in it.
    pub fn charge(&mut self, call: &Call, seen: &Seen, now: Timestamp) {
        let id = match call.counts {
            Counts::Once { id, .. } if seen.remembers(call) => Some(id),
            _ => None,
        };
        self.begin(now, id);
        match seen.outcome {
            Outcome::Passes | Outcome::Repeated(_) => self.charge_all(call, seen, now),
            Outcome::Settles => self.settle(call, seen, now),
            Outcome::Denied { strikes: true } => {
                if let Some(rule) = call.ban {
                    self.beside.get_or_insert_default().ban.strike(rule, now);
                    self.delta.ban = true;
                }
            }
            Outcome::Denied { .. } | Outcome::Banned(_) | Outcome::LostLease | Outcome::Settled | Outcome::Unknown => {}
        }
        if seen.releases {
            self.take_back(&holders_by_id(call), now);
        }
        self.end(now);
    }

    fn charge_all(&mut self, call: &Call, seen: &Seen, now: Timestamp) {
        let remembers = seen.remembers(call);
        let mut charges = Vec::new();
        for (spec, limit) in call.specs.iter().zip(&seen.limits) {
            let change = limit.look.change();
            let place = match change {
                Change::Nothing => continue,
                Change::Charge(_) => limit.place.unwrap_or_else(|| self.add(spec)),
                Change::GiveBack(_) => match limit.place {
                    Some(place) => place,
                    None => continue,
                },
            };
            let Some(part) = self.parts.get_mut(place) else { continue };
            let (kind, is_new, named) = (part.usage.kind(), limit.place.is_none(), part.claim(spec));
            charges.extend(with_limit!(spec, limit => part.change(limit, change, remembers, now)));
            if let Some(slower) = spec.slower {
                part.recovers_under(slower, now);
            }
            self.delta.changed.push(Changed { serial: part.serial, kind, is_new, named });
        }
        if let Counts::Once { id, ttl } = call.counts
            && remembers
        {
            let ruling = seen.limits.iter().filter(|limit| !limit.shadow);
            let holds = ruling.filter_map(|limit| match limit.look.verdict() {
                Verdict::Allowed(hold) => Some(hold),
                Verdict::After(_) | Verdict::Never => None,
            });
            let remembered = Remembered {
                expires_at: now.plus(ttl.span()).min(Timestamp::MAX),
                hold_until: now.plus(holds.max().unwrap_or_default()).min(Timestamp::MAX),
                settled: false,
                forced: forces(&seen.limits),
                granted: seen.granted(call),
                charges: charges.into(),
            };
            debug_assert!(remembered.is_sound(now), "{remembered:?} cannot be read");
            self.beside.get_or_insert_default().ids.remember(id, remembered);
        }
    }

    /// A part for the limit of a spec: its place.
    fn add(&mut self, spec: &Spec) -> usize {
        let serial = self.free_serial();
        let usage = with_limit!(spec, limit => unused_of(limit));
        // Known by nothing until it is claimed.
        let part = Part { serial, known_by: KnownBy::Nothing, usage, recovers_at: Timestamp::EPOCH, track: None };
        self.push(part);
        self.parts.len().saturating_sub(1)
    }

    fn settle(&mut self, call: &Call, seen: &Seen, now: Timestamp) {
        let Counts::Settle { id, amount } = call.counts else { return };
        let Some(charges) = self.beside.as_mut().and_then(|beside| beside.ids.settle(id, now)) else { return };
        for charge in &charges {
            // A spec with a cost of its own keeps what it charged, and so does a limit that is not named any more.
            let of_charge = call.specs.iter().zip(&seen.limits).find_map(|(spec, limit)| {
                let place = limit.place.filter(|_| !spec.own_cost)?;
                (self.parts.get(place)?.serial == charge.part).then_some((spec, place))
            });
            let settled = of_charge.filter(|_| amount != charge.cost);
            let Some((spec, part)) = settled.and_then(|(spec, place)| Some((spec, self.parts.get_mut(place)?))) else {
                forget(&mut self.parts, charge);
                continue;
            };
            with_limit!(spec, limit => part.settle(limit, charge, amount, now));
            if let Some(slower) = spec.slower {
                part.recovers_under(slower, now);
            }
            let kind = spec.limit.kind();
            self.delta.changed.push(Changed { serial: charge.part, kind, is_new: false, named: false });
        }
    }
}

impl Call<'_> {
    /// How long until a plain key has recovered, under the call's limit of its kind. If it has none, as the usage knows
    /// by itself, or not at all.
    #[must_use]
    pub fn reset_of_plain<U: Single>(&self, usage: &U, now: Timestamp) -> Span {
        let Some(spec) = self.specs.iter().find(|spec| spec.limit.kind() == U::KIND) else {
            return usage.time_to_recovery(now);
        };
        let reset = with_limit!(spec, limit => reset_of(limit, usage, now));
        // Until then the scale may have ended.
        let slower = spec.slower.map(|limit| Spec::of(*limit, Ask::Take(Amount::ZERO)));
        slower.map_or(reset, |spec| reset.max(with_limit!(spec, limit => reset_of(limit, usage, now))))
    }
}

/// Under a limit, if the usage is of its kind.
fn reset_of<L: Limit>(limit: &L, usage: &dyn Any, now: Timestamp) -> Span {
    usage.downcast_ref().map_or(Span::ZERO, |usage| limit.reset(usage, now))
}

/// Likewise.
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

impl Part {
    /// Makes it known by what the limit of a spec is known by, if it is by nothing yet.
    fn claim(&mut self, spec: &Spec) -> bool {
        let claims = self.known_by == KnownBy::Nothing;
        if claims {
            self.known_by = KnownBy::of(spec);
        }
        claims
    }

    /// Makes a change; what settling it takes, if it `may_be_settled`.
    pub(super) fn change<L: Limit>(
        &mut self,
        limit: &L,
        change: Change,
        may_be_settled: bool,
        now: Timestamp,
    ) -> Option<Charge>
    where
        L::Usage: Single,
    {
        let usage = L::Usage::of_mut(&mut self.usage)?;
        if let Some(track) = &mut self.track {
            track.before(limit, usage, now, change);
        }
        change.apply(limit, usage, now);
        self.recovers_at = now.plus(limit.reset(usage, now)).min(Timestamp::MAX);
        as_propagated(usage);
        match change {
            Change::Charge(cost) if may_be_settled && L::Usage::KIND != Kind::Concurrency => {
                self.track.get_or_insert_default().charge(usage, self.serial, cost)
            }
            _ => None,
        }
    }

    /// Stays at least as long as it needs under that limit too: the one that it was charged under may end before.
    fn recovers_under(&mut self, limit: &AnyLimit, now: Timestamp) {
        let spec = Spec::of(*limit, Ask::Take(Amount::ZERO));
        let reset = with_usage!(&self.usage, usage => with_limit!(spec, limit => reset_of(limit, usage, now)));
        self.recovers_at = self.recovers_at.max(now.plus(reset).min(Timestamp::MAX));
    }

    /// Makes usage what it would be had a charge been of `amount`.
    fn settle<L: Limit>(&mut self, limit: &L, charge: &Charge, amount: Amount, now: Timestamp)
    where
        L::Usage: Single,
    {
        let (Some(usage), Some(track)) = (L::Usage::of_mut(&mut self.usage), &mut self.track) else { return };
        // What lies before `now` is counted as of now first.
        track.settle(usage, charge, charge.cost.minus(amount));
        if amount > charge.cost {
            let more = Change::Charge(amount.minus(charge.cost));
            track.before(limit, usage, now, more);
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
