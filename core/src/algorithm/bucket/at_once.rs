//! A take from a bucket in one go: what [`evaluate`](crate::evaluate()), the charge and the decision come to, with each
//! division made once.
//!
//! It is for the everyday call: a cost of more than nothing, on a usage that is there and is not ahead of the clock,
//! with products that fit 64 bits. Any other goes the long way. Both come to the same: the tests hold one to the other.

use super::{Bucket, BucketUsage, Discipline};
use crate::limit::{Decision, Taken, Verdict};
use crate::number::{Amount, Span, Timestamp};

impl Bucket {
    /// What becomes of a take of `cost`; `None` if it is to go the long way.
    #[inline(always)]
    pub(super) fn taken_at_once(
        &self,
        usage: &BucketUsage,
        now: Timestamp,
        cost: Amount,
    ) -> Option<Taken<BucketUsage>> {
        let elapsed = now.checked_since(usage.drained_to)?.micros();
        let (period, refill) = (self.period.micros().get(), self.refill.get());
        let everyday = self.discipline == Discipline::Burst
            && usage.used != Amount::ZERO
            && cost != Amount::ZERO
            && cost <= self.capacity;
        if !everyday {
            return None;
        }
        let present = usage.used.millionths().saturating_sub(elapsed.checked_mul(refill)?.checked_div(period)?);
        let after_cost = present.saturating_add(cost.millionths());
        let time_to_drain = |amount: u64| {
            let micros = amount.checked_mul(period)?.div_ceil(refill);
            (micros <= Span::MAX.micros()).then_some(micros)
        };
        let decision = |verdict, used: u64, reset: u64| Decision {
            verdict,
            limit: self.capacity,
            remaining: self.capacity.minus(Amount::saturating(used)),
            reset: Span::from_micros(reset),
            granted: None,
        };
        if after_cost > self.capacity.millionths() {
            let excess = usage.used.excess(cost, self.capacity).millionths();
            let wait = Span::from_micros(time_to_drain(excess)?.saturating_sub(elapsed));
            let reset = time_to_drain(usage.used.millionths())?.saturating_sub(elapsed);
            return Some(Taken::Denied(decision(Verdict::After(wait), present, reset)));
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
        let reset = time_to_drain(after.used.millionths())?.saturating_sub(counted);
        Some(Taken::Charged(decision(Verdict::Allowed(Span::ZERO), after_cost, reset), after))
    }
}
