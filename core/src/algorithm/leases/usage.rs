//! Leases of a key as a usage, with its encoding and effects.
//!
//! The words of an effect are: 1 (0: the whole table follows, in a rewritten AOF); the microseconds by which the leases
//! were shifted back after the clock moved backwards; the instant of the change; the number of leases released, with
//! their holders; 0 or 1 leases taken, with holder, expiry and cost. The highest bit of the cost is set if a fencing
//! token follows.

use super::lease::Lease;
use super::lease_table::{ConcurrencyUsage, LeaseDelta};
use crate::limit::Token;
use crate::limit::{InfoField, Usage};
use crate::number::{Amount, Span, Timestamp};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{CHANGE, Decoder, Encoder, WHOLE};
use crate::wire::name;

/// Bit of a lease's units, above the largest amount: a fencing token follows. So a lease without a token is encoded as
/// in versions that had no tokens.
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
    let flagged = from.integer()?;
    let units = Amount::from_millionths(flagged & !HAS_TOKEN)?;
    let token = if flagged & HAS_TOKEN == 0 { None } else { Some(Token::new(from.integer()?)?) };
    // A token is an instant of the clock in microseconds, or slightly more.
    let possible = token.is_none_or(|token| token.get() <= Timestamp::MAX.micros());
    possible.then_some((holder, Lease { expires_at, units, token }))
}

impl LeaseDelta<Box<[u8]>> {
    fn decode(from: &mut impl Decoder) -> Option<LeaseDelta<Box<[u8]>>> {
        let moved_back = Span::from_micros(from.integer()?);
        let written = Timestamp::from_micros(from.integer()?)?;
        let mut released = Vec::new();
        for _ in 0..from.integer()? {
            released.push(name::decode_boxed(from)?);
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
    const KIND: UsageKind = UsageKind::Concurrency;
    const GROWS: bool = true;

    fn is_unused(&self) -> bool {
        self.is_empty()
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.written().since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        let span = self.ahead(now);
        self.move_back_by(span, now);
    }

    fn time_to_recovery(&self, now: Timestamp) -> Span {
        self.time_to_last_expiry(now)
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.written().micros());
        to.integer(u64::try_from(self.count()).unwrap_or(0));
        for (holder, lease) in self.counted() {
            encode_lease(to, holder, lease);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<ConcurrencyUsage> {
        let written = Timestamp::from_micros(from.integer()?)?;
        let mut usage = ConcurrencyUsage::of(written);
        let (mut last, mut others) = (None, Amount::ZERO);
        for _ in 0..from.integer()? {
            let (holder, lease) = decode_lease(from)?;
            let in_order = last.is_none_or(|(at, last): (_, Box<[u8]>)| (at, &*last) < (lease.expires_at, &*holder));
            if !in_order || !lease.is_sound(written, others) || !usage.append(&holder, lease) {
                return None;
            }
            others = others.plus(lease.units);
            last = Some((lease.expires_at, holder));
        }
        (!usage.is_unused()).then_some(usage)
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let LeaseDelta { moved_back, written, released, leased } = self.delta();
        to.integer(CHANGE);
        to.integer(moved_back.micros());
        to.integer(written.micros());
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
        self.latest_of_tokens()
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
            _ => {
                if let Some(delta) = LeaseDelta::decode(from) {
                    self.change(delta);
                }
            }
        }
    }

    fn entries(&self) -> usize {
        self.count()
    }

    fn heap_size(&self) -> usize {
        self.bytes()
    }

    fn free_effort(&self) -> usize {
        self.blocks()
    }

    fn describe(&self, now: Timestamp, _recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        const SHOWN: usize = 100;
        let (present, leases) = (self.present(now), self.live(now).take(SHOWN));
        vec![
            ("used", InfoField::Amount(present.units)),
            ("written", InfoField::Instant(self.written())),
            ("holders", InfoField::Count(u64::try_from(present.leases).unwrap_or(u64::MAX))),
            (
                "leases",
                InfoField::Leases(
                    leases
                        .map(|(holder, lease)| (Box::from(holder), lease.units, lease.expires_at, lease.token))
                        .collect(),
                ),
            ),
        ]
    }
}
