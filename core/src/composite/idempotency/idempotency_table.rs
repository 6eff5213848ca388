//! The ids of calls, and what each call was answered and charged.
//!
//! They are kept by id and by the instant at which they expire, as leases are. The difference: what has expired stays a
//! part of the state until it is swept, as what was charged under it has to be forgotten at the same call on every
//! replica. Each change sweeps the first few by `(expires_at, id)`, and nothing else does; so who makes the same
//! changes in the same order holds the same, to the byte.

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

/// Number of expired ids that a change sweeps: more than one adds, and few enough to take no longer than the rest
/// of the call.
const SWEPT: usize = 16;

/// Ids that a key remembers.
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
/// // Sent again a second later, it is told to wait for one more.
/// assert_eq!(ids.find(b"req-17", later(1)).unwrap().hold_until.since(later(1)), Span::SECOND);
/// assert_eq!(ids.find(b"req-17", later(60)), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct IdempotencyTable {
    calls: RecordTable,
    /// Distance that all instants have moved back.
    shift: Shift,
    /// Change of the current call.
    delta: IdempotencyDelta,
}

/// Change of a call in the ids, besides what it sweeps.
#[derive(Clone, Copy, Debug, Default)]
enum IdempotencyDelta {
    #[default]
    Nothing,
    RecordedCall(Place),
    Settled(Place),
}

impl IdempotencyTable {
    /// Returns the table of the calls in a block.
    pub(super) fn of(block: Block) -> IdempotencyTable {
        IdempotencyTable { calls: RecordTable::of(block), ..IdempotencyTable::default() }
    }

    /// Returns the calls in one block, with their instants as they are, and leaves none.
    pub(super) fn take_block(&mut self) -> Block {
        if self.shift != Shift::NONE {
            self.end_shift();
        }
        self.calls.take_block()
    }

    /// Returns the record of an id, though it may have expired, and how far its instants have moved back.
    pub(super) fn record_of(&self, id: &[u8]) -> Option<(Record<'_>, Shift)> {
        self.calls.get(id).map(|record| (record, self.shift))
    }

    /// Returns what is remembered of the call of an id; `None` if there is none, or it has expired. `now` is not before the key
    /// was last changed: a look by a clock that has gone back is one at that time.
    #[must_use]
    pub fn find(&self, id: &[u8], now: Timestamp) -> Option<RecordedCall> {
        let (record, shift) = self.record_of(id)?;
        let call = RecordedCall::read(&record, shift).filter(|call| now < call.expires_at)?;
        Some(call.boxed())
    }

    /// Returns the instant at which the first one expires.
    #[must_use]
    pub fn first_expiry(&self) -> Option<Timestamp> {
        self.calls.first().map(|first| self.shift.instant(first.at))
    }

    /// Sweeps a few ids that have expired, and tells of the charges that can be settled no more: to be done first by
    /// each call that changes the key. An id that the call is about to be remembered by (`coming`) goes if it has
    /// expired.
    pub fn sweep(&mut self, now: Timestamp, coming: Option<&[u8]>, mut gone: impl FnMut(&Charge)) {
        self.delta = IdempotencyDelta::Nothing;
        let until = self.shift.mark(now);
        let mut forget = |record: &Record, shift| {
            if let Some(call) = RecordedCall::read(record, shift) {
                call.charges.for_each(|charge| gone(&charge));
            }
        };
        for _ in 0..SWEPT {
            // The others expire later, that of `coming` among them.
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

    /// Remembers a call by its id, which [`sweep`](IdempotencyTable::sweep) was told of and
    /// [`find`](IdempotencyTable::find) does not find.
    pub fn remember<C: AsRef<[Charge]>>(&mut self, id: &[u8], call: &RecordedCall<C>) {
        self.delta = IdempotencyDelta::RecordedCall(self.insert(id, call));
    }

    fn insert<C: AsRef<[Charge]>>(&mut self, id: &[u8], call: &RecordedCall<C>) -> Place {
        let (at, bytes) = call.record(id, self.shift);
        self.calls.insert(at, id, bytes)
    }

    /// Marks the call of an id as settled; returns its charges, which their settlements then settle. `None` if there is
    /// nothing to settle: the id is not known, or was settled.
    pub fn settle(&mut self, id: &[u8], now: Timestamp) -> Option<Box<[Charge]>> {
        let mut call = self.find(id, now).filter(|call| !call.settled)?;
        let charges = std::mem::take(&mut call.charges);
        call.settled = true;
        self.calls.take(id, |_| ());
        self.delta = IdempotencyDelta::Settled(self.insert(id, &call));
        Some(charges)
    }

    /// Moves all instants `back`, because the clock did.
    pub fn move_back(&mut self, back: Span) {
        self.shift = self.shift.back(back);
        if self.shift.is_far() {
            return self.end_shift();
        }
        // Instants end at the epoch; those that meet there are in the order of their ids.
        let epoch = self.shift.mark(Timestamp::EPOCH);
        while let Some(first) = self.calls.first().filter(|first| first.at < epoch) {
            #[cfg(test)]
            step_counter::step();
            let Some(call) = RecordedCall::read(&first, self.shift) else { return };
            let (id, call) = (Box::<[u8]>::from(first.name), call.boxed());
            self.calls.remove_first();
            self.insert(&id, &call);
        }
    }

    /// Writes all calls anew, with their instants as they are.
    fn end_shift(&mut self) {
        let shift = std::mem::take(&mut self.shift);
        self.rewrite(shift, |call| call);
    }

    /// Writes all calls anew, which have moved back by `shift`.
    fn rewrite(&mut self, shift: Shift, change: impl Fn(RecordedCall) -> RecordedCall) {
        let now = self.shift;
        self.calls.rewrite(|record| {
            #[cfg(test)]
            step_counter::step();
            let call = RecordedCall::read(&record, shift).map(RecordedCall::boxed);
            call.map_or_else(|| (record.at, record.copy()), |call| change(call).record(record.name, now))
        });
    }

    /// Moves the charges of a component along with its usage, which is about to be moved back to `now`.
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

    /// Returns the number of ids, some of which may have expired.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns `true` if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if there have been more than a few since there was none.
    pub(super) fn has_been_large(&self) -> bool {
        self.calls.is_indexed()
    }

    /// Returns the instant at which the last one expires.
    #[must_use]
    pub fn last_expiry(&self) -> Option<Timestamp> {
        self.calls.latest().map(|last| self.shift.instant(last))
    }

    /// Returns the number of bytes that it holds beside itself, about.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        self.calls.heap_size()
    }

    /// Returns the number of allocations that it takes to free it, about.
    #[must_use]
    pub fn free_effort(&self) -> usize {
        self.calls.free_effort()
    }

    /// Writes it out, field by field.
    pub fn encode(&self, to: &mut impl Encoder) {
        encode_calls(self.len(), self.calls.iter(), self.shift, to);
    }

    /// Reads what [`encode`](IdempotencyTable::encode) wrote of a key that was last changed at `written`. `None` unless
    /// calls can have led to it, and `counts` takes every charge that may be settled.
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
            if !sound || !ids.calls.append(at, &id, bytes) {
                return None;
            }
            last = Some(call.expires_at);
            last_id.clear();
            last_id.extend_from_slice(&id);
        }
        Some(ids)
    }

    /// Writes out what has changed since the last time that this was asked, but for what was swept. To be asked after
    /// every change, even if nothing is propagated.
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

    /// Forgets what [`encode_effect`](IdempotencyTable::encode_effect) would write.
    pub(super) fn discard_effect(&mut self) {
        self.delta = IdempotencyDelta::Nothing;
    }

    #[cfg(test)]
    pub(super) fn has_changed(&self) -> bool {
        !matches!(self.delta, IdempotencyDelta::Nothing)
    }
}

/// Writes out calls behind their number, field by field.
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
