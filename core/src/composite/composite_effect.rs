//! Effect of a call on a composite key: its encoding, its validation and its application on a replica.
//!
//! Fields of an effect, in the order in which a replica applies them:
//!
//! * 2 (0: the whole key follows, in a rewritten AOF);
//! * the time of the change, and the span by which the clock moved backwards;
//! * 1, or 0 if the call only moved the timestamps back: then no field follows;
//! * the change of the idempotency keys: 0 for none; 1 for a recorded call, with its id, its expiry, the end of the
//!   hold, flags, and the charge of each component; 2 for a settled call, with its id;
//! * the number of changed components, and for each of them a tag, its identity if it is new, the time of its recovery,
//!   the effect on its usage unless it is unused, and the change of its settlement if there is one;
//! * 1 and the ban if it has changed, otherwise 0.
//!
//! A tag is the number `(((version - 1) * 32 + serial number) * 16 + kind) * 8 + flags`, with the version of the
//! encoding of the component's usage, and flags that tell which fields of the component follow.

use super::component::{Component, ComponentChange};
use super::component_head::{ComponentHead, ComponentTag};
use super::idempotency::{Charge, IdempotencyChange, IdempotencyRecords, encode_no_change};
use super::{ComponentIdentity, CompositeUsage, MAX_COMPONENTS};
use crate::algorithm::any::{AnyUsage, PlainUsage, with_usage};
use crate::algorithm::bucket::BucketUsage;
use crate::ban::Ban;
use crate::limit::Usage;
use crate::number::{Span, Timestamp};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{Decoder, Encoder};

/// Maximum number of components that one call can change.
const MAX_CHANGED: u64 = 8;

/// Returns `true` if a call at `now` can have had the encoded effect on a component's usage.
fn accepts_usage<U: Usage>(usage: &U, from: &mut impl Decoder, head: &ComponentHead, now: Timestamp) -> bool {
    (1..=U::VERSION).contains(&head.tag.version)
        && (!head.tag.is_used || usage.accepts_effect_until(from, head.tag.version, now))
}

fn apply_usage<U: Usage>(usage: &mut U, from: &mut impl Decoder, head: &ComponentHead) {
    if head.tag.is_used {
        usage.apply_effect(from, head.tag.version);
    } else {
        *usage = U::default();
    }
}

impl CompositeUsage {
    /// Returns `Some` if a call on this key can have made the encoded change at `latest` or before.
    pub(super) fn accepts_until(&self, from: &mut impl Decoder, latest: Timestamp) -> Option<()> {
        let written = Timestamp::from_micros(from.integer()?).filter(|written| *written <= latest)?;
        let moved_back = Span::from_micros(from.integer()?);
        if moved_back != Span::ZERO {
            if written.plus(moved_back) != self.written {
                return None;
            }
            // A clock that moved backwards is rare, so copying the key is affordable.
            let mut moved = self.clone();
            moved.move_back(written);
            return moved.accepts_rest(from, written);
        }
        if written < self.written { None } else { self.accepts_rest(from, written) }
    }

    /// Returns `Some` if a call at `now` can have converted the plain usage `plain` to this key with the encoded
    /// change.
    pub(super) fn accepts_conversion_at<U: PlainUsage>(
        &self,
        now: Timestamp,
        plain: Option<&U>,
        from: &mut impl Decoder,
    ) -> Option<()> {
        // A conversion moves the plain usage back itself, so this field is 0. Every conversion changes something.
        let moved_back = Span::from_micros(from.integer()?);
        let changes = moved_back == Span::ZERO && from.flag()?;
        if changes { self.accepts_full_change(from, now, plain) } else { None }
    }

    fn accepts_rest(&self, from: &mut impl Decoder, written: Timestamp) -> Option<()> {
        if from.flag()? { self.accepts_full_change(from, written, None::<&BucketUsage>) } else { Some(()) }
    }

    /// Returns `Some` if a call at `written` can have made the encoded change, which is more than a clock step back.
    /// `plain`, if present, holds the usage of the first component.
    fn accepts_full_change<U: PlainUsage>(
        &self,
        from: &mut impl Decoder,
        written: Timestamp,
        plain: Option<&U>,
    ) -> Option<()> {
        let id_change = IdempotencyChange::decode(from, written)?;
        let no_records = IdempotencyRecords::default();
        let records = self.extras().map_or(&no_records, |extras| &extras.records);
        if !id_change.is_possible(written, |id| records.find(id, written)) {
            return None;
        }
        let settled = match &id_change {
            IdempotencyChange::Settled(id) => records.charges_of(id, written),
            IdempotencyChange::Nothing | IdempotencyChange::RecordedCall(..) => Box::default(),
        };
        let mut changed: Vec<ComponentHead> = Vec::new();
        for _ in 0..from.integer().filter(|components| *components <= MAX_CHANGED)? {
            let head = ComponentHead::decode(from)?;
            let charge = settled.iter().find(|charge| charge.component == head.tag.serial);
            let accepted = match self.component(head.tag.serial) {
                Some(component) if component.kind() == head.tag.kind => {
                    (head.identity.is_none() || component.is_unclaimed())
                        && match plain {
                            Some(plain) => accepts_usage(plain, from, &head, written),
                            None => with_usage!(&component.usage, usage => accepts_usage(usage, from, &head, written)),
                        }
                        && (!head.tag.changes_settlement
                            || records.accepts_settlement_effect(head.tag.serial, from, charge))
                }
                // The serial number need not be the smallest free one: the effect omits components that the call has
                // added and that have recovered at once.
                None if head.identity.is_some() => {
                    let unused = AnyUsage::unused(head.tag.kind)?;
                    with_usage!(&unused, usage => accepts_usage(usage, from, &head, written))
                        && (!head.tag.changes_settlement
                            || no_records.accepts_settlement_effect(head.tag.serial, from, None))
                }
                _ => false,
            };
            if !accepted || !self.is_unique(&head, &changed) {
                return None;
            }
            changed.push(head);
        }
        let new = changed.iter().filter(|head| self.component(head.tag.serial).is_none()).count();
        let is_in_use = |_, component: &Component| {
            changed.iter().any(|head| head.tag.serial == component.serial() && head.is_in_use(written))
        };
        if new > 0 && self.component_count_with(new, is_in_use, written) > MAX_COMPONENTS {
            return None;
        }
        if let IdempotencyChange::RecordedCall(_, call) = &id_change {
            let is_charged = |component: u8| {
                changed.iter().any(|head| {
                    head.tag.serial == component && head.tag.kind != UsageKind::Concurrency && head.tag.is_used
                })
            };
            call.charges.iter().all(|(component, _)| is_charged(*component)).then_some(())?;
        }
        if from.flag()? { Ban::decode(from, written).map(|_| ()) } else { Some(()) }
    }

    /// Returns `true` if no other component of the key has the same identity, and no component in `earlier` has the
    /// same identity or serial number. `earlier` lists the previous components of the effect.
    fn is_unique(&self, head: &ComponentHead, earlier: &[ComponentHead]) -> bool {
        let collides = |kind: UsageKind, identity: &ComponentIdentity| {
            let new = head.identity.as_ref();
            new.is_some_and(|new| kind == head.tag.kind && (new == identity || kind == UsageKind::Concurrency))
        };
        let others = self.components.iter().filter(|component| component.serial() != head.tag.serial);
        others.into_iter().all(|component| !collides(component.kind(), &component.identity(self.extras())))
            && earlier.iter().all(|other| {
                other.tag.serial != head.tag.serial
                    && other.identity.as_ref().is_none_or(|identity| !collides(other.tag.kind, identity))
            })
    }

    /// Applies an accepted change that was made at `written`. `from` starts at the field after that time. Returns
    /// `None` if the change is truncated.
    pub(super) fn apply_change_at(&mut self, written: Timestamp, from: &mut impl Decoder) -> Option<()> {
        if from.integer()? != 0 {
            self.move_back(written);
        }
        if !from.flag()? {
            self.discard_effect();
            return Some(());
        }
        let id_change = IdempotencyChange::decode(from, written)?;
        let new_id = if let IdempotencyChange::RecordedCall(id, _) = &id_change { Some(&**id) } else { None };
        self.begin(written, new_id);
        let settled = match &id_change {
            IdempotencyChange::Settled(id) => {
                self.extras.as_mut().and_then(|extras| extras.records.settle(id, written)).unwrap_or_default()
            }
            IdempotencyChange::Nothing | IdempotencyChange::RecordedCall(..) => Box::default(),
        };
        let mut changed_settlements = Vec::new();
        for _ in 0..from.integer()? {
            self.change_component(from, &settled, &mut changed_settlements)?;
        }
        if let Some(extras) = &mut self.extras {
            // The effect omits a settlement if nothing was taken back, or if the component was removed.
            for charge in settled.iter().filter(|charge| !changed_settlements.contains(&charge.component)) {
                extras.records.forget(charge);
            }
        }
        if let IdempotencyChange::RecordedCall(id, call) = id_change {
            let mut charges = Vec::with_capacity(call.charges.len());
            for (serial, cost) in call.charges.iter().copied() {
                let index = self.index_of_serial(serial)?;
                let records = &mut self.extras.get_or_insert_default().records;
                let usage = &self.components.get(index)?.usage;
                charges.extend(with_usage!(usage, usage => records.charge(serial, usage, cost)));
            }
            self.extras_mut().records.record_call(&id, &call.with(charges));
        }
        if from.flag()? {
            self.extras_mut().set_ban(Ban::decode(from, written)?);
        }
        self.end(written);
        // Discards the recorded change: it is not propagated again.
        self.discard_effect();
        Some(())
    }

    /// Applies the change of one component. Adds its serial number to `changed_settlements` if the effect changes its
    /// settlement.
    fn change_component(
        &mut self,
        from: &mut impl Decoder,
        settled: &[Charge],
        changed_settlements: &mut Vec<u8>,
    ) -> Option<()> {
        let mut head = ComponentHead::decode(from)?;
        if self.component(head.tag.serial).is_none() {
            self.push(Component::new(head.tag.serial, AnyUsage::unused(head.tag.kind)?, Timestamp::EPOCH));
        }
        let index = self.index_of_serial(head.tag.serial)?;
        if let Some(identity) = head.identity.take() {
            self.set_identity(index, identity);
        }
        let component = self.components.get_mut(index)?;
        component.recovers_at = head.recovers_at;
        with_usage!(&mut component.usage, mut usage => apply_usage(usage, from, &head));
        let charge = settled.iter().find(|charge| charge.component == head.tag.serial);
        if head.tag.changes_settlement {
            match &mut self.extras {
                Some(extras) => extras.records.apply_settlement_effect(head.tag.serial, from, charge),
                None => IdempotencyRecords::default().apply_settlement_effect(head.tag.serial, from, charge),
            }
            changed_settlements.push(head.tag.serial);
        }
        Some(())
    }

    /// Encodes a change of a call that is more than a clock step back. Includes the ban if `ban_changed` is
    /// `true`. `removed` lists the removed components.
    pub(super) fn encode_full_effect(&mut self, ban_changed: bool, removed: &[(u8, UsageKind)], to: &mut impl Encoder) {
        let CompositeUsage { components, extras, .. } = self;
        let mut extras = extras.as_deref_mut();
        match &mut extras {
            Some(extras) => extras.records.encode_effect(to),
            None => encode_no_change(to),
        }
        let changed = components.iter().filter(|component| component.change() != ComponentChange::Nothing).count();
        to.integer(u64::try_from(changed.saturating_add(removed.len())).unwrap_or(0));
        for (serial, kind) in removed {
            ComponentHead::encode_removed(*serial, *kind, to);
        }
        for component in components.iter_mut() {
            let change = component.change();
            if change == ComponentChange::Nothing {
                continue;
            }
            component.set_change(ComponentChange::Nothing);
            let serial = component.serial();
            let changes_settlement = extras.as_ref().is_some_and(|extras| extras.records.has_settlement_effect(serial));
            let has_identity = change != ComponentChange::Usage;
            let (version, is_used) = with_usage!(&component.usage, usage => version_and_is_used(usage));
            let kind = component.kind();
            ComponentTag { serial, kind, version, has_identity, is_used, changes_settlement }.encode(to);
            if has_identity {
                component.identity(extras.as_deref()).encode(to);
            }
            to.integer(component.recovers_at.micros());
            with_usage!(&mut component.usage, mut usage => encode_effect_of(usage, to));
            if let Some(extras) = &mut extras {
                extras.records.encode_settlement_effect(serial, to);
            }
        }
        to.integer(u64::from(ban_changed));
        if ban_changed {
            extras.map_or_else(Ban::default, |extras| extras.ban()).encode(to);
        }
    }
}

/// Returns the version of the usage's encoding, and `true` if anything is used.
fn version_and_is_used<U: Usage>(usage: &U) -> (u32, bool) {
    (U::VERSION, !usage.is_unused())
}

fn encode_effect_of<U: Usage>(usage: &mut U, to: &mut impl Encoder) {
    if usage.is_unused() {
        usage.discard_effect();
    } else {
        usage.encode_effect(to);
    }
}
