//! The fast path of a take from a bucket: what [`evaluate`](crate::evaluate()), the charge and the decision come to,
//! with each division made once.
//!
//! It is for the everyday call: a cost of more than nothing, on a usage that is there and is not ahead of the clock, or
//! of one that was never seen, with products that fit 64 bits. Any other takes the slow path. Both come to the same: the
//! tests hold one to the other.

use super::{Bucket, BucketUsage, Discipline};
use crate::limit::{Decision, Taken, Verdict};
use crate::number::{Amount, Span, Timestamp};

impl Bucket {
    /// The outcome of a take of `cost`; `None` if it is to go by the slow path.
    #[inline(always)]
    pub(super) fn taken_fast(&self, usage: &BucketUsage, now: Timestamp, cost: Amount) -> Option<Taken<BucketUsage>> {
        let elapsed = now.checked_since(usage.drained_to)?.micros();
        if usage.used == Amount::ZERO || !self.is_everyday(cost) {
            return None;
        }
        let (period, refill) = (self.period.micros().get(), self.refill.get());
        let present = usage.used.millionths().saturating_sub(elapsed.checked_mul(refill)?.checked_div(period)?);
        let after_cost = present.saturating_add(cost.millionths());
        if after_cost > self.capacity.millionths() {
            let excess = usage.used.excess(cost, self.capacity).millionths();
            let wait = Span::from_micros(self.drains_fast(excess)?.saturating_sub(elapsed));
            let reset = self.drains_fast(usage.used.millionths())?.saturating_sub(elapsed);
            return Some(Taken::Denied(self.decided(Verdict::After(wait), present, reset)));
        }
        let (after, counted) = if present == 0 {
            (BucketUsage { used: cost, drained_to: now }, 0)
        } else {
            let step = self.step();
            let steps = elapsed.checked_div(step.micros.get())?;
            let advanced = steps.saturating_mul(step.micros.get());
            // What the steps drain is a whole number, so that `present` is the same before and after them.
            let used = usage.used.millionths().saturating_sub(steps.saturating_mul(step.drained));
            let used = Amount::saturating(used.saturating_add(cost.millionths()));
            let drained_to = usage.drained_to.plus(Span::from_micros(advanced));
            (BucketUsage { used, drained_to }, elapsed.saturating_sub(advanced))
        };
        let reset = self.drains_fast(after.used.millionths())?.saturating_sub(counted);
        Some(Taken::Charged(self.decided(Verdict::Allowed(Span::ZERO), after_cost, reset), after))
    }

    /// What a take of `cost` comes to at a key that was never seen: the answer, and what the key remembers then. `None` if
    /// it is denied, or is to take the slow path.
    #[must_use]
    #[inline(always)]
    pub fn first_taken(&self, now: Timestamp, cost: Amount) -> Option<(Decision, BucketUsage)> {
        if !self.is_everyday(cost) {
            return None;
        }
        let reset = self.drains_fast(cost.millionths())?;
        let decision = self.decided(Verdict::Allowed(Span::ZERO), cost.millionths(), reset);
        Some((decision, BucketUsage { used: cost, drained_to: now }))
    }

    #[inline(always)]
    fn is_everyday(&self, cost: Amount) -> bool {
        self.discipline == Discipline::Burst && cost != Amount::ZERO && cost <= self.capacity
    }

    /// The microseconds in which this many millionths drain.
    #[inline(always)]
    fn drains_fast(&self, millionths: u64) -> Option<u64> {
        let micros = millionths.checked_mul(self.period.micros().get())?.div_ceil(self.refill.get());
        (micros <= Span::MAX.micros()).then_some(micros)
    }

    #[inline(always)]
    fn decided(&self, verdict: Verdict, used: u64, reset: u64) -> Decision {
        Decision {
            verdict,
            limit: self.capacity,
            remaining: self.capacity.minus(Amount::saturating(used)),
            reset: Span::from_micros(reset),
            granted: None,
        }
    }
}
