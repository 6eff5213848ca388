//! Change of the idempotency records of a key by one call, as encoded in effects.

use super::recorded_call::{Charges, RecordedCall, decode_charges};
use super::settlement::is_cost;
use crate::number::{Amount, Timestamp};
use crate::wire::codec::{Decoder, Encoder};
use crate::wire::name;

/// Tag of a change: none.
pub(super) const NOTHING: u64 = 0;
/// Tag of a change: a recorded call.
pub(super) const RECORDS: u64 = 1;
/// Tag of a change: a settled call.
pub(super) const SETTLES: u64 = 2;

/// Change of the idempotency records by one call. The removal of expired records is not part of it: a server that
/// applies the effect of the call removes the same records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyChange {
    /// No change.
    Nothing,
    /// Recorded call: its id, and its record with the amount charged to each component.
    RecordedCall(Box<[u8]>, RecordedCall<Box<[(u8, Amount)]>>),
    /// Settled call: its id.
    Settled(Box<[u8]>),
}

/// Encodes that a call changed no record.
pub fn encode_no_change(to: &mut impl Encoder) {
    to.integer(NOTHING);
}

/// Encodes that the call with an id was settled.
pub fn encode_settled(id: &[u8], to: &mut impl Encoder) {
    to.integer(SETTLES);
    to.bytes(id);
}

/// Encodes that a call was recorded under an id.
pub(super) fn encode_recorded(id: &[u8], call: &RecordedCall<Charges>, to: &mut impl Encoder) {
    to.integer(RECORDS);
    to.bytes(id);
    call.encode(to);
    to.integer(u64::try_from(call.charges.len()).unwrap_or(0));
    for charge in call.charges.clone() {
        to.integer(u64::from(charge.component));
        to.integer(charge.cost.millionths());
    }
}

impl IdempotencyChange {
    /// Returns `true` if a call can have made this change at `now`. `find` returns the record of an id before the call.
    pub fn is_possible<C>(&self, now: Timestamp, find: impl FnOnce(&[u8]) -> Option<RecordedCall<C>>) -> bool {
        match self {
            IdempotencyChange::Nothing => true,
            IdempotencyChange::RecordedCall(id, call) => {
                // A call at the latest time expires at that time.
                find(id).is_none() && !call.settled && (call.expires_at > now || now == Timestamp::MAX)
            }
            IdempotencyChange::Settled(id) => find(id).is_some_and(|call| !call.settled),
        }
    }

    /// Decodes the change of a call at `now`, as encoded by
    /// [`IdempotencyRecords::encode_effect`](super::IdempotencyRecords::encode_effect).
    pub fn decode(from: &mut impl Decoder, now: Timestamp) -> Option<IdempotencyChange> {
        match from.integer()? {
            NOTHING => Some(IdempotencyChange::Nothing),
            SETTLES => name::decode_boxed(from).map(IdempotencyChange::Settled),
            RECORDS => {
                let id = name::decode_boxed(from)?;
                let call = RecordedCall::decode(from, now)?;
                let charges = decode_charges(from, decode_cost, |(component, _)| *component)?;
                Some(IdempotencyChange::RecordedCall(id, call.with(charges)))
            }
            _ => None,
        }
    }
}

/// Decodes the charge of a component.
fn decode_cost(from: &mut impl Decoder) -> Option<(u8, Amount)> {
    let component = u8::try_from(from.integer()?).ok()?;
    let cost = Amount::from_millionths(from.integer()?)?;
    is_cost(cost).then_some((component, cost))
}
