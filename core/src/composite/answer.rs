//! What a call is told: each limit's own decision, and the one of the whole.

use super::composite_evaluation::{CompositeEvaluation, Few, Outcome, Repeated};
use super::held::Held;
use super::limit_evaluation::{LimitEvaluation, forces, least_granted};
use crate::algorithm::any::{Single, with_limit};
use crate::evaluate::{Change, Evaluation, Request};
use crate::limit::{Decision, Limit, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, Purpose, Spec};

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The call's, whatever the number of its limits.
    pub decision: Decision,
    /// Each limit's own; none of a call that takes the fast path, which does not ask for them.
    pub each: Vec<Decision>,
    /// Whether a limit that decides for itself would have denied the call.
    pub shadow_denied: bool,
    /// Whether a ban denied it.
    pub banned: bool,
    /// Whether its id had been charged before.
    pub repeated: bool,
}

impl Answer {
    /// Of a call that is decided by its limits alone.
    #[must_use]
    pub fn of(decision: Decision) -> Answer {
        Answer { decision, each: Vec::new(), shadow_denied: false, banned: false, repeated: false }
    }
}

/// Whether the repetition of a call that was forced tells of this limit that it is past it: of each that the call
/// forces, or of all if it does not say any more which those were. Any other one was held, and said for how long.
fn told_past(request: &CompositeRequest, spec: &Spec) -> bool {
    let forces = |spec: &Spec| spec.request.is_forced();
    forces(spec) || !request.specs.iter().any(forces)
}

impl Decision {
    /// Where no limit governs, nothing limits.
    pub(super) fn unlimited(verdict: Verdict) -> Decision {
        let most = Amount::MAX_ARGUMENT;
        Decision { verdict, limit: most, remaining: most, reset: Span::ZERO, granted: None }
    }
}

impl CompositeEvaluation {
    /// The answer, with what is in the key as it now stands: after [`charge`](super::CompositeUsage::charge) if it was
    /// `charged`.
    #[must_use]
    pub fn answer(&self, request: &CompositeRequest, held: Held, now: Timestamp, charged: bool) -> Answer {
        let of_limit = |((spec, evaluation), place): ((&Spec, &LimitEvaluation), Option<usize>)| {
            let takes = charged && self.changes() && evaluation.evaluation.change() != Change::Nothing;
            let decision =
                with_limit!(spec, limit => decision_of(limit, held, place, now, &evaluation.evaluation, takes));
            self.overridden(request, spec, decision.keeping(spec.kept))
        };
        let seen_at = || self.limits.iter().map(|evaluation| evaluation.place);
        // Nothing has come or gone since the look.
        let places: Few<Option<usize>> = if self.new_components() == 0 && held.components() == self.components {
            seen_at().collect()
        } else {
            held.places(request).into_iter().collect()
        };
        let each: Vec<Decision> = request.specs.iter().zip(&self.limits).zip(places).map(of_limit).collect();
        let decision = self.whole(request, held, &each, now);
        let (banned, repeated) = (self.is_banned(), self.is_repeated());
        Answer { decision, each, shadow_denied: self.shadow_denies(request), banned, repeated }
    }

    /// A limit's decision, of a call that is not decided by its limits.
    fn overridden(&self, request: &CompositeRequest, spec: &Spec, decision: Decision) -> Decision {
        let at_once = Verdict::Allowed(Span::ZERO);
        let verdict = match self.outcome {
            Outcome::Passes if request.purpose == Purpose::GiveBack => at_once,
            Outcome::Passes | Outcome::Denied { .. } | Outcome::Banned(_) => decision.verdict,
            Outcome::Unknown => Verdict::Never,
            // What has no say is told by itself.
            Outcome::Repeated(_) | Outcome::LostLease if spec.shadow => decision.verdict,
            Outcome::Repeated(Repeated { forced: true, .. })
                if !decision.verdict.allowed() && told_past(request, spec) =>
            {
                decision.verdict
            }
            Outcome::Repeated(Repeated { hold, .. }) => Verdict::Allowed(hold),
            Outcome::LostLease if spec.is_held_by_id() => decision.verdict,
            Outcome::LostLease | Outcome::Settles | Outcome::Settled => at_once,
        };
        let granted = spec.most().map(|most| match self.outcome {
            // What was granted was charged, though a FORCE beside it has gone past its limit.
            Outcome::Repeated(Repeated { granted: Some(granted), .. }) if !spec.shadow => granted,
            Outcome::Repeated(Repeated { granted, .. }) if verdict.allowed() => granted.unwrap_or(most),
            _ => decision.granted.unwrap_or_default(),
        });
        Decision { verdict, granted, ..decision }
    }

    /// What a call with UPTO that passes is granted, and charged.
    pub(super) fn granted(&self, request: &CompositeRequest) -> Option<Amount> {
        let most = request.most(&self.limits)?;
        Some(least_granted(&self.limits).unwrap_or(most))
    }

    /// What a call with UPTO is told that it was granted. A FORCE beside it, or a ban, may have the reply say that the
    /// call did not fit: what was charged stands all the same.
    fn told_granted(&self, request: &CompositeRequest, verdict: Verdict) -> Option<Amount> {
        let most = request.most(&self.limits)?;
        Some(match self.outcome {
            Outcome::Passes => return self.granted(request),
            Outcome::Repeated(Repeated { granted: Some(granted), .. }) => granted,
            Outcome::Repeated(_) if verdict.allowed() => most,
            _ => Amount::ZERO,
        })
    }

    /// The one decision of all.
    fn whole(&self, request: &CompositeRequest, held: Held, each: &[Decision], now: Timestamp) -> Decision {
        let stands_in_the_way = |decision: &Decision, evaluation: &LimitEvaluation| match self.outcome {
            Outcome::Denied { .. } | Outcome::Banned(_) | Outcome::LostLease => evaluation.denies(),
            _ => !decision.verdict.allowed(),
        };
        // A limit that decides only for itself is told only by itself.
        let each = || each.iter().zip(&request.specs).zip(&self.limits).filter(|((_, spec), _)| !spec.shadow);
        let denying = each().filter(|((decision, _), evaluation)| stands_in_the_way(decision, evaluation));
        let mut denying = denying.map(|((decision, _), _)| decision);
        let longest = denying.clone().map(|decision| decision.verdict).max();
        let (mut verdict, governing) = if let Some(longest) = longest {
            (longest, denying.find(|decision| decision.verdict == longest))
        } else {
            let holds = each().map(|((decision, _), _)| decision.verdict).filter(|verdict| verdict.allowed());
            let governing = first_to_run_out(each().map(|((decision, spec), _)| (decision.remaining, spec, decision)));
            let unlimited = match self.outcome {
                Outcome::Unknown => Verdict::Never,
                _ => Verdict::Allowed(Span::ZERO),
            };
            (holds.max().unwrap_or(unlimited), governing)
        };
        let banned = held.banned(now);
        let by_id = matches!(
            self.outcome,
            Outcome::Repeated(_) | Outcome::LostLease | Outcome::Settles | Outcome::Settled | Outcome::Unknown
        );
        let passes_a_ban =
            by_id || request.purpose == Purpose::GiveBack || (self.outcome == Outcome::Passes && !forces(&self.limits));
        let unlimited = Decision::unlimited(verdict);
        let governing = governing.unwrap_or(&unlimited);
        let mut remaining = governing.remaining;
        if banned != Span::ZERO && !passes_a_ban {
            remaining = Amount::ZERO;
            verdict = match verdict {
                Verdict::Allowed(_) => Verdict::After(banned),
                denied => denied.max(Verdict::After(banned)),
            };
        }
        Decision {
            verdict,
            limit: governing.limit,
            remaining,
            reset: governing.reset,
            granted: self.told_granted(request, verdict),
        }
    }

    /// Whether the key is banned, and that stands in the call's way.
    fn is_banned(&self) -> bool {
        matches!(self.outcome, Outcome::Banned(_))
    }

    /// Whether the call has been charged before.
    fn is_repeated(&self) -> bool {
        matches!(self.outcome, Outcome::Repeated(_))
    }

    /// Whether a limit that decides for itself would have denied the call.
    fn shadow_denies(&self, request: &CompositeRequest) -> bool {
        // Nothing denies the others.
        let decides = matches!(request.purpose, Purpose::Charge | Purpose::Check);
        decides && self.limits.iter().any(LimitEvaluation::denies_by_itself)
    }
}

fn decision_of<L: Limit>(
    limit: &L,
    held: Held,
    place: Option<usize>,
    now: Timestamp,
    evaluation: &Evaluation,
    charged: bool,
) -> Decision
where
    L::Usage: Single,
{
    match held.usage::<L::Usage>(place) {
        Some(usage) => evaluation.decision(limit, usage, now, charged),
        None => evaluation.decision(limit, &L::Usage::default(), now, charged),
    }
}

/// Of the limits that let a call pass, the one that would run out first under calls like it: what remains beside what
/// it costs, compared without dividing. The first of equals.
pub(super) fn first_to_run_out<'s, T>(each: impl Iterator<Item = (Amount, &'s Spec<'s>, T)>) -> Option<T> {
    let cost = |spec: &Spec| match spec.request {
        Request::GiveBack(_) | Request::LookPastLimit => Amount::ONE,
        Request::Take(cost)
        | Request::UpTo(cost)
        | Request::Force(cost)
        | Request::ForceUpTo(cost)
        | Request::Within(cost, _) => {
            if cost == Amount::ZERO {
                Amount::ONE
            } else {
                cost
            }
        }
    };
    let mut first = FirstToRunOut::default();
    for (remaining, spec, of) in each {
        first.see(remaining, cost(spec), of);
    }
    first.found()
}

/// The one that would run out first of those that it has seen.
#[derive(Debug)]
pub(super) struct FirstToRunOut<T>(Option<(Amount, Amount, T)>);

impl<T> Default for FirstToRunOut<T> {
    fn default() -> FirstToRunOut<T> {
        FirstToRunOut(None)
    }
}

impl<T> FirstToRunOut<T> {
    /// Sees one of which so much remains beside a cost that is more than nothing.
    #[inline(always)]
    pub(super) fn see(&mut self, remaining: Amount, cost: Amount, of: T) {
        let product =
            |one: Amount, other: Amount| u128::from(one.millionths()).saturating_mul(u128::from(other.millionths()));
        let is_sooner =
            self.0.as_ref().is_none_or(|(least, its_cost, _)| product(remaining, *its_cost) < product(*least, cost));
        if is_sooner {
            self.0 = Some((remaining, cost, of));
        }
    }

    /// The first of equals; `None` if it has seen none.
    pub(super) fn found(self) -> Option<T> {
        self.0.map(|(_, _, of)| of)
    }
}
