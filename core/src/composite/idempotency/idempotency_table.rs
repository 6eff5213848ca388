//! Recorded calls with ids: their outcomes and charges.
//!
//! The calls are indexed by id and ordered by expiry, like leases. Unlike an expired lease, an expired call remains
//! part of the state until a sweep removes it, because the same change has to remove its charges on every replica. Only
//! changes sweep, and each removes the first expired calls in the order of `(expires_at, id)`. So servers that apply
//! the same changes in the same order have equal states, byte for byte.

use super::idempotency_change::{encode_no_change, encode_recorded, encode_settled};
use super::recorded_call::{RecordedCall, decode_charges, encode_charges};
use super::settlement::Charge;
use crate::limit::Usage;
use crate::number::lazy_shift::Shift;
use crate::number::{Span, Timestamp};
use crate::record_table::{Block, Record, RecordPosition, RecordTable};
#[cfg(test)]
use crate::testing::step_counter;
use crate::wire::codec::{Decoder, Encoder};
use crate::wire::name;

/// Maximum number of expired ids that a change removes: more than a change can add, and few enough that their removal
/// takes no longer than the call itself.
const MAX_SWEPT: usize = 16;

/// Recorded calls of a key.
///
/// ```
/// use ratelimit_core::composite::idempotency::{IdempotencyTable, RecordedCall};
/// use ratelimit_core::{Span, Timestamp};
///
/// let (mut ids, now) = (IdempotencyTable::default(), Timestamp::EPOCH);
/// let later = |seconds| now.plus(Span::SECOND.times(seconds));
/// let charges = Box::default();
/// let call = RecordedCall {
///     expires_at: later(60), hold_until: later(2), settled: false, forced: false, granted: None, charges,
/// };
/// ids.record_call(b"req-17", &call);
/// // A repetition one second later reports the second that is left.
/// assert_eq!(ids.find(b"req-17", later(1)).unwrap().hold_until.since(later(1)), Span::SECOND);
/// assert_eq!(ids.find(b"req-17", later(60)), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct IdempotencyTable {
    calls: RecordTable,
    /// Span by which all timestamps are shifted back.
    shift: Shift,
    /// Change made by the current call.
    delta: IdempotencyDelta,
}

/// Change by a call, without the removal of expired ids.
#[derive(Clone, Copy, Debug, Default)]
enum IdempotencyDelta {
    #[default]
    Nothing,
    RecordedCall(RecordPosition),
    Settled(RecordPosition),
}

impl IdempotencyTable {
    /// Creates a table from the calls in a block.
    pub(super) fn of(block: Block) -> IdempotencyTable {
        IdempotencyTable { calls: RecordTable::of(block), ..IdempotencyTable::default() }
    }

    /// Moves the calls out into one block, with unshifted timestamps.
    pub(super) fn take_block(&mut self) -> Block {
        if self.shift != Shift::NONE {
            self.end_shift();
        }
        self.calls.take_block()
    }

    /// Returns the record of an id, which may have expired, and the shift of its timestamps.
    pub(super) fn record_of(&self, id: &[u8]) -> Option<(Record<'_>, Shift)> {
        self.calls.get(id).map(|record| (record, self.shift))
    }

    /// Returns the recorded call of an id; `None` if the id is unknown or has expired. `now` must not be before the
    /// last change of the key. If the clock moved backwards, callers pass the time of that change.
    #[must_use]
    pub fn find(&self, id: &[u8], now: Timestamp) -> Option<RecordedCall> {
        let (record, shift) = self.record_of(id)?;
        let call = RecordedCall::read(&record, shift).filter(|call| now < call.expires_at)?;
        Some(call.boxed())
    }

    /// Returns the earliest expiry of all ids.
    #[must_use]
    pub fn first_expiry(&self) -> Option<Timestamp> {
        self.calls.first().map(|first| self.shift.timestamp(first.at))
    }

    /// Removes some expired ids, and passes their charges, which can no longer be settled, to `forget_charge`. Must
    /// come first in each call that changes the key. `new_id`, the id that the call is about to record, is removed if
    /// it has expired.
    pub fn sweep(&mut self, now: Timestamp, new_id: Option<&[u8]>, mut forget_charge: impl FnMut(&Charge)) {
        self.delta = IdempotencyDelta::Nothing;
        let latest_expired = self.shift.mark(now);
        let mut forget = |record: &Record, shift| {
            if let Some(call) = RecordedCall::read(record, shift) {
                call.charges.for_each(|charge| forget_charge(&charge));
            }
        };
        for _ in 0..MAX_SWEPT {
            // If the first id has not expired, no id has, including `new_id`.
            let Some(first) = self.calls.first().filter(|first| first.at <= latest_expired) else { return };
            #[cfg(test)]
            step_counter::step();
            forget(&first, self.shift);
            self.calls.remove_first();
        }
        if let Some(id) = new_id
            && let Some(record) = self.calls.get(id).filter(|record| record.at <= latest_expired)
        {
            forget(&record, self.shift);
            self.calls.take(id, |_| ());
        }
    }

    /// Records a call under its id, which must have been passed to [`sweep`](IdempotencyTable::sweep) and must be
    /// unknown to [`find`](IdempotencyTable::find).
    pub fn record_call<C: AsRef<[Charge]>>(&mut self, id: &[u8], call: &RecordedCall<C>) {
        self.delta = IdempotencyDelta::RecordedCall(self.insert(id, call));
    }

    fn insert<C: AsRef<[Charge]>>(&mut self, id: &[u8], call: &RecordedCall<C>) -> RecordPosition {
        let (at, bytes) = call.record(id, self.shift);
        self.calls.insert(at, id, bytes)
    }

    /// Marks the call of an id as settled, and returns its charges, to be settled by the settlements of their
    /// components. Returns `None` if the id is unknown or was settled before.
    pub fn settle(&mut self, id: &[u8], now: Timestamp) -> Option<Box<[Charge]>> {
        let mut call = self.find(id, now).filter(|call| !call.settled)?;
        let charges = std::mem::take(&mut call.charges);
        call.settled = true;
        self.calls.take(id, |_| ());
        self.delta = IdempotencyDelta::Settled(self.insert(id, &call));
        Some(charges)
    }

    /// Shifts all timestamps back by `back`, because the clock moved backwards.
    pub fn move_back(&mut self, back: Span) {
        self.shift = self.shift.back(back);
        // Expiries before the epoch are set to the epoch, where calls are in the order of their ids.
        let reaches_epoch = self.calls.first().is_some_and(|first| first.at < self.shift.mark(Timestamp::EPOCH));
        if self.shift.is_far() || reaches_epoch {
            self.end_shift();
        }
    }

    /// Rewrites all calls with unshifted timestamps.
    fn end_shift(&mut self) {
        let shift = std::mem::take(&mut self.shift);
        self.rewrite(shift, |call| call);
    }

    /// Replaces each call, stored with `stored_shift`, by the result of `change`, stored with the shift of the table.
    fn rewrite(&mut self, stored_shift: Shift, change: impl Fn(RecordedCall) -> RecordedCall) {
        let shift = self.shift;
        self.calls.rewrite(|record| {
            #[cfg(test)]
            step_counter::step();
            let call = RecordedCall::read(&record, stored_shift).map(RecordedCall::boxed);
            call.map_or_else(|| (record.at, record.copy()), |call| change(call).record(record.name, shift))
        });
    }

    /// Shifts the places of a component's charges back with its usage, which is about to be moved back to `now`.
    pub fn move_charges_back<U: Usage>(&mut self, component: u8, usage: &U, now: Timestamp) {
        if usage.place().is_none() || !usage.is_after(now) {
            return;
        }
        self.rewrite(self.shift, |mut call| {
            let charges = call.charges.iter_mut().filter(|charge| charge.component == component);
            charges.for_each(|charge| charge.move_back(usage, now));
            call
        });
    }

    /// Returns the number of ids, including expired ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns `true` if there are no ids.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if the table has been indexed since it was last empty.
    pub(super) fn has_been_large(&self) -> bool {
        self.calls.is_indexed()
    }

    /// Returns the latest expiry of all ids.
    #[must_use]
    pub fn last_expiry(&self) -> Option<Timestamp> {
        self.calls.latest().map(|last| self.shift.timestamp(last))
    }

    /// Returns the approximate heap memory in bytes.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        self.calls.heap_size()
    }

    /// Returns the approximate number of allocations to free.
    #[must_use]
    pub fn free_effort(&self) -> usize {
        self.calls.free_effort()
    }

    /// Encodes all calls.
    pub fn encode(&self, to: &mut impl Encoder) {
        encode_calls(self.len(), self.calls.iter(), self.shift, to);
    }

    /// Decodes calls encoded by [`encode`](IdempotencyTable::encode), of a key that was last changed at `written`.
    /// Returns `None` if no calls can have led to them, or if `is_possible` returns `false` for a charge that can be
    /// settled.
    pub fn decode(
        from: &mut impl Decoder,
        written: Timestamp,
        mut is_possible: impl FnMut(&Charge) -> bool,
    ) -> Option<IdempotencyTable> {
        let mut ids = IdempotencyTable::default();
        let (mut last, mut last_id) = (None, Vec::new());
        for _ in 0..from.integer()? {
            let id = name::decode_boxed(from)?;
            let call = RecordedCall::decode(from, written)?;
            let call = call.with(decode_charges(from, Charge::decode, |charge| charge.component)?);
            let in_order = last.is_none_or(|at| (at, &*last_id) < (call.expires_at, &*id));
            let (at, bytes) = call.record(&id, ids.shift);
            let has_valid_charges = !call.settled || call.charges.is_empty();
            let sound = in_order && has_valid_charges && call.charges.iter().all(&mut is_possible);
            if !sound || !ids.calls.append_if_new(at, &id, bytes) {
                return None;
            }
            last = Some(call.expires_at);
            last_id.clear();
            last_id.extend_from_slice(&id);
        }
        Some(ids)
    }

    /// Encodes the change since the last call of this method, without the removal of expired ids. Must be called after
    /// every change, even if nothing is propagated.
    pub fn encode_effect(&mut self, to: &mut impl Encoder) {
        match std::mem::take(&mut self.delta) {
            IdempotencyDelta::Nothing => encode_no_change(to),
            IdempotencyDelta::Settled(position) => {
                if let Some(record) = self.calls.record_at(position) {
                    encode_settled(record.name, to);
                }
            }
            IdempotencyDelta::RecordedCall(position) => {
                if let Some(record) = self.calls.record_at(position)
                    && let Some(call) = RecordedCall::read(&record, self.shift)
                {
                    encode_recorded(record.name, &call, to);
                }
            }
        }
    }

    /// Discards the change that [`encode_effect`](IdempotencyTable::encode_effect) would encode.
    pub(super) fn discard_effect(&mut self) {
        self.delta = IdempotencyDelta::Nothing;
    }
}

/// Encodes the number of calls and each call.
pub(super) fn encode_calls<'a>(
    count: usize,
    calls: impl Iterator<Item = Record<'a>>,
    shift: Shift,
    to: &mut impl Encoder,
) {
    to.integer(u64::try_from(count).unwrap_or(0));
    for record in calls {
        let Some(call) = RecordedCall::read(&record, shift) else { continue };
        to.bytes(record.name);
        call.encode(to);
        encode_charges(call.charges, to);
    }
}

#[cfg(test)]
mod tests;
