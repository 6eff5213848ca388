//! What a key remembers of calls that count once: the calls, and for each component what settling its charges takes.
//!
//! Few are packed into one block ([`packed`](super::packed)), which a call that changes them keeps open until it has
//! told its effect; more than [`MOST`] become tables ([`many_records`](super::many_records)), and a quarter of that a
//! block again. What is stored and propagated of them does not tell which.

use super::few_marks::MOST;
use super::few_records::FewRecords;
use super::idempotency_change::encode_no_effect;
use super::many_records::ManyRecords;
use super::packed::{Packed, PackedBlock};
use super::settlement::{Charge, Settlement};
use super::{IdempotencyTable, RecordedCall};
use crate::evaluate::Change;
use crate::limit::{Limit, Usage};
use crate::number::{Amount, Span, Timestamp};
use crate::wire::codec::{Decoder, Encoder};

/// The idempotency records of a key.
///
/// A call does, in this order, each only if it applies: [`sweep`](IdempotencyRecords::sweep),
/// [`settle`](IdempotencyRecords::settle), for each component [`settle_charge`](IdempotencyRecords::settle_charge),
/// [`before`](IdempotencyRecords::before) a change, the change, [`charge`](IdempotencyRecords::charge), and then
/// [`remember`](IdempotencyRecords::remember). What is propagated of it ends with
/// [`close`](IdempotencyRecords::close).
#[derive(Clone, Debug)]
pub struct IdempotencyRecords(RecordsForm);

#[derive(Clone, Debug)]
enum RecordsForm {
    /// Few, at rest.
    Packed(Box<[u8]>),
    Large(Box<Large>),
}

const _: () = assert!(size_of::<RecordsForm>() == 16, "most keys with records have few, and are to take no more");

#[derive(Clone, Debug)]
enum Large {
    /// Few, which a call is about to change.
    Open(FewRecords),
    Many(ManyRecords),
}

/// Runs a body on the records as they are kept: few in a block, or many in tables.
macro_rules! by_form {
    ($records:expr, $packed:ident => $of_few:expr, $many:ident => $of_many:expr) => {
        match &$records.0 {
            RecordsForm::Packed(packed) => {
                let $packed = Packed(packed);
                $of_few
            }
            RecordsForm::Large(large) => match &**large {
                Large::Open(few) => {
                    let $packed = few.block.view();
                    $of_few
                }
                Large::Many($many) => $of_many,
            },
        }
    };
}

/// Runs a body that changes the records, which are open then; what it says.
macro_rules! changing {
    ($records:expr, $few:ident => $of_few:expr, $many:ident => $of_many:expr) => {
        $records.open().map(|large| match large {
            Large::Open($few) => $of_few,
            Large::Many($many) => $of_many,
        })
    };
}

impl Default for IdempotencyRecords {
    fn default() -> IdempotencyRecords {
        IdempotencyRecords(RecordsForm::Packed(Box::default()))
    }
}

impl IdempotencyRecords {
    /// What was decoded of the components and of the calls; `None` unless calls can have led to it.
    #[must_use]
    pub fn of(settlements: Vec<(u8, Settlement)>, calls: IdempotencyTable) -> Option<IdempotencyRecords> {
        let many = ManyRecords::of(settlements, calls)?;
        let packed = if many.calls.len() <= MOST { many.packed() } else { None };
        Some(IdempotencyRecords(match packed {
            Some(block) => RecordsForm::Packed(block.0.into()),
            None => RecordsForm::Large(Box::new(Large::Many(many))),
        }))
    }

    /// The records, to be changed; never `None`.
    fn open(&mut self) -> Option<&mut Large> {
        if let RecordsForm::Packed(packed) = &mut self.0 {
            let few = FewRecords::of(std::mem::take(packed));
            self.0 = RecordsForm::Large(Box::new(Large::Open(few)));
        }
        if let RecordsForm::Large(large) = &mut self.0 { Some(large) } else { None }
    }

    /// Makes tables of a block that is full: one more call is to come.
    fn make_room(&mut self) {
        if let Some(large) = self.open()
            && let Large::Open(few) = large
            && !few.has_room()
        {
            *large = Large::Many(ManyRecords::of_few(few));
        }
    }

    /// Ends a change, whose effect has been told.
    pub fn close(&mut self) {
        let RecordsForm::Large(large) = &mut self.0 else { return };
        let block = match &mut **large {
            Large::Open(few) if few.block.view().len() == 0 => Some(PackedBlock::default()),
            Large::Open(few) => Some(std::mem::take(&mut few.block)),
            Large::Many(many) if many.calls.len() <= MOST / 4 => many.packed(),
            Large::Many(_) => None,
        };
        if let Some(block) = block {
            self.0 = RecordsForm::Packed(block.0.into());
        }
    }

    /// How many calls there are, some of which may have expired.
    #[must_use]
    pub fn len(&self) -> usize {
        by_form!(self, few => few.len(), many => many.calls.len())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is remembered of the call of an id, but for its charges; `None` if there is none, or it has expired.
    #[must_use]
    pub fn find(&self, id: &[u8], now: Timestamp) -> Option<RecordedCall<()>> {
        let call = by_form!(
            self,
            few => few.find(id)?.recorded()?,
            many => many.calls.find(id, now)?.with(())
        );
        Some(call).filter(|call| now < call.expires_at)
    }

    /// The charges of the call of an id that can be settled.
    #[must_use]
    pub fn charges_of(&self, id: &[u8], now: Timestamp) -> Box<[Charge]> {
        let call = by_form!(
            self,
            few => few.find(id).and_then(|call| call.with_charges()).filter(|call| now < call.expires_at),
            many => many.calls.find(id, now).map(|call| call.with(call.charges.into()))
        );
        call.map_or_else(Box::default, |call| call.charges)
    }

    /// Whether another id is to be refused: there are `most`, and the first to expire has not.
    #[must_use]
    pub fn is_full(&self, most: usize, now: Timestamp) -> bool {
        by_form!(
            self,
            few => few.len() >= most && few.calls().next().is_none_or(|first| now < first.expires_at),
            many => many.calls.is_full(most, now)
        )
    }

    /// When the last one expires.
    #[must_use]
    pub fn last_expiry(&self) -> Option<Timestamp> {
        by_form!(self, few => few.calls().last().map(|call| call.expires_at), many => many.calls.last_expiry())
    }

    /// Whether any charge of a component may be settled.
    #[must_use]
    pub fn may_be_settled(&self, serial: u8) -> bool {
        by_form!(
            self,
            few => few.has_settlement(serial),
            many => many.settlement(serial).is_some_and(|settlement| !settlement.is_idle())
        )
    }

    /// Sweeps a few calls that have expired: to be done first by each call that changes the key. An id that the call is
    /// about to be remembered by (`coming`) goes if it has expired.
    pub fn sweep(&mut self, now: Timestamp, coming: Option<&[u8]>) {
        if !self.is_empty() {
            changing!(self, few => few.sweep(now, coming), many => many.sweep(now, coming));
        }
    }

    /// To be called before `change` is applied to the usage of a component; nothing in it is later than `now`.
    pub fn before<L: Limit>(&mut self, serial: u8, limit: &L, usage: &L::Usage, now: Timestamp, change: Change) {
        if self.may_be_settled(serial) {
            changing!(
                self,
                few => few.change_settlement(serial, |settlement| settlement.before(limit, usage, now, change)),
                many => if let Some(settlement) = many.settlement_mut(serial) {
                    settlement.before(limit, usage, now, change);
                }
            );
        }
    }

    /// To be called after the usage of a component was charged by a call with an id: what is to be remembered of it.
    pub fn charge<U: Usage>(&mut self, serial: u8, usage: &U, cost: Amount) -> Option<Charge> {
        self.make_room();
        changing!(
            self,
            few => few.change_settlement(serial, |settlement| settlement.charge(usage, serial, cost)),
            many => many.charge(serial, usage, cost)
        )
        .flatten()
    }

    /// Remembers a call by its id.
    pub fn remember(&mut self, id: &[u8], call: RecordedCall) {
        self.make_room();
        changing!(self, few => few.remember(id, &call), many => many.calls.remember(id, call));
    }

    /// Marks the call of an id as settled; its charges, each to be told to
    /// [`settle_charge`](IdempotencyRecords::settle_charge) or to [`forget`](IdempotencyRecords::forget). `None` if
    /// there is nothing to settle: the id is not known, or was settled.
    pub fn settle(&mut self, id: &[u8], now: Timestamp) -> Option<Box<[Charge]>> {
        changing!(self, few => few.settle(id, now), many => many.calls.settle(id, now)).flatten()
    }

    /// Takes up to `less` of a charge back, and forgets the charge.
    pub fn settle_charge<U: Usage>(&mut self, usage: &mut U, charge: &Charge, less: Amount) {
        changing!(
            self,
            few => few.change_settlement(charge.component, |settlement| settlement.settle(usage, charge, less)),
            many => match many.settlement_mut(charge.component) {
                Some(settlement) => settlement.settle(usage, charge, less),
                None => Amount::ZERO,
            }
        );
    }

    /// Forgets a charge that can be settled no more.
    pub fn forget(&mut self, charge: &Charge) {
        changing!(
            self,
            few => few.change_settlement(charge.component, |settlement| settlement.forget(charge)),
            many => if let Some(settlement) = many.settlement_mut(charge.component) {
                settlement.forget(charge);
            }
        );
    }

    /// Moves all instants `back`, because the clock did.
    pub fn move_back(&mut self, back: Span) {
        if !self.is_empty() {
            changing!(self, few => few.move_back(back), many => many.calls.move_back(back));
        }
    }

    /// Moves the charges of a component along with its usage, which is about to be moved back to `now`.
    pub fn move_charges_back<U: Usage>(&mut self, serial: u8, usage: &U, now: Timestamp) {
        if !self.is_empty() {
            changing!(
                self,
                few => few.move_charges_back(serial, usage, now),
                many => many.calls.move_charges_back(serial, usage, now)
            );
        }
    }

    /// How many bytes it holds beside itself, about.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        match &self.0 {
            RecordsForm::Packed(packed) => packed.len(),
            RecordsForm::Large(large) => size_of::<Large>().saturating_add(match &**large {
                Large::Open(few) => few.block.0.capacity(),
                Large::Many(many) => many.heap_size(),
            }),
        }
    }

    /// How many allocations it takes to free it, about.
    #[must_use]
    pub fn effort(&self) -> usize {
        by_form!(self, _few => 1, many => many.calls.effort())
    }

    /// Writes out the calls, field by field.
    pub fn encode(&self, to: &mut impl Encoder) {
        by_form!(self, few => few.encode_calls(to), many => many.calls.encode(to));
    }

    /// Writes out what settling the charges of a component takes: nothing where none may be settled.
    pub fn encode_settlement(&self, serial: u8, to: &mut impl Encoder) {
        let may_be_settled = self.may_be_settled(serial);
        to.integer(u64::from(may_be_settled));
        if may_be_settled {
            by_form!(
                self,
                few => few.settlement(serial).encode(to),
                many => many.settlement(serial).iter().for_each(|settlement| settlement.encode(to))
            );
        }
    }

    /// Writes out what has changed in the calls since the last time that this was asked, but for what was swept. To be
    /// asked after every change, even if nothing is propagated.
    pub fn encode_effect(&mut self, to: &mut impl Encoder) {
        match &mut self.0 {
            RecordsForm::Packed(_) => encode_no_effect(to),
            RecordsForm::Large(large) => match &mut **large {
                Large::Open(few) => few.encode_effect(to),
                Large::Many(many) => many.calls.encode_effect(to),
            },
        }
    }

    /// Whether an effect says anything of what settling the charges of a component takes.
    #[must_use]
    pub fn has_settlement_effect(&self, serial: u8) -> bool {
        match &self.0 {
            RecordsForm::Packed(_) => false,
            RecordsForm::Large(large) => match &**large {
                Large::Open(few) => few.settlement_deltas().iter().any(|(own, _)| *own == serial),
                Large::Many(many) => many.settlement(serial).is_some(),
            },
        }
    }

    /// Writes out what has changed in what settling the charges of a component takes, if an effect says anything of it.
    pub fn encode_settlement_effect(&mut self, serial: u8, to: &mut impl Encoder) {
        match &mut self.0 {
            RecordsForm::Packed(_) => {}
            RecordsForm::Large(large) => match &mut **large {
                Large::Open(few) => few.encode_settlement_effect(serial, to),
                Large::Many(many) => many.encode_settlement_effect(serial, to),
            },
        }
    }

    /// Whether an effect is one that some call could have had on what settling the charges of a component takes;
    /// `settled` is the charge that it settled, if any.
    pub fn accepts_settlement_effect(&self, serial: u8, from: &mut impl Decoder, settled: Option<&Charge>) -> bool {
        by_form!(
            self,
            few => few.settlement(serial).accepts_effect(from, settled),
            many => match many.settlement(serial) {
                Some(settlement) => settlement.accepts_effect(from, settled),
                None => Settlement::default().accepts_effect(from, settled),
            }
        )
    }

    /// Applies an effect that was accepted.
    pub fn apply_settlement_effect(&mut self, serial: u8, from: &mut impl Decoder, settled: Option<&Charge>) {
        changing!(
            self,
            few => few.change_settlement(serial, |settlement| settlement.apply_effect(from, settled)),
            many => match many.settlement_mut(serial) {
                Some(settlement) => settlement.apply_effect(from, settled),
                None => Settlement::default().apply_effect(from, settled),
            }
        );
    }
}

#[cfg(test)]
mod tests;
