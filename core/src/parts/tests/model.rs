//! A key with several limits in other words: each limit has a usage of its own, which the limit itself knows how to look
//! at and charge; ids are a map; a ban is three fields. A part is dropped once it has recovered under the limit that
//! charged it last, and never before.

use super::server::unused_of;
use crate::effect::Nobody;
use crate::once::{Charge, Track};
use crate::parts::any::with_usage;
use crate::parts::{Answer, AnyUsage, MAX_PARTS, PartsUsage, Single};
use crate::spec::{AnyLimit, Asked, Call, Counts, Purpose, Spec};
use crate::{Amount, Ask, Change, Decision, Kind, Known, Limit, Look, Recovery, Span, Timestamp, Usage, Verdict};
use crate::{look, with_limit};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub struct Model {
    /// A key that knows nothing but one usage.
    plain: bool,
    parts: Vec<Part>,
    ids: BTreeMap<Vec<u8>, Id>,
    banned_until: Timestamp,
    /// The window of the strikes and each strike.
    strikes: (Span, Vec<Timestamp>),
    written: Timestamp,
    /// How many parts there have been.
    made: usize,
}

#[derive(Clone, Debug)]
struct Part {
    number: usize,
    known_by: KnownBy,
    usage: AnyUsage,
    charged_by: Option<AnyLimit>,
    recovers_at: Timestamp,
    /// That is beyond the last instant, where nobody counts.
    is_far: bool,
    track: Track,
    to_settle: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum KnownBy {
    Nothing,
    Window(Known),
    Name(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Id {
    expires_at: Timestamp,
    hold_until: Timestamp,
    settled: bool,
    forced: bool,
    granted: Option<Amount>,
    /// The numbers of the parts.
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
    Settles,
    Settled,
    Unknown,
}

fn of<U: Single>(any: &AnyUsage) -> &U {
    U::of(any).unwrap()
}

fn look_at<L: Limit>(limit: &L, any: &AnyUsage, now: Timestamp, ask: Ask) -> Look
where
    L::Usage: Single,
{
    look(limit, of::<L::Usage>(any), now, ask)
}

fn decision<L: Limit>(limit: &L, any: &AnyUsage, now: Timestamp, look: &Look, charged: bool) -> Decision
where
    L::Usage: Single,
{
    look.decision(limit, of(any), now, charged)
}

fn reset_of<L: Limit>(limit: &L, any: &AnyUsage, now: Timestamp) -> Span
where
    L::Usage: Single,
{
    limit.reset(of(any), now)
}

fn reset(limit: AnyLimit, any: &AnyUsage, now: Timestamp) -> Span {
    let spec = Spec::of(limit, Ask::Take(Amount::ZERO));
    with_limit!(spec, limit => reset_of(limit, any, now))
}

fn charge<L: Limit>(limit: &L, any: &mut AnyUsage, track: &mut Track, change: Change, now: Timestamp)
where
    L::Usage: Single,
{
    let usage = L::Usage::of_mut(any).unwrap();
    track.before(limit, usage, now, change);
    change.apply(limit, usage, now);
    usage.encode_effect(&mut Nobody);
}

fn known_by(spec: &Spec) -> KnownBy {
    match spec.name {
        Some(name) => KnownBy::Name(name.to_vec()),
        None => KnownBy::Window(spec.limit.known_by()),
    }
}

fn is_unused(any: &AnyUsage) -> bool {
    with_usage!(any, usage => usage.is_unused())
}

impl Part {
    fn charged_under(&mut self, limit: AnyLimit, now: Timestamp) {
        let recovers_at = now.plus(reset(limit, &self.usage, now));
        (self.charged_by, self.is_far) = (Some(limit), recovers_at >= Timestamp::MAX);
        self.recovers_at = recovers_at.min(Timestamp::MAX);
    }

    fn drop_if_recovered(&self, now: Timestamp) -> bool {
        if self.to_settle > 0 {
            return false;
        }
        if let Some(limit) = self.charged_by.filter(|_| now >= self.recovers_at && !self.is_far) {
            assert_eq!(reset(limit, &self.usage, now), Span::ZERO, "dropped early");
        }
        is_unused(&self.usage) || now >= self.recovers_at
    }

    fn move_back(&mut self, now: Timestamp) {
        let (ahead, recovery) = with_usage!(&mut self.usage, as_mut, usage => {
            let ahead = usage.ahead(now);
            if ahead != Span::ZERO {
                usage.move_back(now);
                usage.encode_effect(&mut Nobody);
            }
            (ahead, usage.recovery())
        });
        self.recovers_at = match (recovery, self.charged_by) {
            // When an aligned window ends is known to the limit that opened it, or never was.
            (Recovery::IsHidden, _) => self.recovers_at,
            (Recovery::MovesAlong, Some(_)) if self.is_far => self.recovers_at.minus(ahead),
            (Recovery::MovesAlong, _) if ahead == Span::ZERO => self.recovers_at,
            (Recovery::MovesAlong, Some(limit)) => now.plus(reset(limit, &self.usage, now)).min(Timestamp::MAX),
            (Recovery::MovesAlong, None) => self.recovers_at.minus(ahead),
            // Slots are whole: it may be told later than the difference says.
            (Recovery::IsTold, _) => {
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
    let Ok(Asked::One(spec)) = Asked::take(&mut crate::args::Args::new(&words)) else { unreachable!() };
    with_limit!(spec, limit => reset_of(limit, any, now))
}

impl Model {
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    pub fn is_missing(&self) -> bool {
        self.parts.is_empty() && self.ids.is_empty() && !self.remembers_ban()
    }

    fn remembers_ban(&self) -> bool {
        self.banned_until != Timestamp::EPOCH || !self.strikes.1.is_empty()
    }

    /// The key has expired: nothing was left to remember.
    pub fn expire(&mut self, now: Timestamp) {
        for part in &self.parts {
            match part.charged_by {
                Some(limit) => {
                    assert!(part.is_far || reset(limit, &part.usage, now) == Span::ZERO, "a part expired early");
                }
                None => assert!(part.recovers_at <= now, "a part expired early"),
            }
        }
        assert!(self.ids.values().all(|id| id.expires_at <= now), "an id expired early");
        assert!(self.banned_until <= now, "a ban expired early");
        assert!(self.strikes.1.first().is_none_or(|first| first.plus(self.strikes.0) <= now), "strikes expired early");
        *self = Model::default();
    }

    /// What it remembers and what `real` does are the same.
    pub fn compare(&self, real: &PartsUsage) {
        let parts = real.parts.iter();
        assert_eq!(real.parts.len(), self.parts.len());
        for (part, own) in parts.zip(&self.parts) {
            let bytes = |any: &AnyUsage| (any.kind(), with_usage!(any, usage => crate::laws::encoded(usage)));
            assert_eq!(part.is_unused(), is_unused(&own.usage));
            if !part.is_unused() {
                assert_eq!(bytes(&part.usage), bytes(&own.usage));
                assert_eq!(part.recovers_at, own.recovers_at);
            }
            assert_eq!(part.may_be_settled(), own.to_settle > 0);
        }
        let ids = real.beside.as_ref().map_or(0, |beside| beside.ids.len());
        assert_eq!(ids, self.ids.len());
        assert_eq!(real.parts.is_empty() && real.beside.is_none(), self.is_missing());
    }

    /// "A spec finds its part by its name, else by kind and window." What a plain key remembered is "the part of the
    /// first spec of its kind".
    fn find(&self, call: &Call) -> Vec<Option<usize>> {
        let mut found = Vec::new();
        for spec in &call.specs {
            let of_kind = |part: &&Part| part.usage.kind() == spec.limit.kind();
            let leases = spec.limit.kind() == Kind::Concurrency;
            let own = self.parts.iter().filter(of_kind).find(|part| leases || part.known_by == known_by(spec));
            let unclaimed = self.parts.iter().filter(of_kind).find(|part| part.known_by == KnownBy::Nothing);
            let free = unclaimed.filter(|part| !found.contains(&Some(part.number)));
            found.push(own.or(free).map(|part| part.number));
        }
        found
    }

    fn part(&mut self, number: usize) -> &mut Part {
        self.parts.iter_mut().find(|part| part.number == number).unwrap()
    }

    fn usage(&self, spec: &Spec, number: Option<usize>) -> AnyUsage {
        let part = self.parts.iter().find(|part| Some(part.number) == number);
        part.map_or_else(|| with_limit!(spec, limit => unused_of(limit)), |part| part.usage.clone())
    }

    /// Refused for want of room: the call would leave more parts than there may be.
    pub fn has_no_room(&self, asked: &Asked, now: Timestamp) -> bool {
        let before = self.parts.len();
        let mut after = self.clone();
        after.call(asked, now, false, None);
        after.parts.len() > MAX_PARTS && after.made > self.made && before > 0
    }

    /// The answer to a call, which is made if it is no peek; whether it was to write. Of a plain key when it expires.
    pub fn call(&mut self, asked: &Asked, now: Timestamp, peeks: bool, expires_at: Option<u64>) -> (Answer, bool) {
        let call = super::server::call_of(asked);
        if self.is_missing() {
            *self = Model { plain: matches!(asked, Asked::One(_)), ..Model::default() };
            if self.plain {
                let usage = self.usage(&call.specs[0], None);
                self.parts.push(Part::unclaimed(usage));
                self.made = 1;
            }
        }
        let at = if self.plain { now } else { now.max(self.written) };
        let found = self.find(&call);
        let known = match call.counts {
            Counts::Once { id, .. } | Counts::Settle { id, .. } => self.ids.get(id).filter(|id| at < id.expires_at),
            Counts::Every => None,
        };
        let known = known.cloned();
        let mut looks = Vec::new();
        for (spec, number) in call.specs.iter().zip(&found) {
            let usage = self.usage(spec, *number);
            let ask = if known.is_some() { Ask::Take(Amount::ZERO) } else { spec.ask };
            let spec = Spec { ask, nx: spec.nx && known.is_none(), ..*spec };
            looks.push(with_limit!(spec, limit => look_at(limit, &usage, now, ask)));
        }
        // "With UPTO: the least that all grant."
        if let Some(least) = looks.iter().filter_map(Look::granted).min() {
            for look in &mut looks {
                look.grant_at_most(least);
            }
        }
        let fate = self.fate(&call, &found, &looks, known, now, at);
        let changes = match fate {
            Fate::Passes => looks.iter().any(|look| look.change() != Change::Nothing),
            Fate::Settles => true,
            _ => false,
        };
        let strikes = matches!(fate, Fate::Denied { strikes: true });
        let writes = !peeks && (changes || strikes);
        if writes {
            self.write(&call, &found, &looks, &fate, now, expires_at);
        } else if !peeks {
            self.move_back(now);
        }
        let answer = self.answer(&call, &found, &looks, &fate, now, writes && changes);
        if self.plain {
            // Of nothing used there is no key.
            self.parts.retain(|part| !is_unused(&part.usage));
        }
        (answer, writes)
    }

    fn fate(
        &self,
        call: &Call,
        found: &[Option<usize>],
        looks: &[Look],
        known: Option<Id>,
        now: Timestamp,
        at: Timestamp,
    ) -> Fate {
        match (call.purpose, known) {
            (Purpose::Settle, Some(id)) if id.settled => return Fate::Settled,
            (Purpose::Settle, Some(_)) => return Fate::Settles,
            (Purpose::Settle, None) => return Fate::Unknown,
            (_, Some(id)) => {
                let hold = id.hold_until.since(at);
                return Fate::Repeated(id, hold);
            }
            (Purpose::GiveBack, None) => return Fate::Passes,
            (Purpose::Charge | Purpose::Look, None) => {}
        }
        let denies = |look: &Look| !look.is_forced() && !look.verdict().allowed();
        let is_denied = looks.iter().any(denies);
        if at < self.banned_until {
            // "What passes: give-backs, settlements, releases, renewals, the repetition of an admitted id; a FORCE."
            let forced = !is_denied && looks.iter().any(Look::is_forced);
            return if forced || self.renews(call, looks, found, now) { Fate::Passes } else { Fate::Banned };
        }
        if !is_denied {
            return Fate::Passes;
        }
        // "A take that this key's limits denied for a time: not a look, not one that never passes, not KEEP's or
        // CONCURRENCY's denial."
        let for_a_time = looks.iter().filter(|look| denies(look)).all(|look| look.verdict() != Verdict::Never);
        let by_a_limit = call.specs.iter().zip(found).zip(looks).any(|((spec, number), look)| {
            let whole = Spec { limit: spec.limit.raised_by(spec.kept), kept: Amount::ZERO, ..*spec };
            let usage = self.usage(spec, *number);
            let without_keep = with_limit!(whole, limit => look_at(limit, &usage, now, spec.ask));
            denies(look) && denies(&without_keep) && spec.limit.kind() != Kind::Concurrency
        });
        let strikes = call.purpose == Purpose::Charge && call.ban.is_some() && for_a_time && by_a_limit;
        Fate::Denied { strikes }
    }

    /// Whether it asks for no more than the lease that its holder has.
    fn renews(&self, call: &Call, looks: &[Look], found: &[Option<usize>], now: Timestamp) -> bool {
        let ([spec], [look], [number]) = (call.specs.as_slice(), looks, found) else { return false };
        let (AnyLimit::Concurrency(_), Change::Charge(takes)) = (spec.limit, look.change()) else { return false };
        let Some(part) = self.parts.iter().find(|part| Some(part.number) == *number) else { return false };
        let leases = of::<crate::leases::ConcurrencyUsage>(&part.usage).describe();
        leases.iter().any(|(_, fact)| {
            let crate::Fact::Leases(leases) = fact else { return false };
            // As of when they were written, if the clock has gone back.
            let at = now.max(now.plus(of::<crate::leases::ConcurrencyUsage>(&part.usage).ahead(now)));
            let mut own = leases.iter().filter(|(holder, _, expires_at)| **holder == *spec.holder && at < *expires_at);
            own.any(|(_, units, _)| takes <= *units)
        })
    }

    fn move_back(&mut self, now: Timestamp) {
        if self.plain {
            let after = |part: &&mut Part| with_usage!(&part.usage, usage => usage.is_after(now));
            self.parts.iter_mut().filter(after).for_each(|part| part.move_back(now));
            return;
        }
        let back = self.written.since(now);
        if back == Span::ZERO {
            return;
        }
        let Model { parts, ids, .. } = self;
        for part in parts {
            for (_, charge) in ids.values_mut().flat_map(|id| &mut id.charges).filter(|(n, _)| *n == part.number) {
                with_usage!(&part.usage, usage => if usage.is_after(now) { charge.move_back(usage, now); });
            }
            part.move_back(now);
        }
        for id in self.ids.values_mut() {
            (id.expires_at, id.hold_until) = (id.expires_at.minus(back), id.hold_until.minus(back));
        }
        self.banned_until = self.banned_until.minus(back);
        self.strikes.1.iter_mut().for_each(|strike| *strike = strike.minus(back));
        self.written = now;
    }

    /// What is over by now is as if it had never been.
    fn sweep(&mut self, now: Timestamp) {
        let gone: Vec<Vec<u8>> =
            self.ids.iter().filter(|(_, id)| id.expires_at <= now).map(|(id, _)| id.clone()).collect();
        for id in gone {
            for (number, charge) in self.ids.remove(&id).unwrap().charges {
                let part = self.part(number);
                part.track.forget(&charge);
                part.to_settle -= 1;
            }
        }
        if self.banned_until <= now {
            self.banned_until = Timestamp::EPOCH;
        }
        if self.strikes.1.first().is_some_and(|first| first.plus(self.strikes.0) <= now) {
            self.strikes = Default::default();
        }
    }

    fn finish(&mut self, now: Timestamp) {
        self.written = now;
        self.parts.retain(|part| !part.drop_if_recovered(now));
        for part in self.parts.iter_mut().filter(|part| is_unused(&part.usage)) {
            part.usage = AnyUsage::unused(part.usage.kind()).unwrap();
        }
    }

    fn write(
        &mut self,
        call: &Call,
        found: &[Option<usize>],
        looks: &[Look],
        fate: &Fate,
        now: Timestamp,
        expires_at: Option<u64>,
    ) {
        let remembers = matches!(call.counts, Counts::Once { .. }) && matches!(fate, Fate::Passes);
        if self.plain {
            let stays = call.specs.iter().zip(found).zip(looks).all(|((spec, number), look)| {
                look.change() == Change::Nothing || (number.is_some() && spec.name.is_none())
            });
            if stays && !remembers && matches!(fate, Fate::Passes) {
                self.move_back(now);
                for ((spec, number), look) in call.specs.iter().zip(found).zip(looks) {
                    if let Some(number) = number.filter(|_| look.change() != Change::Nothing) {
                        self.change(spec, number, look.change(), now);
                    }
                }
                return;
            }
            self.convert(expires_at, now);
        }
        self.move_back(now);
        self.sweep(now);
        match fate {
            Fate::Passes => {
                let mut charges = Vec::new();
                for ((spec, number), look) in call.specs.iter().zip(found).zip(looks) {
                    let number = match (look.change(), number) {
                        (Change::Nothing, _) | (Change::GiveBack(_), None) => continue,
                        (_, Some(number)) => *number,
                        (Change::Charge(_), None) => {
                            self.made += 1;
                            let mut part = Part::unclaimed(self.usage(spec, None));
                            part.number = self.made;
                            self.parts.push(part);
                            self.made
                        }
                    };
                    self.change(spec, number, look.change(), now);
                    let part = self.part(number);
                    if part.known_by == KnownBy::Nothing {
                        part.known_by = known_by(spec);
                    }
                    if let Change::Charge(cost) = look.change()
                        && remembers
                        && spec.limit.kind() != Kind::Concurrency
                    {
                        part.to_settle += 1;
                        let track = &mut part.track;
                        let charge = with_usage!(&part.usage, usage => track.charge(usage, 0, cost));
                        charges.push((number, charge));
                    }
                }
                if let Counts::Once { id, ttl } = call.counts {
                    let holds = looks.iter().filter_map(|look| match look.verdict() {
                        Verdict::Allowed(hold) => Some(hold),
                        _ => None,
                    });
                    let hold_until = now.plus(holds.max().unwrap_or_default()).min(Timestamp::MAX);
                    let id_seen = Id {
                        expires_at: now.plus(ttl.span()).min(Timestamp::MAX),
                        hold_until,
                        settled: false,
                        forced: looks.iter().any(Look::is_forced),
                        granted: looks.iter().find_map(Look::granted),
                        charges,
                    };
                    self.ids.insert(id.to_vec(), id_seen);
                }
            }
            Fate::Settles => self.settle(call, found, now),
            Fate::Denied { .. } => {
                let rule = call.ban.unwrap();
                let counts = self.strikes.1.first().is_some_and(|first| now < first.plus(rule.window.span()));
                if !counts {
                    self.strikes.1.clear();
                }
                self.strikes.0 = rule.window.span();
                self.strikes.1.push(now);
                if self.strikes.1.len() >= usize::try_from(rule.strikes).unwrap() {
                    let until = now.plus(rule.block.span()).min(Timestamp::MAX);
                    self.banned_until = self.banned_until.max(until);
                    self.strikes = Default::default();
                }
            }
            _ => unreachable!(),
        }
        self.finish(now);
    }

    fn settle(&mut self, call: &Call, found: &[Option<usize>], now: Timestamp) {
        let Counts::Settle { id, amount } = call.counts else { unreachable!() };
        let id = self.ids.get_mut(id).unwrap();
        id.settled = true;
        for (number, charge) in std::mem::take(&mut id.charges) {
            let mut specs = call.specs.iter().zip(found);
            let spec = specs.find(|(spec, found)| **found == Some(number) && !spec.own_cost);
            let part = self.part(number);
            part.to_settle -= 1;
            let Some((spec, _)) = spec.filter(|_| amount != charge.cost) else {
                part.track.forget(&charge);
                continue;
            };
            let track = &mut part.track;
            with_usage!(&mut part.usage, as_mut, usage => {
                track.settle(usage, &charge, charge.cost.minus(amount));
                usage.encode_effect(&mut Nobody);
            });
            if amount > charge.cost {
                let more = Change::Charge(amount.minus(charge.cost));
                with_limit!(spec, limit => self::charge(limit, &mut part.usage, track, more, now));
            }
            part.charged_under(spec.limit, now);
        }
    }

    fn change(&mut self, spec: &Spec, number: usize, change: Change, now: Timestamp) {
        let part = self.part(number);
        let track = &mut part.track;
        with_limit!(spec, limit => charge(limit, &mut part.usage, track, change, now));
        part.charged_under(spec.limit, now);
    }

    /// A plain key's usage "recovers when the key would have expired".
    fn convert(&mut self, expires_at: Option<u64>, now: Timestamp) {
        self.plain = false;
        self.parts.retain(|part| !is_unused(&part.usage));
        let Some(part) = self.parts.first_mut() else { return };
        let left = Span::from_micros(expires_at.unwrap().saturating_sub(now.floor_millis()) * 1000);
        part.recovers_at = now.plus(left).min(Timestamp::MAX);
        // What its limit was is not stored.
        (part.charged_by, part.is_far) = (None, false);
        self.written = now.plus(with_usage!(&part.usage, usage => usage.ahead(now)));
    }

    fn answer(
        &self,
        call: &Call,
        found: &[Option<usize>],
        looks: &[Look],
        fate: &Fate,
        now: Timestamp,
        changed: bool,
    ) -> Answer {
        // New parts are found now.
        let stands = self.find(call);
        let mut each = Vec::new();
        for (n, (spec, look)) in call.specs.iter().zip(looks).enumerate() {
            let usage = self.usage(spec, stands[n].filter(|_| changed).or(found[n]));
            let takes = changed && look.change() != Change::Nothing;
            let mut told = with_limit!(spec, limit => decision(limit, &usage, now, look, takes));
            told.limit = spec.limit.limit().plus(spec.kept);
            match fate {
                Fate::Passes if call.purpose == Purpose::GiveBack => told.verdict = Verdict::Allowed(Span::ZERO),
                Fate::Settles | Fate::Settled => told.verdict = Verdict::Allowed(Span::ZERO),
                Fate::Unknown => told.verdict = Verdict::Never,
                Fate::Repeated(id, hold) => {
                    if !id.forced || look.verdict().allowed() {
                        told.verdict = Verdict::Allowed(*hold);
                    }
                    if let Ask::UpTo(most) = spec.ask {
                        told.granted = Some(id.granted.unwrap_or(most));
                    }
                }
                Fate::Passes | Fate::Denied { .. } | Fate::Banned => {}
            }
            each.push(told);
        }
        let denies = |n: &usize| match fate {
            Fate::Denied { .. } | Fate::Banned => !looks[*n].is_forced() && !looks[*n].verdict().allowed(),
            _ => !each[*n].verdict.allowed(),
        };
        let cost = |n: usize| {
            let cost = match call.specs[n].ask {
                Ask::Take(cost) | Ask::UpTo(cost) | Ask::Force(cost) | Ask::Within(cost, _) => cost.millionths(),
                Ask::GiveBack(_) => 0,
            };
            u128::from(if cost == 0 { Amount::ONE.millionths() } else { cost })
        };
        let all: Vec<usize> = (0..each.len()).collect();
        let denying: Vec<usize> = all.iter().copied().filter(denies).collect();
        let (mut verdict, governing) = if let Some(longest) = denying.iter().map(|n| each[*n].verdict).max() {
            (longest, *denying.iter().find(|n| each[**n].verdict == longest).unwrap())
        } else {
            let first = all.iter().copied().reduce(|first, n| {
                let left = |n: usize| u128::from(each[n].remaining.millionths());
                if left(n) * cost(first) < left(first) * cost(n) { n } else { first }
            });
            (each.iter().map(|told| told.verdict).max().unwrap(), first.unwrap())
        };
        let mut remaining = each[governing].remaining;
        // "Banned: denied, remaining 0; its wait is the longer of the ban's and its limits'."
        let forced = looks.iter().any(Look::is_forced);
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
        let Decision { limit, reset, .. } = each[governing];
        let granted = each.iter().find_map(|told| told.granted);
        Answer { decision: Decision { verdict, limit, remaining, reset, granted }, each }
    }

    /// Takes the leases of a holder back.
    pub fn release(&mut self, holder: &[u8], now: Timestamp) {
        self.move_back(now);
        let mut released = 0;
        for part in &mut self.parts {
            if let Some(leases) = crate::leases::ConcurrencyUsage::of_mut(&mut part.usage) {
                released += leases.release(&[holder], now);
                if released > 0 {
                    part.recovers_at = now.plus(leases.time_to_last_expiry(now)).min(Timestamp::MAX);
                }
            }
        }
        if released > 0 {
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
            (self.banned_until, self.strikes) = Default::default();
        } else {
            self.banned_until = self.banned_until.max(now.plus(duration).min(Timestamp::MAX));
        }
        self.finish(now);
    }
}

impl Part {
    fn unclaimed(usage: AnyUsage) -> Part {
        let (number, known_by, recovers_at) = (1, KnownBy::Nothing, Timestamp::EPOCH);
        Part {
            number,
            known_by,
            usage,
            charged_by: None,
            recovers_at,
            is_far: false,
            track: Track::default(),
            to_settle: 0,
        }
    }
}
