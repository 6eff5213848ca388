//! What a contract is: how much is used at any time, and what a charge does to it. A key keeps one or breaks it.

use crate::evaluate::Request;
use crate::limit::{Decision, Limit, Verdict};
use crate::number::{Period, Span, Timestamp};
use crate::testing::laws::Lawful;
use num_rational::BigRational;
use num_traits::{Signed, Zero};
use std::fmt::Debug;

/// An exact amount, in millionths.
pub(super) type Exact = BigRational;

pub(super) fn exact(amount: u64) -> Exact {
    Exact::from_integer(amount.into())
}

/// An algorithm with the numbers of a call, as the contract words it. Instants are in microseconds.
pub(super) trait Contract: Clone + Debug {
    /// What keeps this contract.
    type Limit: Lawful;
    /// What a key remembers; to one that does not exist or has recovered, which remembers nothing, [`Key`] sees.
    type Memory: Clone + Debug;

    fn implementation(&self) -> Self::Limit;
    fn limit(&self) -> u64;
    fn used(&self, memory: &Self::Memory, at: i128) -> Exact;
    /// A charge of a key that remembers nothing.
    fn opened(&self, now: i128, cost: Exact) -> Self::Memory;
    /// A charge, or if negative a give-back; what is below 0 counts as 0.
    fn changed(&self, memory: Self::Memory, now: i128, by: Exact) -> Self::Memory;
    /// "A clock gone back (last written > now): stored times move back by the difference."
    fn see(memory: &mut Self::Memory, now: i128);

    /// What is admitted.
    fn fits(&self, memory: Option<&Self::Memory>, cost: &Exact, at: i128) -> bool {
        memory.map_or(exact(0), |memory| self.used(memory, at)) + cost <= exact(self.limit())
    }
    /// What comes before a call that would give back if it could, on both sides.
    fn release(&self, _: &mut Option<Self::Memory>, _: &mut <Self::Limit as Limit>::Usage, _: Timestamp) {}

    fn tells_turns(&self) -> bool {
        false
    }
    fn takes_maxwait(&self) -> bool {
        false
    }
}

/// A key: `None` if it does not exist.
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

    /// "A never-seen key and a fully recovered key are the same thing"; "a key at 0 is deleted".
    pub(super) fn change(&mut self, terms: &C, now: i128, by: Exact) {
        if by.is_zero() {
            return;
        }
        self.0 = match self.0.take().filter(|memory| terms.used(memory, now).is_positive()) {
            Some(memory) => Some(terms.changed(memory, now, by)),
            None => by.is_positive().then(|| terms.opened(now, by)),
        };
        self.0 = self.0.take().filter(|memory| terms.used(memory, now).is_positive());
    }

    /// Does what is asked, and panics if `told` is not the answer. A peek is told what the call would be, and what
    /// stands.
    pub(super) fn answer(&mut self, terms: &C, now: i128, request: Request, peeks: bool, told: &Decision) {
        if let Some(memory) = &mut self.0 {
            C::see(memory, now);
        }
        let before = self.clone();
        let limit = exact(terms.limit());
        let cost = match request {
            Request::UpTo(_) => exact(1_000_000),
            Request::Take(cost) | Request::Force(cost) | Request::ForceUpTo(cost) | Request::Within(cost, _) => {
                exact(cost.millionths())
            }
            Request::GiveBack(amount) => -exact(amount.millionths()),
            Request::LookPastLimit => exact(1),
        };
        let patience = if let Request::Within(_, patience) = request { i128::from(patience.micros()) } else { 0 };
        let passes = |at| before.fits(terms, &cost, at + patience);
        let allowed = passes(now) || matches!(request, Request::GiveBack(_));

        let unit = exact(1_000_000);
        let charge = match request {
            request if request.is_forced() => cost.clone(),
            Request::LookPastLimit => exact(0),
            _ if !allowed => exact(0),
            Request::UpTo(most) => {
                (((&limit - before.used(terms, now)) / &unit).floor() * unit).min(exact(most.millionths()))
            }
            _ => cost.clone(),
        };
        let granted = matches!(request, Request::UpTo(_) | Request::ForceUpTo(_)).then(|| charge.clone());
        self.change(terms, now, charge);

        match told.verdict {
            Verdict::Allowed(wait) => {
                assert!(allowed, "{cost} does not fit");
                let may_act = |at| match request {
                    Request::GiveBack(_) => true,
                    _ if terms.tells_turns() => before.used(terms, at).is_zero(),
                    _ => before.fits(terms, &cost, at),
                };
                assert_first(now, wait, may_act);
            }
            Verdict::After(wait) => {
                assert!(!allowed, "{cost} fits");
                match request {
                    request if request.is_forced() => assert_first(now, wait, |at| self.fits(terms, &exact(0), at)),
                    // The wait less MAXWAIT, even where it is saturated.
                    _ => assert_first(now + patience, wait, |at| passes(at - patience)),
                }
            }
            Verdict::Never => assert!(cost > limit && !request.is_forced(), "{cost} can pass"),
        }
        if peeks {
            *self = before;
        }
        let remaining = (&limit - self.used(terms, now)).max(exact(0)).floor();
        assert_eq!(exact(told.limit.millionths()), limit);
        assert_eq!(exact(told.remaining.millionths()), remaining);
        assert_eq!(told.granted.map(|granted| exact(granted.millionths())), granted);
        assert_first(now, told.reset, |at| self.used(terms, at).is_zero());
    }
}

/// Panics unless `holds` begins to hold `span` after `now`. Of what lies past the last instant nothing is told.
pub(super) fn assert_first(now: i128, span: Span, holds: impl Fn(i128) -> bool) {
    let end = i128::from(Timestamp::MAX.micros());
    let then = (now + i128::from(span.micros())).min(end);
    assert!(then == end || holds(then), "{span:?} is too short");
    assert!(then == now || !holds(then - 1), "{span:?} is too long");
}

/// "Usage saturates at 2^63-1 millionths", "count by count".
pub(super) fn saturated(used: Exact) -> Exact {
    used.clamp(exact(0), exact((1 << 63) - 1))
}

/// What was charged, the oldest first: when, and how much.
pub(super) type Charges = Vec<(i128, Exact)>;

pub(super) fn sum(charges: &Charges) -> Exact {
    charges.iter().map(|(_, cost)| cost).sum()
}

/// "The oldest first."
pub(super) fn take_off(charges: &mut Charges, mut amount: Exact) {
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
