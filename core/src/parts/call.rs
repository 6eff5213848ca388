//! One call over several limits on one key: a look at all of them, then all are charged or none is.

use super::any::with_usage;
use super::{AnyUsage, Beside, Changed, KnownBy, MAX_PARTS, Part, PartsUsage, Single, forget, told_reset};
use crate::ask::{Change, Look, look};
use crate::leases::ConcurrencyUsage;
use crate::once::{Charge, Remembered};
use crate::spec::{AnyLimit, Call, Counts, MAX_SPECS, Purpose, Spec};
use crate::{Amount, Ask, Decision, Kind, Limit, Span, Timestamp, Usage, Verdict, with_limit};
use arrayvec::ArrayVec;
use std::any::Any;

/// What is in the key that a call is on.
#[derive(Clone, Copy)]
pub enum Held<'a> {
    /// Parts; none, if the key is missing.
    Parts(&'a PartsUsage),
    /// The usage of a plain key.
    Plain(&'a dyn Any, Kind),
}

impl<'a> Held<'a> {
    /// A plain key's usage.
    pub fn plain<U: Single>(usage: &'a U) -> Held<'a> {
        Held::Plain(usage, U::KIND)
    }

    /// The place of the part that the limit of a spec finds, beside those that others have `taken`. A plain key's usage
    /// is at 0: there it would be if this were a key with parts.
    fn place(self, spec: &Spec, taken: &[Option<usize>]) -> Option<usize> {
        match self {
            Held::Parts(parts) => parts.place(spec, taken),
            Held::Plain(_, kind) => (spec.limit.kind() == kind && !taken.contains(&Some(0))).then_some(0),
        }
    }

    fn usage<U: Single>(self, place: Option<usize>) -> Option<&'a U> {
        match self {
            Held::Parts(parts) => U::of(&parts.parts.get(place?)?.usage),
            Held::Plain(usage, _) => place.and_then(|_| usage.downcast_ref()),
        }
    }

    fn beside(self) -> Option<&'a Beside> {
        match self {
            Held::Parts(parts) => parts.beside.as_deref(),
            Held::Plain(..) => None,
        }
    }

    /// How many parts there are.
    fn parts(self) -> usize {
        match self {
            Held::Parts(parts) => parts.parts.len(),
            Held::Plain(..) => 0,
        }
    }

    fn banned(self, now: Timestamp) -> Span {
        match self {
            Held::Parts(parts) => parts.banned(now),
            Held::Plain(..) => Span::ZERO,
        }
    }

    fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Held::Parts(parts) => parts.at(now),
            Held::Plain(..) => now,
        }
    }

    /// What it remembers of the id of a call.
    fn remembered(self, call: &Call, now: Timestamp) -> Option<Remembered<&'a [Charge]>> {
        let id = match call.counts {
            Counts::Every => return None,
            Counts::Once { id, .. } | Counts::Settle { id, .. } => id,
        };
        self.beside()?.ids.find(id, self.at(now))
    }

    /// The places of the parts that the limits of a call find.
    fn places(self, call: &Call) -> [Option<usize>; MAX_SPECS] {
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
pub type Few<T> = ArrayVec<T, MAX_SPECS>;

/// What a look at a key has shown a call.
#[derive(Clone, Debug)]
pub struct Seen {
    limits: Few<SeenLimit>,
    /// How many parts there were, of a key that has parts.
    parts: usize,
    outcome: Outcome,
    /// Whether its id holds a lease that a settlement takes back.
    releases: bool,
}

/// What it has shown one limit.
#[derive(Clone, Copy, Debug)]
struct SeenLimit {
    /// Where its part is.
    place: Option<usize>,
    look: Look,
    /// How many entries the part would have after a charge that adds one.
    entries: Option<usize>,
    /// Whether that is more than it has.
    grows: bool,
    /// Whether it decides: not if the call has been charged already.
    decides: bool,
    /// Whether that is for itself alone, with no say in what becomes of the call.
    shadow: bool,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// All limits let it pass.
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
struct Repeated {
    hold: Span,
    forced: bool,
    granted: Option<Amount>,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The call's, whatever the number of its limits.
    pub decision: Decision,
    /// Each limit's own.
    pub each: Few<Decision>,
    /// Whether a limit that decides for itself would have denied the call.
    pub shadow_denied: bool,
    /// Whether a ban denied it.
    pub banned: bool,
    /// Whether its id had been charged before.
    pub repeated: bool,
}

impl Seen {
    /// Looks at what is in the key.
    #[must_use]
    pub fn at(call: &Call, held: Held, now: Timestamp) -> Seen {
        let remembered = held.remembered(call, now);
        let known = remembered.is_some();
        let settled = remembered.is_some_and(|remembered| remembered.settled);
        let settles = call.purpose == Purpose::Settle;
        let seen = |(spec, place): (&Spec, Option<usize>)| {
            // An id that is known charges nothing, whatever it costs; the lease that NX finds may be its own.
            let repeated;
            // Its own lease it renews; but not once it has settled.
            let counts_again = spec.is_held_by_id() && !settled;
            let spec = if known && !counts_again {
                repeated = Spec { ask: Ask::Take(Amount::ZERO), nx: false, ..*spec };
                &repeated
            } else {
                spec
            };
            let seen = with_limit!(spec, limit => SeenLimit::at(limit, held, place, now, spec.ask));
            SeenLimit { decides: !known || counts_again, shadow: spec.shadow, ..seen }
        };
        let mut limits: Few<SeenLimit> = call.specs.iter().zip(held.places(call)).map(seen).collect();
        grant_the_least(call, held, &mut limits, now);
        let releases = settles && held.has_lease(call, now);
        let outcome = match (remembered, settles) {
            (Some(Remembered { settled: true, .. }), true) => Outcome::Settled,
            (Some(_), true) => Outcome::Settles,
            (None, true) => Outcome::Unknown,
            (Some(_), false) if limits.iter().any(SeenLimit::denies) => Outcome::LostLease,
            (Some(remembered), false) => Outcome::Repeated(Repeated {
                hold: remembered.hold_until.since(held.at(now)),
                forced: remembered.forced,
                granted: remembered.granted,
            }),
            (None, false) => Seen::decide(call, held, &limits, now),
        };
        Seen { limits, parts: held.parts(), outcome, releases }
    }

    fn decide(call: &Call, held: Held, limits: &[SeenLimit], now: Timestamp) -> Outcome {
        if call.purpose == Purpose::GiveBack {
            return Outcome::Passes;
        }
        let denying = || call.specs.iter().zip(limits).filter(|(_, seen)| seen.denies());
        let banned = held.banned(now);
        if banned != Span::ZERO {
            let forced = forces(limits) && denying().next().is_none();
            let mut ruling = call.specs.iter().zip(limits).filter(|(_, seen)| !seen.shadow);
            let renews = match (ruling.next(), ruling.next()) {
                (Some((lease, seen)), None) => held.renews(lease, seen, now),
                _ => false,
            };
            return if forced || renews { Outcome::Passes } else { Outcome::Banned(banned) };
        }
        if denying().next().is_none() {
            return Outcome::Passes;
        }
        // A strike is a call that its limits deny for a time: not what would never pass, and not what only KEEP or a
        // concurrency limit denies.
        let passes_some_time = denying().all(|(_, seen)| seen.look.verdict() != Verdict::Never);
        let limits_deny = denying().any(|(spec, seen)| held.would_deny_all(spec, seen, now));
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
                self.limits.iter().any(|seen| seen.look.change() != Change::Nothing)
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

    /// Whether the key is banned, and that stands in the call's way.
    fn is_banned(&self) -> bool {
        matches!(self.outcome, Outcome::Banned(_))
    }

    /// Whether the call has been charged before.
    fn is_repeated(&self) -> bool {
        matches!(self.outcome, Outcome::Repeated(_))
    }

    /// Whether a limit that decides for itself would have denied the call.
    fn shadow_denies(&self, call: &Call) -> bool {
        // Nothing denies the others.
        let decides = matches!(call.purpose, Purpose::Charge | Purpose::Look);
        decides && self.limits.iter().any(SeenLimit::denies_by_itself)
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
        of_all.map(move |(spec, seen)| (spec.limit.kind(), denied && seen.denies()))
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
        let of_limits = of_limits.filter_map(|(spec, seen)| Some((spec.limit.kind(), seen.entries?, seen.grows)));
        let adds_id = self.remembers(call);
        // What has expired makes room for the new one.
        let ids = held.beside().map_or(0, |beside| {
            let ids = beside.ids.len();
            if beside.ids.is_full(ids, held.at(now)) { ids } else { ids.saturating_sub(1) }
        });
        of_limits.chain(adds_id.then_some((Kind::Limits, ids.saturating_add(1), true)))
    }

    /// Whether the call's id will be remembered.
    fn remembers(&self, call: &Call) -> bool {
        matches!(call.counts, Counts::Once { .. }) && self.outcome == Outcome::Passes && self.changes()
    }

    /// Whether a plain key of that kind can go on remembering what the call leaves: it changes nothing else, and asks
    /// for no name.
    #[must_use]
    pub fn stays_plain(&self, call: &Call) -> bool {
        let mut changing =
            call.specs.iter().zip(&self.limits).filter(|(_, seen)| seen.look.change() != Change::Nothing);
        !self.remembers(call)
            && !self.strikes()
            && !self.releases
            && changing.all(|(spec, seen)| seen.place.is_some() && spec.name.is_none())
    }

    /// Charges a plain key, which goes on as that. Nothing later than `now` is in it.
    pub fn charge_plain<U: Single>(&self, call: &Call, usage: &mut U, now: Timestamp) {
        for (spec, seen) in call.specs.iter().zip(&self.limits).filter(|(_, seen)| seen.place.is_some()) {
            with_limit!(spec, limit => apply(seen.look.change(), limit, usage, now));
        }
    }

    /// Charges no limit that decides only for itself: there is no room for what it would add, and it denies nobody.
    pub fn leave_shadows_out(&mut self) {
        for seen in self.limits.iter_mut().filter(|seen| seen.shadow) {
            seen.look.leave_out();
            (seen.entries, seen.grows) = (None, false);
        }
    }

    /// How many parts the call would make.
    fn new_parts(&self) -> usize {
        let new = |seen: &&SeenLimit| seen.place.is_none() && matches!(seen.look.change(), Change::Charge(_));
        let charges = matches!(self.outcome, Outcome::Passes | Outcome::Repeated(_));
        if charges { self.limits.iter().filter(new).count() } else { 0 }
    }

    /// Whether the call would make a part, of a key that is there or not; a plain key's usage is one only once it has
    /// others beside it.
    #[must_use]
    pub fn makes_parts(&self) -> bool {
        self.new_parts() > 0
    }

    /// Whether the key would have more parts than it may.
    #[must_use]
    pub fn has_too_many_parts(&self, held: Held, now: Timestamp) -> bool {
        let new = self.new_parts();
        // A plain key's would be one beside 8.
        let Held::Parts(parts) = held else { return false };
        let charged = |place: usize, _: &Part| {
            self.limits.iter().any(|seen| seen.place == Some(place) && matches!(seen.look.change(), Change::Charge(_)))
        };
        new > 0 && parts.parts_with(new, charged, now) > MAX_PARTS
    }

    /// Whether the call may go on: it passes, or has passed before.
    #[must_use]
    pub fn admits(&self) -> bool {
        matches!(self.outcome, Outcome::Passes | Outcome::Repeated(_) | Outcome::Settles | Outcome::Settled)
    }

    /// The answer, with what is in the key as it now stands: after [`PartsUsage::charge`] if it was `charged`.
    #[must_use]
    pub fn answer(&self, call: &Call, held: Held, now: Timestamp, charged: bool) -> Answer {
        let of_limit = |((spec, seen), place): ((&Spec, &SeenLimit), Option<usize>)| {
            let takes = charged && self.changes() && seen.look.change() != Change::Nothing;
            let decision = with_limit!(spec, limit => decision_of(limit, held, place, now, &seen.look, takes));
            self.overridden(call, spec, decision.keeping(spec.kept))
        };
        let seen_at = || self.limits.iter().map(|seen| seen.place);
        // Nothing has come or gone since the look.
        let places: Few<Option<usize>> = if self.new_parts() == 0 && held.parts() == self.parts {
            seen_at().collect()
        } else {
            held.places(call).into_iter().collect()
        };
        let each: Few<Decision> = call.specs.iter().zip(&self.limits).zip(places).map(of_limit).collect();
        let decision = self.whole(call, held, &each, now);
        let (banned, repeated) = (self.is_banned(), self.is_repeated());
        Answer { decision, each, shadow_denied: self.shadow_denies(call), banned, repeated }
    }

    /// A limit's decision, of a call that is not decided by its limits.
    fn overridden(&self, call: &Call, spec: &Spec, decision: Decision) -> Decision {
        let at_once = Verdict::Allowed(Span::ZERO);
        let verdict = match self.outcome {
            Outcome::Passes if call.purpose == Purpose::GiveBack => at_once,
            Outcome::Passes | Outcome::Denied { .. } | Outcome::Banned(_) => decision.verdict,
            Outcome::Unknown => Verdict::Never,
            // What has no say is told by itself.
            Outcome::Repeated(_) | Outcome::LostLease if spec.shadow => decision.verdict,
            Outcome::Repeated(Repeated { forced: true, .. }) if !decision.verdict.allowed() => decision.verdict,
            Outcome::Repeated(Repeated { hold, .. }) => Verdict::Allowed(hold),
            Outcome::LostLease if spec.is_held_by_id() => decision.verdict,
            Outcome::LostLease | Outcome::Settles | Outcome::Settled => at_once,
        };
        let granted = spec.most().map(|most| match self.outcome {
            Outcome::Repeated(Repeated { granted, .. }) if verdict.allowed() => granted.unwrap_or(most),
            _ => decision.granted.unwrap_or_default(),
        });
        Decision { verdict, granted, ..decision }
    }

    /// What a call with UPTO is granted if it passes.
    fn granted(&self, call: &Call) -> Option<Amount> {
        let most = call.most(&self.limits)?;
        match self.outcome {
            Outcome::Repeated(repeated) => Some(repeated.granted.unwrap_or(most)),
            _ => Some(least_granted(&self.limits).unwrap_or(most)),
        }
    }

    /// The one decision of all.
    fn whole(&self, call: &Call, held: Held, each: &[Decision], now: Timestamp) -> Decision {
        let stands_in_the_way = |decision: &Decision, seen: &SeenLimit| match self.outcome {
            Outcome::Denied { .. } | Outcome::Banned(_) | Outcome::LostLease => seen.denies(),
            _ => !decision.verdict.allowed(),
        };
        // A limit that decides only for itself is told only by itself.
        let each = || each.iter().zip(&call.specs).zip(&self.limits).filter(|((_, spec), _)| !spec.shadow);
        let denying = each().filter(|((decision, _), seen)| stands_in_the_way(decision, seen));
        let mut denying = denying.map(|((decision, _), _)| decision);
        let longest = denying.clone().map(|decision| decision.verdict).max();
        let (mut verdict, governing) = if let Some(longest) = longest {
            (longest, denying.find(|decision| decision.verdict == longest))
        } else {
            let holds = each().map(|((decision, _), _)| decision.verdict).filter(|verdict| verdict.allowed());
            let governing = first_to_run_out(each().map(|(told, _)| told));
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
            by_id || call.purpose == Purpose::GiveBack || (self.outcome == Outcome::Passes && !forces(&self.limits));
        // Where no limit governs, nothing limits.
        let unlimited = Decision {
            verdict,
            limit: Amount::MAX_ARGUMENT,
            remaining: Amount::MAX_ARGUMENT,
            reset: Span::ZERO,
            granted: None,
        };
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
            granted: self.granted(call).map(|granted| if verdict.allowed() { granted } else { Amount::ZERO }),
        }
    }
}

impl Held<'_> {
    /// Whether a spec is for a lease that its holder has.
    fn renews(self, spec: &Spec, seen: &SeenLimit, now: Timestamp) -> bool {
        let asks = spec.ask != Ask::Take(Amount::ZERO);
        if !asks || !matches!(spec.limit, AnyLimit::Concurrency(_)) {
            return false;
        }
        // With no room at all only a renewal passes.
        let full = Spec { limit: spec.limit.lowered_by(Amount::MAX), ..*spec };
        with_limit!(full, limit => SeenLimit::at(limit, self, seen.place, now, spec.ask)).look.verdict().allowed()
    }

    /// Whether the id of a call that settles holds a lease under one of its limits.
    fn has_lease(self, call: &Call, now: Timestamp) -> bool {
        let mut of_leases = call.specs.iter().filter(|spec| spec.is_held_by_id());
        let leases = match self {
            Held::Parts(parts) => parts.parts.iter().find_map(|part| ConcurrencyUsage::of(&part.usage)),
            Held::Plain(usage, _) => usage.downcast_ref(),
        };
        leases.is_some_and(|leases: &ConcurrencyUsage| of_leases.any(|spec| leases.has_lease(spec.holder, now)))
    }

    /// Whether a limit that denies does so by itself, and not because of what is kept, or for want of a lease.
    fn would_deny_all(self, spec: &Spec, seen: &SeenLimit, now: Timestamp) -> bool {
        if spec.limit.kind() == Kind::Concurrency {
            return false;
        }
        if spec.kept == Amount::ZERO {
            return true;
        }
        let whole = Spec { limit: spec.limit.raised_by(spec.kept), ..*spec };
        with_limit!(whole, limit => SeenLimit::at(limit, self, seen.place, now, spec.ask)).look.denies()
    }
}

impl SeenLimit {
    fn at<L: Limit>(limit: &L, held: Held, place: Option<usize>, now: Timestamp, ask: Ask) -> SeenLimit
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
        let look = look(limit, usage, now, ask);
        let charges = matches!(look.change(), Change::Charge(_));
        let entries = if charges { limit.entries_after_charge(usage, now) } else { None };
        let grows = entries.is_some_and(|entries| entries > usage.entries());
        SeenLimit { place, look, entries, grows, decides: true, shadow: false }
    }

    /// Whether it stands in the call's way.
    fn denies(&self) -> bool {
        self.decides && !self.shadow && self.look.denies()
    }

    /// Whether it would tell the call that it is denied, and has no say.
    fn denies_by_itself(&self) -> bool {
        self.decides && self.shadow && !self.look.verdict().allowed()
    }
}

/// Whether a call is charged in any case: as the limits say that have a say, or if none has, as all do.
fn forces(limits: &[SeenLimit]) -> bool {
    let none_rules = limits.iter().all(|seen| seen.shadow);
    limits.iter().any(|seen| (none_rules || !seen.shadow) && seen.look.is_forced())
}

/// The least that the limits that have a say grant of an UPTO.
fn least_granted(limits: &[SeenLimit]) -> Option<Amount> {
    limits.iter().filter(|seen| !seen.shadow).filter_map(|seen| seen.look.granted()).min()
}

fn decision_of<L: Limit>(
    limit: &L,
    held: Held,
    place: Option<usize>,
    now: Timestamp,
    look: &Look,
    charged: bool,
) -> Decision
where
    L::Usage: Single,
{
    match held.usage::<L::Usage>(place) {
        Some(usage) => look.decision(limit, usage, now, charged),
        None => look.decision(limit, &L::Usage::default(), now, charged),
    }
}

/// Of an UPTO all grant what the one grants that has least. One that decides only for itself has to grant as much, or
/// denies; all that was asked for, if there is no other.
fn grant_the_least(call: &Call, held: Held, limits: &mut [SeenLimit], now: Timestamp) {
    let most = call.specs.iter().find_map(Spec::most);
    let Some(least) = least_granted(limits).or(most) else { return };
    for (seen, spec) in limits.iter_mut().zip(&call.specs) {
        if seen.shadow && seen.look.granted().is_some_and(|granted| granted < least) {
            let place = seen.place;
            let whole = with_limit!(spec, limit => SeenLimit::at(limit, held, place, now, Ask::Take(least)));
            *seen = SeenLimit { decides: seen.decides, shadow: true, ..whole };
        } else {
            seen.look.grant_at_most(least);
        }
    }
}

/// Of the limits that let a call pass, the one that would run out first under calls like it: what remains beside what
/// it costs, compared without dividing. The first of equals.
fn first_to_run_out<'d, 's>(each: impl Iterator<Item = (&'d Decision, &'s Spec<'s>)>) -> Option<&'d Decision> {
    let cost = |spec: &Spec| match spec.ask {
        Ask::GiveBack(_) => Amount::ONE,
        Ask::Take(cost) | Ask::UpTo(cost) | Ask::Force(cost) | Ask::Within(cost, _) if cost == Amount::ZERO => {
            Amount::ONE
        }
        Ask::Take(cost) | Ask::UpTo(cost) | Ask::Force(cost) | Ask::Within(cost, _) => cost,
    };
    let wide = |amount: Amount| u128::from(amount.millionths());
    let sooner = |a: &(&Decision, Amount), b: &(&Decision, Amount)| {
        let (left, right) =
            (wide(a.0.remaining).saturating_mul(wide(b.1)), wide(b.0.remaining).saturating_mul(wide(a.1)));
        left.cmp(&right)
    };
    each.map(|(decision, spec)| (decision, cost(spec))).min_by(sooner).map(|(decision, _)| decision)
}

impl PartsUsage {
    /// Makes the changes that a look has announced, or counts its strike. Nothing later than `now` is in it.
    pub fn charge(&mut self, call: &Call, seen: &Seen, now: Timestamp) {
        let id = match call.counts {
            Counts::Once { id, .. } if seen.remembers(call) => Some(id),
            _ => None,
        };
        self.begin(now, id);
        match seen.outcome {
            Outcome::Passes | Outcome::Repeated(_) => self.charge_all(call, seen, now),
            Outcome::Settles => self.settle(call, seen, now),
            Outcome::Denied { strikes: true } => {
                if let Some(rule) = call.ban {
                    self.beside.get_or_insert_default().ban.strike(rule, now);
                    self.delta.ban = true;
                }
            }
            Outcome::Denied { .. } | Outcome::Banned(_) | Outcome::LostLease | Outcome::Settled | Outcome::Unknown => {}
        }
        if seen.releases {
            let holders = call.specs.iter().filter(|spec| spec.is_held_by_id()).map(|spec| spec.holder);
            self.take_back(&holders.collect::<Vec<_>>(), now);
        }
        self.end(now);
    }

    fn charge_all(&mut self, call: &Call, seen: &Seen, now: Timestamp) {
        let remembers = seen.remembers(call);
        let mut charges = Vec::new();
        for (spec, limit) in call.specs.iter().zip(&seen.limits) {
            let change = limit.look.change();
            let place = match change {
                Change::Nothing => continue,
                Change::Charge(_) => limit.place.unwrap_or_else(|| self.add(spec)),
                Change::GiveBack(_) => match limit.place {
                    Some(place) => place,
                    None => continue,
                },
            };
            let Some(part) = self.parts.get_mut(place) else { continue };
            let (kind, is_new, named) = (part.usage.kind(), limit.place.is_none(), part.claim(spec));
            charges.extend(with_limit!(spec, limit => part.change(limit, change, remembers, now)));
            if let Some(slower) = spec.slower {
                part.recovers_under(slower, now);
            }
            self.delta.changed.push(Changed { serial: part.serial, kind, is_new, named });
        }
        if let Counts::Once { id, ttl } = call.counts
            && remembers
        {
            let ruling = seen.limits.iter().filter(|limit| !limit.shadow);
            let holds = ruling.filter_map(|limit| match limit.look.verdict() {
                Verdict::Allowed(hold) => Some(hold),
                Verdict::After(_) | Verdict::Never => None,
            });
            let remembered = Remembered {
                expires_at: now.plus(ttl.span()).min(Timestamp::MAX),
                hold_until: now.plus(holds.max().unwrap_or_default()).min(Timestamp::MAX),
                settled: false,
                forced: forces(&seen.limits),
                granted: seen.granted(call),
                charges: charges.into(),
            };
            self.beside.get_or_insert_default().ids.remember(id, remembered);
        }
    }

    /// A part for the limit of a spec: its place.
    fn add(&mut self, spec: &Spec) -> usize {
        let serial = self.free_serial();
        let usage = with_limit!(spec, limit => unused_of(limit));
        // Known by nothing until it is claimed.
        let part = Part { serial, known_by: KnownBy::Nothing, usage, recovers_at: Timestamp::EPOCH, track: None };
        self.push(part);
        self.parts.len().saturating_sub(1)
    }

    fn settle(&mut self, call: &Call, seen: &Seen, now: Timestamp) {
        let Counts::Settle { id, amount } = call.counts else { return };
        let Some(charges) = self.beside.as_mut().and_then(|beside| beside.ids.settle(id, now)) else { return };
        for charge in &charges {
            // A spec with a cost of its own keeps what it charged, and so does a limit that is not named any more.
            let of_charge = call.specs.iter().zip(&seen.limits).find_map(|(spec, limit)| {
                let place = limit.place.filter(|_| !spec.own_cost)?;
                (self.parts.get(place)?.serial == charge.part).then_some((spec, place))
            });
            let settled = of_charge.filter(|_| amount != charge.cost);
            let Some((spec, part)) = settled.and_then(|(spec, place)| Some((spec, self.parts.get_mut(place)?))) else {
                forget(&mut self.parts, charge);
                continue;
            };
            with_limit!(spec, limit => part.settle(limit, charge, amount, now));
            if let Some(slower) = spec.slower {
                part.recovers_under(slower, now);
            }
            let kind = spec.limit.kind();
            self.delta.changed.push(Changed { serial: charge.part, kind, is_new: false, named: false });
        }
    }
}

impl Spec<'_> {
    /// How much an UPTO asks for.
    fn most(&self) -> Option<Amount> {
        if let Ask::UpTo(most) = self.ask { Some(most) } else { None }
    }
}

impl Call<'_> {
    /// How much an UPTO asks for of the limits that have a say, or if none has, of all.
    fn most(&self, limits: &[SeenLimit]) -> Option<Amount> {
        let none_rules = limits.iter().all(|seen| seen.shadow);
        let mut ruling = self.specs.iter().filter(|spec| none_rules || !spec.shadow);
        ruling.find_map(Spec::most)
    }

    /// How long until a plain key has recovered, under the call's limit of its kind. If it has none, as the usage knows
    /// by itself, or not at all.
    #[must_use]
    pub fn reset_of_plain<U: Single>(&self, usage: &U, now: Timestamp) -> Span {
        let Some(spec) = self.specs.iter().find(|spec| spec.limit.kind() == U::KIND) else {
            return told_reset(usage, now);
        };
        let reset = with_limit!(spec, limit => reset_of(limit, usage, now));
        // Until then the scale may have ended.
        let slower = spec.slower.map(|limit| Spec::of(*limit, Ask::Take(Amount::ZERO)));
        slower.map_or(reset, |spec| reset.max(with_limit!(spec, limit => reset_of(limit, usage, now))))
    }
}

/// Under a limit, if the usage is of its kind.
fn reset_of<L: Limit>(limit: &L, usage: &dyn Any, now: Timestamp) -> Span {
    usage.downcast_ref().map_or(Span::ZERO, |usage| limit.reset(usage, now))
}

/// Likewise.
fn apply<L: Limit>(change: Change, limit: &L, usage: &mut dyn Any, now: Timestamp) {
    if let Some(usage) = usage.downcast_mut() {
        change.apply(limit, usage, now);
    }
}

fn unused_of<L: Limit>(_limit: &L) -> AnyUsage
where
    L::Usage: Single,
{
    L::Usage::default().into_any()
}

impl Part {
    /// Makes it known by what the limit of a spec is known by, if it is by nothing yet.
    fn claim(&mut self, spec: &Spec) -> bool {
        let claims = self.known_by == KnownBy::Nothing;
        if claims {
            self.known_by = KnownBy::of(spec);
        }
        claims
    }

    /// Makes a change; what settling it takes, if it `may_be_settled`.
    fn change<L: Limit>(&mut self, limit: &L, change: Change, may_be_settled: bool, now: Timestamp) -> Option<Charge>
    where
        L::Usage: Single,
    {
        let usage = L::Usage::of_mut(&mut self.usage)?;
        if let Some(track) = &mut self.track {
            track.before(limit, usage, now, change);
        }
        change.apply(limit, usage, now);
        self.recovers_at = now.plus(limit.reset(usage, now)).min(Timestamp::MAX);
        as_propagated(usage);
        match change {
            Change::Charge(cost) if may_be_settled && L::Usage::KIND != Kind::Concurrency => {
                Some(self.track.get_or_insert_default().charge(usage, self.serial, cost))
            }
            _ => None,
        }
    }

    /// Stays at least as long as it needs under that limit too: the one that it was charged under may end before.
    fn recovers_under(&mut self, limit: &AnyLimit, now: Timestamp) {
        let spec = Spec::of(*limit, Ask::Take(Amount::ZERO));
        let reset = with_usage!(&self.usage, usage => with_limit!(spec, limit => reset_of(limit, usage, now)));
        self.recovers_at = self.recovers_at.max(now.plus(reset).min(Timestamp::MAX));
    }

    /// Makes usage what it would be had a charge been of `amount`.
    fn settle<L: Limit>(&mut self, limit: &L, charge: &Charge, amount: Amount, now: Timestamp)
    where
        L::Usage: Single,
    {
        let (Some(usage), Some(track)) = (L::Usage::of_mut(&mut self.usage), &mut self.track) else { return };
        // What lies before `now` is counted as of now first.
        track.settle(usage, charge, charge.cost.minus(amount));
        if amount > charge.cost {
            let more = Change::Charge(amount.minus(charge.cost));
            track.before(limit, usage, now, more);
            more.apply(limit, usage, now);
        }
        self.recovers_at = now.plus(limit.reset(usage, now)).min(Timestamp::MAX);
        as_propagated(usage);
    }
}

/// One of nothing is one never seen: nothing else is propagated of it.
fn as_propagated(usage: &mut impl Usage) {
    if usage.is_unused() {
        *usage = Default::default();
    }
}
