//! What a look at a key has shown one limit of a call, and what the limits of a call come to together.

use super::held::Held;
use crate::algorithm::any::{AnyLimit, Single, with_limit};
use crate::evaluate::{Change, Evaluation, Request, evaluate};
use crate::kind::Kind;
use crate::limit::{Limit, Usage};
use crate::number::{Amount, Timestamp};
use crate::syntax::{CompositeRequest, Spec};

/// What it has shown one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitEvaluation {
    /// Where its component is.
    pub(super) place: Option<usize>,
    /// What a look at its component has shown.
    pub(super) evaluation: Evaluation,
    /// How many entries the component would have after a charge that adds one.
    pub(super) entries: Option<usize>,
    /// Whether that is more than it has.
    pub(super) grows: bool,
    /// Whether it decides: not if the call has been charged already.
    pub(super) decides: bool,
    /// Whether that is for itself alone, with no say in what becomes of the call.
    pub(super) shadow: bool,
}

impl LimitEvaluation {
    /// Looks at the component in a place, or at an unused one, for a limit.
    pub(super) fn at<L: Limit>(
        limit: &L,
        held: Held,
        place: Option<usize>,
        now: Timestamp,
        request: Request,
    ) -> LimitEvaluation
    where
        L::Usage: Single,
    {
        let unused;
        let usage = if let Some(usage) = held.usage::<L::Usage>(place) {
            usage
        } else {
            unused = L::Usage::default();
            &unused
        };
        let evaluation = evaluate(limit, usage, now, request);
        let charges = matches!(evaluation.change(), Change::Charge(_));
        let entries = if charges { limit.entries_after_charge(usage, now) } else { None };
        let grows = entries.is_some_and(|entries| entries > usage.entries());
        LimitEvaluation { place, evaluation, entries, grows, decides: true, shadow: false }
    }

    /// Whether a spec is for a lease that its holder has.
    pub(super) fn renews(&self, spec: &Spec, held: Held, now: Timestamp) -> bool {
        if spec.request.is_look() || !matches!(spec.limit, AnyLimit::Concurrency(_)) {
            return false;
        }
        // With no room at all only a renewal passes.
        let full = Spec { limit: spec.limit.lowered_by(Amount::MAX), ..*spec };
        with_limit!(full, limit => LimitEvaluation::at(limit, held, self.place, now, spec.request))
            .evaluation
            .verdict()
            .allowed()
    }

    /// Whether a limit that denies does so by itself, and not because of what is kept, or for want of a lease.
    pub(super) fn would_deny_all(&self, spec: &Spec, held: Held, now: Timestamp) -> bool {
        if spec.limit.kind() == Kind::Concurrency {
            return false;
        }
        if spec.kept == Amount::ZERO {
            return true;
        }
        let whole = Spec { limit: spec.limit.raised_by(spec.kept), ..*spec };
        with_limit!(whole, limit => LimitEvaluation::at(limit, held, self.place, now, spec.request)).evaluation.denies()
    }

    /// Whether it stands in the call's way.
    pub(super) fn denies(&self) -> bool {
        self.decides && !self.shadow && self.evaluation.denies()
    }

    /// Whether it would tell the call that it is denied, and has no say.
    pub(super) fn denies_by_itself(&self) -> bool {
        self.decides && self.shadow && !self.evaluation.verdict().allowed()
    }
}

/// Whether a call is charged in any case: as the limits say that have a say, or if none has, as all do.
pub(super) fn forces(limits: &[LimitEvaluation]) -> bool {
    let none_rules = limits.iter().all(|evaluation| evaluation.shadow);
    limits.iter().any(|evaluation| (none_rules || !evaluation.shadow) && evaluation.evaluation.is_forced())
}

/// The least that the limits that have a say grant of an UPTO.
pub(super) fn least_granted(limits: &[LimitEvaluation]) -> Option<Amount> {
    limits.iter().filter(|evaluation| !evaluation.shadow).filter_map(|evaluation| evaluation.evaluation.granted()).min()
}

/// Of an UPTO all grant what the one grants that has least. One that decides only for itself has to grant as much, or
/// denies; all that was asked for, if there is no other.
pub(super) fn grant_the_least(request: &CompositeRequest, held: Held, limits: &mut [LimitEvaluation], now: Timestamp) {
    let most = request.specs.iter().find_map(Spec::most);
    let Some(least) = least_granted(limits).or(most) else { return };
    for (evaluation, spec) in limits.iter_mut().zip(&request.specs) {
        if evaluation.shadow && evaluation.evaluation.granted().is_some_and(|granted| granted < least) {
            let place = evaluation.place;
            let whole = with_limit!(spec, limit => LimitEvaluation::at(limit, held, place, now, Request::Take(least)));
            *evaluation = LimitEvaluation { decides: evaluation.decides, shadow: true, ..whole };
        } else {
            evaluation.evaluation.grant_at_most(least);
        }
    }
}

impl Spec<'_> {
    /// How much an UPTO asks for.
    pub(super) fn most(&self) -> Option<Amount> {
        match self.request {
            Request::UpTo(most) | Request::ForceUpTo(most) => Some(most),
            _ => None,
        }
    }
}

impl CompositeRequest<'_> {
    /// How much an UPTO asks for of the limits that have a say, or if none has, of all.
    pub(super) fn most(&self, limits: &[LimitEvaluation]) -> Option<Amount> {
        let none_rules = limits.iter().all(|evaluation| evaluation.shadow);
        let mut ruling = self.specs.iter().filter(|spec| none_rules || !spec.shadow);
        ruling.find_map(Spec::most)
    }
}
