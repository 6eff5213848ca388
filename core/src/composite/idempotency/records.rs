//! Idempotency records of a key: the calls with ids, and the settlement of each component that they charged.
//!
//! Few calls are packed into one block at rest ([`packed`](super::packed)). A call that changes them unpacks them until
//! its effect is encoded. More than [`MAX_PACKED_CALLS`] stay unpacked until a quarter of that number is left. The
//! stored and propagated encoding is the same for both forms.

use super::idempotency_change::encode_no_change;
use super::idempotency_table::encode_calls;
use super::packed::{MAX_PACKED_CALLS, Packed, pack};
use super::settlement::{Charge, Settlement};
use super::{IdempotencyTable, RecordedCall};
use crate::evaluate::Change;
use crate::limit::{Limit, Usage};
use crate::number::lazy_shift::Shift;
use crate::number::{Amount, Span, Timestamp};
use crate::record_table::{Block, Record};
use crate::wire::codec::{Decoder, Encoder};

/// Idempotency records of a key.
///
/// The steps of a call, in this order, if they apply: [`sweep`](IdempotencyRecords::sweep),
/// [`settle`](IdempotencyRecords::settle), for each component [`settle_charge`](IdempotencyRecords::settle_charge),
/// [`before_change`](IdempotencyRecords::before_change), the change, [`charge`](IdempotencyRecords::charge), and then
/// [`record_call`](IdempotencyRecords::record_call). [`close`](IdempotencyRecords::close) comes last, after the effect
/// is encoded.
#[derive(Clone, Debug)]
pub struct IdempotencyRecords(Form);

#[derive(Clone, Debug)]
enum Form {
    /// Packed records of few calls, at rest.
    Packed(Box<[u8]>),
    /// Records of many calls, or of few that a call is about to change.
    Open(Box<OpenRecords>),
}

const _: () = assert!(size_of::<Form>() == 16, "most keys with records have few");

/// Unpacked records, which can be changed.
#[derive(Clone, Debug, Default)]
pub struct OpenRecords {
    /// Calls by id.
    pub(in crate::composite) calls: IdempotencyTable,
    /// Settlements of components, by their serial numbers.
    settlements: Vec<(u8, Settlement)>,
}

impl OpenRecords {
    fn settlement(&self, serial: u8) -> Option<&Settlement> {
        self.settlements.iter().find(|(stored, _)| *stored == serial).map(|(_, settlement)| settlement)
    }
}

/// Returns the settlement of the component with a serial number.
fn settlement_of(settlements: &mut [(u8, Settlement)], serial: u8) -> Option<&mut Settlement> {
    settlements.iter_mut().find(|(stored, _)| *stored == serial).map(|(_, settlement)| settlement)
}

impl Default for IdempotencyRecords {
    fn default() -> IdempotencyRecords {
        IdempotencyRecords(Form::Packed(Box::default()))
    }
}

impl IdempotencyRecords {
    /// Unpacks the records, if necessary, and returns them. Never returns `None`.
    fn open(&mut self) -> Option<&mut OpenRecords> {
        if let Form::Packed(packed) = &mut self.0 {
            let packed = std::mem::take(packed);
            let view = Packed::of(&packed);
            let (settlements, end) = (view.settlements().collect(), view.record_bytes.len());
            let mut calls = packed.into_vec();
            calls.truncate(end);
            let calls = if end == 0 { IdempotencyTable::default() } else { IdempotencyTable::of(Block::of(calls)) };
            self.0 = Form::Open(Box::new(OpenRecords { calls, settlements }));
        }
        if let Form::Open(open) = &mut self.0 { Some(open) } else { None }
    }

    /// Unpacks the records, if necessary, and returns the settlement of a component.
    fn settlement_mut(&mut self, serial: u8) -> Option<&mut Settlement> {
        settlement_of(&mut self.open()?.settlements, serial)
    }

    /// Packs the records of few calls, after the effect of a change has been encoded.
    pub fn close(&mut self) {
        let Form::Open(open) = &mut self.0 else { return };
        let max_packed = if open.calls.has_been_large() { MAX_PACKED_CALLS / 4 } else { MAX_PACKED_CALLS };
        let count = open.calls.len();
        if count <= max_packed {
            let calls = open.calls.take_block().into_bytes();
            let packed = if count == 0 { Box::default() } else { pack(calls, count, &open.settlements) };
            self.0 = Form::Packed(packed);
        }
    }

    /// Returns the number of calls, including expired ones that have not been swept.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Packed(packed) => Packed::of(packed).call_count,
            Form::Open(open) => open.calls.len(),
        }
    }

    /// Returns `true` if there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the record of an id, which may have expired, and the shift of its timestamps.
    fn record_of(&self, id: &[u8]) -> Option<(Record<'_>, Shift)> {
        match &self.0 {
            Form::Packed(packed) => {
                let record = Packed::of(packed).calls().find(|call| call.name == id)?;
                Some((record, Shift::NONE))
            }
            Form::Open(open) => open.calls.record_of(id),
        }
    }

    /// Returns the record of an id without its charges; `None` if the id is unknown or has expired.
    #[must_use]
    pub fn find(&self, id: &[u8], now: Timestamp) -> Option<RecordedCall<()>> {
        let (record, shift) = self.record_of(id)?;
        RecordedCall::read(&record, shift).map(|call| call.with(())).filter(|call| now < call.expires_at)
    }

    /// Returns the charges of an id that can be settled; none if the id is unknown or has expired.
    #[must_use]
    pub fn charges_of(&self, id: &[u8], now: Timestamp) -> Box<[Charge]> {
        let call = self.record_of(id).and_then(|(record, shift)| RecordedCall::read(&record, shift));
        call.filter(|call| now < call.expires_at).map_or_else(Box::default, |call| call.charges.collect())
    }

    /// Returns the number of ids after another id is recorded. It replaces an expired id, if there is one.
    #[must_use]
    pub fn len_with_another(&self, now: Timestamp) -> usize {
        let (len, first) = match &self.0 {
            Form::Packed(packed) => {
                let packed = Packed::of(packed);
                (packed.call_count, packed.calls().next().map(|first| Shift::NONE.timestamp(first.at)))
            }
            Form::Open(open) => (open.calls.len(), open.calls.first_expiry()),
        };
        let has_expired = first.is_some_and(|first| first <= now);
        len.saturating_add(usize::from(!has_expired))
    }

    /// Returns the latest expiry of all ids.
    #[must_use]
    pub fn last_expiry(&self) -> Option<Timestamp> {
        match &self.0 {
            Form::Packed(packed) => Packed::of(packed).calls().last().map(|last| Shift::NONE.timestamp(last.at)),
            Form::Open(open) => open.calls.last_expiry(),
        }
    }

    /// Returns `true` if a charge of the component with a serial number can be settled.
    #[must_use]
    pub fn may_be_settled(&self, serial: u8) -> bool {
        match &self.0 {
            Form::Packed(packed) => Packed::of(packed).has_settlement(serial),
            Form::Open(open) => open.settlement(serial).is_some_and(|settlement| !settlement.is_idle()),
        }
    }

    /// Removes a few expired ids. Must come first in each call that changes the key. `new_id`, the id that the call is
    /// about to record, is removed if it has expired.
    pub fn sweep(&mut self, now: Timestamp, new_id: Option<&[u8]>) {
        if !self.is_empty()
            && let Some(OpenRecords { calls, settlements }) = self.open()
        {
            settlements.retain(|(_, settlement)| !settlement.is_idle());
            calls.sweep(now, new_id, |charge| {
                if let Some(settlement) = settlement_of(settlements, charge.component) {
                    settlement.forget(charge);
                }
            });
        }
    }

    /// Records how `change` restricts later settlements. Must be called before `change` is applied to the usage of a
    /// component, which must not be later than `now`.
    pub fn before_change<L: Limit>(&mut self, serial: u8, limit: &L, usage: &L::Usage, now: Timestamp, change: Change) {
        if self.may_be_settled(serial)
            && let Some(settlement) = self.settlement_mut(serial)
        {
            settlement.before_change(limit, usage, now, change);
        }
    }

    /// Creates the record of a charge by a call with an id. Must be called after the usage was charged.
    pub fn charge<U: Usage>(&mut self, serial: u8, usage: &U, cost: Amount) -> Option<Charge> {
        let open = self.open()?;
        if open.settlement(serial).is_none() {
            open.settlements.push((serial, Settlement::default()));
        }
        settlement_of(&mut open.settlements, serial)?.charge(usage, serial, cost)
    }

    /// Records a call under its id.
    pub fn record_call<C: AsRef<[Charge]>>(&mut self, id: &[u8], call: &RecordedCall<C>) {
        if let Some(open) = self.open() {
            open.calls.record_call(id, call);
        }
    }

    /// Marks the call of an id as settled and returns its charges, each to be passed to
    /// [`settle_charge`](IdempotencyRecords::settle_charge) or to [`forget`](IdempotencyRecords::forget). Returns
    /// `None` if the id is unknown or was settled before.
    pub fn settle(&mut self, id: &[u8], now: Timestamp) -> Option<Box<[Charge]>> {
        self.open()?.calls.settle(id, now)
    }

    /// Takes up to `amount` of a charge back and removes the charge.
    pub fn settle_charge<U: Usage>(&mut self, usage: &mut U, charge: &Charge, amount: Amount) {
        if let Some(settlement) = self.settlement_mut(charge.component) {
            settlement.settle(usage, charge, amount);
        }
    }

    /// Removes a charge that can no longer be settled.
    pub fn forget(&mut self, charge: &Charge) {
        if let Some(settlement) = self.settlement_mut(charge.component) {
            settlement.forget(charge);
        }
    }

    /// Shifts all timestamps of the calls back by `back`, because the clock moved backwards.
    pub fn move_back(&mut self, back: Span) {
        if !self.is_empty()
            && let Some(open) = self.open()
        {
            open.calls.move_back(back);
        }
    }

    /// Shifts the places of a component's charges back with its usage, which is about to be moved back to `now`.
    pub fn move_charges_back<U: Usage>(&mut self, serial: u8, usage: &U, now: Timestamp) {
        if !self.is_empty()
            && let Some(open) = self.open()
        {
            open.calls.move_charges_back(serial, usage, now);
        }
    }

    /// Returns the approximate heap memory in bytes.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        match &self.0 {
            Form::Packed(packed) => packed.len(),
            Form::Open(open) => {
                let own_size = size_of::<OpenRecords>().saturating_add(open.calls.heap_size());
                let list_size = open.settlements.capacity().saturating_mul(size_of::<(u8, Settlement)>());
                let settlements = open.settlements.iter().map(|(_, settlement)| settlement.heap_size());
                settlements.fold(own_size.saturating_add(list_size), usize::saturating_add)
            }
        }
    }

    /// Returns the approximate number of allocations to free.
    #[must_use]
    pub fn free_effort(&self) -> usize {
        match &self.0 {
            Form::Packed(_) => 1,
            Form::Open(open) => open.calls.free_effort(),
        }
    }

    /// Encodes the calls.
    pub fn encode(&self, to: &mut impl Encoder) {
        match &self.0 {
            Form::Packed(packed) => {
                let packed = Packed::of(packed);
                encode_calls(packed.call_count, packed.calls(), Shift::NONE, to);
            }
            Form::Open(open) => open.calls.encode(to),
        }
    }

    /// Decodes the records of a key that was last changed at `written`, with the settlements of its components. Returns
    /// `None` if no calls can have led to them: every charge that can be settled must be possible in the settlement of
    /// its component, and each settlement must have at least one charge.
    pub fn decode(
        from: &mut impl Decoder,
        written: Timestamp,
        mut settlements: Vec<(u8, Settlement)>,
    ) -> Option<IdempotencyRecords> {
        let calls = IdempotencyTable::decode(from, written, |charge| {
            settlement_of(&mut settlements, charge.component).is_some_and(|settlement| settlement.count_charge(charge))
        })?;
        let sound = settlements.iter().all(|(_, settlement)| settlement.is_sound() && !settlement.is_idle());
        sound.then(|| {
            let mut records = IdempotencyRecords(Form::Open(Box::new(OpenRecords { calls, settlements })));
            records.close();
            records
        })
    }

    /// Encodes 1 and the settlement of a component if a charge of it can be settled, and 0 otherwise.
    pub fn encode_settlement(&self, serial: u8, to: &mut impl Encoder) {
        let may_be_settled = self.may_be_settled(serial);
        to.integer(u64::from(may_be_settled));
        if may_be_settled {
            match &self.0 {
                Form::Packed(packed) => Packed::of(packed).settlement(serial).encode(to),
                Form::Open(open) => open.settlement(serial).iter().for_each(|settlement| settlement.encode(to)),
            }
        }
    }

    /// Encodes the change of the calls since the last call of this method, without the removal of expired ids. Must be
    /// called after every change, even if nothing is propagated.
    pub fn encode_effect(&mut self, to: &mut impl Encoder) {
        match &mut self.0 {
            Form::Packed(_) => encode_no_change(to),
            Form::Open(open) => open.calls.encode_effect(to),
        }
    }

    /// Discards the changes of the calls and settlements that the current call has made.
    pub fn discard_effect(&mut self) {
        if let Form::Open(open) = &mut self.0 {
            open.calls.discard_effect();
            open.settlements.iter_mut().for_each(|(_, settlement)| settlement.discard_effect());
        }
    }

    /// Returns `true` if the current call has changed the settlement of a component.
    #[must_use]
    pub fn has_settlement_effect(&self, serial: u8) -> bool {
        match &self.0 {
            Form::Packed(_) => false,
            Form::Open(open) => open.settlement(serial).is_some_and(Settlement::has_changed),
        }
    }

    /// Encodes the change of a component's settlement, if it has changed.
    pub fn encode_settlement_effect(&mut self, serial: u8, to: &mut impl Encoder) {
        if self.has_settlement_effect(serial)
            && let Some(settlement) = self.settlement_mut(serial)
        {
            settlement.encode_effect(to);
        }
    }

    /// Returns `true` if a call can have had the effect on the settlement of a component. `settled` is the charge that
    /// the call settled, if it settled one.
    pub fn accepts_settlement_effect(&self, serial: u8, from: &mut impl Decoder, settled: Option<&Charge>) -> bool {
        match &self.0 {
            Form::Packed(packed) => Packed::of(packed).settlement(serial).accepts_effect(from, settled),
            Form::Open(open) => open.settlement(serial).unwrap_or(&Settlement::default()).accepts_effect(from, settled),
        }
    }

    /// Applies an accepted effect to the settlement of a component.
    pub fn apply_settlement_effect(&mut self, serial: u8, from: &mut impl Decoder, settled: Option<&Charge>) {
        self.settlement_mut(serial).unwrap_or(&mut Settlement::default()).apply_effect(from, settled);
    }
}

#[cfg(test)]
mod tests;
