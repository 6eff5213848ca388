//! The idempotency records of a key that has few, while a call changes them.

use super::RecordedCall;
use super::few_marks::MOST;
use super::idempotency_change::{encode_no_effect, encode_recorded, encode_settled};
use super::idempotency_table::SWEPT;
use super::packed::PackedBlock;
use super::settlement::{Charge, FewSettlement, SettlementDelta};
use crate::limit::Usage;
use crate::number::{Span, Timestamp};
use crate::wire::codec::Encoder;

/// The records of at most [`MOST`] calls, and what the current call has changed in them.
#[derive(Clone, Debug, Default)]
pub struct FewRecords {
    /// The records.
    pub block: PackedBlock,
    delta: FewDelta,
    settlement_deltas: Vec<(u8, SettlementDelta)>,
}

/// What a call changes in the calls, besides what it sweeps.
#[derive(Clone, Copy, Debug, Default)]
enum FewDelta {
    #[default]
    Nothing,
    /// One is remembered: how many are before it.
    RecordedCall(usize),
    /// One was settled: how many are before it.
    Settled(usize),
}

impl FewRecords {
    /// What was packed.
    pub fn of(packed: Box<[u8]>) -> FewRecords {
        FewRecords { block: PackedBlock(packed.into_vec()), ..FewRecords::default() }
    }

    /// Whether there is room for one more.
    pub fn has_room(&self) -> bool {
        self.block.view().len() < MOST
    }

    /// Changes what settling the charges of a component takes.
    pub fn change_settlement<T>(&mut self, serial: u8, change: impl FnOnce(&mut FewSettlement) -> T) -> T {
        let mut settlement = FewSettlement::default();
        self.block.view().read_settlement(serial, &mut settlement);
        let place = self.settlement_deltas.iter().position(|(own, _)| *own == serial);
        let before = place.and_then(|place| self.settlement_deltas.get(place)).map(|(_, delta)| *delta);
        settlement.delta = before.unwrap_or_default();
        let told = change(&mut settlement);
        match place.and_then(|place| self.settlement_deltas.get_mut(place)) {
            Some((_, delta)) => *delta = settlement.delta,
            None if settlement.delta != SettlementDelta::default() => {
                self.settlement_deltas.push((serial, settlement.delta));
            }
            None => {}
        }
        self.block.keep_settlement(serial, &settlement);
        told
    }

    /// Sweeps those that have expired, and forgets what settling them took.
    pub fn sweep(&mut self, now: Timestamp, coming: Option<&[u8]>) {
        self.delta = FewDelta::Nothing;
        for _ in 0..SWEPT {
            let first = self.block.view().calls().next().filter(|call| call.expires_at <= now);
            let Some(id) = first.map(|call| Box::<[u8]>::from(call.id())) else { break };
            self.remove(&id);
        }
        if let Some(id) = coming
            && self.block.view().find(id).is_some_and(|call| call.expires_at <= now)
        {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: &[u8]) {
        let Some(call) = self.block.remove(id) else { return };
        for charge in &call.charges {
            self.change_settlement(charge.component, |settlement| settlement.forget(charge));
        }
    }

    /// Remembers a call by its id.
    pub fn remember(&mut self, id: &[u8], call: &RecordedCall) {
        self.delta = FewDelta::RecordedCall(self.block.add(id, call));
    }

    /// Marks the call of an id as settled; its charges.
    pub fn settle(&mut self, id: &[u8], now: Timestamp) -> Option<Box<[Charge]>> {
        let recorded = self.block.view().find(id)?.recorded()?;
        if recorded.settled || recorded.expires_at <= now {
            return None;
        }
        let call = self.block.remove(id)?;
        let before = self.block.add(id, &RecordedCall { settled: true, ..recorded }.with(Box::default()));
        self.delta = FewDelta::Settled(before);
        Some(call.charges)
    }

    /// Moves all instants `back`, because the clock did.
    pub fn move_back(&mut self, back: Span) {
        self.rewrite(|call| {
            (call.expires_at, call.hold_until) = (call.expires_at.minus(back), call.hold_until.minus(back));
        });
    }

    /// Moves the charges of a component along with its usage, which is about to be moved back to `now`.
    pub fn move_charges_back<U: Usage>(&mut self, serial: u8, usage: &U, now: Timestamp) {
        if usage.place().is_some() && usage.is_after(now) {
            self.rewrite(|call| {
                let own = call.charges.iter_mut().filter(|charge| charge.component == serial);
                own.for_each(|charge| charge.move_back(usage, now));
            });
        }
    }

    fn rewrite(&mut self, mut change: impl FnMut(&mut RecordedCall)) {
        let calls = self.block.view().calls();
        let calls: Vec<_> =
            calls.filter_map(|call| Some((Box::<[u8]>::from(call.id()), call.with_charges()?))).collect();
        for (id, mut call) in calls {
            self.block.remove(&id);
            change(&mut call);
            self.block.add(&id, &call);
        }
    }

    /// Writes out what has changed in the calls.
    pub fn encode_effect(&mut self, to: &mut impl Encoder) {
        let call = |before| self.block.view().calls().nth(before);
        match std::mem::take(&mut self.delta) {
            FewDelta::Nothing => encode_no_effect(to),
            FewDelta::Settled(before) => encode_settled(call(before).map_or(&[], |call| call.id()), to),
            FewDelta::RecordedCall(before) => {
                if let Some((call, mut recorded)) = call(before).and_then(|call| Some((call, call.with_charges()?))) {
                    let charges = std::mem::take(&mut recorded.charges);
                    encode_recorded(call.id(), &recorded.with(&*charges), to);
                }
            }
        }
    }

    /// Writes out what has changed in what settling the charges of a component takes, if anything has.
    pub fn encode_settlement_effect(&mut self, serial: u8, to: &mut impl Encoder) {
        if let Some(place) = self.settlement_deltas.iter().position(|(own, _)| *own == serial) {
            self.settlement_deltas.swap_remove(place).1.encode(to);
        }
    }

    /// What has changed in what settling the charges of components takes.
    pub fn settlement_deltas(&self) -> &[(u8, SettlementDelta)] {
        &self.settlement_deltas
    }
}
