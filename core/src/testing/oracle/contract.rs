//! Contract of an algorithm: the usage at any time, and the effect of a charge. [`Key::answer`] compares a limiter with
//! it.

use crate::evaluate::Request;
use crate::limit::{Decision, Limit, Verdict};
use crate::number::{Period, Span, Timestamp};
use crate::testing::laws::Lawful;
use num_rational::BigRational;
use num_traits::{Signed, Zero};
use std::fmt::Debug;

/// Exact amount in millionths.
pub(super) type Exact = BigRational;

/// Converts an amount in millionths.
pub(super) fn exact(amount: u64) -> Exact {
    Exact::from_integer(amount.into())
}

/// Algorithm with the arguments of a call. Timestamps are in microseconds.
pub(super) trait Contract: Clone + Debug {
    /// Limiter under test.
    type Limit: Lawful;
    /// State of a key that exists and has not recovered. [`Key`] handles all other keys.
    type Memory: Clone + Debug;

    /// Creates the limiter under test.
    fn implementation(&self) -> Self::Limit;
    fn limit(&self) -> u64;
    fn used(&self, memory: &Self::Memory, at: i128) -> Exact;
    /// Returns the state of a new key after a charge.
    fn opened(&self, now: i128, cost: Exact) -> Self::Memory;
    /// Returns the state after a charge, or after a refund if `amount` is negative. Usage is never negative.
    fn changed(&self, memory: Self::Memory, now: i128, amount: Exact) -> Self::Memory;
    /// Moves stored times back if they are later than `now`, by the difference.
    fn move_back(memory: &mut Self::Memory, now: i128);

    /// Returns `true` if the cost is granted.
    fn fits(&self, memory: Option<&Self::Memory>, cost: &Exact, at: i128) -> bool {
        memory.map_or(exact(0), |memory| self.used(memory, at)) + cost <= exact(self.limit())
    }
    /// Replaces a refund if the algorithm has none, on both the oracle and the limiter.
    fn release(&self, _: &mut Option<Self::Memory>, _: &mut <Self::Limit as Limit>::Usage, _: Timestamp) {}

    /// Returns `true` if granted calls have a hold: the time until the usage before the call has drained.
    fn reports_hold(&self) -> bool {
        false
    }

    fn supports_maxwait(&self) -> bool {
        false
    }
}

/// Key; `None` if it does not exist.
pub(super) struct Key<C: Contract>(pub(super) Option<C::Memory>);

impl<C: Contract> Clone for Key<C> {
    fn clone(&self) -> Self {
        Key(self.0.clone())
    }
}

impl<C: Contract> Key<C> {
    pub(super) fn used(&self, terms: &C, at: i128) -> Exact {
        self.0.as_ref().map_or(exact(0), |memory| terms.used(memory, at))
    }

    pub(super) fn fits(&self, terms: &C, cost: &Exact, at: i128) -> bool {
        terms.fits(self.0.as_ref(), cost, at)
    }

    /// Applies a charge, or a refund if `amount` is negative. A recovered key equals a missing one.
    pub(super) fn change(&mut self, terms: &C, now: i128, amount: Exact) {
        if amount.is_zero() {
            return;
        }
        self.0 = match self.0.take().filter(|memory| terms.used(memory, now).is_positive()) {
            Some(memory) => Some(terms.changed(memory, now, amount)),
            None => amount.is_positive().then(|| terms.opened(now, amount)),
        };
        self.0 = self.0.take().filter(|memory| terms.used(memory, now).is_positive());
    }

    /// Applies a request, and asserts that the limiter's decision is right. A peek has the verdict of the call, and
    /// leaves the usage unchanged.
    pub(super) fn answer(&mut self, terms: &C, now: i128, request: Request, peeks: bool, decision: &Decision) {
        if let Some(memory) = &mut self.0 {
            C::move_back(memory, now);
        }
        let before = self.clone();
        let limit = exact(terms.limit());
        let cost = match request {
            Request::UpTo(_) => exact(1_000_000),
            Request::Take(cost) | Request::Force(cost) | Request::ForceUpTo(cost) | Request::Within(cost, _) => {
                exact(cost.millionths())
            }
            Request::Refund(amount) => -exact(amount.millionths()),
            Request::PeekPastLimit => exact(1),
        };
        let max_wait = if let Request::Within(_, max_wait) = request { i128::from(max_wait.micros()) } else { 0 };
        let passes = |at| before.fits(terms, &cost, at + max_wait);
        let allowed = passes(now) || matches!(request, Request::Refund(_));

        let unit = exact(1_000_000);
        let charge = match request {
            request if request.is_forced() => cost.clone(),
            Request::PeekPastLimit => exact(0),
            _ if !allowed => exact(0),
            Request::UpTo(max) => {
                (((&limit - before.used(terms, now)) / &unit).floor() * unit).min(exact(max.millionths()))
            }
            _ => cost.clone(),
        };
        let granted = matches!(request, Request::UpTo(_) | Request::ForceUpTo(_)).then(|| charge.clone());
        self.change(terms, now, charge);

        match decision.verdict {
            Verdict::Allowed(wait) => {
                assert!(allowed, "{cost} does not fit");
                let may_act = |at| match request {
                    Request::Refund(_) => true,
                    _ if terms.reports_hold() => before.used(terms, at).is_zero(),
                    _ => before.fits(terms, &cost, at),
                };
                assert_becomes_true(now, wait, may_act);
            }
            Verdict::After(wait) => {
                assert!(!allowed, "{cost} fits");
                match request {
                    request if request.is_forced() => {
                        assert_becomes_true(now, wait, |at| self.fits(terms, &exact(0), at));
                    }
                    // The reported wait is lower by MAXWAIT.
                    _ => assert_becomes_true(now + max_wait, wait, |at| passes(at - max_wait)),
                }
            }
            Verdict::Never => assert!(cost > limit && !request.is_forced(), "{cost} may be granted later"),
        }
        if peeks {
            *self = before;
        }
        let remaining = (&limit - self.used(terms, now)).max(exact(0)).floor();
        assert_eq!(exact(decision.limit.millionths()), limit);
        assert_eq!(exact(decision.remaining.millionths()), remaining);
        assert_eq!(decision.granted.map(|granted| exact(granted.millionths())), granted);
        assert_becomes_true(now, decision.reset, |at| self.used(terms, at).is_zero());
    }
}

/// Asserts that `condition` becomes true `span` after `now`. Nothing is asserted beyond the last timestamp.
pub(super) fn assert_becomes_true(now: i128, span: Span, condition: impl Fn(i128) -> bool) {
    let end = i128::from(Timestamp::MAX.micros());
    let then = (now + i128::from(span.micros())).min(end);
    assert!(then == end || condition(then), "{span:?} is too short");
    assert!(then == now || !condition(then - 1), "{span:?} is too long");
}

/// Saturates an amount at 2^63-1 millionths.
pub(super) fn saturated(used: Exact) -> Exact {
    used.clamp(exact(0), exact((1 << 63) - 1))
}

/// Charges with their times, the oldest first.
pub(super) type Charges = Vec<(i128, Exact)>;

pub(super) fn sum(charges: &Charges) -> Exact {
    charges.iter().map(|(_, cost)| cost).sum()
}

/// Subtracts an amount from the charges, oldest first.
pub(super) fn subtract_oldest_first(charges: &mut Charges, mut amount: Exact) {
    for (_, cost) in charges.iter_mut() {
        let taken = cost.clone().min(amount.clone());
        *cost -= &taken;
        amount -= taken;
    }
    charges.retain(|(_, cost)| cost.is_positive());
}

pub(super) fn period(micros: u64) -> Period {
    Period::new(Span::from_micros(micros)).unwrap()
}
