//! A look at what is in a key for all limits of a call: what each says (`limit_evaluation.rs`), and what becomes of the
//! call. `charge.rs` makes the changes that it announces, and `answer.rs` says what the caller is told.

use super::held::Held;
use super::limit_evaluation::{LimitEvaluation, forces, grant_the_least};
use super::{Component, MAX_COMPONENTS};
use crate::algorithm::any::with_limit;
use crate::composite::idempotency::RecordedCall;
use crate::evaluate::{Change, Request};
use crate::kind::Kind;
use crate::limit::Verdict;
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, Idempotency, MAX_SPECS, Purpose, Spec};
use arrayvec::ArrayVec;

/// Of each limit of a call.
pub(super) type Few<T> = ArrayVec<T, MAX_SPECS>;

/// What a look at a key has shown a call.
#[derive(Clone, Debug, Default)]
pub struct CompositeEvaluation {
    /// Each limit's, in the order of the call.
    pub(super) limits: Few<LimitEvaluation>,
    /// How many components there were, of a key that has components.
    pub(super) components: usize,
    /// Of the call as a whole.
    pub(super) outcome: Outcome,
    /// Whether its id holds a lease that a settlement takes back.
    pub(super) releases: bool,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All limits let it pass.
    #[default]
    Passes,
    /// A limit stands in its way. Whether that is a strike.
    Denied { strikes: bool },
    /// The key is banned for this long.
    Banned(Span),
    /// Its id has been charged before.
    Repeated(Repeated),
    /// Its id has been charged before, but the lease that it held has expired, and another does not fit.
    LostLease,
    /// It settles an id.
    Settles,
    /// It has settled it before.
    Settled,
    /// It would settle an id that is not known.
    Unknown,
}

/// What is left of the answer to the first call of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repeated {
    /// What is left of the hold that it was told.
    pub(super) hold: Span,
    /// Whether it was a FORCE.
    pub(super) forced: bool,
    /// What an UPTO was granted.
    pub(super) granted: Option<Amount>,
}

impl CompositeEvaluation {
    /// Looks at what is in the key.
    #[must_use]
    pub fn at(request: &CompositeRequest, held: Held, now: Timestamp) -> CompositeEvaluation {
        let mut evaluation = CompositeEvaluation::default();
        evaluation.look_at(request, held, now);
        evaluation
    }

    /// Looks at what a key holds, for a call that has not looked yet. It is large to copy, so it is filled where it is.
    pub fn look_at(&mut self, request: &CompositeRequest, held: Held, now: Timestamp) {
        let remembered = held.remembered(request, now);
        let known = remembered.is_some();
        let settled = remembered.is_some_and(|remembered| remembered.settled);
        let settles = request.purpose == Purpose::Settle;
        for (spec, place) in request.specs.iter().zip(held.places(request)) {
            // An id that is known charges nothing, whatever it costs; the lease that NX finds may be its own.
            let repeated;
            // Its own lease it renews; but not once it has settled.
            let counts_again = spec.is_held_by_id() && !settled;
            let spec = if known && !counts_again {
                repeated = Spec { request: Request::Take(Amount::ZERO), nx: false, ..*spec };
                &repeated
            } else {
                spec
            };
            let limit = with_limit!(spec, limit => LimitEvaluation::at(limit, held, place, now, spec.request));
            // There are no more limits in a call.
            let _ =
                self.limits.try_push(LimitEvaluation { decides: !known || counts_again, shadow: spec.shadow, ..limit });
        }
        grant_the_least(request, held, &mut self.limits, now);
        self.components = held.components();
        self.releases = settles && held.has_lease(request, now);
        self.outcome = match (remembered, settles) {
            (Some(RecordedCall { settled: true, .. }), true) => Outcome::Settled,
            (Some(_), true) => Outcome::Settles,
            (None, true) => Outcome::Unknown,
            (Some(_), false) if self.limits.iter().any(LimitEvaluation::denies) => Outcome::LostLease,
            (Some(remembered), false) => Outcome::Repeated(Repeated {
                hold: remembered.hold_until.since(held.at(now)),
                forced: remembered.forced,
                granted: remembered.granted,
            }),
            (None, false) => CompositeEvaluation::decide(request, held, &self.limits, now),
        };
    }

    /// What is to be done of it after others may have changed what is in the key: components may have moved, and a call
    /// whose id has been charged since is a repetition. What was decided stays.
    #[must_use]
    pub fn again(&self, request: &CompositeRequest, held: Held, now: Timestamp) -> CompositeEvaluation {
        if self.remembers(request) && held.remembered(request, now).is_some() {
            return CompositeEvaluation::at(request, held, now);
        }
        let places = held.places(request);
        let moved = |(evaluation, place): (&LimitEvaluation, Option<usize>)| LimitEvaluation { place, ..*evaluation };
        CompositeEvaluation {
            limits: self.limits.iter().zip(places).map(moved).collect(),
            components: held.components(),
            ..*self
        }
    }

    fn decide(request: &CompositeRequest, held: Held, limits: &[LimitEvaluation], now: Timestamp) -> Outcome {
        if request.purpose == Purpose::GiveBack {
            return Outcome::Passes;
        }
        let denying = || request.specs.iter().zip(limits).filter(|(_, evaluation)| evaluation.denies());
        let banned = held.banned(now);
        if banned != Span::ZERO {
            let forced = forces(limits) && denying().next().is_none();
            let mut ruling = request.specs.iter().zip(limits).filter(|(_, evaluation)| !evaluation.shadow);
            let renews = match (ruling.next(), ruling.next()) {
                (Some((lease, evaluation)), None) => evaluation.renews(lease, held, now),
                _ => false,
            };
            return if forced || renews { Outcome::Passes } else { Outcome::Banned(banned) };
        }
        if denying().next().is_none() {
            return Outcome::Passes;
        }
        // A strike is a call that its limits deny for a time: not what would never pass, and not what only KEEP or a
        // concurrency limit denies.
        let passes_some_time = denying().all(|(_, evaluation)| evaluation.evaluation.verdict() != Verdict::Never);
        let limits_deny = denying().any(|(spec, evaluation)| evaluation.would_deny_all(spec, held, now));
        let counts = request.purpose == Purpose::Charge && request.ban.is_some();
        let strikes = counts && passes_some_time && limits_deny;
        Outcome::Denied { strikes }
    }

    /// Whether going on would change anything but the ban's strikes.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self.outcome {
            // Of an id that was charged before, only its lease is.
            Outcome::Passes | Outcome::Repeated(_) => {
                self.limits.iter().any(|evaluation| evaluation.evaluation.change() != Change::Nothing)
            }
            Outcome::Settles => true,
            Outcome::Settled | Outcome::Unknown => self.releases,
            Outcome::Denied { .. } | Outcome::Banned(_) | Outcome::LostLease => false,
        }
    }

    /// Whether it is a strike.
    #[must_use]
    pub fn strikes(&self) -> bool {
        self.outcome == Outcome::Denied { strikes: true }
    }

    /// Whether this key denies the call, and with it the call's other keys (all or none).
    #[must_use]
    pub fn denies(&self) -> bool {
        matches!(self.outcome, Outcome::Denied { .. } | Outcome::Banned(_) | Outcome::LostLease)
    }

    /// Whether the key knows the call's id.
    #[must_use]
    pub fn knows(&self) -> bool {
        matches!(self.outcome, Outcome::Repeated(_) | Outcome::Settles | Outcome::Settled)
    }

    /// The kind of each limit, and whether it stood in the call's way.
    pub fn limits<'a>(&'a self, request: &'a CompositeRequest) -> impl Iterator<Item = (Kind, bool)> + 'a {
        let denied = self.denies();
        let of_all = request.specs.iter().zip(&self.limits).filter(|(spec, _)| !spec.shadow);
        of_all.map(move |(spec, evaluation)| (spec.limit.kind(), denied && evaluation.denies()))
    }

    /// What grows if the call goes on: a kind, how many entries it will have, and whether that is more than before. The
    /// kind of the whole stands for ids.
    pub fn entries<'a>(
        &'a self,
        request: &'a CompositeRequest,
        held: Held<'a>,
        now: Timestamp,
    ) -> impl Iterator<Item = (Kind, usize, bool)> + 'a {
        let grows = matches!(self.outcome, Outcome::Passes | Outcome::Repeated(_));
        let of_limits = request.specs.iter().zip(&self.limits).filter(move |_| grows);
        let of_limits =
            of_limits.filter_map(|(spec, evaluation)| Some((spec.limit.kind(), evaluation.entries?, evaluation.grows)));
        let adds_id = self.remembers(request);
        // What has expired makes room for the new one.
        let ids = held.extras().map_or(0, |extras| {
            let ids = extras.records.len();
            if extras.records.is_full(ids, held.at(now)) { ids } else { ids.saturating_sub(1) }
        });
        of_limits.chain(adds_id.then_some((Kind::Limits, ids.saturating_add(1), true)))
    }

    /// Whether the call's id will be remembered.
    pub(super) fn remembers(&self, request: &CompositeRequest) -> bool {
        matches!(request.idempotency, Idempotency::Once { .. }) && self.outcome == Outcome::Passes && self.changes()
    }

    /// Whether a plain key of that kind can go on remembering what the call leaves: it changes nothing else, and asks
    /// for no name.
    #[must_use]
    pub fn stays_plain(&self, request: &CompositeRequest) -> bool {
        let mut changing = request
            .specs
            .iter()
            .zip(&self.limits)
            .filter(|(_, evaluation)| evaluation.evaluation.change() != Change::Nothing);
        !self.remembers(request)
            && !self.strikes()
            && changing.all(|(spec, evaluation)| evaluation.place.is_some() && spec.name.is_none())
    }

    /// Charges no limit that decides only for itself: there is no room for what it would add, and it denies nobody.
    pub fn leave_shadows_out(&mut self) {
        for evaluation in self.limits.iter_mut().filter(|evaluation| evaluation.shadow) {
            evaluation.evaluation.leave_out();
            (evaluation.entries, evaluation.grows) = (None, false);
        }
    }

    /// How many components the call would make.
    pub(super) fn new_components(&self) -> usize {
        let new = |evaluation: &&LimitEvaluation| {
            evaluation.place.is_none() && matches!(evaluation.evaluation.change(), Change::Charge(_))
        };
        let charges = matches!(self.outcome, Outcome::Passes | Outcome::Repeated(_));
        if charges { self.limits.iter().filter(new).count() } else { 0 }
    }

    /// Whether the call would make a component, of a key that is there or not; a plain key's usage is one only once it
    /// has others beside it.
    #[must_use]
    pub fn makes_components(&self) -> bool {
        self.new_components() > 0
    }

    /// Whether the key would have more components than it may.
    #[must_use]
    pub fn has_too_many_components(&self, held: Held, now: Timestamp) -> bool {
        let new = self.new_components();
        // A plain key's would be one beside 8.
        let Held::Composite(components) = held else { return false };
        let charged = |place: usize, _: &Component| {
            self.limits.iter().any(|evaluation| {
                evaluation.place == Some(place) && matches!(evaluation.evaluation.change(), Change::Charge(_))
            })
        };
        new > 0 && components.components_with(new, charged, now) > MAX_COMPONENTS
    }

    /// Whether the call may go on: it passes, or has passed before.
    #[must_use]
    pub fn allows(&self) -> bool {
        matches!(self.outcome, Outcome::Passes | Outcome::Repeated(_) | Outcome::Settles | Outcome::Settled)
    }
}
