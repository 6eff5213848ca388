//! Taking from a bucket in one step: the outcome of [`evaluate`](crate::evaluate()), the charge and the decision, with
//! each division made once.
//!
//! This way covers a cost above zero and up to the capacity, on a token bucket whose stored time is not ahead of the clock,
//! with products that fit 64 bits. Other calls are evaluated step by step; the tests compare both ways.

use super::{Bucket, BucketUsage, Discipline};
use crate::limit::{Decision, Taken, Verdict};
use crate::number::{Amount, Span, Timestamp};

impl Bucket {
    /// Returns the outcome of taking `cost`; `None` if the call has to be evaluated step by step.
    #[inline(always)]
    pub(super) fn take_in_one_step(
        &self,
        usage: &BucketUsage,
        now: Timestamp,
        cost: Amount,
    ) -> Option<Taken<BucketUsage>> {
        if !self.covers(cost) {
            return None;
        }
        if usage.used == Amount::ZERO {
            let reset = self.micros_to_drain(cost.millionths())?;
            let decision = self.decision(Verdict::Allowed(Span::ZERO), cost.millionths(), reset);
            return Some(Taken::Charged(decision, BucketUsage { used: cost, drained_to: now }));
        }
        let elapsed = now.checked_since(usage.drained_to)?.micros();
        let (period, refill) = (self.period.micros().get(), self.refill.get());
        let used_now = usage.used.millionths().saturating_sub(elapsed.checked_mul(refill)?.checked_div(period)?);
        let used_after_cost = used_now.saturating_add(cost.millionths());
        if used_after_cost > self.capacity.millionths() {
            let excess = usage.used.excess(cost, self.capacity).millionths();
            let wait = Span::from_micros(self.micros_to_drain(excess)?.saturating_sub(elapsed));
            let reset = self.micros_to_drain(usage.used.millionths())?.saturating_sub(elapsed);
            return Some(Taken::Denied(self.decision(Verdict::After(wait), used_now, reset)));
        }
        let (usage_after, undrained_micros) = if used_now == 0 {
            (BucketUsage { used: cost, drained_to: now }, 0)
        } else {
            let step = self.step();
            let steps = elapsed.checked_div(step.micros.get())?;
            let advanced_micros = steps.saturating_mul(step.micros.get());
            // Whole steps drain a whole number of millionths, so `used_now` is the same before and after them.
            let used = usage.used.millionths().saturating_sub(steps.saturating_mul(step.millionths));
            let used = Amount::saturating(used.saturating_add(cost.millionths()));
            let drained_to = usage.drained_to.plus(Span::from_micros(advanced_micros));
            (BucketUsage { used, drained_to }, elapsed.saturating_sub(advanced_micros))
        };
        let reset = self.micros_to_drain(usage_after.used.millionths())?.saturating_sub(undrained_micros);
        Some(Taken::Charged(self.decision(Verdict::Allowed(Span::ZERO), used_after_cost, reset), usage_after))
    }

    /// Returns `true` if `cost` is above zero and at most the capacity of a token bucket.
    #[inline(always)]
    fn covers(&self, cost: Amount) -> bool {
        self.discipline == Discipline::Burst && cost != Amount::ZERO && cost <= self.capacity
    }

    /// Returns the microseconds in which this many millionths drain; `None` beyond the range of the fast path.
    #[inline(always)]
    fn micros_to_drain(&self, millionths: u64) -> Option<u64> {
        let micros = millionths.checked_mul(self.period.micros().get())?.div_ceil(self.refill.get());
        (micros <= Span::MAX.micros()).then_some(micros)
    }

    #[inline(always)]
    fn decision(&self, verdict: Verdict, used_millionths: u64, reset_micros: u64) -> Decision {
        Decision {
            verdict,
            limit: self.capacity,
            remaining: self.capacity.minus(Amount::saturating(used_millionths)),
            reset: Span::from_micros(reset_micros),
            granted: None,
        }
    }
}
