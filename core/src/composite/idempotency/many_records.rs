//! The idempotency records of a key that has many: a table, and a settlement for each component.

use super::IdempotencyTable;
use super::few_records::FewRecords;
use super::packed::PackedBlock;
use super::settlement::{Charge, Settlement};
use crate::limit::Usage;
use crate::number::{Amount, Timestamp};
use crate::wire::codec::Encoder;

/// The calls, and what settling them takes.
#[derive(Clone, Debug, Default)]
pub struct ManyRecords {
    /// The calls, by their ids.
    pub(in crate::composite) calls: IdempotencyTable,
    /// By the serial numbers of the components.
    settlements: Vec<(u8, Settlement)>,
}

impl ManyRecords {
    /// What was decoded of the components and of the calls; `None` unless every charge that may be settled is counted
    /// in the settlement of its component, and each settlement has one.
    pub(super) fn of(settlements: Vec<(u8, Settlement)>, calls: IdempotencyTable) -> Option<ManyRecords> {
        let mut records = ManyRecords { calls, settlements };
        let ManyRecords { calls, settlements } = &mut records;
        let counted = calls.charges().all(|charge| {
            let settlement = settlements.iter_mut().find(|(serial, _)| *serial == charge.component);
            settlement.is_some_and(|(_, settlement)| settlement.count(charge))
        });
        let sound = settlements.iter().all(|(_, settlement)| settlement.is_sound() && !settlement.is_idle());
        (counted && sound).then_some(records)
    }

    /// What few records say, in the form of many, and what the current call has changed.
    pub(super) fn of_few(few: &FewRecords) -> ManyRecords {
        let mut records = ManyRecords::default();
        let packed = few.block.view();
        for call in packed.calls() {
            if let Some(recorded) = call.with_charges() {
                records.calls.insert_call(call.id(), recorded);
            }
        }
        for serial in packed.settled_components() {
            records.settlements.push((serial, Settlement::of_few(&packed.settlement(serial))));
        }
        for (serial, delta) in few.settlement_deltas() {
            if records.settlement(*serial).is_none() {
                records.settlements.push((*serial, Settlement::default()));
            }
            if let Some(settlement) = records.settlement_mut(*serial) {
                settlement.delta = *delta;
            }
        }
        records
    }

    /// These records in one block, if they are few.
    pub(super) fn packed(&self) -> Option<PackedBlock> {
        let mut block = PackedBlock::default();
        for (id, call) in self.calls.calls() {
            block.add(id, &call.with(call.charges.into()));
        }
        for (serial, settlement) in &self.settlements {
            block.keep_settlement(*serial, &settlement.as_few()?);
        }
        Some(block)
    }

    /// What settling the charges of a component takes.
    pub(super) fn settlement(&self, serial: u8) -> Option<&Settlement> {
        self.settlements.iter().find(|(own, _)| *own == serial).map(|(_, settlement)| settlement)
    }

    /// What settling the charges of a component takes, to change it.
    pub(super) fn settlement_mut(&mut self, serial: u8) -> Option<&mut Settlement> {
        self.settlements.iter_mut().find(|(own, _)| *own == serial).map(|(_, settlement)| settlement)
    }

    /// Sweeps a few that have expired, and forgets what settling them took.
    pub(super) fn sweep(&mut self, now: Timestamp, coming: Option<&[u8]>) {
        self.settlements.retain(|(_, settlement)| !settlement.is_idle());
        let settlements = &mut self.settlements;
        self.calls.sweep(now, coming, |charge| {
            if let Some((_, settlement)) = settlements.iter_mut().find(|(serial, _)| *serial == charge.component) {
                settlement.forget(charge);
            }
        });
    }

    /// Counts a charge of a component; what is to be remembered of it.
    pub(super) fn charge<U: Usage>(&mut self, serial: u8, usage: &U, cost: Amount) -> Option<Charge> {
        if self.settlement(serial).is_none() {
            self.settlements.push((serial, Settlement::default()));
        }
        self.settlement_mut(serial)?.charge(usage, serial, cost)
    }

    /// Writes out what has changed in what settling the charges of a component takes.
    pub(super) fn encode_settlement_effect(&mut self, serial: u8, to: &mut impl Encoder) {
        if let Some(settlement) = self.settlement_mut(serial) {
            settlement.encode_effect(to);
        }
    }

    /// How many bytes it holds beside itself, about.
    pub(super) fn heap_size(&self) -> usize {
        let settlements = self.settlements.iter().map(|(_, settlement)| settlement.heap_size());
        let places = self.settlements.capacity().saturating_mul(size_of::<(u8, Settlement)>());
        settlements.fold(self.calls.heap_size().saturating_add(places), usize::saturating_add)
    }

    #[cfg(test)]
    pub(crate) fn has_changed(&self) -> bool {
        self.calls.has_changed() || self.settlements.iter().any(|(_, settlement)| settlement.has_changed())
    }

    #[cfg(test)]
    pub(crate) fn drop_settlement(&mut self, serial: u8) {
        self.settlements.retain(|(own, _)| *own != serial);
    }
}
