//! The fast path of the call that is most common: rates alone, whose components are all there, and nothing beside them.
//! Whatever else a call may bring takes the slow path (`composite_evaluation.rs`, `charge.rs`, `answer.rs`). For such a
//! call that comes to the same, but takes about twice as many instructions of ours.

use super::answer::FirstToRunOut;
use super::{Component, ComponentChange, CompositeUsage, Extras};
use crate::algorithm::any::{Single, with_limit};
use crate::evaluate::{Change, Request};
use crate::kind::Kind;
use crate::limit::{Decision, Limit, Taken, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, Idempotency, MAX_SPECS, Purpose, Spec};

/// What a look has shown such a call.
#[derive(Clone, Debug)]
pub struct FastEvaluation {
    /// Where each limit's component is.
    places: [u8; MAX_SPECS],
    /// Which limits stand in the call's way.
    denying: [bool; MAX_SPECS],
    /// The longest of all, and the first limit that says so.
    verdict: Verdict,
    longest: usize,
}

impl FastEvaluation {
    /// Whether it stands in the call's way.
    #[must_use]
    pub fn denies(&self) -> bool {
        !self.verdict.allowed()
    }

    /// The kind of each limit, and whether it stood in the call's way.
    pub fn limits<'a>(&'a self, request: &'a CompositeRequest) -> impl Iterator<Item = (Kind, bool)> + 'a {
        request.specs.iter().zip(self.denying).map(|(spec, denies)| (spec.limit.kind(), denies))
    }
}

impl CompositeUsage {
    /// Evaluation of a call that takes the fast path; `None` for any other.
    #[must_use]
    pub fn evaluate_fast(&self, request: &CompositeRequest, now: Timestamp) -> Option<FastEvaluation> {
        let is_plain = request.idempotency == Idempotency::Every
            && request.purpose == Purpose::Charge
            && !request.each
            && request.ban.is_none();
        if !is_plain || !self.extras().is_none_or(Extras::rules_nothing) || now < self.written {
            return None;
        }
        let at_once = Verdict::Allowed(Span::ZERO);
        let mut evaluation =
            FastEvaluation { places: [0; MAX_SPECS], denying: [false; MAX_SPECS], verdict: at_once, longest: 0 };
        let rooms = evaluation.places.iter_mut().zip(&mut evaluation.denying);
        for (at, (spec, (place, denies))) in request.specs.iter().zip(rooms).enumerate() {
            let cost = spec.cost_of_rate()?;
            *place = u8::try_from(self.place_known(spec, at)?).ok()?;
            let component = self.components.get(usize::from(*place))?;
            let verdict = with_limit!(spec, limit => limit.verdict(Single::of(&component.usage)?, now, cost));
            *denies = !verdict.allowed();
            if verdict > evaluation.verdict {
                (evaluation.verdict, evaluation.longest) = (verdict, at);
            }
        }
        Some(evaluation)
    }

    /// The decision on a call that such a look denies.
    #[must_use]
    pub fn deny_fast(&self, request: &CompositeRequest, evaluation: &FastEvaluation, now: Timestamp) -> Decision {
        self.answer_fast(request, evaluation, evaluation.longest, now)
    }

    /// Charges all limits of a call that such a look admits; the decision. What has changed is noted only if it is to
    /// be `told`.
    pub fn charge_fast(
        &mut self,
        request: &CompositeRequest,
        evaluation: &FastEvaluation,
        told: bool,
        now: Timestamp,
    ) -> Decision {
        self.begin(now, None);
        let mut first = FirstToRunOut::default();
        for (at, (spec, place)) in request.specs.iter().zip(evaluation.places).enumerate() {
            let Some(component) = self.components.get_mut(usize::from(place)) else { continue };
            // The look has seen that it is a rate: it is not asked a second time.
            let Request::Take(cost) = spec.request else { continue };
            if told {
                component.note(ComponentChange::Usage);
            }
            first.see(with_limit!(spec, limit => component.charge(limit, cost, now)), cost, at);
        }
        let answer = self.answer_fast(request, evaluation, first.found().unwrap_or_default(), now);
        self.end(now);
        answer
    }

    /// The decision, by the limit at that place of the call.
    fn answer_fast(
        &self,
        request: &CompositeRequest,
        evaluation: &FastEvaluation,
        governing: usize,
        now: Timestamp,
    ) -> Decision {
        let verdict = evaluation.verdict;
        let decision = || {
            let (spec, place) = request.specs.get(governing).zip(evaluation.places.get(governing))?;
            let component = self.components.get(usize::from(*place))?;
            with_limit!(spec, limit => {
                let usage = Single::of(&component.usage)?;
                let (remaining, reset) = (limit.remaining(usage, now), limit.reset(usage, now));
                Some(Decision { verdict, limit: limit.limit(), remaining, reset, granted: None }.keeping(spec.kept))
            })
        };
        decision().unwrap_or_else(|| Decision::unlimited(verdict))
    }
}

impl Component {
    /// Charges it; what remains.
    #[inline(always)]
    fn charge<L: Limit>(&mut self, limit: &L, cost: Amount, now: Timestamp) -> Amount
    where
        L::Usage: Single,
    {
        let Some(usage) = L::Usage::of_mut(&mut self.usage) else { return Amount::ZERO };
        if let Some(Taken::Charged(decision, after)) = limit.take(usage, now, cost) {
            *usage = after;
            self.recovers_at = now.plus(decision.reset).min(Timestamp::MAX);
            return decision.remaining;
        }
        // Where nothing may be settled, nothing is kept for it.
        Component::change_unrecorded(self, limit, Change::Charge(cost), now);
        L::Usage::of(&self.usage).map_or(Amount::ZERO, |usage| limit.remaining(usage, now))
    }
}

impl Spec<'_> {
    /// What it charges, if it has a say and is of a rate that never changes and keeps no entries.
    fn cost_of_rate(&self) -> Option<Amount> {
        match self.request {
            Request::Take(cost)
                if cost != Amount::ZERO && !self.limit.grows() && !self.shadow && self.slower.is_none() =>
            {
                Some(cost)
            }
            _ => None,
        }
    }
}
