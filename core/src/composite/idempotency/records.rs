//! What a key remembers of calls that count once: the calls, and for each component what settling its charges takes.
//!
//! Few calls are packed into one block at rest ([`packed`](super::packed)), and unpacked by a call that changes them,
//! until its effect has been told. More than [`MOST_CALLS`] stay unpacked until a quarter of that is left. What is stored
//! and propagated of them does not tell which.

use super::idempotency_change::encode_no_effect;
use super::idempotency_table::encode_calls;
use super::packed::{MOST_CALLS, Packed, pack};
use super::settlement::{Charge, Settlement};
use super::{IdempotencyTable, RecordedCall};
use crate::evaluate::Change;
use crate::limit::{Limit, Usage};
use crate::number::lazy_shift::Shift;
use crate::number::{Amount, Span, Timestamp};
use crate::record_table::{Block, Record};
use crate::wire::codec::{Decoder, Encoder};

/// The idempotency records of a key.
///
/// A call does, in this order, each only if it applies: [`sweep`](IdempotencyRecords::sweep),
/// [`settle`](IdempotencyRecords::settle), for each component [`settle_charge`](IdempotencyRecords::settle_charge),
/// [`before`](IdempotencyRecords::before) a change, the change, [`charge`](IdempotencyRecords::charge), and then
/// [`remember`](IdempotencyRecords::remember). What is propagated of it ends with
/// [`close`](IdempotencyRecords::close).
#[derive(Clone, Debug)]
pub struct IdempotencyRecords(Form);

#[derive(Clone, Debug)]
enum Form {
    /// Few, at rest.
    Packed(Box<[u8]>),
    /// Few which a call is about to change, or many.
    Open(Box<OpenRecords>),
}

const _: () = assert!(size_of::<Form>() == 16, "most keys with records have few, and are to take no more");

/// Records that can be changed.
#[derive(Clone, Debug, Default)]
pub struct OpenRecords {
    /// The calls, by their ids.
    pub(in crate::composite) calls: IdempotencyTable,
    /// Settlements of components, by their serial numbers.
    settlements: Vec<(u8, Settlement)>,
}

impl OpenRecords {
    fn settlement(&self, serial: u8) -> Option<&Settlement> {
        self.settlements.iter().find(|(own, _)| *own == serial).map(|(_, settlement)| settlement)
    }

    fn settlement_mut(&mut self, serial: u8) -> Option<&mut Settlement> {
        self.settlements.iter_mut().find(|(own, _)| *own == serial).map(|(_, settlement)| settlement)
    }

    fn forget(&mut self, charge: &Charge) {
        if let Some(settlement) = self.settlement_mut(charge.component) {
            settlement.forget(charge);
        }
    }

    fn heap_size(&self) -> usize {
        let settlements = self.settlements.iter().map(|(_, settlement)| settlement.heap_size());
        let places = self.settlements.capacity().saturating_mul(size_of::<(u8, Settlement)>());
        settlements.fold(self.calls.heap_size().saturating_add(places), usize::saturating_add)
    }
}

impl Default for IdempotencyRecords {
    fn default() -> IdempotencyRecords {
        IdempotencyRecords(Form::Packed(Box::default()))
    }
}

impl IdempotencyRecords {
    /// Returns the records, to be changed; never `None`.
    fn open(&mut self) -> Option<&mut OpenRecords> {
        if let Form::Packed(packed) = &mut self.0 {
            let packed = std::mem::take(packed);
            let view = Packed::of(&packed);
            let (settlements, end) = (view.settlements().collect(), view.calls.len());
            let mut calls = packed.into_vec();
            calls.truncate(end);
            let calls = if end == 0 { IdempotencyTable::default() } else { IdempotencyTable::of(Block::of(calls)) };
            self.0 = Form::Open(Box::new(OpenRecords { calls, settlements }));
        }
        if let Form::Open(open) = &mut self.0 { Some(open) } else { None }
    }

    /// Ends a change, whose effect has been told.
    pub fn close(&mut self) {
        let Form::Open(open) = &mut self.0 else { return };
        let most = if open.calls.has_been_large() { MOST_CALLS / 4 } else { MOST_CALLS };
        let count = open.calls.len();
        if count <= most {
            let calls = open.calls.take_block().into_bytes();
            let packed = if count == 0 { Box::default() } else { pack(calls, count, &open.settlements) };
            self.0 = Form::Packed(packed);
        }
    }

    /// Returns the number of calls, some of which may have expired.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Packed(packed) => Packed::of(packed).len(),
            Form::Open(open) => open.calls.len(),
        }
    }

    /// Returns `true` if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the record of an id, and how far its instants have moved back.
    fn record_of(&self, id: &[u8]) -> Option<(Record<'_>, Shift)> {
        match &self.0 {
            Form::Packed(packed) => {
                let record = Packed::of(packed).calls().find(|call| call.name == id)?;
                Some((record, Shift::NONE))
            }
            Form::Open(open) => open.calls.record_of(id),
        }
    }

    /// Returns what is remembered of the call of an id, but for its charges; `None` if there is none, or it has expired.
    #[must_use]
    pub fn find(&self, id: &[u8], now: Timestamp) -> Option<RecordedCall<()>> {
        let (record, shift) = self.record_of(id)?;
        RecordedCall::read(&record, shift).map(|(call, _)| call).filter(|call| now < call.expires_at)
    }

    /// Returns the charges of the call of an id that can be settled.
    #[must_use]
    pub fn charges_of(&self, id: &[u8], now: Timestamp) -> Box<[Charge]> {
        let call = self.record_of(id).and_then(|(record, shift)| RecordedCall::read_with_charges(&record, shift));
        call.filter(|call| now < call.expires_at).map_or_else(Box::default, |call| call.charges)
    }

    /// Returns `true` if another id is to be refused: there are `most`, and the first to expire has not.
    #[must_use]
    pub fn is_full(&self, most: usize, now: Timestamp) -> bool {
        match &self.0 {
            Form::Packed(packed) => {
                let (packed, shift) = (Packed::of(packed), Shift::NONE);
                packed.len() >= most && packed.calls().next().is_none_or(|first| now < shift.instant(first.at))
            }
            Form::Open(open) => open.calls.is_full(most, now),
        }
    }

    /// Returns the instant at which the last one expires.
    #[must_use]
    pub fn last_expiry(&self) -> Option<Timestamp> {
        match &self.0 {
            Form::Packed(packed) => Packed::of(packed).calls().last().map(|last| Shift::NONE.instant(last.at)),
            Form::Open(open) => open.calls.last_expiry(),
        }
    }

    /// Returns `true` if any charge of a component may be settled.
    #[must_use]
    pub fn may_be_settled(&self, serial: u8) -> bool {
        match &self.0 {
            Form::Packed(packed) => Packed::of(packed).has_settlement(serial),
            Form::Open(open) => open.settlement(serial).is_some_and(|settlement| !settlement.is_idle()),
        }
    }

    /// Sweeps a few calls that have expired: to be done first by each call that changes the key. An id that the call is
    /// about to be remembered by (`coming`) goes if it has expired.
    pub fn sweep(&mut self, now: Timestamp, coming: Option<&[u8]>) {
        if !self.is_empty()
            && let Some(OpenRecords { calls, settlements }) = self.open()
        {
            settlements.retain(|(_, settlement)| !settlement.is_idle());
            calls.sweep(now, coming, |charge| {
                if let Some((_, settlement)) = settlements.iter_mut().find(|(serial, _)| *serial == charge.component) {
                    settlement.forget(charge);
                }
            });
        }
    }

    /// To be called before `change` is applied to the usage of a component; nothing in it is later than `now`.
    pub fn before<L: Limit>(&mut self, serial: u8, limit: &L, usage: &L::Usage, now: Timestamp, change: Change) {
        if self.may_be_settled(serial)
            && let Some(settlement) = self.open().and_then(|open| open.settlement_mut(serial))
        {
            settlement.before(limit, usage, now, change);
        }
    }

    /// To be called after the usage of a component was charged by a call with an id: what is to be remembered of it.
    pub fn charge<U: Usage>(&mut self, serial: u8, usage: &U, cost: Amount) -> Option<Charge> {
        let open = self.open()?;
        if open.settlement(serial).is_none() {
            open.settlements.push((serial, Settlement::default()));
        }
        open.settlement_mut(serial)?.charge(usage, serial, cost)
    }

    /// Remembers a call by its id.
    pub fn remember(&mut self, id: &[u8], call: &RecordedCall) {
        if let Some(open) = self.open() {
            open.calls.remember(id, call);
        }
    }

    /// Marks the call of an id as settled; its charges, each to be told to
    /// [`settle_charge`](IdempotencyRecords::settle_charge) or to [`forget`](IdempotencyRecords::forget). `None` if
    /// there is nothing to settle: the id is not known, or was settled.
    pub fn settle(&mut self, id: &[u8], now: Timestamp) -> Option<Box<[Charge]>> {
        self.open()?.calls.settle(id, now)
    }

    /// Takes up to `less` of a charge back, and forgets the charge.
    pub fn settle_charge<U: Usage>(&mut self, usage: &mut U, charge: &Charge, less: Amount) {
        if let Some(settlement) = self.open().and_then(|open| open.settlement_mut(charge.component)) {
            settlement.settle(usage, charge, less);
        }
    }

    /// Forgets a charge that can be settled no more.
    pub fn forget(&mut self, charge: &Charge) {
        if let Some(open) = self.open() {
            open.forget(charge);
        }
    }

    /// Moves all instants `back`, because the clock did.
    pub fn move_back(&mut self, back: Span) {
        if !self.is_empty()
            && let Some(open) = self.open()
        {
            open.calls.move_back(back);
        }
    }

    /// Moves the charges of a component along with its usage, which is about to be moved back to `now`.
    pub fn move_charges_back<U: Usage>(&mut self, serial: u8, usage: &U, now: Timestamp) {
        if !self.is_empty()
            && let Some(open) = self.open()
        {
            open.calls.move_charges_back(serial, usage, now);
        }
    }

    /// Returns the number of bytes that it holds beside itself, about.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        match &self.0 {
            Form::Packed(packed) => packed.len(),
            Form::Open(open) => size_of::<OpenRecords>().saturating_add(open.heap_size()),
        }
    }

    /// Returns the number of allocations that it takes to free it, about.
    #[must_use]
    pub fn effort(&self) -> usize {
        match &self.0 {
            Form::Packed(_) => 1,
            Form::Open(open) => open.calls.effort(),
        }
    }

    /// Writes out the calls, field by field.
    pub fn encode(&self, to: &mut impl Encoder) {
        match &self.0 {
            Form::Packed(packed) => {
                let packed = Packed::of(packed);
                encode_calls(packed.len(), packed.calls(), Shift::NONE, to);
            }
            Form::Open(open) => open.calls.encode(to),
        }
    }

    /// Reads what [`encode`](IdempotencyRecords::encode) wrote of a key that was last changed at `written`, for
    /// components with these settlements. `None` unless calls can have led to it: every charge that may be settled is
    /// counted in the settlement of its component, and each settlement has one.
    pub fn decode(
        from: &mut impl Decoder,
        written: Timestamp,
        mut settlements: Vec<(u8, Settlement)>,
    ) -> Option<IdempotencyRecords> {
        let calls = IdempotencyTable::decode(from, written, |charge| {
            let settlement = settlements.iter_mut().find(|(serial, _)| *serial == charge.component);
            settlement.is_some_and(|(_, settlement)| settlement.count(charge))
        })?;
        let sound = settlements.iter().all(|(_, settlement)| settlement.is_sound() && !settlement.is_idle());
        sound.then(|| {
            let mut records = IdempotencyRecords(Form::Open(Box::new(OpenRecords { calls, settlements })));
            records.close();
            records
        })
    }

    /// Writes out what settling the charges of a component takes: nothing where none may be settled.
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

    /// Writes out what has changed in the calls since the last time that this was asked, but for what was swept. To be
    /// asked after every change, even if nothing is propagated.
    pub fn encode_effect(&mut self, to: &mut impl Encoder) {
        match &mut self.0 {
            Form::Packed(_) => encode_no_effect(to),
            Form::Open(open) => open.calls.encode_effect(to),
        }
    }

    /// Returns `true` if an effect says anything of what settling the charges of a component takes.
    #[must_use]
    pub fn has_settlement_effect(&self, serial: u8) -> bool {
        match &self.0 {
            Form::Packed(_) => false,
            Form::Open(open) => open.settlement(serial).is_some_and(Settlement::has_changed),
        }
    }

    /// Writes out what has changed in what settling the charges of a component takes, if an effect says anything of it.
    pub fn encode_settlement_effect(&mut self, serial: u8, to: &mut impl Encoder) {
        if self.has_settlement_effect(serial)
            && let Some(settlement) = self.open().and_then(|open| open.settlement_mut(serial))
        {
            settlement.encode_effect(to);
        }
    }

    /// Returns `true` if an effect is one that some call could have had on what settling the charges of a component takes;
    /// `settled` is the charge that it settled, if any.
    pub fn accepts_settlement_effect(&self, serial: u8, from: &mut impl Decoder, settled: Option<&Charge>) -> bool {
        match &self.0 {
            Form::Packed(packed) => Packed::of(packed).settlement(serial).accepts_effect(from, settled),
            Form::Open(open) => open.settlement(serial).unwrap_or(&Settlement::default()).accepts_effect(from, settled),
        }
    }

    /// Applies an effect that was accepted.
    pub fn apply_settlement_effect(&mut self, serial: u8, from: &mut impl Decoder, settled: Option<&Charge>) {
        let settlement = self.open().and_then(|open| open.settlement_mut(serial));
        settlement.unwrap_or(&mut Settlement::default()).apply_effect(from, settled);
    }
}

#[cfg(test)]
mod tests;
