//! Oracle of sliding logs.

use super::contract::{Charges, Contract, Exact, exact, period, saturated, subtract_oldest_first, sum};
use crate::algorithm::log::SlidingLog;
use crate::number::Amount;
use crate::testing::calls::{amounts, lengths};
use num_traits::Signed;
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) struct LogTerms {
    pub(super) limit: u64,
    pub(super) window: u64,
}

impl LogTerms {
    pub(super) fn any() -> impl Strategy<Value = LogTerms> {
        (amounts(), lengths()).prop_map(|(limit, window)| LogTerms { limit, window })
    }

    fn counts(&self, charged_at: i128, at: i128) -> bool {
        charged_at > at - i128::from(self.window)
    }
}

impl Contract for LogTerms {
    type Limit = SlidingLog;
    type Memory = Charges;

    fn implementation(&self) -> SlidingLog {
        SlidingLog::new(Amount::saturating(self.limit), period(self.window))
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Charges, at: i128) -> Exact {
        memory.iter().filter(|(charged, _)| self.counts(*charged, at)).map(|(_, cost)| cost).sum()
    }

    fn opened(&self, now: i128, cost: Exact) -> Charges {
        vec![(now, cost)]
    }

    fn changed(&self, mut memory: Charges, now: i128, amount: Exact) -> Charges {
        memory.retain(|(charged, _)| self.counts(*charged, now));
        if amount.is_positive() {
            let room = saturated(exact(u64::MAX)) - sum(&memory);
            memory.push((now, amount.min(room)));
            memory.retain(|(_, cost)| cost.is_positive());
        } else {
            subtract_oldest_first(&mut memory, -amount);
        }
        memory
    }

    fn move_back(memory: &mut Charges, now: i128) {
        let back = memory.last().map_or(0, |(newest, _)| newest - now).max(0);
        for (charged, _) in memory {
            *charged = (*charged - back).max(0);
        }
    }
}
