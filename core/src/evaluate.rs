//! Requests to a limit, and the two steps that all algorithms share: [`evaluate`] and [`Change::apply`]. The options
//! COST, UPTO, FORCE and MAXWAIT are implemented here, for all algorithms, in terms of the methods of [`Limit`].

use crate::limit::{Decision, Limit, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};

/// Request of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Charge of the whole cost or nothing (`COST`). A cost of 0 is a peek.
    Take(Amount),
    /// Charge of as many whole units as are available, up to this number and at least one (`UPTO`).
    UpTo(Amount),
    /// Charge of this cost, even past the limit (`FORCE`).
    Force(Amount),
    /// Forced charge like [`Force`](Request::Force), whose reply also contains the granted amount (`UPTO` under a limit
    /// of a policy with `FORCE`).
    ForceUpTo(Amount),
    /// Charge of this cost if it fits within the timeout (`MAXWAIT`).
    Within(Amount, Span),
    /// Refund of this amount (`COST -amount`).
    Refund(Amount),
    /// Peek (`COST 0`) whose `KEEP` exceeds the limit. Always denied, except to a caller that already holds a lease.
    PeekPastLimit,
}

impl Request {
    /// Returns `true` for a peek, which neither charges nor refunds.
    #[must_use]
    pub fn is_peek(self) -> bool {
        !matches!(self, Request::UpTo(_) | Request::Refund(_)) && self.cost() == Amount::ZERO
    }

    /// Returns the cost or amount that the request names; zero for one that names none.
    #[must_use]
    pub fn cost(self) -> Amount {
        match self {
            Request::Take(amount)
            | Request::UpTo(amount)
            | Request::Force(amount)
            | Request::ForceUpTo(amount)
            | Request::Within(amount, _)
            | Request::Refund(amount) => amount,
            Request::PeekPastLimit => Amount::ZERO,
        }
    }

    /// Returns `true` if the cost is charged even past the limit.
    #[must_use]
    pub fn is_forced(self) -> bool {
        matches!(self, Request::Force(_) | Request::ForceUpTo(_))
    }

    /// Returns the request under a limit of a policy with `FORCE`: a charge is made even past the limit.
    #[must_use]
    pub fn forced(self) -> Request {
        match self {
            Request::Take(cost) | Request::Within(cost, _) if cost != Amount::ZERO => Request::Force(cost),
            Request::UpTo(max) => Request::ForceUpTo(max),
            other => other,
        }
    }
}

/// Change that a call would make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No change.
    Nothing,
    /// Charge of this cost.
    Charge(Amount),
    /// Refund of this amount.
    Refund(Amount),
}

/// Evaluation of a [`Request`], before any change.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation {
    /// Verdict on the requested cost.
    pub verdict: Verdict,
    /// Change that the call would make.
    pub change: Change,
    /// Amount granted to an UPTO.
    pub granted: Option<Amount>,
    /// `true` if the request is charged even past the limit (FORCE).
    pub forced: bool,
}

/// Evaluates a request. The usage may be later than `now`, after the clock moved backwards.
#[inline(always)]
pub fn evaluate<L: Limit>(limit: &L, usage: &L::Usage, now: Timestamp, request: Request) -> Evaluation {
    let cost = match request {
        Request::Take(cost) | Request::Force(cost) | Request::ForceUpTo(cost) | Request::Within(cost, _) => cost,
        Request::UpTo(_) => Amount::ONE,
        // KEEP has lowered the limit to zero, so the smallest cost never fits.
        Request::PeekPastLimit => Amount::saturating(1),
        Request::Refund(amount) => {
            let is_without_effect = amount == Amount::ZERO || usage.is_unused();
            let change = if is_without_effect { Change::Nothing } else { Change::Refund(amount) };
            return Evaluation { verdict: Verdict::Allowed(Span::ZERO), change, granted: None, forced: false };
        }
    };
    let verdict = limit.verdict(usage, now, cost);
    match request {
        Request::Within(_, timeout) => Evaluation::all_or_nothing(verdict.after_waiting(timeout), cost),
        Request::Force(_) => Evaluation { verdict, change: Change::of(cost), granted: None, forced: true },
        Request::ForceUpTo(cost) => Evaluation { verdict, change: Change::of(cost), granted: Some(cost), forced: true },
        Request::UpTo(max) => {
            let granted = if verdict.allowed() { limit.remaining(usage, now).floor().min(max) } else { Amount::ZERO };
            Evaluation { granted: Some(granted), ..Evaluation::all_or_nothing(verdict, granted) }
        }
        Request::PeekPastLimit => Evaluation::all_or_nothing(verdict, Amount::ZERO),
        Request::Take(_) | Request::Refund(_) => Evaluation::all_or_nothing(verdict, cost),
    }
}

impl Evaluation {
    /// Returns the evaluation that charges `cost` if `verdict` allows it, and nothing otherwise.
    #[must_use]
    pub fn all_or_nothing(verdict: Verdict, cost: Amount) -> Evaluation {
        let change = if verdict.allowed() { Change::of(cost) } else { Change::Nothing };
        Evaluation { verdict, change, granted: None, forced: false }
    }

    /// Returns `true` if the limit denies the call. Then no limit of the call is charged. Forced requests and refunds
    /// are never denied.
    #[must_use]
    pub fn denies(&self) -> bool {
        !self.forced && !self.verdict.allowed()
    }

    /// Reduces the granted amount of an UPTO to `max`. A forced request is still charged in full.
    pub fn cap_grant(&mut self, max: Amount) {
        if let Some(granted) = self.granted.filter(|granted| *granted > max) {
            self.granted = Some(granted.min(max));
            if !self.forced {
                self.change = Change::of(max);
            }
        }
    }

    /// Returns the decision. `usage` is the state after [`Change::apply`] if `is_applied` is `true`, and the state
    /// before it otherwise.
    #[inline(always)]
    pub fn decision<L: Limit>(&self, limit: &L, usage: &L::Usage, now: Timestamp, is_applied: bool) -> Decision {
        let verdict = if self.forced && !self.verdict.allowed() {
            // The charge is made even so. The reply reports when the usage will be within the limit again.
            Verdict::After(match self.change {
                Change::Charge(cost) if !is_applied => limit.debt_after_charge(usage, now, cost),
                _ => limit.debt(usage, now),
            })
        } else {
            self.verdict
        };
        Decision {
            verdict,
            limit: limit.limit(),
            remaining: limit.remaining(usage, now),
            reset: limit.reset(usage, now),
            granted: self.granted,
        }
    }
}

impl Verdict {
    /// Returns the verdict for a caller that waits up to `timeout` (MAXWAIT).
    fn after_waiting(self, timeout: Span) -> Verdict {
        match self {
            Verdict::After(wait) if wait <= timeout => Verdict::Allowed(wait),
            Verdict::After(wait) => Verdict::After(wait.minus(timeout)),
            Verdict::Allowed(_) | Verdict::Never => self,
        }
    }
}

impl Change {
    /// Applies the change. The usage must not be later than `now`: after the clock moved backwards, the caller calls
    /// [`Usage::move_back`] first.
    #[inline(always)]
    pub fn apply<L: Limit>(self, limit: &L, usage: &mut L::Usage, now: Timestamp) {
        match self {
            Change::Nothing => {}
            Change::Charge(cost) => limit.charge(usage, now, cost),
            Change::Refund(amount) => limit.refund(usage, now, amount),
        }
    }

    /// Returns the charge of `cost`; no change if `cost` is zero.
    pub(crate) fn of(cost: Amount) -> Change {
        if cost == Amount::ZERO { Change::Nothing } else { Change::Charge(cost) }
    }
}

#[cfg(test)]
mod tests;
