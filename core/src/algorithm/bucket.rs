//! Token bucket, leaky bucket and GCRA: one arithmetic, written once.
//!
//! A bucket of `capacity` is refilled by `refill` per `period`, continuously. Phrased as usage, the refill *drains*
//! what was used: `used(now) = max(0, used - (now - drained_to) * refill / period)`, and a cost is admitted iff
//! `used(now) + cost <= capacity`. As a queue (the leaky bucket) it is the same bucket; what differs is that an
//! admitted call waits until the usage before it has drained. Turner's leaky bucket as a meter, and GCRA with
//! TAT = the instant at which `used` reaches 0 (ITU-T I.371), are the same thing in other words.
//!
//! When to use it: a burst, then a steady rate. Its known flaw: in any one period up to `capacity + refill` can
//! pass. Cost: 16 bytes, a handful of multiplications and divisions.
//!
//! Exactness: `used` is a whole number of millionths, and draining over an arbitrary time is not. So a charge moves
//! `drained_to` on only by whole steps of `period / gcd(period, refill)`, each of which drains a whole number of
//! millionths; the time left over stays to be counted by the next call. Nothing is ever rounded away. (A call with
//! another rate prices at most that one step anew.)

mod fast_take;

use crate::kind::Kind;
use crate::limit::{Identity, InfoField, Limit, Taken, Usage, Verdict};
use crate::number::{Amount, Period, Span, Timestamp, ratio};
use crate::wire::codec::{Decoder, Encoder};
use std::fmt;
use std::num::NonZeroU64;

/// A bucket's numbers.
///
/// ```
/// use ratelimit_core::algorithm::bucket::{Bucket, BucketUsage, Discipline};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp, Verdict};
///
/// let (one, second) = (Amount::ONE, Period::new(Span::SECOND).unwrap());
/// let queue = Bucket::new(one.plus(one), one, second, Discipline::Queue).unwrap();
/// let (mut usage, now) = (BucketUsage::default(), Timestamp::EPOCH);
/// queue.charge(&mut usage, now, one);
/// // A leaky bucket lets the second in, and tells it to wait for its turn.
/// assert_eq!(queue.verdict(&usage, now, one), Verdict::Allowed(Span::SECOND));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    capacity: Amount,
    /// Millionths per `period`.
    refill: NonZeroU64,
    period: Period,
    discipline: Discipline,
    /// Its step, if that was worked out beforehand.
    step: Option<Step>,
}

/// The shortest time in which a bucket drains a whole number of millionths.
#[derive(Clone, Copy, Debug)]
struct Step {
    micros: NonZeroU64,
    /// The millionths that drain in it.
    drained: u64,
}

/// When an admitted call may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// At once: a token bucket.
    Burst,
    /// When what was admitted before it has drained: a leaky bucket as a queue.
    Queue,
}

/// Why there is no such bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The refill is below a millionth.
    NoRefill,
    /// Refilling an empty bucket would take more than 36500 days.
    SlowRefill,
}

/// In microseconds.
const LONGEST_RECOVERY: NonZeroU64 = match NonZeroU64::new(Span::MAX_RECOVERY.micros()) {
    Some(micros) => micros,
    None => NonZeroU64::MIN,
};

impl Bucket {
    /// A bucket that refills within 36500 days, so that nothing below can overflow.
    ///
    /// # Errors
    /// [`Refused`] says why any other is none.
    pub fn new(capacity: Amount, refill: Amount, period: Period, discipline: Discipline) -> Result<Bucket, Refused> {
        let refill = NonZeroU64::new(refill.millionths()).ok_or(Refused::NoRefill)?;
        let bucket = Bucket { capacity, refill, period, discipline, step: None };
        if bucket.time_to_drain(capacity) > Span::MAX_RECOVERY {
            return Err(Refused::SlowRefill);
        }
        Ok(bucket)
    }

    /// When an admitted call may act.
    #[must_use]
    pub fn discipline(&self) -> Discipline {
        self.discipline
    }

    /// This bucket with another capacity.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> Bucket {
        Bucket { capacity: limit, ..self }
    }

    /// Whether what is used recovers by a rate, which a scale changes.
    pub const RECOVERS_BY_RATE: bool = true;

    /// This bucket with capacity and refill times `factor`: rounded down, the refill not below a millionth, nor so low
    /// that it would take more than 36500 days. Times 0 it lets nothing pass, and what is used drains as before.
    #[must_use]
    pub fn scaled(self, factor: Amount) -> Bucket {
        let capacity = self.capacity.times(factor);
        if factor == Amount::ZERO {
            return Bucket { capacity, ..self };
        }
        let refill = Amount::saturating(self.refill.get()).times(factor).millionths();
        let least = ratio::ceil(capacity.millionths(), self.period.micros().get(), LONGEST_RECOVERY);
        let refill = NonZeroU64::new(refill.max(least)).unwrap_or(NonZeroU64::MIN);
        Bucket { capacity, refill, step: None, ..self }
    }

    /// This bucket with its step worked out, for one that many calls bring.
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
            Step { micros: NonZeroU64::new(micros).unwrap_or(NonZeroU64::MIN), drained: self.refill.get() / divisor }
        })
    }

    /// What it is known by without a name.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::by(self.period)
    }

    /// Its numbers, as words of a call.
    pub(super) fn numbers(&self) -> Numbers<'_> {
        Numbers(self)
    }

    /// Its numbers, to be stored: millionths of the capacity and of the refill, microseconds of the period.
    pub(super) fn fields(&self) -> [u64; 3] {
        [self.capacity.millionths(), self.refill.get(), self.period.micros().get()]
    }

    /// The token bucket of numbers that were stored; `None` if no call can have brought them.
    pub(super) fn of_fields([capacity, refill, period]: [u64; 3]) -> Option<Bucket> {
        let amount = |millionths| Amount::from_millionths(millionths).filter(|amount| *amount <= Amount::MAX_ARGUMENT);
        let period = Period::new(Span::from_micros(period))?;
        Bucket::new(amount(capacity)?, amount(refill)?, period, Discipline::Burst).ok()
    }

    /// The usage that recovers at `instant` if nothing else is charged: what GCRA calls the TAT.
    #[must_use]
    pub fn recovering_at(&self, instant: Timestamp, now: Timestamp) -> BucketUsage {
        let left = instant.since(now).micros();
        let used = Amount::saturating(ratio::ceil(left, self.refill.get(), self.period.micros()));
        BucketUsage { used, drained_to: now }
    }

    /// What drains in `elapsed`, in whole millionths.
    pub(super) fn drained(&self, elapsed: Span) -> Amount {
        Amount::saturating(ratio::floor(elapsed.micros(), self.refill.get(), self.period.micros()))
    }

    /// The first whole microsecond by which `amount` has drained.
    fn time_to_drain(&self, amount: Amount) -> Span {
        let micros = ratio::ceil(amount.millionths(), self.period.micros().get(), self.refill);
        Span::from_micros(micros).min(Span::MAX)
    }

    /// What is still used now, rounded up to a millionth: as limits and costs are whole millionths, comparing it is
    /// comparing the exact value.
    fn present(&self, usage: &BucketUsage, now: Timestamp) -> Amount {
        usage.used.minus(self.drained(now.since(usage.drained_to)))
    }

    /// The usage after a charge of `cost` at `now`, of one of which `used` was used at `drained_to`. What has drained
    /// since then but fills no step is left to the next charge; of a usage that is empty by now it counts as a whole
    /// millionth, so that the charge is not smaller than its cost.
    #[inline(always)]
    pub(super) fn charged(&self, used: Amount, drained_to: Timestamp, now: Timestamp, cost: Amount) -> BucketUsage {
        let elapsed = now.since(drained_to).micros();
        let drained = Amount::saturating(ratio::ceil(elapsed, self.refill.get(), self.period.micros()));
        BucketUsage { used: used.max(drained).plus(cost), drained_to }
    }

    /// Takes what has drained off `usage`, in whole steps only.
    #[inline]
    pub(super) fn advance(&self, usage: &mut BucketUsage, now: Timestamp) {
        if self.present(usage, now) == Amount::ZERO {
            *usage = BucketUsage { used: Amount::ZERO, drained_to: now };
            return;
        }
        let step = self.step();
        let steps = now.since(usage.drained_to).micros() / step.micros;
        // Both products are bounded: by `used`, which has not drained yet, and by the time that has passed.
        usage.used = usage.used.minus(Amount::saturating(steps.saturating_mul(step.drained)));
        usage.drained_to = usage.drained_to.plus(Span::from_micros(steps.saturating_mul(step.micros.get())));
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.discipline {
            Discipline::Burst => "TOKENBUCKET",
            Discipline::Queue => "LEAKYBUCKET",
        };
        write!(f, "{name} {}", self.numbers())
    }
}

/// The numbers of a bucket, which display as `capacity refill period`.
pub(super) struct Numbers<'b>(&'b Bucket);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bucket { capacity, refill, period, .. } = self.0;
        write!(f, "{capacity} {} {period}", Amount::saturating(refill.get()))
    }
}

// A time before `drained_to` is looked at as that: no time has passed since, as if it had been moved back.
impl Limit for Bucket {
    type Usage = BucketUsage;

    fn limit(&self) -> Amount {
        self.capacity
    }

    #[inline]
    fn verdict(&self, usage: &BucketUsage, now: Timestamp, cost: Amount) -> Verdict {
        if self.present(usage, now).excess(cost, self.capacity) == Amount::ZERO {
            Verdict::Allowed(match self.discipline {
                Discipline::Burst => Span::ZERO,
                Discipline::Queue => self.reset(usage, now),
            })
        } else if cost <= self.capacity {
            // From the usage as stored, not from a rounded present one: so the wait is exact.
            let wait = self.time_to_drain(usage.used.excess(cost, self.capacity));
            Verdict::After(wait.minus(now.since(usage.drained_to)))
        } else {
            Verdict::Never
        }
    }

    #[inline]
    fn remaining(&self, usage: &BucketUsage, now: Timestamp) -> Amount {
        self.capacity.minus(self.present(usage, now))
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

    fn give_back(&self, usage: &mut BucketUsage, now: Timestamp, amount: Amount) {
        if self.present(usage, now) <= amount {
            *usage = BucketUsage::default();
            return;
        }
        self.advance(usage, now);
        usage.used = usage.used.minus(amount);
    }

    fn low(&self, usage: &BucketUsage, now: Timestamp) -> Option<Amount> {
        let elapsed = now.since(usage.drained_to).micros();
        let drained = Amount::saturating(ratio::ceil(elapsed, self.refill.get(), self.period.micros()));
        Some(if usage.used == Amount::MAX { Amount::ZERO } else { usage.used.minus(drained) })
    }
}

/// What a bucket's key remembers: 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketUsage {
    /// What was used at `drained_to`.
    used: Amount,
    /// Up to when draining has been taken off `used`.
    drained_to: Timestamp,
}

impl BucketUsage {
    /// What was used at an instant.
    #[inline(always)]
    pub(super) fn at(used: Amount, drained_to: Timestamp) -> BucketUsage {
        BucketUsage { used, drained_to }
    }

    /// What was used at the instant up to which draining has been taken off.
    #[inline(always)]
    pub(super) fn used(&self) -> Amount {
        self.used
    }

    /// That instant.
    #[inline(always)]
    pub(super) fn drained_to(&self) -> Timestamp {
        self.drained_to
    }
}

impl BucketUsage {
    /// Returns what is left at `now` of a usage that drains evenly until `recovers_at`, rounded up. Of a debt whose
    /// recovery saturates, nobody knows how long that takes: it is all of it.
    fn used_until(&self, recovers_at: Timestamp, now: Timestamp) -> Amount {
        let whole = recovers_at.since(self.drained_to);
        if whole >= Span::MAX {
            return self.used;
        }
        let left = recovers_at.since(now.max(self.drained_to)).micros();
        NonZeroU64::new(whole.micros())
            .map_or(Amount::ZERO, |whole| Amount::saturating(ratio::ceil(self.used.millionths(), left, whole)))
    }
}

impl Usage for BucketUsage {
    const KIND: Kind = Kind::Bucket;

    fn is_unused(&self) -> bool {
        self.used == Amount::ZERO
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.drained_to.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        self.drained_to = self.drained_to.min(now);
    }

    // What has drained since is left to the next charge: had the call cost less, nothing would have happened now.
    fn take_back(&mut self, _place: Option<Timestamp>, amount: Amount) -> Amount {
        let taken = if self.used == Amount::MAX { Amount::ZERO } else { amount.min(self.used) };
        self.used = self.used.minus(taken);
        taken
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
