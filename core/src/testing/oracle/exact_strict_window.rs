//! Oracle of strict sliding windows.

use super::contract::{Charges, Contract, Exact, period, saturated, subtract_oldest_first};
use crate::algorithm::strict_window::StrictWindow;
use crate::number::Amount;
use crate::testing::calls::{amounts, lengths};
use num_traits::Signed;
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) struct StrictTerms {
    pub(super) limit: u64,
    pub(super) window: u64,
}

/// Charges of each slot. Their time is the last microsecond of the slot, because a slot counts as a whole.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    window: i128,
    written: i128,
    charges: Charges,
}

impl StrictTerms {
    pub(super) fn any() -> impl Strategy<Value = StrictTerms> {
        (amounts(), lengths()).prop_map(|(limit, window)| StrictTerms { limit, window })
    }
}

impl Slots {
    fn add(&mut self, at: i128, cost: Exact) {
        let width = (self.window + 59) / 60;
        let end = at / width * width + width - 1;
        match self.charges.last_mut() {
            Some((newest, count)) if *newest == end => *count = saturated(&*count + cost),
            _ => self.charges.push((end, cost)),
        }
    }
}

impl Contract for StrictTerms {
    type Limit = StrictWindow;
    type Memory = Slots;

    fn implementation(&self) -> StrictWindow {
        StrictWindow::new(Amount::saturating(self.limit), period(self.window))
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Slots, at: i128) -> Exact {
        memory.charges.iter().filter(|(end, _)| at < end + memory.window).map(|(_, cost)| cost).sum()
    }

    fn opened(&self, now: i128, cost: Exact) -> Slots {
        let mut slots = Slots { window: self.window.into(), written: now, charges: Vec::new() };
        slots.add(now, cost);
        slots
    }

    fn changed(&self, mut memory: Slots, now: i128, amount: Exact) -> Slots {
        if memory.window != i128::from(self.window) {
            memory = self.opened(now, saturated(self.used(&memory, now)));
        }
        memory.charges.retain(|(end, _)| now < end + memory.window);
        memory.written = now;
        if amount.is_positive() {
            memory.add(now, amount);
        } else {
            subtract_oldest_first(&mut memory.charges, -amount);
        }
        memory
    }

    /// Moves slots back with the clock. The time of a charge within its slot is unknown, so it is taken to be the last
    /// microsecond of the slot, but not later than `now`.
    fn move_back(memory: &mut Slots, now: i128) {
        let back = memory.written - now;
        if back > 0 {
            memory.written = now;
            for (end, cost) in std::mem::take(&mut memory.charges) {
                memory.add((end - back).clamp(0, now), cost);
            }
        }
    }
}
