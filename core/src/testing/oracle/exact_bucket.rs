//! Oracle of token and leaky buckets.

use super::contract::{Contract, Exact, exact, period, saturated};
use crate::algorithm::bucket::{Bucket, Discipline};
use crate::number::Amount;
use crate::testing::calls::{amounts, lengths};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) struct BucketTerms {
    pub(super) capacity: u64,
    pub(super) refill: u64,
    pub(super) period: u64,
    pub(super) queue: bool,
    /// `true` to store the exact usage at the time of the charge, as a fraction. `false` to follow the contract, which
    /// stores a whole usage at an earlier instant, because that decides the effect of a changed rate and of a clock
    /// that moved backwards. As long as neither happens, both are equal.
    pub(super) ideal: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Drained {
    used: Exact,
    to: i128,
}

impl BucketTerms {
    pub(super) fn any(ideal: bool) -> impl Strategy<Value = BucketTerms> {
        (amounts(), amounts(), lengths(), any::<bool>())
            .prop_map(move |(capacity, refill, period, queue)| BucketTerms { capacity, refill, period, queue, ideal })
            .prop_filter("recovers within 36500d", |terms| {
                let longest = exact(36500 * 86_400_000_000);
                terms.refill > 0 && exact(terms.capacity) <= longest * terms.rate()
            })
    }

    pub(super) fn rate(&self) -> Exact {
        exact(self.refill) / exact(self.period)
    }

    /// Returns the fewest microseconds in which a whole number of millionths drains: the rate's denominator in lowest
    /// terms.
    pub(super) fn step(&self) -> i128 {
        i128::try_from(self.rate().denom()).unwrap()
    }
}

impl Contract for BucketTerms {
    type Limit = Bucket;
    type Memory = Drained;

    fn implementation(&self) -> Bucket {
        let discipline = if self.queue { Discipline::Queue } else { Discipline::Burst };
        let (capacity, refill) = (Amount::saturating(self.capacity), Amount::saturating(self.refill));
        Bucket::new(capacity, refill, period(self.period), discipline).unwrap()
    }

    fn limit(&self) -> u64 {
        self.capacity
    }

    fn used(&self, memory: &Drained, at: i128) -> Exact {
        let drained = Exact::from_integer((at - memory.to).into()) * self.rate();
        (&memory.used - drained).max(exact(0))
    }

    fn opened(&self, now: i128, cost: Exact) -> Drained {
        Drained { used: cost, to: now }
    }

    fn changed(&self, memory: Drained, now: i128, by: Exact) -> Drained {
        let not_a_step = if self.ideal { 0 } else { (now - memory.to) % self.step() };
        let to = now - not_a_step;
        Drained { used: saturated(self.used(&memory, to) + by), to }
    }

    fn move_back(memory: &mut Drained, now: i128) {
        memory.to = memory.to.min(now);
    }

    fn reports_delay(&self) -> bool {
        self.queue
    }

    fn takes_maxwait(&self) -> bool {
        !self.queue
    }
}
