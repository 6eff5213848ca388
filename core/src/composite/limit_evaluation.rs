//! Evaluation of one limit of a call at a key, and functions over the evaluations of all limits of a call.

use super::stored_usage::StoredUsage;
use crate::algorithm::any::{AnyLimit, PlainUsage, with_limit};
use crate::evaluate::{Change, Evaluation, Request, evaluate};
use crate::limit::{Limit, Usage};
use crate::number::{Amount, Timestamp};
use crate::syntax::{CompositeRequest, Spec};
use crate::usage_kind::UsageKind;

/// Evaluation of one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitEvaluation {
    /// Index of the component, if there is one.
    pub(super) index: Option<usize>,
    /// Evaluation at the component.
    pub(super) evaluation: Evaluation,
    /// Number of entries of the component after a charge that adds one.
    pub(super) entries: Option<usize>,
    /// `true`: the number of entries grows.
    pub(super) grows: bool,
    /// `false`: the limit cannot deny the call, because the call has been charged before.
    pub(super) decides: bool,
    /// Shadow mode: the decision is recorded but not enforced.
    pub(super) shadow: bool,
}

impl LimitEvaluation {
    /// Evaluates `limit` at the component with the index `index`, or at an unused component if there is none.
    pub(super) fn at<L: Limit<Usage: PlainUsage>>(
        limit: &L,
        stored: StoredUsage,
        index: Option<usize>,
        now: Timestamp,
        request: Request,
    ) -> LimitEvaluation {
        let unused;
        let usage = if let Some(usage) = stored.usage::<L::Usage>(index) {
            usage
        } else {
            unused = L::Usage::default();
            &unused
        };
        let evaluation = evaluate(limit, usage, now, request);
        let charges = matches!(evaluation.change, Change::Charge(_));
        let entries = if charges { limit.entries_after_charge(usage, now) } else { None };
        let grows = entries.is_some_and(|entries| entries > usage.entries());
        LimitEvaluation { index, evaluation, entries, grows, decides: true, shadow: false }
    }

    /// Returns `true` if the call renews a lease of the holder of `spec`.
    pub(super) fn renews(&self, spec: &Spec, stored: StoredUsage, now: Timestamp) -> bool {
        if spec.request.is_peek() || !matches!(spec.limit, AnyLimit::Concurrency(_)) {
            return false;
        }
        // Under a limit of zero, only a renewal is granted.
        let without_room = Spec { limit: spec.limit.lowered_by(Amount::MAX), ..*spec };
        with_limit!(without_room, limit => LimitEvaluation::at(limit, stored, self.index, now, spec.request))
            .evaluation
            .verdict
            .allowed()
    }

    /// Returns `true` if a limit that denies the call would deny it without KEEP. `false` for a concurrency limit.
    pub(super) fn denies_without_keep(&self, spec: &Spec, stored: StoredUsage, now: Timestamp) -> bool {
        if spec.limit.kind() == UsageKind::Concurrency {
            return false;
        }
        if spec.keep == Amount::ZERO {
            return true;
        }
        let without_keep = Spec { limit: spec.limit.raised_by(spec.keep), ..*spec };
        with_limit!(without_keep, limit => LimitEvaluation::at(limit, stored, self.index, now, spec.request))
            .evaluation
            .denies()
    }

    /// Returns `true` if the limit denies the call.
    pub(super) fn denies(&self) -> bool {
        self.decides && !self.shadow && self.evaluation.denies()
    }

    /// Returns `true` if a limit in shadow mode would deny the call.
    pub(super) fn denies_in_shadow(&self) -> bool {
        self.decides && self.shadow && !self.evaluation.verdict.allowed()
    }
}

/// Returns `true` if a limit is charged even if it denies the call (FORCE). Only enforced limits count, or all limits
/// if none is enforced.
pub(super) fn forces(limits: &[LimitEvaluation]) -> bool {
    let all_shadow = limits.iter().all(|evaluation| evaluation.shadow);
    limits.iter().any(|evaluation| (all_shadow || !evaluation.shadow) && evaluation.evaluation.forced)
}

/// Returns the smallest amount that the enforced limits grant of an UPTO.
pub(super) fn smallest_grant(limits: &[LimitEvaluation]) -> Option<Amount> {
    limits.iter().filter(|evaluation| !evaluation.shadow).filter_map(|evaluation| evaluation.evaluation.granted).min()
}

/// Reduces the grants of an UPTO to the smallest one. A limit in shadow mode has to grant that amount or denies the
/// call. If all limits are in shadow mode, the amount is the requested one.
pub(super) fn cap_grants_to_smallest(
    request: &CompositeRequest,
    stored: StoredUsage,
    limits: &mut [LimitEvaluation],
    now: Timestamp,
) {
    let upto = request.specs.iter().find_map(Spec::upto);
    let Some(smallest) = smallest_grant(limits).or(upto) else { return };
    for (evaluation, spec) in limits.iter_mut().zip(&request.specs) {
        if evaluation.shadow && evaluation.evaluation.granted.is_some_and(|granted| granted < smallest) {
            let index = evaluation.index;
            let take =
                with_limit!(spec, limit => LimitEvaluation::at(limit, stored, index, now, Request::Take(smallest)));
            *evaluation = LimitEvaluation { decides: evaluation.decides, shadow: true, ..take };
        } else {
            evaluation.evaluation.cap_grant(smallest);
        }
    }
}

impl Spec<'_> {
    /// Returns the requested amount of an UPTO.
    pub(super) fn upto(&self) -> Option<Amount> {
        match self.request {
            Request::UpTo(max) | Request::ForceUpTo(max) => Some(max),
            _ => None,
        }
    }
}

impl CompositeRequest<'_> {
    /// Returns the requested amount of an UPTO among the enforced limits, or among all limits if none is enforced.
    pub(super) fn upto(&self, limits: &[LimitEvaluation]) -> Option<Amount> {
        let all_shadow = limits.iter().all(|evaluation| evaluation.shadow);
        let mut enforced = self.specs.iter().filter(|spec| all_shadow || !spec.shadow);
        enforced.find_map(Spec::upto)
    }
}
