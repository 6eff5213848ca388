//! What a call asks of a limit, and the two steps that every algorithm shares: [`evaluate`], then perhaps
//! [`Change::apply`]. The options are here once, in terms of the few methods of [`Limit`]; no algorithm knows them.

use crate::limit::{Decision, Limit, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};

/// What a call wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// All of this cost, or nothing (`COST`). A cost of 0 only looks.
    Take(Amount),
    /// As many whole units as there are, up to this many; at least one (`UPTO`).
    UpTo(Amount),
    /// This cost, even past the limit (`FORCE`).
    Force(Amount),
    /// This cost, even past the limit, by a call that tells what it is granted (`UPTO` under a policy's `FORCE`).
    ForceUpTo(Amount),
    /// This cost, if it fits within so long (`MAXWAIT`).
    Within(Amount, Span),
    /// Back with this much (`COST -amount`).
    GiveBack(Amount),
    /// A look (`COST 0`) that keeps more of the limit than it has (`KEEP`): only a holder of a lease passes it.
    LookPastLimit,
}

impl Request {
    /// Whether it only looks: it charges nothing and gives nothing back.
    #[must_use]
    pub fn is_look(self) -> bool {
        match self {
            Request::Take(cost) | Request::Force(cost) | Request::ForceUpTo(cost) | Request::Within(cost, _) => {
                cost == Amount::ZERO
            }
            Request::LookPastLimit => true,
            Request::UpTo(_) | Request::GiveBack(_) => false,
        }
    }

    /// Returns `true` if it is charged even past the limit.
    #[must_use]
    pub fn is_forced(self) -> bool {
        matches!(self, Request::Force(_) | Request::ForceUpTo(_))
    }

    /// Returns the request under a limit of a policy with `FORCE`: what it would charge is charged even past the limit.
    #[must_use]
    pub fn forced(self) -> Request {
        match self {
            Request::Take(cost) | Request::Within(cost, _) if cost != Amount::ZERO => Request::Force(cost),
            Request::UpTo(most) => Request::ForceUpTo(most),
            other => other,
        }
    }
}

/// What a call would change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// The call uses this much more.
    Charge(Amount),
    /// The call uses this much less.
    GiveBack(Amount),
}

/// The answer to a [`Request`] before anything is changed.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation {
    verdict: Verdict,
    change: Change,
    granted: Option<Amount>,
    forced: bool,
}

/// Looks at `usage`, which may be later than `now`.
#[inline(always)]
pub fn evaluate<L: Limit>(limit: &L, usage: &L::Usage, now: Timestamp, request: Request) -> Evaluation {
    let cost = match request {
        Request::Take(cost) | Request::Force(cost) | Request::ForceUpTo(cost) | Request::Within(cost, _) => cost,
        Request::UpTo(_) => Amount::ONE,
        // What is kept has lowered the limit to nothing, which the least cost never fits in.
        Request::LookPastLimit => Amount::saturating(1),
        Request::GiveBack(amount) => {
            let nothing = amount == Amount::ZERO || usage.is_unused();
            let change = if nothing { Change::Nothing } else { Change::GiveBack(amount) };
            return Evaluation { verdict: Verdict::Allowed(Span::ZERO), change, granted: None, forced: false };
        }
    };
    let verdict = limit.verdict(usage, now, cost);
    match request {
        Request::Within(_, patience) => Evaluation::all_or_nothing(verdict.after_waiting(patience), cost),
        Request::Force(_) => Evaluation { verdict, change: Change::of(cost), granted: None, forced: true },
        Request::ForceUpTo(cost) => Evaluation { verdict, change: Change::of(cost), granted: Some(cost), forced: true },
        Request::UpTo(most) => {
            let granted = if verdict.allowed() { limit.remaining(usage, now).floor().min(most) } else { Amount::ZERO };
            Evaluation { granted: Some(granted), ..Evaluation::all_or_nothing(verdict, granted) }
        }
        Request::LookPastLimit => Evaluation::all_or_nothing(verdict, Amount::ZERO),
        Request::Take(_) | Request::GiveBack(_) => Evaluation::all_or_nothing(verdict, cost),
    }
}

impl Evaluation {
    fn all_or_nothing(verdict: Verdict, cost: Amount) -> Evaluation {
        let change = if verdict.allowed() { Change::of(cost) } else { Change::Nothing };
        Evaluation { verdict, change, granted: None, forced: false }
    }

    /// Whether it passes, or when.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether this limit denies the call, and with it all other limits of the call (all or none). It never denies what
    /// is forced or given back.
    #[must_use]
    pub fn denies(&self) -> bool {
        !self.forced && !self.verdict.allowed()
    }

    /// Whether it is charged in any case.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.forced
    }

    /// What an UPTO is granted.
    #[must_use]
    pub fn granted(&self) -> Option<Amount> {
        self.granted
    }

    /// Grants an UPTO no more than that. What is forced is charged in full.
    pub fn grant_at_most(&mut self, most: Amount) {
        if let Some(granted) = self.granted.filter(|granted| *granted > most) {
            self.granted = Some(granted.min(most));
            if !self.forced {
                self.change = Change::of(most);
            }
        }
    }

    /// Changes nothing, whatever it shows.
    pub fn leave_out(&mut self) {
        self.change = Change::Nothing;
    }

    /// What taking would change.
    #[must_use]
    pub fn change(&self) -> Change {
        self.change
    }

    /// The whole answer, with `usage` as it now stands: after [`Change::apply`] if it was `charged`, untouched if not.
    #[inline(always)]
    pub fn decision<L: Limit>(&self, limit: &L, usage: &L::Usage, now: Timestamp, charged: bool) -> Decision {
        let verdict = if self.forced && !self.verdict.allowed() {
            // The charge stands, or would, so what is told is when its debt will have been worked off.
            Verdict::After(match self.change {
                Change::Charge(cost) if !charged => limit.debt_after_charge(usage, now, cost),
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
    /// The verdict for a caller that waits for up to `patience` (MAXWAIT).
    fn after_waiting(self, patience: Span) -> Verdict {
        match self {
            Verdict::After(wait) if wait <= patience => Verdict::Allowed(wait),
            Verdict::After(wait) => Verdict::After(wait.minus(patience)),
            Verdict::Allowed(_) | Verdict::Never => self,
        }
    }
}

impl Change {
    /// Makes the change that a look has announced. Nothing later than `now` is in `usage`.
    #[inline(always)]
    pub fn apply<L: Limit>(self, limit: &L, usage: &mut L::Usage, now: Timestamp) {
        match self {
            Change::Nothing => {}
            Change::Charge(cost) => limit.charge(usage, now, cost),
            Change::GiveBack(amount) => limit.give_back(usage, now, amount),
        }
    }

    fn of(cost: Amount) -> Change {
        if cost == Amount::ZERO { Change::Nothing } else { Change::Charge(cost) }
    }
}

#[cfg(test)]
mod tests;
