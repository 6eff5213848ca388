//! Leases of a key as a usage, with its encoding and effects.
//!
//! The words of an effect are: the tag (1: the change of a call; 0: the whole table follows, in its stored encoding);
//! the microseconds by which the leases were shifted back after the clock moved backwards; the time of the change; the
//! number of leases released, with their holders; the number of leases taken, 0 or 1, with holder, expiry and units.
//! The highest bit of the units is set if a fencing token follows.

use super::lease::Lease;
use super::lease_table::{ConcurrencyUsage, LeaseDelta, Leases, with_either_form};
use crate::limit::{InfoField, Token, Usage};
use crate::number::{Amount, Span, Timestamp};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{CHANGE, Decoder, Encoder};
use crate::wire::name;

/// Flag in the number of a lease's units, above the largest amount: a fencing token follows. So the encoding of a lease
/// without a token is that of versions without tokens.
const HAS_TOKEN: u64 = 1 << 63;

/// Encodes a lease.
fn encode_lease(to: &mut impl Encoder, holder: &[u8], Lease { expires_at, units, token }: Lease) {
    to.bytes(holder);
    to.integer(expires_at.micros());
    let flag = if token.is_some() { HAS_TOKEN } else { 0 };
    to.integer(units.millionths() | flag);
    if let Some(token) = token {
        to.integer(token.get());
    }
}

/// Decodes a lease.
fn decode_lease(from: &mut impl Decoder) -> Option<(Box<[u8]>, Lease)> {
    let holder = name::decode_boxed(from)?;
    let expires_at = Timestamp::from_micros(from.integer()?)?;
    let flagged_units = from.integer()?;
    let units = Amount::from_millionths(flagged_units & !HAS_TOKEN)?;
    let token = if flagged_units & HAS_TOKEN == 0 { None } else { Some(Token::new(from.integer()?)?) };
    // A token is the time of its lease in microseconds, or slightly more.
    let is_possible = token.is_none_or(|token| token.get() <= Timestamp::MAX.micros());
    is_possible.then_some((holder, Lease { expires_at, units, token }))
}

impl LeaseDelta<Box<[u8]>> {
    fn decode(from: &mut impl Decoder) -> Option<LeaseDelta<Box<[u8]>>> {
        let moved_back = Span::from_micros(from.integer()?);
        let changed_at = Timestamp::from_micros(from.integer()?)?;
        let mut released = Vec::new();
        for _ in 0..from.integer()? {
            released.push(name::decode_boxed(from)?);
        }
        let leased = if from.flag()? { Some(decode_lease(from)?) } else { None };
        Some(LeaseDelta { moved_back, changed_at, released, leased })
    }
}

impl Usage for ConcurrencyUsage {
    const KIND: UsageKind = UsageKind::Concurrency;
    const GROWS: bool = true;
    const PROPAGATES_CHANGES: bool = true;

    fn is_unused(&self) -> bool {
        match &self.leases {
            Leases::Few(leases) => leases.is_empty(),
            Leases::Many(leases) => leases.counted_sum.leases == 0,
        }
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.changed_at().since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        let span = self.ahead(now);
        self.move_back_by(span, now);
    }

    /// Returns the time until the last lease expires.
    fn time_to_recovery(&self, now: Timestamp) -> Span {
        with_either_form!(&self.leases, leases => leases.time_to_last_expiry(now))
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.changed_at().micros());
        to.integer(u64::try_from(self.entries()).unwrap_or(0));
        for (holder, lease) in self.counted_leases() {
            encode_lease(to, holder, lease);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<ConcurrencyUsage> {
        let changed_at = Timestamp::from_micros(from.integer()?)?;
        let mut usage = ConcurrencyUsage::empty_at(changed_at);
        let (mut previous, mut sum) = (None, Amount::ZERO);
        for _ in 0..from.integer()? {
            let (holder, lease) = decode_lease(from)?;
            let in_order =
                previous.is_none_or(|(at, name): (_, Box<[u8]>)| (at, &*name) < (lease.expires_at, &*holder));
            if !in_order || !lease.is_sound(changed_at, sum) || !usage.append(&holder, lease) {
                return None;
            }
            sum = sum.plus(lease.units);
            previous = Some((lease.expires_at, holder));
        }
        (!usage.is_unused()).then_some(usage)
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let LeaseDelta { moved_back, changed_at, released, leased } = self.take_delta();
        to.integer(CHANGE);
        to.integer(moved_back.micros());
        to.integer(changed_at.micros());
        to.integer(u64::try_from(released.len()).unwrap_or(0));
        for holder in &released {
            to.bytes(holder);
        }
        to.integer(u64::from(leased.is_some()));
        if let Some((holder, lease)) = leased {
            encode_lease(to, holder, lease);
        }
    }

    fn discard_effect(&mut self) {
        self.discard_delta();
    }

    fn latest_token(&self) -> u64 {
        self.latest_token
    }

    fn accepts_change(&self, tag: u64, from: &mut impl Decoder, latest: Timestamp) -> bool {
        let is_possible = |delta: LeaseDelta<_>| delta.changed_at <= latest && self.accepts(&delta);
        tag == CHANGE && LeaseDelta::decode(from).is_some_and(is_possible)
    }

    fn apply_change(&mut self, _tag: u64, from: &mut impl Decoder) {
        if let Some(delta) = LeaseDelta::decode(from) {
            self.apply_delta(delta);
        }
    }

    fn entries(&self) -> usize {
        match &self.leases {
            Leases::Few(leases) => leases.len(),
            Leases::Many(leases) => leases.counted_sum.leases,
        }
    }

    fn heap_size(&self) -> usize {
        with_either_form!(&self.leases, leases => leases.heap_size())
    }

    fn free_effort(&self) -> usize {
        match &self.leases {
            Leases::Few(_) => 1,
            Leases::Many(leases) => leases.free_effort(),
        }
    }

    fn describe(&self, now: Timestamp, _recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        const MAX_SHOWN: usize = 100;
        let live_sum = self.live_sum(now);
        let info = |(holder, lease): (&[u8], Lease)| (holder.into(), lease.units, lease.expires_at, lease.token);
        vec![
            ("used", InfoField::Amount(live_sum.units)),
            ("written", InfoField::Instant(self.changed_at())),
            ("holders", InfoField::Count(u64::try_from(live_sum.leases).unwrap_or(u64::MAX))),
            ("leases", InfoField::Leases(self.live(now).take(MAX_SHOWN).map(info).collect())),
        ]
    }
}
