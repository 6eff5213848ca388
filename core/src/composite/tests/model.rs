//! A key with several limits in other words: each limit has a usage of its own, which the limit itself knows how to
//! look at and charge; ids are a map; a ban is four fields, of which the levels are the instants at which each passes. A
//! component is dropped once it has recovered under the
//! limit that charged it last, and never before.

use super::server::unused_of;
use crate::algorithm::any::{AnyLimit, AnyUsage, Single, with_limit, with_usage};
use crate::ban::BanRule;
use crate::composite::idempotency::{Charge, Settlement};
use crate::composite::{Answer, CompositeUsage, MAX_COMPONENTS};
use crate::evaluate::{Change, Evaluation, Request, evaluate};
use crate::kind::Kind;
use crate::limit::{Decision, Identity, Limit, Recovery, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, Idempotency, KeyRequest, Purpose, Spec};
use crate::wire::codec::Discard;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Model {
    /// A key that knows nothing but one usage.
    plain: bool,
    components: Vec<Component>,
    ids: BTreeMap<Vec<u8>, Id>,
    banned_until: Timestamp,
    /// The window of the strikes and each strike.
    strikes: (Span, Vec<Timestamp>),
    /// When each level of the last ban passes, the next to pass first.
    levels: Vec<Timestamp>,
    /// The time from one of them to the next.
    longest: Span,
    written: Timestamp,
    /// How many components there have been.
    made: usize,
}

#[derive(Clone, Debug)]
struct Component {
    number: usize,
    identity: ComponentIdentity,
    usage: AnyUsage,
    /// None if that is not known; two if its policy was scaled.
    charged_by: Vec<AnyLimit>,
    recovers_at: Timestamp,
    /// That is beyond the last instant, where nobody counts.
    is_far: bool,
    /// It had recovered when it was charged or settled last, and stays to be settled.
    is_over: bool,
    settlement: Settlement,
    to_settle: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum ComponentIdentity {
    Nothing,
    Window(Identity),
    Name(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Id {
    expires_at: Timestamp,
    hold_until: Timestamp,
    settled: bool,
    forced: bool,
    granted: Option<Amount>,
    /// The numbers of the components.
    charges: Vec<(usize, Charge)>,
}

#[derive(Clone, Debug)]
enum Fate {
    Passes,
    Denied {
        strikes: bool,
    },
    Banned,
    /// What is left of its hold.
    Repeated(Id, Span),
    /// The id has been charged before, but the lease that it had does not fit any more.
    LostLease,
    Settles,
    Settled,
    Unknown,
}

fn of<U: Single>(any: &AnyUsage) -> &U {
    U::of(any).unwrap()
}

fn look_at<L: Limit>(limit: &L, any: &AnyUsage, now: Timestamp, request: Request) -> Evaluation
where
    L::Usage: Single,
{
    evaluate(limit, of::<L::Usage>(any), now, request)
}

fn decision<L: Limit>(limit: &L, any: &AnyUsage, now: Timestamp, evaluation: &Evaluation, charged: bool) -> Decision
where
    L::Usage: Single,
{
    evaluation.decision(limit, of(any), now, charged)
}

fn reset_of<L: Limit>(limit: &L, any: &AnyUsage, now: Timestamp) -> Span
where
    L::Usage: Single,
{
    limit.reset(of(any), now)
}

fn reset(limit: AnyLimit, any: &AnyUsage, now: Timestamp) -> Span {
    let spec = Spec::of(limit, Request::Take(Amount::ZERO));
    with_limit!(spec, limit => reset_of(limit, any, now))
}

fn charge<L: Limit>(limit: &L, any: &mut AnyUsage, settlement: &mut Settlement, change: Change, now: Timestamp)
where
    L::Usage: Single,
{
    let usage = L::Usage::of_mut(any).unwrap();
    settlement.before(limit, usage, now, change);
    change.apply(limit, usage, now);
    usage.encode_effect(&mut Discard);
}

fn identity(spec: &Spec) -> ComponentIdentity {
    match spec.name {
        Some(name) => ComponentIdentity::Name(name.to_vec()),
        None => ComponentIdentity::Window(spec.limit.identity()),
    }
}

fn bytes<Label>(any: &AnyUsage<Label>) -> (Kind, crate::testing::encoded_fields::EncodedFields) {
    (any.kind(), with_usage!(any, usage => crate::testing::encoded_fields::encoded(usage)))
}

/// What a holder has of a table of leases.
fn units_held(any: &AnyUsage, holder: &[u8], now: Timestamp) -> Option<Amount> {
    let usage = of::<crate::algorithm::leases::ConcurrencyUsage>(any);
    // As of when they were written, if the clock has gone back.
    let at = now.max(now.plus(usage.ahead(now)));
    let facts = usage.describe(now);
    let mut leases = facts
        .iter()
        .filter_map(|(_, fact)| if let crate::limit::InfoField::Leases(leases) = fact { Some(leases) } else { None });
    let mut leases = leases.next().unwrap().iter();
    leases.find(|(name, _, expires_at, _)| **name == *holder && at < *expires_at).map(|(_, units, ..)| *units)
}

/// Whether a call is charged in any case; those in the shadow say so only where they are alone.
fn is_forced(call: &CompositeRequest, looks: &[Evaluation]) -> bool {
    let alone = call.specs.iter().all(|spec| spec.shadow);
    call.specs.iter().zip(looks).any(|(spec, evaluation)| evaluation.is_forced() && (alone || !spec.shadow))
}

/// What an UPTO is granted if it passes.
fn granted_by(call: &CompositeRequest, looks: &[Evaluation]) -> Option<Amount> {
    let mut rulers = call.specs.iter().zip(looks).filter(|(spec, _)| !spec.shadow);
    rulers.find_map(|(_, evaluation)| evaluation.granted()).or_else(|| asked_upto(call))
}

/// How much an UPTO asks for, of the limits that have a say; of the others if there are none.
fn asked_upto(call: &CompositeRequest) -> Option<Amount> {
    let alone = call.specs.iter().all(|spec| spec.shadow);
    let mut asks = call.specs.iter().filter(|spec| alone || !spec.shadow).map(|spec| spec.request);
    asks.find_map(|request| if let Request::UpTo(most) = request { Some(most) } else { None })
}

fn is_unused(any: &AnyUsage) -> bool {
    with_usage!(any, usage => usage.is_unused())
}

impl Component {
    /// "As the slower of both rates asks."
    fn charged_under(&mut self, spec: &Spec, now: Timestamp) {
        self.charged_by = std::iter::once(spec.limit).chain(spec.slower.copied()).collect();
        let reset = self.reset(now);
        let recovers_at = now.plus(reset);
        self.is_over = reset == Span::ZERO;
        (self.recovers_at, self.is_far) = (recovers_at.min(Timestamp::MAX), recovers_at >= Timestamp::MAX);
    }

    /// Until it has recovered, by the limits that it was charged by.
    fn reset(&self, now: Timestamp) -> Span {
        self.charged_by.iter().map(|limit| reset(*limit, &self.usage, now)).max().unwrap()
    }

    fn drop_if_recovered(&self, now: Timestamp) -> bool {
        if self.to_settle > 0 {
            return false;
        }
        if !self.charged_by.is_empty() && now >= self.recovers_at && !self.is_far {
            assert_eq!(self.reset(now), Span::ZERO, "dropped early");
        }
        is_unused(&self.usage) || now >= self.recovers_at
    }

    fn move_back(&mut self, now: Timestamp) {
        let (ahead, recovery) = with_usage!(&mut self.usage, mut usage => {
            let ahead = usage.ahead(now);
            if ahead != Span::ZERO {
                usage.move_back(now);
                usage.encode_effect(&mut Discard);
            }
            (ahead, usage.recovery())
        });
        let known = !self.charged_by.is_empty() && !self.is_far && !self.is_over;
        self.recovers_at = match recovery {
            // When an aligned window ends is known to the limit that opened it, or never was.
            Recovery::IsHidden => self.recovers_at,
            Recovery::MovesAlong if ahead == Span::ZERO => self.recovers_at,
            Recovery::MovesAlong if known => now.plus(self.reset(now)).min(Timestamp::MAX),
            Recovery::MovesAlong => self.recovers_at.minus(ahead),
            // Slots are whole: it may be told later than the difference says.
            Recovery::IsTold => {
                let told = now.plus(told_reset(&self.usage, now));
                self.recovers_at.minus(ahead).max(told).min(Timestamp::MAX)
            }
        };
    }
}

/// Of the kinds whose recovery any limit tells.
fn told_reset(any: &AnyUsage, now: Timestamp) -> Span {
    let limit = match any.kind() {
        Kind::StrictWindow => "SLIDING 1 1s STRICT",
        _ => "CONCURRENCY 1 1s me",
    };
    let words = super::script::words(limit);
    let Ok(KeyRequest::One(spec)) = KeyRequest::take(&mut crate::wire::args::Args::new(&words)) else { unreachable!() };
    with_limit!(spec, limit => reset_of(limit, any, now))
}

impl Model {
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    pub fn is_missing(&self) -> bool {
        self.components.is_empty() && self.ids.is_empty() && !self.remembers_ban()
    }

    fn remembers_ban(&self) -> bool {
        self.banned_until != Timestamp::EPOCH || !self.strikes.1.is_empty() || !self.levels.is_empty()
    }

    /// The key has expired: nothing was left to remember.
    pub fn expire(&mut self, now: Timestamp) {
        for component in &self.components {
            let recovered = match component.charged_by.as_slice() {
                [] => component.recovers_at <= now,
                _ => component.is_far || component.reset(now) == Span::ZERO,
            };
            assert!(recovered, "a component expired early: {component:?}");
        }
        assert!(self.ids.values().all(|id| id.expires_at <= now), "an id expired early");
        assert!(self.banned_until <= now, "a ban expired early");
        let is_far = |level: &&Timestamp| **level > Timestamp::MAX;
        assert!(
            self.levels.last().filter(|level| !is_far(level)).is_none_or(|level| *level <= now),
            "a level expired early"
        );
        assert!(self.strikes.1.first().is_none_or(|first| first.plus(self.strikes.0) <= now), "strikes expired early");
        *self = Model::default();
    }

    /// What it remembers and what `real` does are the same.
    pub fn compare(&self, real: &CompositeUsage) {
        let components = real.components.iter();
        assert_eq!(real.components.len(), self.components.len());
        for (component, own) in components.zip(&self.components) {
            assert_eq!(component.is_unused(), is_unused(&own.usage));
            if !component.is_unused() {
                assert_eq!(bytes(&component.usage), bytes(&own.usage));
                assert_eq!(component.recovers_at, own.recovers_at);
            }
            assert_eq!(component.may_be_settled(real.extras()), own.to_settle > 0);
        }
        let ids = real.extras().map_or(0, |extras| extras.records.len());
        assert_eq!(ids, self.ids.len());
        assert_eq!(real.is_unused(), self.is_missing());
    }

    /// "A spec finds its component by its name, else by kind and window." What a plain key remembered is "the part of
    /// the first spec of its kind".
    fn find(&self, call: &CompositeRequest) -> Vec<Option<usize>> {
        let mut found = Vec::new();
        for spec in &call.specs {
            let of_kind = |component: &&Component| component.usage.kind() == spec.limit.kind();
            let leases = spec.limit.kind() == Kind::Concurrency;
            let own =
                self.components.iter().filter(of_kind).find(|component| leases || component.identity == identity(spec));
            let unclaimed = self
                .components
                .iter()
                .filter(of_kind)
                .find(|component| component.identity == ComponentIdentity::Nothing);
            let free = unclaimed.filter(|component| !found.contains(&Some(component.number)));
            found.push(own.or(free).map(|component| component.number));
        }
        found
    }

    fn component(&mut self, number: usize) -> &mut Component {
        self.components.iter_mut().find(|component| component.number == number).unwrap()
    }

    fn usage(&self, spec: &Spec, number: Option<usize>) -> AnyUsage {
        let component = self.components.iter().find(|component| Some(component.number) == number);
        component.map_or_else(|| with_limit!(spec, limit => unused_of(limit)), |component| component.usage.clone())
    }

    /// Refused for want of room: the call would leave more components than there may be.
    pub fn has_no_room(&self, asked: &KeyRequest, now: Timestamp) -> bool {
        let before = self.components.len();
        let mut after = self.clone();
        after.call(asked, now, false, None);
        after.components.len() > MAX_COMPONENTS && after.made > self.made && before > 0
    }

    /// The answer to a call, which is made if it is no peek; whether it was to write. Of a plain key when it expires.
    pub fn call(&mut self, asked: &KeyRequest, now: Timestamp, peeks: bool, expires_at: Option<u64>) -> (Answer, bool) {
        let call = super::server::call_of(asked);
        if self.is_missing() {
            *self = Model { plain: matches!(asked, KeyRequest::One(_)), ..Model::default() };
            if self.plain {
                let usage = self.usage(&call.specs[0], None);
                self.components.push(Component::unclaimed(usage));
                self.made = 1;
            }
        }
        let at = if self.plain { now } else { now.max(self.written) };
        let found = self.find(&call);
        let known = match call.idempotency {
            Idempotency::Once { id, .. } | Idempotency::Settle { id, .. } => {
                self.ids.get(id).filter(|id| at < id.expires_at)
            }
            Idempotency::Every => None,
        };
        let known = known.cloned();
        let mut looks = Vec::new();
        for (spec, number) in call.specs.iter().zip(&found) {
            let usage = self.usage(spec, *number);
            // The lease of a policy "is decided every time: a settled one takes none".
            let again = spec.is_held_by_id() && known.as_ref().is_none_or(|id| !id.settled);
            let request = if known.is_some() && !again { Request::Take(Amount::ZERO) } else { spec.request };
            let spec = Spec { request, nx: spec.nx && known.is_none(), ..*spec };
            looks.push(with_limit!(spec, limit => look_at(limit, &usage, now, request)));
        }
        // "With UPTO: the least that all grant." One in the shadow denies if it has less than the others grant; if
        // there are no others, that is all.
        let most = |n: usize| if let Request::UpTo(most) = call.specs[n].request { Some(most) } else { None };
        let rulers = (0..looks.len()).filter(|n| !call.specs[*n].shadow);
        let granted = rulers.filter_map(|n| looks[n].granted()).min();
        for n in 0..looks.len() {
            let (spec, own) = (&call.specs[n], looks[n].granted());
            let Some(granted) = granted.or(most(n)).filter(|_| own.is_some()) else { continue };
            if spec.shadow && own.unwrap() < granted {
                let (usage, request) = (self.usage(spec, found[n]), Request::Take(granted));
                looks[n] = with_limit!(spec, limit => look_at(limit, &usage, now, request));
                assert!(!looks[n].verdict().allowed());
            }
            looks[n].grant_at_most(granted);
        }
        let settled = known.as_ref().is_some_and(|id| id.settled);
        let fate = self.fate(&call, &found, &looks, known, now, at);
        let releases = self.releases(&call, now);
        let changes = match fate {
            Fate::Passes | Fate::Repeated(..) => looks.iter().any(|evaluation| evaluation.change() != Change::Nothing),
            Fate::Settles => true,
            _ => releases,
        };
        let strikes = matches!(fate, Fate::Denied { strikes: true });
        let writes = !peeks && (changes || strikes);
        if writes {
            self.write(&call, &found, &looks, &fate, now, expires_at);
        } else if !peeks {
            self.move_back(now);
        }
        let mut answer = self.answer(&call, &found, &looks, &fate, now, writes && changes);
        answer.shadow_denied = call.specs.iter().zip(&answer.each).any(|(spec, told)| {
            let decided = match fate {
                Fate::Passes if call.purpose == Purpose::GiveBack => false,
                Fate::Passes | Fate::Denied { .. } | Fate::Banned => true,
                Fate::Repeated(..) | Fate::LostLease => spec.is_held_by_id() && !settled,
                Fate::Settles | Fate::Settled | Fate::Unknown => false,
            };
            decided && spec.shadow && !told.verdict.allowed()
        });
        if self.plain {
            // Of nothing used there is no key.
            self.components.retain(|component| !is_unused(&component.usage));
        }
        (answer, writes)
    }

    fn fate(
        &self,
        call: &CompositeRequest,
        found: &[Option<usize>],
        looks: &[Evaluation],
        known: Option<Id>,
        now: Timestamp,
        at: Timestamp,
    ) -> Fate {
        match (call.purpose, known) {
            (Purpose::Settle, Some(id)) if id.settled => return Fate::Settled,
            (Purpose::Settle, Some(_)) => return Fate::Settles,
            (Purpose::Settle, None) => return Fate::Unknown,
            (_, Some(id)) => {
                let mut leases = call.specs.iter().zip(looks).filter(|(spec, _)| spec.is_held_by_id() && !spec.shadow);
                if !id.settled && leases.any(|(_, evaluation)| !evaluation.verdict().allowed()) {
                    return Fate::LostLease;
                }
                let hold = id.hold_until.since(at);
                return Fate::Repeated(id, hold);
            }
            (Purpose::GiveBack, None) => return Fate::Passes,
            (Purpose::Charge | Purpose::Check, None) => {}
        }
        // "It never denies."
        let ruling: Vec<usize> = (0..looks.len()).filter(|n| !call.specs[*n].shadow).collect();
        let denies = |evaluation: &Evaluation| !evaluation.is_forced() && !evaluation.verdict().allowed();
        let is_denied = ruling.iter().any(|n| denies(&looks[*n]));
        if at < self.banned_until {
            // "What passes: give-backs, settlements, releases, renewals, the repetition of an admitted id; a FORCE."
            let forced = !is_denied && is_forced(call, looks);
            let renews = matches!(ruling[..], [n] if self.renews(&call.specs[n], &looks[n], found[n], now));
            return if forced || renews { Fate::Passes } else { Fate::Banned };
        }
        if !is_denied {
            return Fate::Passes;
        }
        // "A take that this key's limits denied for a time: not a look, not one that never passes, not KEEP's or
        // CONCURRENCY's denial."
        let denying = ruling.iter().map(|n| &looks[*n]).filter(|evaluation| denies(evaluation));
        let for_a_time = denying.into_iter().all(|evaluation| evaluation.verdict() != Verdict::Never);
        let by_a_limit = ruling.iter().any(|n| {
            let (spec, evaluation) = (&call.specs[*n], &looks[*n]);
            let whole = Spec { limit: spec.limit.raised_by(spec.kept), kept: Amount::ZERO, ..*spec };
            let usage = self.usage(spec, found[*n]);
            let without_keep = with_limit!(whole, limit => look_at(limit, &usage, now, spec.request));
            denies(evaluation) && denies(&without_keep) && spec.limit.kind() != Kind::Concurrency
        });
        let strikes = call.purpose == Purpose::Charge && call.ban.is_some() && for_a_time && by_a_limit;
        Fate::Denied { strikes }
    }

    /// Whether it asks for no more than the lease that its holder has.
    fn renews(&self, spec: &Spec, evaluation: &Evaluation, number: Option<usize>, now: Timestamp) -> bool {
        let (AnyLimit::Concurrency(_), Change::Charge(takes)) = (spec.limit, evaluation.change()) else { return false };
        let component = self.components.iter().find(|component| Some(component.number) == number);
        component
            .and_then(|component| units_held(&component.usage, spec.holder, now))
            .is_some_and(|units| takes <= units)
    }

    /// Whether a settlement takes back the lease of its id.
    fn releases(&self, call: &CompositeRequest, now: Timestamp) -> bool {
        let mut holders = call.specs.iter().filter(|spec| spec.is_held_by_id()).map(|spec| spec.holder);
        let leases = self.components.iter().find(|component| component.usage.kind() == Kind::Concurrency);
        let holds = |holder| leases.is_some_and(|leases| units_held(&leases.usage, holder, now).is_some());
        call.purpose == Purpose::Settle && holders.any(holds)
    }

    /// Takes it back.
    fn take_back(&mut self, holder: &[u8], now: Timestamp) -> usize {
        let Some(component) = self.components.iter_mut().find(|component| component.usage.kind() == Kind::Concurrency)
        else {
            return 0;
        };
        let leases = crate::algorithm::leases::ConcurrencyUsage::of_mut(&mut component.usage).unwrap();
        let released = leases.release(&[holder], now);
        if released > 0 {
            component.recovers_at = now.plus(leases.time_to_last_expiry(now)).min(Timestamp::MAX);
            leases.encode_effect(&mut Discard);
        }
        released
    }

    fn move_back(&mut self, now: Timestamp) {
        if self.plain {
            let after = |component: &&mut Component| with_usage!(&component.usage, usage => usage.is_after(now));
            self.components.iter_mut().filter(after).for_each(|component| component.move_back(now));
            return;
        }
        let back = self.written.since(now);
        if back == Span::ZERO {
            return;
        }
        let Model { components, ids, .. } = self;
        for component in components {
            for (_, charge) in ids.values_mut().flat_map(|id| &mut id.charges).filter(|(n, _)| *n == component.number) {
                with_usage!(&component.usage, usage => if usage.is_after(now) { charge.move_back(usage, now); });
            }
            component.move_back(now);
        }
        for id in self.ids.values_mut() {
            (id.expires_at, id.hold_until) = (id.expires_at.minus(back), id.hold_until.minus(back));
        }
        self.banned_until = self.banned_until.minus(back);
        self.strikes.1.iter_mut().for_each(|strike| *strike = strike.minus(back));
        self.levels.iter_mut().for_each(|level| *level = level.minus(back));
        self.written = now;
    }

    /// What is over by now is as if it had never been.
    fn sweep(&mut self, now: Timestamp) {
        let gone: Vec<Vec<u8>> =
            self.ids.iter().filter(|(_, id)| id.expires_at <= now).map(|(id, _)| id.clone()).collect();
        for id in gone {
            for (number, charge) in self.ids.remove(&id).unwrap().charges {
                let component = self.component(number);
                component.settlement.forget(&charge);
                component.to_settle -= 1;
            }
        }
        self.levels.retain(|level| *level > now);
        if self.banned_until <= now && self.levels.is_empty() {
            self.banned_until = Timestamp::EPOCH;
        }
        if self.strikes.1.first().is_some_and(|first| first.plus(self.strikes.0) <= now) {
            self.strikes = Default::default();
        }
    }

    fn finish(&mut self, now: Timestamp) {
        self.written = now;
        self.components.retain(|component| !component.drop_if_recovered(now));
        for component in self.components.iter_mut().filter(|component| is_unused(&component.usage)) {
            component.usage = AnyUsage::unused(component.usage.kind()).unwrap();
        }
    }

    fn write(
        &mut self,
        call: &CompositeRequest,
        found: &[Option<usize>],
        looks: &[Evaluation],
        fate: &Fate,
        now: Timestamp,
        expires_at: Option<u64>,
    ) {
        let remembers = matches!(call.idempotency, Idempotency::Once { .. }) && matches!(fate, Fate::Passes);
        if self.plain {
            let stays = call.specs.iter().zip(found).zip(looks).all(|((spec, number), evaluation)| {
                evaluation.change() == Change::Nothing || (number.is_some() && spec.name.is_none())
            });
            let charges = matches!(fate, Fate::Passes | Fate::Repeated(..));
            if stays && !remembers && charges {
                self.move_back(now);
                for ((spec, number), evaluation) in call.specs.iter().zip(found).zip(looks) {
                    if let Some(number) = number.filter(|_| evaluation.change() != Change::Nothing) {
                        self.change(spec, number, evaluation.change(), now);
                    }
                }
                return;
            }
            if call.purpose == Purpose::Settle {
                // It knows no id, and may hold the lease of one.
                self.move_back(now);
                for spec in call.specs.iter().filter(|spec| spec.is_held_by_id()) {
                    self.take_back(spec.holder, now);
                }
                return;
            }
            self.convert(expires_at, now);
        }
        self.move_back(now);
        self.sweep(now);
        match fate {
            Fate::Passes | Fate::Repeated(..) => {
                let mut charges = Vec::new();
                for ((spec, number), evaluation) in call.specs.iter().zip(found).zip(looks) {
                    let number = match (evaluation.change(), number) {
                        (Change::Nothing, _) | (Change::GiveBack(_), None) => continue,
                        (_, Some(number)) => *number,
                        (Change::Charge(_), None) => {
                            self.made += 1;
                            let mut component = Component::unclaimed(self.usage(spec, None));
                            component.number = self.made;
                            self.components.push(component);
                            self.made
                        }
                    };
                    self.change(spec, number, evaluation.change(), now);
                    let component = self.component(number);
                    if component.identity == ComponentIdentity::Nothing {
                        component.identity = identity(spec);
                    }
                    if let Change::Charge(cost) = evaluation.change()
                        && remembers
                        && spec.limit.kind() != Kind::Concurrency
                    {
                        component.to_settle += 1;
                        let settlement = &mut component.settlement;
                        let charge = with_usage!(&component.usage, usage => settlement.charge(usage, 0, cost)).unwrap();
                        charges.push((number, charge));
                    }
                }
                if let (Idempotency::Once { id, ttl }, Fate::Passes) = (call.idempotency, fate) {
                    let ruling = call.specs.iter().zip(looks).filter(|(spec, _)| !spec.shadow);
                    let holds = ruling.filter_map(|(_, evaluation)| match evaluation.verdict() {
                        Verdict::Allowed(hold) => Some(hold),
                        _ => None,
                    });
                    let hold_until = now.plus(holds.max().unwrap_or_default()).min(Timestamp::MAX);
                    let id_seen = Id {
                        expires_at: now.plus(ttl.span()).min(Timestamp::MAX),
                        hold_until,
                        settled: false,
                        forced: is_forced(call, looks),
                        granted: granted_by(call, looks),
                        charges,
                    };
                    self.ids.insert(id.to_vec(), id_seen);
                }
            }
            Fate::Settles => self.settle(call, found, now),
            Fate::Denied { .. } => self.strike(call.ban.unwrap(), now),
            Fate::Settled | Fate::Unknown => {}
            Fate::Banned | Fate::LostLease => unreachable!(),
        }
        if call.purpose == Purpose::Settle {
            for spec in call.specs.iter().filter(|spec| spec.is_held_by_id()) {
                self.take_back(spec.holder, now);
            }
        }
        self.finish(now);
    }

    fn settle(&mut self, call: &CompositeRequest, found: &[Option<usize>], now: Timestamp) {
        let Idempotency::Settle { id, amount } = call.idempotency else { unreachable!() };
        let id = self.ids.get_mut(id).unwrap();
        id.settled = true;
        for (number, charge) in std::mem::take(&mut id.charges) {
            let mut specs = call.specs.iter().zip(found);
            let spec = specs.find(|(spec, found)| **found == Some(number) && !spec.own_cost);
            let component = self.component(number);
            component.to_settle -= 1;
            let Some((spec, _)) = spec.filter(|_| amount != charge.cost) else {
                component.settlement.forget(&charge);
                continue;
            };
            let settlement = &mut component.settlement;
            with_usage!(&mut component.usage, mut usage => {
                settlement.settle(usage, &charge, charge.cost.minus(amount));
                usage.encode_effect(&mut Discard);
            });
            if amount > charge.cost {
                let more = Change::Charge(amount.minus(charge.cost));
                with_limit!(spec, limit => self::charge(limit, &mut component.usage, settlement, more, now));
            }
            component.charged_under(spec, now);
        }
    }

    fn change(&mut self, spec: &Spec, number: usize, change: Change, now: Timestamp) {
        let component = self.component(number);
        let settlement = &mut component.settlement;
        with_limit!(spec, limit => charge(limit, &mut component.usage, settlement, change, now));
        component.charged_under(spec, now);
    }

    /// A plain key's usage "recovers when the key would have expired".
    fn convert(&mut self, expires_at: Option<u64>, now: Timestamp) {
        self.plain = false;
        self.components.retain(|component| !is_unused(&component.usage));
        let Some(component) = self.components.first_mut() else { return };
        // Whatever the clock has done: the expiry may be newer than that.
        let left = Span::from_micros(expires_at.unwrap().saturating_sub(now.floor_millis()) * 1000);
        let (moved, recovery) = with_usage!(&component.usage, usage => (usage.is_after(now), usage.recovery()));
        component.move_back(now);
        let told = match recovery {
            Recovery::IsTold if moved => told_reset(&component.usage, now),
            _ => Span::ZERO,
        };
        component.recovers_at = now.plus(left.max(told)).min(Timestamp::MAX);
        // What its limit was is not stored.
        (component.charged_by, component.is_far, component.is_over) = (Vec::new(), false, false);
        self.written = now;
    }

    fn answer(
        &self,
        call: &CompositeRequest,
        found: &[Option<usize>],
        looks: &[Evaluation],
        fate: &Fate,
        now: Timestamp,
        changed: bool,
    ) -> Answer {
        // As the next call finds them: new components are there now, and those with nothing left are gone.
        let stands = if changed { self.find(call) } else { found.to_vec() };
        let mut each = Vec::new();
        for (n, (spec, evaluation)) in call.specs.iter().zip(looks).enumerate() {
            let usage = self.usage(spec, stands[n]);
            let takes = changed && evaluation.change() != Change::Nothing;
            let mut told = with_limit!(spec, limit => decision(limit, &usage, now, evaluation, takes));
            told.limit = spec.limit.limit().plus(spec.kept);
            match fate {
                Fate::Passes if call.purpose == Purpose::GiveBack => told.verdict = Verdict::Allowed(Span::ZERO),
                Fate::Settles | Fate::Settled => told.verdict = Verdict::Allowed(Span::ZERO),
                Fate::Unknown => told.verdict = Verdict::Never,
                // One in the shadow is told by itself.
                Fate::Repeated(id, _) if spec.shadow => {
                    if let (Request::UpTo(most), true) = (spec.request, told.verdict.allowed()) {
                        told.granted = Some(id.granted.unwrap_or(most));
                    }
                }
                Fate::LostLease => {
                    if !spec.shadow && !spec.is_held_by_id() {
                        told.verdict = Verdict::Allowed(Span::ZERO);
                    }
                }
                Fate::Repeated(id, hold) => {
                    // A call that says which limits it forces says so of these alone.
                    let forces = |spec: &Spec| matches!(spec.request, Request::Force(_));
                    let past = id.forced && (forces(spec) || !call.specs.iter().any(forces));
                    if !past || evaluation.verdict().allowed() {
                        told.verdict = Verdict::Allowed(*hold);
                    }
                    if let Request::UpTo(most) = spec.request {
                        told.granted = id.granted.or(told.verdict.allowed().then_some(most));
                    }
                }
                Fate::Passes | Fate::Denied { .. } | Fate::Banned => {}
            }
            if let Request::UpTo(_) = spec.request {
                told.granted = told.granted.or(Some(Amount::ZERO));
            }
            each.push(told);
        }
        let denies = |n: &usize| match fate {
            Fate::Denied { .. } | Fate::Banned => !looks[*n].is_forced() && !looks[*n].verdict().allowed(),
            _ => !each[*n].verdict.allowed(),
        };
        let cost = |n: usize| {
            let cost = match call.specs[n].request {
                Request::Take(cost) | Request::UpTo(cost) | Request::Force(cost) | Request::Within(cost, _) => {
                    cost.millionths()
                }
                Request::GiveBack(_) | Request::LookPastLimit => 0,
            };
            u128::from(if cost == 0 { Amount::ONE.millionths() } else { cost })
        };
        let all: Vec<usize> = (0..each.len()).filter(|n| !call.specs[*n].shadow).collect();
        let denying: Vec<usize> = all.iter().copied().filter(denies).collect();
        let (mut verdict, governing) = if let Some(longest) = denying.iter().map(|n| each[*n].verdict).max() {
            (longest, denying.iter().find(|n| each[**n].verdict == longest).copied())
        } else {
            let first = all.iter().copied().reduce(|first, n| {
                let left = |n: usize| u128::from(each[n].remaining.millionths());
                if left(n) * cost(first) < left(first) * cost(n) { n } else { first }
            });
            // "All limits in the shadow: the call passes."
            let passes = if matches!(fate, Fate::Unknown) { Verdict::Never } else { Verdict::Allowed(Span::ZERO) };
            (all.iter().map(|n| each[*n].verdict).max().unwrap_or(passes), first)
        };
        let nothing_limits = (Amount::MAX_ARGUMENT, Amount::MAX_ARGUMENT, Span::ZERO);
        let (limit, mut remaining, reset) = governing.map_or(nothing_limits, |n| {
            let Decision { limit, remaining, reset, .. } = each[n];
            (limit, remaining, reset)
        });
        // "Banned: denied, remaining 0; its wait is the longer of the ban's and its limits'."
        let forced = is_forced(call, looks);
        let told_of_it = match fate {
            Fate::Banned | Fate::Denied { .. } => true,
            Fate::Passes => forced && call.purpose != Purpose::GiveBack,
            _ => false,
        };
        let banned = self.banned_until.since(now.max(if changed { now } else { self.written }));
        if told_of_it && banned != Span::ZERO {
            remaining = Amount::ZERO;
            verdict = match verdict {
                Verdict::Allowed(_) => Verdict::After(banned),
                Verdict::After(wait) => Verdict::After(wait.max(banned)),
                Verdict::Never => Verdict::Never,
            };
        }
        // "The number of units granted": what is charged is told, whether a FORCE beside it fitted or not.
        let granted = asked_upto(call).and_then(|most| match fate {
            Fate::Passes => granted_by(call, looks),
            Fate::Repeated(id, _) => id.granted.or(verdict.allowed().then_some(most)).or(Some(Amount::ZERO)),
            _ => Some(Amount::ZERO),
        });
        let decision = Decision { verdict, limit, remaining, reset, granted };
        let (banned, repeated) = (matches!(fate, Fate::Banned), matches!(fate, Fate::Repeated(..)));
        Answer { decision, each: each.into_iter().collect(), shadow_denied: false, banned, repeated }
    }

    /// Takes the leases of a holder back.
    pub fn release(&mut self, holder: &[u8], now: Timestamp) {
        self.move_back(now);
        if self.take_back(holder, now) > 0 {
            self.sweep(now);
            self.finish(now);
        }
    }

    pub fn ban(&mut self, duration: Span, now: Timestamp, expires_at: Option<u64>) {
        if self.is_missing() {
            *self = Model::default();
        } else if self.plain {
            self.convert(expires_at, now);
        }
        self.move_back(now);
        self.sweep(now);
        if duration == Span::ZERO {
            (self.banned_until, self.strikes, self.levels) = Default::default();
        } else if now.plus(duration) > self.banned_until {
            self.end_ban(now.plus(duration), self.levels.len());
        }
        self.finish(now);
    }
}

impl Model {
    /// Counts a strike; the last one bans.
    fn strike(&mut self, rule: BanRule, now: Timestamp) {
        let counts = self.strikes.1.first().is_some_and(|first| now < first.plus(rule.window.span()));
        if !counts {
            self.strikes.1.clear();
        }
        self.strikes.0 = rule.window.span();
        self.strikes.1.push(now);
        if self.strikes.1.len() >= usize::try_from(rule.strikes).unwrap() {
            let (mut level, mut length) = (self.levels.len(), rule.block.span());
            if let Some(longest) = rule.longest {
                // "One more than what is left of the former's level": as often its length is doubled.
                for _ in 0..level {
                    length = length.plus(length).min(longest.span());
                }
                let doublings = |length: &Span| *length < longest.span();
                let lengths = std::iter::successors(Some(rule.block.span()), |one| Some(one.plus(*one)));
                level = (level + 1).min(lengths.take_while(doublings).count() + 1);
                self.longest = longest.span();
            }
            self.end_ban(now.plus(length), level);
            self.strikes = Default::default();
        }
    }

    /// Bans until then, from when on the levels pass.
    fn end_ban(&mut self, until: Timestamp, level: usize) {
        self.banned_until = until.min(Timestamp::MAX);
        let passes = |number: usize| self.banned_until.plus(self.longest.times(u64::try_from(number).unwrap()));
        self.levels = (1..=level).map(passes).collect();
    }
}

impl Component {
    fn unclaimed(usage: AnyUsage) -> Component {
        let (number, identity, recovers_at) = (1, ComponentIdentity::Nothing, Timestamp::EPOCH);
        Component {
            number,
            identity,
            usage,
            charged_by: Vec::new(),
            recovers_at,
            is_far: false,
            is_over: false,
            settlement: Settlement::default(),
            to_settle: 0,
        }
    }
}
