//! Token bucket, leaky bucket and GCRA, which share their arithmetic.
//!
//! A bucket of `capacity` is refilled by `refill` per `period`, continuously. In terms of usage, the refill *drains*
//! the used amount: `used(now) = max(0, used - (now - drained_to) * refill / period)`. A cost is granted if and only if
//! `used(now) + cost <= capacity`. The leaky bucket as a queue is the same bucket, except that a granted call is
//! delayed until the earlier usage has drained. The leaky bucket as a meter (Turner) and GCRA, with TAT = the time at
//! which `used` reaches 0 (ITU-T I.371), are equivalent.
//!
//! **When to use it:** to allow a burst, then a steady rate. **Known flaw:** up to `capacity + refill` can be granted
//! in a single period. **Cost:** 16 bytes, a few multiplications and divisions.
//!
//! **Exactness:** `used` is a whole number of millionths, but the drain over an arbitrary time is not. So a charge
//! advances `drained_to` only by whole steps of `period / gcd(period, refill)`, each of which drains a whole number of
//! millionths. The time after the last whole step counts for the next call, so nothing is ever rounded away. (If the
//! next call has another rate, this time drains at that rate.)

mod fast_take;

use crate::limit::{Identity, InfoField, Limit, Taken, Usage, Verdict};
use crate::number::{Amount, Period, Span, Timestamp, ratio};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{Decoder, Encoder};
use std::fmt;
use std::num::NonZeroU64;

/// Bucket limiter.
///
/// ```
/// use ratelimit_core::algorithm::bucket::{Bucket, BucketUsage, Discipline};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp, Verdict};
///
/// let (one, second) = (Amount::ONE, Period::new(Span::SECOND).unwrap());
/// let queue = Bucket::new(one.plus(one), one, second, Discipline::Queue).unwrap();
/// let (mut usage, now) = (BucketUsage::default(), Timestamp::EPOCH);
/// queue.charge(&mut usage, now, one);
/// // A leaky bucket grants the second call with a delay.
/// assert_eq!(queue.verdict(&usage, now, one), Verdict::Allowed(Span::SECOND));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    capacity: Amount,
    /// Millionths per `period`.
    refill: NonZeroU64,
    period: Period,
    discipline: Discipline,
    /// Precomputed step; `None` to compute it when needed.
    step: Option<Step>,
}

/// Shortest time in which a bucket drains a whole number of millionths.
#[derive(Clone, Copy, Debug)]
struct Step {
    micros: NonZeroU64,
    /// Millionths that drain in the step.
    millionths: u64,
}

/// Discipline of a bucket: the time at which a granted call may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// Immediately: a token bucket.
    Burst,
    /// After the earlier usage has drained: a leaky bucket as a queue.
    Queue,
}

/// Reason for an invalid bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidBucket {
    /// The refill is below a millionth.
    NoRefill,
    /// Refilling an empty bucket would take more than 36500 days.
    SlowRefill,
}

/// Longest recovery in microseconds.
const MAX_RECOVERY: NonZeroU64 = match NonZeroU64::new(Span::MAX_RECOVERY.micros()) {
    Some(micros) => micros,
    None => NonZeroU64::MIN,
};

impl Bucket {
    /// Creates a bucket that refills within 36500 days, so that no computation can overflow.
    ///
    /// # Errors
    /// [`InvalidBucket`] if there is no refill or the bucket refills too slowly.
    pub fn new(
        capacity: Amount,
        refill: Amount,
        period: Period,
        discipline: Discipline,
    ) -> Result<Bucket, InvalidBucket> {
        let refill = NonZeroU64::new(refill.millionths()).ok_or(InvalidBucket::NoRefill)?;
        let bucket = Bucket { capacity, refill, period, discipline, step: None };
        if bucket.time_to_drain(capacity) > Span::MAX_RECOVERY {
            return Err(InvalidBucket::SlowRefill);
        }
        Ok(bucket)
    }

    /// Returns the discipline.
    #[must_use]
    pub fn discipline(&self) -> Discipline {
        self.discipline
    }

    /// Returns this bucket with another capacity.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> Bucket {
        Bucket { capacity: limit, ..self }
    }

    /// Returns this bucket with capacity and refill multiplied by `factor`, rounded down. The refill stays at least a
    /// millionth and high enough for a recovery within 36500 days. A factor of 0 denies every cost and leaves the
    /// refill unchanged.
    #[must_use]
    pub fn scaled(self, factor: Amount) -> Bucket {
        let capacity = self.capacity.times(factor);
        if factor == Amount::ZERO {
            return Bucket { capacity, ..self };
        }
        let refill = Amount::saturating(self.refill.get()).times(factor).millionths();
        let min_refill = ratio::ceil(capacity.millionths(), self.period.micros().get(), MAX_RECOVERY);
        let refill = NonZeroU64::new(refill.max(min_refill)).unwrap_or(NonZeroU64::MIN);
        Bucket { capacity, refill, step: None, ..self }
    }

    /// Returns this bucket with another discipline.
    #[must_use]
    #[inline(always)]
    pub(crate) fn with_discipline(self, discipline: Discipline) -> Bucket {
        Bucket { discipline, ..self }
    }

    /// Returns this bucket with its step precomputed, for a limit of many calls.
    #[must_use]
    pub fn prepared(mut self) -> Bucket {
        self.step = Some(self.step());
        self
    }

    #[inline(always)]
    fn step(&self) -> Step {
        self.step.unwrap_or_else(|| {
            let divisor = ratio::gcd(self.period.micros(), self.refill);
            let micros = self.period.micros().get() / divisor;
            Step { micros: NonZeroU64::new(micros).unwrap_or(NonZeroU64::MIN), millionths: self.refill.get() / divisor }
        })
    }

    /// Returns the identity that stands for the limit if it has no name.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::by(self.period)
    }

    /// Returns `capacity refill period`, like the arguments of a call.
    pub(super) fn arguments(&self) -> String {
        let Bucket { capacity, refill, period, .. } = self;
        format!("{capacity} {} {period}", Amount::saturating(refill.get()))
    }

    /// Returns the numbers to store: capacity and refill in millionths, period in microseconds.
    pub(super) fn fields(&self) -> [u64; 3] {
        [self.capacity.millionths(), self.refill.get(), self.period.micros().get()]
    }

    /// Creates a token bucket from stored [`fields`](Bucket::fields). Returns `None` if no call can have stored them.
    pub(super) fn from_fields([capacity, refill, period]: [u64; 3]) -> Option<Bucket> {
        let amount = |millionths| Amount::from_millionths(millionths).filter(|amount| *amount <= Amount::MAX_ARGUMENT);
        let period = Period::new(Span::from_micros(period))?;
        Bucket::new(amount(capacity)?, amount(refill)?, period, Discipline::Burst).ok()
    }

    /// Returns the usage that recovers at `instant`, the TAT of GCRA, if nothing else is charged.
    #[must_use]
    pub fn recovering_at(&self, instant: Timestamp, now: Timestamp) -> BucketUsage {
        BucketUsage { used: self.drained_rounded_up(instant.since(now)), drained_to: now }
    }

    /// Returns the amount that drains in `elapsed`, rounded down to a millionth.
    pub(super) fn drained_rounded_down(&self, elapsed: Span) -> Amount {
        Amount::saturating(ratio::floor(elapsed.micros(), self.refill.get(), self.period.micros()))
    }

    /// Returns the amount that drains in `elapsed`, rounded up to a millionth.
    #[inline(always)]
    fn drained_rounded_up(&self, elapsed: Span) -> Amount {
        Amount::saturating(ratio::ceil(elapsed.micros(), self.refill.get(), self.period.micros()))
    }

    /// Returns the time to drain `amount`, rounded up to a microsecond.
    fn time_to_drain(&self, amount: Amount) -> Span {
        let micros = ratio::ceil(amount.millionths(), self.period.micros().get(), self.refill);
        Span::from_micros(micros).min(Span::MAX)
    }

    /// Returns the usage at `now`, rounded up to a millionth. Limits and costs are whole millionths, so a comparison
    /// with the rounded value equals one with the exact value.
    fn used_at(&self, usage: &BucketUsage, now: Timestamp) -> Amount {
        usage.used.minus(self.drained_rounded_down(now.since(usage.drained_to)))
    }

    /// Returns the usage after a charge of `cost` at `now`, from the usage `used` at `drained_to`. `drained_to` is
    /// unchanged, so the drain since then is subtracted later. If that drain exceeds `used`, `used` is first raised to
    /// it (rounded up), so that the later subtraction cannot reduce `cost`.
    #[inline(always)]
    pub(super) fn usage_after(&self, used: Amount, drained_to: Timestamp, now: Timestamp, cost: Amount) -> BucketUsage {
        let drained = self.drained_rounded_up(now.since(drained_to));
        BucketUsage { used: used.max(drained).plus(cost), drained_to }
    }

    /// Subtracts from `usage` the drain until `now`, in whole steps only.
    #[inline]
    pub(super) fn advance(&self, usage: &mut BucketUsage, now: Timestamp) {
        if self.used_at(usage, now) == Amount::ZERO {
            *usage = BucketUsage { used: Amount::ZERO, drained_to: now };
            return;
        }
        let step = self.step();
        let steps = now.since(usage.drained_to).micros() / step.micros;
        // Neither product saturates: the first is below `used`, which has not fully drained, and the second is at most
        // the elapsed time.
        usage.used = usage.used.minus(Amount::saturating(steps.saturating_mul(step.millionths)));
        usage.drained_to = usage.drained_to.plus(Span::from_micros(steps.saturating_mul(step.micros.get())));
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.discipline {
            Discipline::Burst => "TOKENBUCKET",
            Discipline::Queue => "LEAKYBUCKET",
        };
        write!(f, "{name} {}", self.arguments())
    }
}

// If `now` is before `drained_to` (the clock moved backwards), no time counts as elapsed, just as after `move_back`.
impl Limit for Bucket {
    type Usage = BucketUsage;

    fn limit(&self) -> Amount {
        self.capacity
    }

    #[inline]
    fn verdict(&self, usage: &BucketUsage, now: Timestamp, cost: Amount) -> Verdict {
        if self.used_at(usage, now).excess(cost, self.capacity) == Amount::ZERO {
            Verdict::Allowed(match self.discipline {
                Discipline::Burst => Span::ZERO,
                Discipline::Queue => self.reset(usage, now),
            })
        } else if cost <= self.capacity {
            // The wait is exact because it is computed from the stored usage, not from the rounded usage at `now`.
            let wait = self.time_to_drain(usage.used.excess(cost, self.capacity));
            Verdict::After(wait.minus(now.since(usage.drained_to)))
        } else {
            Verdict::Never
        }
    }

    #[inline]
    fn remaining(&self, usage: &BucketUsage, now: Timestamp) -> Amount {
        self.capacity.minus(self.used_at(usage, now))
    }

    #[inline]
    fn reset(&self, usage: &BucketUsage, now: Timestamp) -> Span {
        self.time_to_drain(usage.used).minus(now.since(usage.drained_to))
    }

    #[inline]
    fn charge(&self, usage: &mut BucketUsage, now: Timestamp, cost: Amount) {
        self.advance(usage, now);
        usage.used = usage.used.plus(cost);
    }

    #[inline(always)]
    fn take(&self, usage: &BucketUsage, now: Timestamp, cost: Amount) -> Option<Taken<BucketUsage>> {
        self.take_in_one_step(usage, now, cost)
    }

    fn refund(&self, usage: &mut BucketUsage, now: Timestamp, amount: Amount) {
        if self.used_at(usage, now) <= amount {
            *usage = BucketUsage::default();
            return;
        }
        self.advance(usage, now);
        usage.used = usage.used.minus(amount);
    }

    fn low_water_mark(&self, usage: &BucketUsage, now: Timestamp) -> Option<Amount> {
        let drained = self.drained_rounded_up(now.since(usage.drained_to));
        Some(if usage.is_saturated() { Amount::ZERO } else { usage.used.minus(drained) })
    }
}

/// State of a bucket, in 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketUsage {
    /// Usage at `drained_to`.
    pub(super) used: Amount,
    /// Time up to which the drain has been subtracted from `used`.
    pub(super) drained_to: Timestamp,
}

impl BucketUsage {
    /// Returns `true` if `used` may be lower than the sum of its charges. Then no charge can be taken back, because
    /// `used` may contain only a part of it.
    fn is_saturated(&self) -> bool {
        self.used == Amount::MAX
    }

    /// Returns the usage at `now`, rounded up, if it drains evenly until `recovers_at`. If that time has saturated,
    /// which only a debt can cause, returns the stored usage.
    fn used_until(&self, recovers_at: Timestamp, now: Timestamp) -> Amount {
        let recovery = recovers_at.since(self.drained_to);
        if recovery >= Span::MAX {
            return self.used;
        }
        let remaining = recovers_at.since(now.max(self.drained_to)).micros();
        NonZeroU64::new(recovery.micros()).map_or(Amount::ZERO, |recovery| {
            Amount::saturating(ratio::ceil(self.used.millionths(), remaining, recovery))
        })
    }
}

impl Usage for BucketUsage {
    const KIND: UsageKind = UsageKind::Bucket;

    fn is_unused(&self) -> bool {
        self.used == Amount::ZERO
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.drained_to.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        self.drained_to = self.drained_to.min(now);
    }

    // Leaves `drained_to` unchanged: the next charge subtracts the drain since then, as if the call had cost less from
    // the start.
    fn take_back(&mut self, _place: Option<Timestamp>, amount: Amount) -> Amount {
        let reduction = if self.is_saturated() { Amount::ZERO } else { amount.min(self.used) };
        self.used = self.used.minus(reduction);
        reduction
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.used.millionths());
        to.integer(self.drained_to.micros());
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<BucketUsage> {
        let used = Amount::from_millionths(from.integer()?)?;
        let drained_to = Timestamp::from_micros(from.integer()?)?;
        (used != Amount::ZERO).then_some(BucketUsage { used, drained_to })
    }

    fn describe(&self, now: Timestamp, recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        let used = recovers_at.map_or(self.used, |at| self.used_until(at, now));
        vec![("used", InfoField::Amount(used)), ("drained_to", InfoField::Instant(self.drained_to))]
    }
}

#[cfg(test)]
mod tests;
