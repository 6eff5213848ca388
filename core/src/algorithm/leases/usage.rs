//! The table of leases as a usage: what is stored of it, and what is propagated of a call.

use super::table::{ConcurrencyUsage, HeldLease, Lease, LeaseDelta, is_lease};
use crate::kind::Kind;
use crate::limit::{InfoField, Usage};
use crate::number::{Amount, Span, Timestamp};
use crate::wire::codec::{CHANGE, Decoder, Encoder, WHOLE};
use crate::wire::name;
use crate::wire::name::{Kept, Name};

/// A lease, written out.
fn encode_lease(to: &mut impl Encoder, holder: &[u8], Lease { expires_at, units }: Lease) {
    to.bytes(holder);
    to.integer(expires_at.micros());
    to.integer(units.millionths());
}

/// A lease, read back.
fn decode_lease(from: &mut impl Decoder) -> Option<(Kept, Lease)> {
    let holder = name::decode(from)?;
    let expires_at = Timestamp::from_micros(from.integer()?)?;
    let units = Amount::from_millionths(from.integer()?)?;
    Some((holder, Lease { expires_at, units }))
}

impl LeaseDelta {
    fn decode(from: &mut impl Decoder) -> Option<LeaseDelta> {
        let moved_back = Span::from_micros(from.integer()?);
        let written = Timestamp::from_micros(from.integer()?)?;
        let mut released = Vec::new();
        for _ in 0..from.integer()? {
            released.push(name::decode(from)?);
        }
        let leased = match from.integer()? {
            0 => None,
            1 => Some(decode_lease(from)?),
            _ => return None,
        };
        Some(LeaseDelta { moved_back, written, released, leased })
    }
}

impl Usage for ConcurrencyUsage {
    const KIND: Kind = Kind::Concurrency;
    const GROWS: bool = true;

    fn is_unused(&self) -> bool {
        self.counted.leases == 0
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.written.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        let span = self.ahead(now);
        self.go_on(span, now);
        self.delta.moved_back = span;
    }

    fn time_to_recovery(&self, now: Timestamp) -> Span {
        self.time_to_last_expiry(now)
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.written.micros());
        to.integer(u64::try_from(self.counted.leases).unwrap_or(0));
        for (holder, lease) in self.counted() {
            encode_lease(to, holder, lease);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<ConcurrencyUsage> {
        let written = Timestamp::from_micros(from.integer()?)?;
        let mut usage = ConcurrencyUsage { written, ..ConcurrencyUsage::default() };
        usage.expired.get_mut().by = written;
        for _ in 0..from.integer()? {
            let (holder, lease) = decode_lease(from)?;
            let last = usage.by_expiry.last_key_value();
            let in_order =
                last.is_none_or(|(last, _)| (last.0, &last.1) < (usage.shift.mark(lease.expires_at), &holder));
            let name = Name::of(&holder);
            let twice = usage.lease_of(name).is_some();
            if !in_order || twice || !is_lease(written, lease, usage.counted.units) {
                return None;
            }
            usage.lease(name, lease);
        }
        (!usage.is_unused()).then_some(usage)
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let LeaseDelta { moved_back, written, released, leased } = std::mem::take(&mut self.delta);
        to.integer(CHANGE);
        to.integer(moved_back.micros());
        to.integer(written.micros());
        to.integer(u64::try_from(released.len()).unwrap_or(0));
        for holder in &released {
            to.bytes(holder);
        }
        to.integer(u64::from(leased.is_some()));
        if let Some((holder, lease)) = leased {
            encode_lease(to, &holder, lease);
        }
    }

    fn encode_whole_effect(&self, to: &mut impl Encoder) {
        to.integer(WHOLE);
        self.encode(to);
    }

    fn accepts_effect_until(&self, from: &mut impl Decoder, version: u32, latest: Timestamp) -> bool {
        match from.integer() {
            Some(WHOLE) => ConcurrencyUsage::decode(from, version).is_some_and(|usage| !usage.is_after(latest)),
            Some(CHANGE) => {
                LeaseDelta::decode(from).is_some_and(|delta| delta.written <= latest && self.accepts(&delta))
            }
            _ => false,
        }
    }

    fn apply_effect(&mut self, from: &mut impl Decoder, version: u32) {
        match from.integer() {
            Some(WHOLE) => *self = ConcurrencyUsage::decode(from, version).unwrap_or_default(),
            _ => self.change(LeaseDelta::decode(from).unwrap_or_default()),
        }
    }

    fn entries(&self) -> usize {
        self.counted.leases
    }

    fn heap_size(&self) -> usize {
        // An estimate: a node of the tree has room for 11 entries and holds 6 or more, but for the only one; the table
        // has a byte beside each of its places, an eighth of which stay free.
        const NODE: usize = 384;
        const PLACE: usize = size_of::<HeldLease>() + 1;
        let nodes = self.by_expiry.len().div_ceil(6).saturating_mul(NODE);
        let places = self.by_holder.capacity().saturating_mul(8).div_ceil(7).saturating_mul(PLACE);
        nodes.saturating_add(places).saturating_add(self.names)
    }

    fn effort(&self) -> usize {
        self.by_holder.len()
    }

    fn describe(&self, _now: Timestamp) -> Vec<(&'static str, InfoField)> {
        const SHOWN: usize = 100;
        let leases = self.counted().take(SHOWN);
        vec![
            ("used", InfoField::Amount(self.counted.units)),
            ("written", InfoField::Instant(self.written)),
            ("holders", InfoField::Count(u64::try_from(self.counted.leases).unwrap_or(u64::MAX))),
            (
                "leases",
                InfoField::Leases(
                    leases.map(|(holder, lease)| (Box::from(&**holder), lease.units, lease.expires_at)).collect(),
                ),
            ),
        ]
    }
}
