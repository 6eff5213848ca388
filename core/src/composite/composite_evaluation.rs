//! Evaluation of all limits of a call at one key: the result of each (`limit_evaluation.rs`) and the outcome of the
//! call. `charge.rs` makes the changes and `answer.rs` creates the reply.

use super::limit_evaluation::{LimitEvaluation, cap_grants_to_smallest, forces};
use super::stored_usage::StoredUsage;
use super::{Component, MAX_COMPONENTS};
use crate::algorithm::any::with_limit;
use crate::composite::idempotency::RecordedCall;
use crate::evaluate::{Change, Request};
use crate::limit::Verdict;
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, MAX_SPECS, Purpose, Spec};
use crate::usage_kind::UsageKind;
use arrayvec::ArrayVec;

/// Values for the specs of a call, in their order.
pub(super) type PerSpec<T> = ArrayVec<T, MAX_SPECS>;

/// Evaluation of a call at one key.
#[derive(Clone, Debug, Default)]
pub struct CompositeEvaluation {
    /// Evaluations of the limits, in the order of the call.
    pub(super) limits: PerSpec<LimitEvaluation>,
    /// Number of components of the key; 0 for a plain key.
    pub(super) component_count: usize,
    /// Outcome of the call as a whole.
    pub(super) outcome: Outcome,
    /// `true`: the id holds a lease that the settlement releases.
    pub(super) releases_lease: bool,
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All limits grant the call.
    #[default]
    Passes,
    /// A limit denies the call. `is_strike` is `true` if the denial counts as a strike.
    Denied { is_strike: bool },
    /// The key is banned for this span.
    Banned(Span),
    /// The id has been charged before.
    Repeated(Repeated),
    /// The id has been charged before, but its lease has expired and another one does not fit.
    LostLease,
    /// The call settles an id.
    Settles,
    /// The id has been settled before.
    Settled,
    /// The call settles an unknown id.
    Unknown,
}

/// Recorded part of the reply to the first call of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repeated {
    /// Remaining hold of the first call.
    pub(super) hold: Span,
    /// `true`: the first call was a FORCE.
    pub(super) forced: bool,
    /// Amount granted to an UPTO.
    pub(super) granted: Option<Amount>,
}

impl CompositeEvaluation {
    /// Evaluates a call at the state of a key.
    #[must_use]
    pub fn at(request: &CompositeRequest, stored: StoredUsage, now: Timestamp) -> CompositeEvaluation {
        let mut evaluation = CompositeEvaluation::default();
        evaluation.evaluate(request, stored, now);
        evaluation
    }

    /// Evaluates a call in place, because an evaluation is large. Must be called once, on a new evaluation.
    pub fn evaluate(&mut self, request: &CompositeRequest, stored: StoredUsage, now: Timestamp) {
        let recorded = stored.recorded_call(request, now);
        let is_repeated = recorded.is_some();
        let settled = recorded.is_some_and(|recorded| recorded.settled);
        let settles = request.purpose == Purpose::Settle;
        for (spec, index) in request.specs.iter().zip(stored.indexes(request)) {
            // A repeated call renews the lease of its id, unless the id has been settled.
            let renews_lease = spec.is_held_by_id() && !settled;
            // Apart from that, a repeated call costs nothing. NX is ignored, because it may find the lease of the first
            // call.
            let repeated;
            let spec = if is_repeated && !renews_lease {
                repeated = Spec { request: Request::Take(Amount::ZERO), nx: false, ..*spec };
                &repeated
            } else {
                spec
            };
            let limit = with_limit!(spec, limit => LimitEvaluation::at(limit, stored, index, now, spec.request));
            // `limits` has room for all specs of a call.
            let _ = self.limits.try_push(LimitEvaluation {
                decides: !is_repeated || renews_lease,
                shadow: spec.shadow,
                ..limit
            });
        }
        cap_grants_to_smallest(request, stored, &mut self.limits, now);
        self.component_count = stored.component_count();
        self.releases_lease = settles && stored.has_lease(request, now);
        self.outcome = match (recorded, settles) {
            (Some(RecordedCall { settled: true, .. }), true) => Outcome::Settled,
            (Some(_), true) => Outcome::Settles,
            (None, true) => Outcome::Unknown,
            (Some(_), false) if self.limits.iter().any(LimitEvaluation::denies) => Outcome::LostLease,
            (Some(recorded), false) => Outcome::Repeated(Repeated {
                hold: recorded.hold_until.since(stored.effective_time(now)),
                forced: recorded.forced,
                granted: recorded.granted,
            }),
            (None, false) => CompositeEvaluation::decide(request, stored, &self.limits, now),
        };
    }

    /// Returns the evaluation after other modules may have changed the key: components may have moved, and a call whose
    /// id has been charged since is a repetition. Otherwise, the decision stays the same.
    #[must_use]
    pub fn evaluate_again(
        &self,
        request: &CompositeRequest,
        stored: StoredUsage,
        now: Timestamp,
    ) -> CompositeEvaluation {
        if self.records_id(request) && stored.recorded_call(request, now).is_some() {
            return CompositeEvaluation::at(request, stored, now);
        }
        let indexes = stored.indexes(request);
        let moved = |(evaluation, index): (&LimitEvaluation, Option<usize>)| LimitEvaluation { index, ..*evaluation };
        CompositeEvaluation {
            limits: self.limits.iter().zip(indexes).map(moved).collect(),
            component_count: stored.component_count(),
            ..*self
        }
    }

    fn decide(request: &CompositeRequest, stored: StoredUsage, limits: &[LimitEvaluation], now: Timestamp) -> Outcome {
        if request.purpose == Purpose::Refund {
            return Outcome::Passes;
        }
        let denying = || request.specs.iter().zip(limits).filter(|(_, evaluation)| evaluation.denies());
        let remaining_ban = stored.remaining_ban(now);
        if remaining_ban != Span::ZERO {
            let forced = forces(limits) && denying().next().is_none();
            let mut enforced = request.specs.iter().zip(limits).filter(|(_, evaluation)| !evaluation.shadow);
            let renews = match (enforced.next(), enforced.next()) {
                (Some((lease, evaluation)), None) => evaluation.renews(lease, stored, now),
                _ => false,
            };
            return if forced || renews { Outcome::Passes } else { Outcome::Banned(remaining_ban) };
        }
        if denying().next().is_none() {
            return Outcome::Passes;
        }
        // A strike is a call that its limits deny for a time. A call that can never be granted is not a strike, and a
        // call that is denied only because of KEEP or a concurrency limit is not a strike either.
        let can_be_granted = denying().all(|(_, evaluation)| evaluation.evaluation.verdict != Verdict::Never);
        let limits_deny = denying().any(|(spec, evaluation)| evaluation.denies_without_keep(spec, stored, now));
        let counts_strikes = request.purpose == Purpose::Charge && request.ban.is_some();
        let is_strike = counts_strikes && can_be_granted && limits_deny;
        Outcome::Denied { is_strike }
    }

    /// Returns `true` if the call would change anything other than the strikes of the ban.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self.outcome {
            // A repeated call can only renew its lease.
            Outcome::Passes | Outcome::Repeated(_) => {
                self.limits.iter().any(|evaluation| evaluation.evaluation.change != Change::Nothing)
            }
            Outcome::Settles => true,
            Outcome::Settled | Outcome::Unknown => self.releases_lease,
            Outcome::Denied { .. } | Outcome::Banned(_) | Outcome::LostLease => false,
        }
    }

    /// Returns `true` if the denial counts as a strike.
    #[must_use]
    pub fn is_strike(&self) -> bool {
        self.outcome == Outcome::Denied { is_strike: true }
    }

    /// Returns `true` if this key denies the call, which denies it for its other keys as well (all or none).
    #[must_use]
    pub fn denies(&self) -> bool {
        matches!(self.outcome, Outcome::Denied { .. } | Outcome::Banned(_) | Outcome::LostLease)
    }

    /// Returns `true` if the key has a record of the id.
    #[must_use]
    pub fn has_record(&self) -> bool {
        matches!(self.outcome, Outcome::Repeated(_) | Outcome::Settles | Outcome::Settled)
    }

    /// Returns the kind of each enforced limit, with `true` if the limit denied the call.
    pub fn limits<'a>(&'a self, request: &'a CompositeRequest) -> impl Iterator<Item = (UsageKind, bool)> + 'a {
        let denied = self.denies();
        let enforced = request.specs.iter().zip(&self.limits).filter(|(spec, _)| !spec.shadow);
        enforced.map(move |(spec, evaluation)| (spec.limit.kind(), denied && evaluation.denies()))
    }

    /// Returns the number of entries that each charged usage would have after the call, with its kind, and with `true`
    /// if the number grows. [`UsageKind::Limits`] stands for the idempotency records.
    pub fn entries<'a>(
        &'a self,
        request: &'a CompositeRequest,
        stored: StoredUsage<'a>,
        now: Timestamp,
    ) -> impl Iterator<Item = (UsageKind, usize, bool)> + 'a {
        let grows = matches!(self.outcome, Outcome::Passes | Outcome::Repeated(_));
        let charged = request.specs.iter().zip(&self.limits).filter(move |_| grows);
        let entries =
            charged.filter_map(|(spec, evaluation)| Some((spec.limit.kind(), evaluation.entries?, evaluation.grows)));
        let adds_id = self.records_id(request);
        let ids = || stored.extras().map_or(1, |extras| extras.records.len_with_another(stored.effective_time(now)));
        entries.chain(adds_id.then(|| (UsageKind::Limits, ids(), true)))
    }

    /// Returns `true` if the id of the call will be recorded.
    pub(super) fn records_id(&self, request: &CompositeRequest) -> bool {
        request.idempotency.once().is_some() && self.outcome == Outcome::Passes && self.changes()
    }

    /// Returns `true` if the key can stay a plain key after the call: no other state changes, and the limit has no
    /// name.
    #[must_use]
    pub fn stays_plain(&self, request: &CompositeRequest) -> bool {
        let mut changing = request
            .specs
            .iter()
            .zip(&self.limits)
            .filter(|(_, evaluation)| evaluation.evaluation.change != Change::Nothing);
        !self.records_id(request)
            && !self.is_strike()
            && changing.all(|(spec, evaluation)| evaluation.index.is_some() && spec.name.is_none())
    }

    /// Removes the changes of the limits in shadow mode, for a key without room for their entries: such limits deny no
    /// call.
    pub fn exclude_shadow_limits(&mut self) {
        for evaluation in self.limits.iter_mut().filter(|evaluation| evaluation.shadow) {
            evaluation.evaluation.change = Change::Nothing;
            (evaluation.entries, evaluation.grows) = (None, false);
        }
    }

    /// Returns the number of components that the call would create.
    pub(super) fn new_component_count(&self) -> usize {
        let new = |evaluation: &&LimitEvaluation| {
            evaluation.index.is_none() && matches!(evaluation.evaluation.change, Change::Charge(_))
        };
        let charges = matches!(self.outcome, Outcome::Passes | Outcome::Repeated(_));
        if charges { self.limits.iter().filter(new).count() } else { 0 }
    }

    /// Returns `true` if the call would create a component. That includes the first component of a missing key. The
    /// usage of a plain key becomes a component only when another component is added.
    #[must_use]
    pub fn creates_components(&self) -> bool {
        self.new_component_count() > 0
    }

    /// Returns `true` if the call would exceed the maximum number of components.
    #[must_use]
    pub fn has_too_many_components(&self, stored: StoredUsage, now: Timestamp) -> bool {
        let new = self.new_component_count();
        // A plain key has one component at most, and a call adds at most 8.
        let Some(usage) = stored.composite() else { return false };
        let charged = |index: usize, _: &Component| {
            self.limits.iter().any(|evaluation| {
                evaluation.index == Some(index) && matches!(evaluation.evaluation.change, Change::Charge(_))
            })
        };
        new > 0 && usage.component_count_with(new, charged, now) > MAX_COMPONENTS
    }

    /// Returns `true` if the call is granted, or was granted before.
    #[must_use]
    pub fn allows(&self) -> bool {
        matches!(self.outcome, Outcome::Passes | Outcome::Repeated(_) | Outcome::Settles | Outcome::Settled)
    }
}
