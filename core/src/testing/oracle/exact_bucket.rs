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
    /// `true`: leaky bucket.
    pub(super) is_queue: bool,
    /// `true`: the exact usage at the time of a charge is stored, as a fraction. `false`: as in the contract, the usage
    /// at an earlier time is stored, in whole millionths. Both are equal until the rate changes or the clock moves
    /// backwards.
    pub(super) is_ideal: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Drained {
    used: Exact,
    drained_to: i128,
}

impl BucketTerms {
    pub(super) fn any() -> impl Strategy<Value = BucketTerms> {
        (amounts(), amounts(), lengths(), any::<bool>())
            .prop_map(|(capacity, refill, period, is_queue)| BucketTerms {
                capacity,
                refill,
                period,
                is_queue,
                is_ideal: false,
            })
            .prop_filter("recovers within 36500d", |terms| {
                let longest = exact(36500 * 86_400_000_000);
                terms.refill > 0 && exact(terms.capacity) <= longest * terms.rate()
            })
    }

    pub(super) fn any_ideal() -> impl Strategy<Value = BucketTerms> {
        BucketTerms::any().prop_map(|terms| BucketTerms { is_ideal: true, ..terms })
    }

    pub(super) fn rate(&self) -> Exact {
        exact(self.refill) / exact(self.period)
    }

    /// Returns the shortest time, in microseconds, in which a whole number of millionths drains: the denominator of the
    /// reduced rate.
    pub(super) fn step(&self) -> i128 {
        i128::try_from(self.rate().denom()).unwrap()
    }
}

impl Contract for BucketTerms {
    type Limit = Bucket;
    type Memory = Drained;

    fn implementation(&self) -> Bucket {
        let discipline = if self.is_queue { Discipline::Queue } else { Discipline::Burst };
        let (capacity, refill) = (Amount::saturating(self.capacity), Amount::saturating(self.refill));
        Bucket::new(capacity, refill, period(self.period), discipline).unwrap()
    }

    fn limit(&self) -> u64 {
        self.capacity
    }

    fn used(&self, memory: &Drained, at: i128) -> Exact {
        let drained = Exact::from_integer((at - memory.drained_to).into()) * self.rate();
        (&memory.used - drained).max(exact(0))
    }

    fn opened(&self, now: i128, cost: Exact) -> Drained {
        Drained { used: cost, drained_to: now }
    }

    fn changed(&self, memory: Drained, now: i128, amount: Exact) -> Drained {
        let since_last_step = if self.is_ideal { 0 } else { (now - memory.drained_to) % self.step() };
        let drained_to = now - since_last_step;
        Drained { used: saturated(self.used(&memory, drained_to) + amount), drained_to }
    }

    fn move_back(memory: &mut Drained, now: i128) {
        memory.drained_to = memory.drained_to.min(now);
    }

    fn reports_hold(&self) -> bool {
        self.is_queue
    }

    fn supports_maxwait(&self) -> bool {
        !self.is_queue
    }
}
