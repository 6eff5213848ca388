//! Reply to a call: the decisions of its limits, and the combined decision.

use super::composite_evaluation::{CompositeEvaluation, Outcome, PerSpec, Repeated};
use super::limit_evaluation::{LimitEvaluation, forces, smallest_grant};
use super::stored_usage::StoredUsage;
use crate::algorithm::any::{PlainUsage, with_limit};
use crate::evaluate::{Change, Evaluation, Request};
use crate::limit::{Decision, Limit, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, Purpose, Spec};

/// Reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Combined decision of the call.
    pub decision: Decision,
    /// Decisions of the limits, if the request has EACH.
    pub each: Vec<Decision>,
    /// `true`: a limit in shadow mode would have denied the call.
    pub shadow_denied: bool,
    /// `true`: a ban denied the call.
    pub banned: bool,
    /// `true`: the id had been charged before.
    pub repeated: bool,
}

impl Answer {
    /// Creates the reply to a call that is decided by its limits alone.
    #[must_use]
    pub fn of(decision: Decision) -> Answer {
        Answer { decision, each: Vec::new(), shadow_denied: false, banned: false, repeated: false }
    }
}

/// Returns `true` if the repetition of a forced call reports that the limit of `spec` denies it. A repetition that
/// forces some limits reports denials by these only, and one that forces no limit reports all denials. Other limits
/// report the hold of the first call.
fn repeats_denial(request: &CompositeRequest, spec: &Spec) -> bool {
    let forces = |spec: &Spec| spec.request.is_forced();
    forces(spec) || !request.specs.iter().any(forces)
}

impl Decision {
    /// Returns the decision for a call without enforced limits.
    pub(super) fn unlimited(verdict: Verdict) -> Decision {
        let max = Amount::MAX_ARGUMENT;
        Decision { verdict, limit: max, remaining: max, reset: Span::ZERO, granted: None }
    }
}

impl CompositeEvaluation {
    /// Creates the reply. `stored` is the state after [`charge`](super::CompositeUsage::charge) if `is_charged` is
    /// `true`, and the state before it otherwise.
    #[must_use]
    pub fn answer(&self, request: &CompositeRequest, stored: StoredUsage, now: Timestamp, is_charged: bool) -> Answer {
        let decide = |((spec, evaluation), index): ((&Spec, &LimitEvaluation), Option<usize>)| {
            let is_applied = is_charged && self.changes() && evaluation.evaluation.change != Change::Nothing;
            let decision =
                with_limit!(spec, limit => decision_of(limit, stored, index, now, &evaluation.evaluation, is_applied));
            self.adjusted_decision(request, spec, decision.with_keep(spec.keep))
        };
        // The indexes are unchanged if no component has been added or removed since the evaluation.
        let indexes = if self.new_component_count() == 0 && stored.component_count() == self.component_count {
            self.limits.iter().map(|evaluation| evaluation.index).collect()
        } else {
            PerSpec::from(stored.indexes(request))
        };
        let each: PerSpec<Decision> = request.specs.iter().zip(&self.limits).zip(indexes).map(decide).collect();
        let decision = self.combine(request, stored, &each, now);
        // Refunds and settlements are never denied.
        let shadow_denied = matches!(request.purpose, Purpose::Charge | Purpose::Peek)
            && self.limits.iter().any(LimitEvaluation::denies_in_shadow);
        let banned = matches!(self.outcome, Outcome::Banned(_));
        let repeated = matches!(self.outcome, Outcome::Repeated(_));
        Answer {
            decision,
            each: if request.each { each.to_vec() } else { Vec::new() },
            shadow_denied,
            banned,
            repeated,
        }
    }

    /// Returns the decision of a limit, adjusted to the outcome of the call.
    fn adjusted_decision(&self, request: &CompositeRequest, spec: &Spec, decision: Decision) -> Decision {
        let without_hold = Verdict::Allowed(Span::ZERO);
        let verdict = match self.outcome {
            Outcome::Passes if request.purpose == Purpose::Refund => without_hold,
            Outcome::Passes | Outcome::Denied { .. } | Outcome::Banned(_) => decision.verdict,
            Outcome::Unknown => Verdict::Never,
            // A limit in shadow mode reports its own decision.
            Outcome::Repeated(_) | Outcome::LostLease if spec.shadow => decision.verdict,
            Outcome::Repeated(Repeated { forced: true, .. })
                if !decision.verdict.allowed() && repeats_denial(request, spec) =>
            {
                decision.verdict
            }
            Outcome::Repeated(Repeated { hold, .. }) => Verdict::Allowed(hold),
            Outcome::LostLease if spec.is_held_by_id() => decision.verdict,
            Outcome::LostLease | Outcome::Settles | Outcome::Settled => without_hold,
        };
        let granted = spec.upto().map(|upto| match self.outcome {
            // The recorded amount was charged, even if the verdict is a denial because of a FORCE.
            Outcome::Repeated(Repeated { granted: Some(granted), .. }) if !spec.shadow => granted,
            Outcome::Repeated(Repeated { granted, .. }) if verdict.allowed() => granted.unwrap_or(upto),
            _ => decision.granted.unwrap_or_default(),
        });
        Decision { verdict, granted, ..decision }
    }

    /// Returns the amount that a granted call with UPTO is charged.
    pub(super) fn granted(&self, request: &CompositeRequest) -> Option<Amount> {
        let upto = request.upto(&self.limits)?;
        Some(smallest_grant(&self.limits).unwrap_or(upto))
    }

    /// Returns the amount that the reply to an UPTO reports as granted. It was charged even if the verdict is a denial,
    /// because of another limit's FORCE or a ban.
    fn reported_grant(&self, request: &CompositeRequest, verdict: Verdict) -> Option<Amount> {
        let upto = request.upto(&self.limits)?;
        Some(match self.outcome {
            Outcome::Passes => return self.granted(request),
            Outcome::Repeated(Repeated { granted: Some(granted), .. }) => granted,
            Outcome::Repeated(_) if verdict.allowed() => upto,
            _ => Amount::ZERO,
        })
    }

    /// Returns the combined decision of all limits.
    fn combine(&self, request: &CompositeRequest, stored: StoredUsage, each: &[Decision], now: Timestamp) -> Decision {
        let is_denied_by = |decision: &Decision, evaluation: &LimitEvaluation| match self.outcome {
            Outcome::Denied { .. } | Outcome::Banned(_) | Outcome::LostLease => evaluation.denies(),
            _ => !decision.verdict.allowed(),
        };
        // A limit in shadow mode does not affect the combined decision.
        let enforced = || each.iter().zip(&request.specs).zip(&self.limits).filter(|((_, spec), _)| !spec.shadow);
        let denying = enforced().filter(|((decision, _), evaluation)| is_denied_by(decision, evaluation));
        let mut denying = denying.map(|((decision, _), _)| decision);
        let longest_wait = denying.clone().map(|decision| decision.verdict).max();
        let (mut verdict, governing) = if let Some(longest_wait) = longest_wait {
            (longest_wait, denying.find(|decision| decision.verdict == longest_wait))
        } else {
            let holds = enforced().map(|((decision, _), _)| decision.verdict).filter(|verdict| verdict.allowed());
            let governing =
                first_to_run_out(enforced().map(|((decision, spec), _)| (decision.remaining, spec, decision)));
            let unlimited = match self.outcome {
                Outcome::Unknown => Verdict::Never,
                _ => Verdict::Allowed(Span::ZERO),
            };
            (holds.max().unwrap_or(unlimited), governing)
        };
        let remaining_ban = stored.remaining_ban(now);
        let is_decided_by_id = matches!(
            self.outcome,
            Outcome::Repeated(_) | Outcome::LostLease | Outcome::Settles | Outcome::Settled | Outcome::Unknown
        );
        let passes_a_ban = is_decided_by_id
            || request.purpose == Purpose::Refund
            || (self.outcome == Outcome::Passes && !forces(&self.limits));
        let unlimited = Decision::unlimited(verdict);
        let governing = governing.unwrap_or(&unlimited);
        let mut remaining = governing.remaining;
        if remaining_ban != Span::ZERO && !passes_a_ban {
            remaining = Amount::ZERO;
            verdict = match verdict {
                Verdict::Allowed(_) => Verdict::After(remaining_ban),
                denied => denied.max(Verdict::After(remaining_ban)),
            };
        }
        Decision {
            verdict,
            limit: governing.limit,
            remaining,
            reset: governing.reset,
            granted: self.reported_grant(request, verdict),
        }
    }
}

fn decision_of<L: Limit<Usage: PlainUsage>>(
    limit: &L,
    stored: StoredUsage,
    index: Option<usize>,
    now: Timestamp,
    evaluation: &Evaluation,
    is_applied: bool,
) -> Decision {
    match stored.usage::<L::Usage>(index) {
        Some(usage) => evaluation.decision(limit, usage, now, is_applied),
        None => evaluation.decision(limit, &L::Usage::default(), now, is_applied),
    }
}

/// Returns the value of the limit that would run out first under repeated calls: the limit with the lowest ratio of the
/// remaining amount to the cost, and the first of several with that ratio.
fn first_to_run_out<'s, T>(limits: impl Iterator<Item = (Amount, &'s Spec<'s>, T)>) -> Option<T> {
    let cost = |spec: &Spec| match (spec.request, spec.request.cost()) {
        (Request::Refund(_), _) | (_, Amount::ZERO) => Amount::ONE,
        (_, cost) => cost,
    };
    let mut first = FirstToRunOut(None);
    for (remaining, spec, value) in limits {
        first.add(remaining, cost(spec), value);
    }
    first.into_value()
}

/// Limit that would run out first, among the added limits: its remaining amount, its cost and its value. Ratios are
/// compared without divisions.
pub(super) struct FirstToRunOut<T>(pub(super) Option<(Amount, Amount, T)>);

impl<T> FirstToRunOut<T> {
    /// Adds a limit with `remaining` units and a cost above zero.
    #[inline(always)]
    pub(super) fn add(&mut self, remaining: Amount, cost: Amount, value: T) {
        let product = |amount: Amount, cost: Amount| {
            u128::from(amount.millionths()).saturating_mul(u128::from(cost.millionths()))
        };
        let is_sooner = self
            .0
            .as_ref()
            .is_none_or(|(first, first_cost, _)| product(remaining, *first_cost) < product(*first, cost));
        if is_sooner {
            self.0 = Some((remaining, cost, value));
        }
    }

    /// Returns the value of the first limit to run out; `None` if none was added.
    pub(super) fn into_value(self) -> Option<T> {
        self.0.map(|(_, _, value)| value)
    }
}
