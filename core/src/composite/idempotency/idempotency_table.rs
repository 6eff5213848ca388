//! Recorded calls with ids: the outcome and the charges of each.
//!
//! They are indexed by id and by the instant of expiry, like leases. Unlike an expired lease, an expired call remains
//! part of the state until it is swept, because its charges have to be removed by the same call on every replica. Only
//! changes sweep, and each sweeps the first expired calls in the order of `(expires_at, id)`. So servers that apply the
//! same changes in the same order have equal states, byte for byte.

use super::idempotency_change::{encode_no_effect, encode_recorded, encode_settled};
use super::recorded_call::{RecordedCall, decode_charges, encode_charges};
use super::settlement::Charge;
use crate::limit::Usage;
use crate::number::lazy_shift::Shift;
use crate::number::{Span, Timestamp};
use crate::record_table::{Block, Place, Record, RecordTable};
#[cfg(test)]
use crate::testing::step_counter;
use crate::wire::codec::{Decoder, Encoder};
use crate::wire::name;

/// Maximum number of expired ids that a change sweeps: more than it can add, and few enough that they take no longer
/// than the call itself.
const SWEPT: usize = 16;

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
/// ids.remember(b"req-17", &call);
/// // A repetition one second later reports the second that is left.
/// assert_eq!(ids.find(b"req-17", later(1)).unwrap().hold_until.since(later(1)), Span::SECOND);
/// assert_eq!(ids.find(b"req-17", later(60)), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct IdempotencyTable {
    calls: RecordTable,
    /// Distance by which all instants are shifted back.
    shift: Shift,
    /// Change of the current call.
    delta: IdempotencyDelta,
}

/// Change by a call, apart from sweeps.
#[derive(Clone, Copy, Debug, Default)]
enum IdempotencyDelta {
    #[default]
    Nothing,
    RecordedCall(Place),
    Settled(Place),
}

impl IdempotencyTable {
    /// Creates a table from the calls in a block.
    pub(super) fn of(block: Block) -> IdempotencyTable {
        IdempotencyTable { calls: RecordTable::of(block), ..IdempotencyTable::default() }
    }

    /// Moves the calls out into one block, with their instants unshifted.
    pub(super) fn take_block(&mut self) -> Block {
        if self.shift != Shift::NONE {
            self.end_shift();
        }
        self.calls.take_block()
    }

    /// Returns the record of an id, which may have expired, and the shift of its instants.
    pub(super) fn record_of(&self, id: &[u8]) -> Option<(Record<'_>, Shift)> {
        self.calls.get(id).map(|record| (record, self.shift))
    }

    /// Returns the recorded call of an id; `None` if there is none, or it has expired. `now` must not be before the
    /// last change of the key; if the clock moved backwards, callers pass the instant of that change.
    #[must_use]
    pub fn find(&self, id: &[u8], now: Timestamp) -> Option<RecordedCall> {
        let (record, shift) = self.record_of(id)?;
        let call = RecordedCall::read(&record, shift).filter(|call| now < call.expires_at)?;
        Some(call.boxed())
    }

    /// Returns the first instant at which an id expires.
    #[must_use]
    pub fn first_expiry(&self) -> Option<Timestamp> {
        self.calls.first().map(|first| self.shift.instant(first.at))
    }

    /// Sweeps some expired ids, and passes their charges to `gone`, because these can no longer be settled. Must come
    /// first in each call that changes the key. `coming`, the id of the call itself, is swept if it has expired.
    pub fn sweep(&mut self, now: Timestamp, coming: Option<&[u8]>, mut gone: impl FnMut(&Charge)) {
        self.delta = IdempotencyDelta::Nothing;
        let until = self.shift.mark(now);
        let mut forget = |record: &Record, shift| {
            if let Some(call) = RecordedCall::read(record, shift) {
                call.charges.for_each(|charge| gone(&charge));
            }
        };
        for _ in 0..SWEPT {
            // All other ids expire later, including `coming`.
            let Some(first) = self.calls.first().filter(|first| first.at <= until) else { return };
            #[cfg(test)]
            step_counter::step();
            forget(&first, self.shift);
            self.calls.remove_first();
        }
        if let Some(id) = coming
            && let Some(record) = self.calls.get(id).filter(|record| record.at <= until)
        {
            forget(&record, self.shift);
            self.calls.take(id, |_| ());
        }
    }

    /// Records a call under its id, which must have been passed to [`sweep`](IdempotencyTable::sweep), and which
    /// [`find`](IdempotencyTable::find) must not find.
    pub fn remember<C: AsRef<[Charge]>>(&mut self, id: &[u8], call: &RecordedCall<C>) {
        self.delta = IdempotencyDelta::RecordedCall(self.insert(id, call));
    }

    fn insert<C: AsRef<[Charge]>>(&mut self, id: &[u8], call: &RecordedCall<C>) -> Place {
        let (at, bytes) = call.record(id, self.shift);
        self.calls.insert(at, id, bytes)
    }

    /// Marks the call of an id as settled, and returns its charges, which the settlements of their components then
    /// settle. Returns `None` if the id is unknown or was settled before.
    pub fn settle(&mut self, id: &[u8], now: Timestamp) -> Option<Box<[Charge]>> {
        let mut call = self.find(id, now).filter(|call| !call.settled)?;
        let charges = std::mem::take(&mut call.charges);
        call.settled = true;
        self.calls.take(id, |_| ());
        self.delta = IdempotencyDelta::Settled(self.insert(id, &call));
        Some(charges)
    }

    /// Shifts all instants back by `back`, because the clock moved backwards.
    pub fn move_back(&mut self, back: Span) {
        self.shift = self.shift.back(back);
        // Instants before the epoch are set to the epoch, where calls are in the order of their ids.
        let reaches_epoch = self.calls.first().is_some_and(|first| first.at < self.shift.mark(Timestamp::EPOCH));
        if self.shift.is_far() || reaches_epoch {
            self.end_shift();
        }
    }

    /// Rewrites all calls with unshifted instants.
    fn end_shift(&mut self) {
        let shift = std::mem::take(&mut self.shift);
        self.rewrite(shift, |call| call);
    }

    /// Rewrites all calls, whose instants are shifted by `shift`.
    fn rewrite(&mut self, shift: Shift, change: impl Fn(RecordedCall) -> RecordedCall) {
        let now = self.shift;
        self.calls.rewrite(|record| {
            #[cfg(test)]
            step_counter::step();
            let call = RecordedCall::read(&record, shift).map(RecordedCall::boxed);
            call.map_or_else(|| (record.at, record.copy()), |call| change(call).record(record.name, now))
        });
    }

    /// Moves the charges of a component back with its usage, which is about to be moved back to `now`.
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

    /// Returns the last instant at which an id expires.
    #[must_use]
    pub fn last_expiry(&self) -> Option<Timestamp> {
        self.calls.latest().map(|last| self.shift.instant(last))
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
    /// Returns `None` if no calls can have led to them, or if `counts` returns `false` for a charge that can be
    /// settled.
    pub fn decode(
        from: &mut impl Decoder,
        written: Timestamp,
        mut counts: impl FnMut(&Charge) -> bool,
    ) -> Option<IdempotencyTable> {
        let mut ids = IdempotencyTable::default();
        let (mut last, mut last_id) = (None, Vec::new());
        for _ in 0..from.integer()? {
            let id = name::decode_boxed(from)?;
            let call = RecordedCall::decode(from, written, ())?;
            let charges = decode_charges(from, Charge::decode, |charge| charge.component)?;
            let call = call.with(charges);
            let in_order = last.is_none_or(|at| (at, &*last_id) < (call.expires_at, &*id));
            let (at, bytes) = call.record(&id, ids.shift);
            let is_possible = in_order && (!call.settled || call.charges.is_empty());
            let sound = is_possible && call.charges.iter().all(&mut counts);
            if !sound || !ids.calls.append_if_new(at, &id, bytes) {
                return None;
            }
            last = Some(call.expires_at);
            last_id.clear();
            last_id.extend_from_slice(&id);
        }
        Some(ids)
    }

    /// Encodes the change since the last call of this method, without sweeps. Must be called after every change, even
    /// if nothing is propagated.
    pub fn encode_effect(&mut self, to: &mut impl Encoder) {
        let delta = std::mem::take(&mut self.delta);
        let recorded = |place| self.calls.record_at(place);
        match delta {
            IdempotencyDelta::Nothing => encode_no_effect(to),
            IdempotencyDelta::Settled(place) => {
                if let Some(record) = recorded(place) {
                    encode_settled(record.name, to);
                }
            }
            IdempotencyDelta::RecordedCall(place) => {
                if let Some(record) = recorded(place)
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

    #[cfg(test)]
    pub(super) fn has_changed(&self) -> bool {
        !matches!(self.delta, IdempotencyDelta::Nothing)
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
