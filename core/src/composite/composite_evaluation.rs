//! A look at what is in a key for all limits of a call: what each says, and what becomes of the call. `charge.rs` makes
//! the changes that it announces, and `answer.rs` says what the caller is told.

use super::{Component, CompositeUsage, Extras, MAX_COMPONENTS};
use crate::algorithm::any::{AnyLimit, Single, with_limit};
use crate::algorithm::leases::ConcurrencyUsage;
use crate::composite::idempotency::{Charge, RecordedCall};
use crate::evaluate::{Change, Evaluation, Request, evaluate};
use crate::kind::Kind;
use crate::limit::{Limit, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{Call, Idempotency, MAX_SPECS, Purpose, Spec};
use arrayvec::ArrayVec;
use std::any::Any;

/// What is in the key that a call is on.
#[derive(Clone, Copy)]
pub enum Held<'a> {
    /// Components; none, if the key is missing.
    Parts(&'a CompositeUsage),
    /// The usage of a plain key.
    Plain(&'a dyn Any, Kind),
}

impl<'a> Held<'a> {
    /// A plain key's usage.
    pub fn plain<U: Single>(usage: &'a U) -> Held<'a> {
        Held::Plain(usage, U::KIND)
    }

    /// The place of the component that the limit of a spec finds, beside those that others have `taken`. A plain key's
    /// usage is at 0: there it would be if this were a key with components.
    fn place(self, spec: &Spec, taken: &[Option<usize>]) -> Option<usize> {
        match self {
            Held::Parts(components) => components.place(spec, taken),
            Held::Plain(_, kind) => (spec.limit.kind() == kind && !taken.contains(&Some(0))).then_some(0),
        }
    }

    /// What a limit's component remembers, if there is one.
    pub(super) fn usage<U: Single>(self, place: Option<usize>) -> Option<&'a U> {
        match self {
            Held::Parts(components) => U::of(&components.components.get(place?)?.usage),
            Held::Plain(usage, _) => place.and_then(|_| usage.downcast_ref()),
        }
    }

    fn extras(self) -> Option<&'a Extras> {
        match self {
            Held::Parts(components) => components.extras.as_deref(),
            Held::Plain(..) => None,
        }
    }

    /// How many components there are.
    pub(super) fn components(self) -> usize {
        match self {
            Held::Parts(components) => components.components.len(),
            Held::Plain(..) => 0,
        }
    }

    /// For how long the key is banned.
    pub(super) fn banned(self, now: Timestamp) -> Span {
        match self {
            Held::Parts(components) => components.banned(now),
            Held::Plain(..) => Span::ZERO,
        }
    }

    fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Held::Parts(components) => components.at(now),
            Held::Plain(..) => now,
        }
    }

    /// What it remembers of the id of a call.
    fn remembered(self, call: &Call, now: Timestamp) -> Option<RecordedCall<&'a [Charge]>> {
        let id = match call.counts {
            Idempotency::Every => return None,
            Idempotency::Once { id, .. } | Idempotency::Settle { id, .. } => id,
        };
        self.extras()?.ids.find(id, self.at(now))
    }

    /// The places of the components that the limits of a call find.
    pub(super) fn places(self, call: &Call) -> [Option<usize>; MAX_SPECS] {
        let mut places = [None; MAX_SPECS];
        for (at, spec) in call.specs.iter().enumerate() {
            let place = self.place(spec, &places);
            if let Some(room) = places.get_mut(at) {
                *room = place;
            }
        }
        places
    }
}

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

/// What it has shown one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitEvaluation {
    /// Where its component is.
    pub(super) place: Option<usize>,
    /// What a look at its component has shown.
    pub(super) evaluation: Evaluation,
    /// How many entries the component would have after a charge that adds one.
    entries: Option<usize>,
    /// Whether that is more than it has.
    grows: bool,
    /// Whether it decides: not if the call has been charged already.
    decides: bool,
    /// Whether that is for itself alone, with no say in what becomes of the call.
    pub(super) shadow: bool,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All limits let it pass.
    #[default]
    Passes,
    /// A limit stands in its way. Whether that is a strike.
    Denied { strikes: bool },
    /// The key is banned for so long.
    Banned(Span),
    /// Its id has been charged before.
    Repeated(Repeated),
    /// The same, but the lease that it held has lapsed, and there is no room for another.
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
    pub fn at(call: &Call, held: Held, now: Timestamp) -> CompositeEvaluation {
        let mut evaluation = CompositeEvaluation::default();
        evaluation.look_at(call, held, now);
        evaluation
    }

    /// Looks at what a key holds, for a call that has not looked yet. It is large to copy, so it is filled where it is.
    pub fn look_at(&mut self, call: &Call, held: Held, now: Timestamp) {
        let remembered = held.remembered(call, now);
        let known = remembered.is_some();
        let settled = remembered.is_some_and(|remembered| remembered.settled);
        let settles = call.purpose == Purpose::Settle;
        for (spec, place) in call.specs.iter().zip(held.places(call)) {
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
        grant_the_least(call, held, &mut self.limits, now);
        self.components = held.components();
        self.releases = settles && held.has_lease(call, now);
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
            (None, false) => CompositeEvaluation::decide(call, held, &self.limits, now),
        };
    }

    /// What is to be done of it after others may have changed what is in the key: components may have moved, and a call
    /// whose id has been charged since is a repetition. What was decided stays.
    #[must_use]
    pub fn again(&self, call: &Call, held: Held, now: Timestamp) -> CompositeEvaluation {
        if self.remembers(call) && held.remembered(call, now).is_some() {
            return CompositeEvaluation::at(call, held, now);
        }
        let places = held.places(call);
        let moved = |(evaluation, place): (&LimitEvaluation, Option<usize>)| LimitEvaluation { place, ..*evaluation };
        CompositeEvaluation {
            limits: self.limits.iter().zip(places).map(moved).collect(),
            components: held.components(),
            ..*self
        }
    }

    fn decide(call: &Call, held: Held, limits: &[LimitEvaluation], now: Timestamp) -> Outcome {
        if call.purpose == Purpose::GiveBack {
            return Outcome::Passes;
        }
        let denying = || call.specs.iter().zip(limits).filter(|(_, evaluation)| evaluation.denies());
        let banned = held.banned(now);
        if banned != Span::ZERO {
            let forced = forces(limits) && denying().next().is_none();
            let mut ruling = call.specs.iter().zip(limits).filter(|(_, evaluation)| !evaluation.shadow);
            let renews = match (ruling.next(), ruling.next()) {
                (Some((lease, evaluation)), None) => held.renews(lease, evaluation, now),
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
        let limits_deny = denying().any(|(spec, evaluation)| held.would_deny_all(spec, evaluation, now));
        let counts = call.purpose == Purpose::Charge && call.ban.is_some();
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

    /// Whether it stands in the way of others that are to pass all or none.
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
    pub fn limits<'a>(&'a self, call: &'a Call) -> impl Iterator<Item = (Kind, bool)> + 'a {
        let denied = self.denies();
        let of_all = call.specs.iter().zip(&self.limits).filter(|(spec, _)| !spec.shadow);
        of_all.map(move |(spec, evaluation)| (spec.limit.kind(), denied && evaluation.denies()))
    }

    /// What grows if the call goes on: a kind, how many entries it will have, and whether that is more than before. The
    /// kind of the whole stands for ids.
    pub fn entries<'a>(
        &'a self,
        call: &'a Call,
        held: Held<'a>,
        now: Timestamp,
    ) -> impl Iterator<Item = (Kind, usize, bool)> + 'a {
        let grows = matches!(self.outcome, Outcome::Passes | Outcome::Repeated(_));
        let of_limits = call.specs.iter().zip(&self.limits).filter(move |_| grows);
        let of_limits =
            of_limits.filter_map(|(spec, evaluation)| Some((spec.limit.kind(), evaluation.entries?, evaluation.grows)));
        let adds_id = self.remembers(call);
        // What has expired makes room for the new one.
        let ids = held.extras().map_or(0, |extras| {
            let ids = extras.ids.len();
            if extras.ids.is_full(ids, held.at(now)) { ids } else { ids.saturating_sub(1) }
        });
        of_limits.chain(adds_id.then_some((Kind::Limits, ids.saturating_add(1), true)))
    }

    /// Whether the call's id will be remembered.
    pub(super) fn remembers(&self, call: &Call) -> bool {
        matches!(call.counts, Idempotency::Once { .. }) && self.outcome == Outcome::Passes && self.changes()
    }

    /// Whether a plain key of that kind can go on remembering what the call leaves: it changes nothing else, and asks
    /// for no name.
    #[must_use]
    pub fn stays_plain(&self, call: &Call) -> bool {
        let mut changing = call
            .specs
            .iter()
            .zip(&self.limits)
            .filter(|(_, evaluation)| evaluation.evaluation.change() != Change::Nothing);
        !self.remembers(call)
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
        let Held::Parts(components) = held else { return false };
        let charged = |place: usize, _: &Component| {
            self.limits.iter().any(|evaluation| {
                evaluation.place == Some(place) && matches!(evaluation.evaluation.change(), Change::Charge(_))
            })
        };
        new > 0 && components.components_with(new, charged, now) > MAX_COMPONENTS
    }

    /// Whether the call may go on: it passes, or has passed before.
    #[must_use]
    pub fn admits(&self) -> bool {
        matches!(self.outcome, Outcome::Passes | Outcome::Repeated(_) | Outcome::Settles | Outcome::Settled)
    }
}

impl Held<'_> {
    /// Whether a spec is for a lease that its holder has.
    fn renews(self, spec: &Spec, evaluation: &LimitEvaluation, now: Timestamp) -> bool {
        if spec.request.is_look() || !matches!(spec.limit, AnyLimit::Concurrency(_)) {
            return false;
        }
        // With no room at all only a renewal passes.
        let full = Spec { limit: spec.limit.lowered_by(Amount::MAX), ..*spec };
        with_limit!(full, limit => LimitEvaluation::at(limit, self, evaluation.place, now, spec.request))
            .evaluation
            .verdict()
            .allowed()
    }

    /// Whether the id of a call that settles holds a lease under one of its limits.
    fn has_lease(self, call: &Call, now: Timestamp) -> bool {
        let mut of_leases = call.specs.iter().filter(|spec| spec.is_held_by_id());
        let leases = match self {
            Held::Parts(components) => {
                components.components.iter().find_map(|component| ConcurrencyUsage::of(&component.usage))
            }
            Held::Plain(usage, _) => usage.downcast_ref(),
        };
        leases.is_some_and(|leases: &ConcurrencyUsage| of_leases.any(|spec| leases.has_lease(spec.holder, now)))
    }

    /// Whether a limit that denies does so by itself, and not because of what is kept, or for want of a lease.
    fn would_deny_all(self, spec: &Spec, evaluation: &LimitEvaluation, now: Timestamp) -> bool {
        if spec.limit.kind() == Kind::Concurrency {
            return false;
        }
        if spec.kept == Amount::ZERO {
            return true;
        }
        let whole = Spec { limit: spec.limit.raised_by(spec.kept), ..*spec };
        with_limit!(whole, limit => LimitEvaluation::at(limit, self, evaluation.place, now, spec.request))
            .evaluation
            .denies()
    }
}

impl LimitEvaluation {
    fn at<L: Limit>(limit: &L, held: Held, place: Option<usize>, now: Timestamp, request: Request) -> LimitEvaluation
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
fn grant_the_least(call: &Call, held: Held, limits: &mut [LimitEvaluation], now: Timestamp) {
    let most = call.specs.iter().find_map(Spec::most);
    let Some(least) = least_granted(limits).or(most) else { return };
    for (evaluation, spec) in limits.iter_mut().zip(&call.specs) {
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
        if let Request::UpTo(most) = self.request { Some(most) } else { None }
    }
}

impl Call<'_> {
    /// How much an UPTO asks for of the limits that have a say, or if none has, of all.
    pub(super) fn most(&self, limits: &[LimitEvaluation]) -> Option<Amount> {
        let none_rules = limits.iter().all(|evaluation| evaluation.shadow);
        let mut ruling = self.specs.iter().filter(|spec| none_rules || !spec.shadow);
        ruling.find_map(Spec::most)
    }
}
