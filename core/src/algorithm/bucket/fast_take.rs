//! Taking from a bucket in one step: the outcome of [`evaluate`](crate::evaluate()), the charge and the decision, with
//! each division made once.
//!
//! It covers a cost above zero on a token bucket that is missing or not ahead of the clock, with products that fit 64
//! bits. Everything else is evaluated by [`evaluate`](crate::evaluate()); the tests compare the two.

use super::{Bucket, BucketUsage, Discipline};
use crate::limit::{Decision, Taken, Verdict};
use crate::number::{Amount, Span, Timestamp};

impl Bucket {
    /// Returns the outcome of taking `cost`; `None` if it has to be evaluated step by step.
    #[inline(always)]
    pub(super) fn take_in_one_step(
        &self,
        usage: &BucketUsage,
        now: Timestamp,
        cost: Amount,
    ) -> Option<Taken<BucketUsage>> {
        if !self.can_ever_grant(cost) {
            return None;
        }
        if usage.used == Amount::ZERO {
            let reset = self.micros_to_drain(cost.millionths())?;
            let decision = self.decision(Verdict::Allowed(Span::ZERO), cost.millionths(), reset);
            return Some(Taken::Charged(decision, BucketUsage { used: cost, drained_to: now }));
        }
        let elapsed = now.checked_since(usage.drained_to)?.micros();
        let (period, refill) = (self.period.micros().get(), self.refill.get());
        let present = usage.used.millionths().saturating_sub(elapsed.checked_mul(refill)?.checked_div(period)?);
        let after_cost = present.saturating_add(cost.millionths());
        if after_cost > self.capacity.millionths() {
            let excess = usage.used.excess(cost, self.capacity).millionths();
            let wait = Span::from_micros(self.micros_to_drain(excess)?.saturating_sub(elapsed));
            let reset = self.micros_to_drain(usage.used.millionths())?.saturating_sub(elapsed);
            return Some(Taken::Denied(self.decision(Verdict::After(wait), present, reset)));
        }
        let (after, undrained) = if present == 0 {
            (BucketUsage { used: cost, drained_to: now }, 0)
        } else {
            let step = self.step();
            let steps = elapsed.checked_div(step.micros.get())?;
            let advanced = steps.saturating_mul(step.micros.get());
            // Whole steps drain a whole number of millionths, so `present` is the same before and after them.
            let used = usage.used.millionths().saturating_sub(steps.saturating_mul(step.drained));
            let used = Amount::saturating(used.saturating_add(cost.millionths()));
            let drained_to = usage.drained_to.plus(Span::from_micros(advanced));
            (BucketUsage { used, drained_to }, elapsed.saturating_sub(advanced))
        };
        let reset = self.micros_to_drain(after.used.millionths())?.saturating_sub(undrained);
        Some(Taken::Charged(self.decision(Verdict::Allowed(Span::ZERO), after_cost, reset), after))
    }

    /// Returns `true` for a token bucket that can grant `cost` at all.
    #[inline(always)]
    fn can_ever_grant(&self, cost: Amount) -> bool {
        self.discipline == Discipline::Burst && cost != Amount::ZERO && cost <= self.capacity
    }

    /// Returns the microseconds in which this many millionths drain; `None` if the fast path does not handle so many.
    #[inline(always)]
    fn micros_to_drain(&self, millionths: u64) -> Option<u64> {
        let micros = millionths.checked_mul(self.period.micros().get())?.div_ceil(self.refill.get());
        (micros <= Span::MAX.micros()).then_some(micros)
    }

    #[inline(always)]
    fn decision(&self, verdict: Verdict, used: u64, reset: u64) -> Decision {
        Decision {
            verdict,
            limit: self.capacity,
            remaining: self.capacity.minus(Amount::saturating(used)),
            reset: Span::from_micros(reset),
            granted: None,
        }
    }
}
