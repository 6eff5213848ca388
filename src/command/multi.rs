//! Several limits in one call, all or nothing: `RL.MTAKE` and `RL.MPEEK`.
//!
//! Every key is looked at before any is charged, in one instant, and what changes travels as one effect. Keys are
//! opened one after another: others may run when a later one is opened, and change an earlier one. So a key is looked
//! at again if they may have.

use super::several::{self, of_plain};
use super::{Seen, behind, limit, move_back, step_back};
use crate::redis::key::Found;
use crate::redis::{self, Redis, guard};
use crate::reply::{Reply, Row};
use crate::server::policy_table::Ruling;
use ratelimit_core::args::{Args, KeyName};
use ratelimit_core::composite::{Answer, Held, PartsUsage, Seen as SeenParts, Single};
use ratelimit_core::error::Error;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::policy::Outcome;
use ratelimit_core::spec::{Asked, Call, CallOnKeys, Counts, KeySpec, OnKey, Purpose, Spec};
use ratelimit_core::with_limit;
use ratelimit_core::{Ask, Change, Decision, Kind, Limit, Look, Span, Timestamp, Usage, Verdict};
use std::borrow::Cow;
use std::rc::Rc;

/// `RL.MTAKE numkeys key [key ...] [options] spec [spec ...]`
pub fn take(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let call = CallOnKeys::take(&mut args)?;
    let now = redis::now();
    let rulings = redis.global.policies.of_keys(&call, now)?;
    let mut call = ruled(call, &rulings)?;
    come_behind(redis, &mut call, true);
    let looked = look(redis, &call, now)?;
    let allowed = admits(&call, looked.iter().map(|key| &key.seen));
    if allowed {
        looked.iter().try_for_each(|key| key.seen.check_entries())?;
        looked.iter().try_for_each(|key| key.seen.check_memory(redis))?;
    }
    let looks = call.only_looks();
    if allowed || !looks {
        redis.stats.decided(allowed);
    }
    let decisions = looked.iter().enumerate().map(|(place, key)| {
        let ruling = rulings.get(place).and_then(Option::as_deref);
        (&key.seen, told(&call, key.charge(redis, ruling, now, allowed, looks)))
    });
    Ok(reply(&call, allowed, decisions))
}

/// `RL.MPEEK numkeys key [key ...] [options] spec [spec ...]`
pub fn peek(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let call = CallOnKeys::peek(&mut args)?;
    let now = redis::now();
    let rulings = redis.global.policies.of_keys(&call, now)?;
    let mut call = ruled(call, &rulings)?;
    come_behind(redis, &mut call, false);
    let mut peeked = Vec::with_capacity(call.specs.len());
    for key in &call.specs {
        peeked.push(SeenKey::peek(redis, &call, key, now)?);
    }
    let allowed = admits(&call, peeked.iter().map(|(seen, _)| seen));
    if allowed {
        peeked.iter().try_for_each(|(seen, _)| seen.check_entries())?;
    }
    Ok(reply(&call, allowed, peeked.iter().map(|(seen, decision)| (seen, told(&call, *decision)))))
}

/// A key's decision, as the call is told it: nothing denies a give-back, or has it wait, not even what it only looks at.
fn told(call: &CallOnKeys, decision: Decision) -> Decision {
    match call.purpose {
        Purpose::GiveBack => Decision { verdict: Verdict::Allowed(Span::ZERO), ..decision },
        Purpose::Charge | Purpose::Look | Purpose::Settle => decision,
    }
}

/// What the call asks of the policies that its keys are ruled by.
fn ruled<'p, 'a: 'p>(call: CallOnKeys<'a>, rulings: &'p [Option<Rc<Ruling>>]) -> Result<CallOnKeys<'p>, Error> {
    let CallOnKeys { mut specs, counts, purpose } = call;
    for ((_, on_key), ruling) in specs.iter_mut().zip(rulings) {
        if let (OnKey::Policy(by), Some(ruling)) = (&*on_key, ruling) {
            *on_key = match by.asked(&ruling.policy)? {
                Asked::One(spec) => OnKey::Spec(spec),
                Asked::Several(call) => OnKey::Call(Box::new(Call { counts, ..*call })),
                Asked::Policy(_) => return Err(Error::Internal),
            };
        }
    }
    Ok(CallOnKeys { specs, counts, purpose })
}

/// Has leases that the call takes come behind those who wait for them.
#[inline(always)]
fn come_behind(redis: &Redis, call: &mut CallOnKeys, takes: bool) {
    if redis.global.queues.any() {
        for (name, on_key) in &mut call.specs {
            match on_key {
                OnKey::Spec(spec) => behind::come(redis, *name, spec, takes),
                OnKey::Call(call) => call.specs.iter_mut().for_each(|spec| behind::come(redis, *name, spec, takes)),
                OnKey::Policy(_) => {}
            }
        }
    }
}

/// Whether the call as a whole may go on. A settlement may if any key knows its id.
fn admits<'s, 'a: 's>(call: &CallOnKeys, mut seen: impl Iterator<Item = &'s SeenKey<'s, 'a>>) -> bool {
    match call.purpose {
        Purpose::Settle => seen.any(SeenKey::knows),
        Purpose::GiveBack => true,
        Purpose::Charge | Purpose::Look => !seen.any(SeenKey::denies),
    }
}

/// If all passed, the longest hold (a FORCE that did not fit has passed, and its wait is no hold); else the longest
/// wait of those that stood in the way.
fn reply<'s, 'a: 's>(
    call: &CallOnKeys,
    allowed: bool,
    decisions: impl Iterator<Item = (&'s SeenKey<'s, 'a>, Decision)>,
) -> Reply {
    let mut wait = None;
    let rows = decisions.map(|(seen, decision)| {
        let counts = match (allowed, call.purpose) {
            (true, _) => decision.verdict.allowed(),
            (false, Purpose::Settle) => true,
            (false, _) => seen.denies(),
        };
        if counts {
            wait = wait.max(Some(decision.verdict));
        }
        Row::decision(&decision)
    });
    let rows = rows.collect();
    Reply::decisions(allowed, wait, rows)
}

/// What a look at one key has shown.
enum SeenKey<'s, 'a> {
    /// Of a plain key, or a missing one.
    One(Seen, &'s Spec<'a>),
    /// Of a key with parts, or one that has to become that.
    Parts(Box<OfParts<'s, 'a>>),
}

struct OfParts<'s, 'a> {
    call: Cow<'s, Call<'a>>,
    seen: SeenParts,
    /// What the key holds if it is a plain one.
    plain: Option<Kind>,
    missing: bool,
    /// Whether it may have no more entries, or no memory.
    entries: Result<(), Error>,
    grows: bool,
}

impl<'s, 'a> SeenKey<'s, 'a> {
    fn denies(&self) -> bool {
        match self {
            SeenKey::One(seen, _) => seen.look.denies(),
            SeenKey::Parts(parts) => parts.seen.denies(),
        }
    }

    fn knows(&self) -> bool {
        matches!(self, SeenKey::Parts(parts) if parts.seen.knows())
    }

    fn check_entries(&self) -> Result<(), Error> {
        match self {
            SeenKey::One(seen, _) => seen.check_entries(),
            SeenKey::Parts(parts) => parts.entries.clone(),
        }
    }

    fn check_memory(&self, redis: &Redis) -> Result<(), Error> {
        match self {
            SeenKey::One(seen, _) => seen.check_memory(redis),
            SeenKey::Parts(parts) if parts.grows && redis.out_of_memory() => Err(Error::OutOfMemory),
            SeenKey::Parts(_) => Ok(()),
        }
    }

    /// Looks at a key for RL.MPEEK: what it has shown, and its decision.
    fn peek(
        redis: &mut Redis,
        call: &CallOnKeys<'a>,
        (name, on_key): &'s KeySpec<'a>,
        now: Timestamp,
    ) -> Result<(SeenKey<'s, 'a>, Decision), Error> {
        if let Some(spec) = plain(call, on_key) {
            match with_limit!(spec, limit => peek_plain(redis, *name, limit, spec, now)) {
                Ok((seen, decision)) => return Ok((SeenKey::One(seen, spec), decision)),
                Err(Error::WrongType { holds, .. }) if several::is_served(spec, holds) => {}
                Err(refused) => return Err(refused),
            }
        }
        let call = call_on_key(call, on_key)?;
        let (seen, entries, answer) = several::look(redis, *name, &call, now)?;
        let of_parts = OfParts { call, seen, plain: None, missing: false, entries, grows: false };
        Ok((SeenKey::Parts(Box::new(of_parts)), answer.decision))
    }
}

/// What is asked of a key, if a plain one can serve it.
fn plain<'s, 'a>(call: &CallOnKeys, on_key: &'s OnKey<'a>) -> Option<&'s Spec<'a>> {
    match on_key {
        OnKey::Spec(spec) if call.counts == Counts::Every && spec.name.is_none() => Some(spec),
        _ => None,
    }
}

/// A call on several keys, as it is for one of them.
fn call_on_key<'s, 'a>(call: &CallOnKeys<'a>, on_key: &'s OnKey<'a>) -> Result<Cow<'s, Call<'a>>, Error> {
    match on_key {
        OnKey::Spec(spec) => {
            let one = Call::of_one(*spec);
            let purpose = if call.purpose == Purpose::Charge { one.purpose } else { call.purpose };
            Ok(Cow::Owned(Call { counts: call.counts, purpose, ..one }))
        }
        OnKey::Call(call) => Ok(Cow::Borrowed(call)),
        OnKey::Policy(_) => Err(Error::Internal),
    }
}

fn peek_plain<L: Limit>(
    redis: &mut Redis,
    name: KeyName,
    limit: &L,
    spec: &Spec,
    now: Timestamp,
) -> Result<(Seen, Decision), Error> {
    let key = redis.peek(name)?;
    let seen = Seen::at(limit, key.usage(), key.is_missing(), now, spec.ask);
    let decision = seen.look.decision(limit, key.usage(), now, false).keeping(spec.kept);
    Ok((seen, decision))
}

/// A key of a call that was looked at, and closed, and the spec that it was looked at under.
struct Looked<'s, 'a> {
    name: KeyName,
    found: Found,
    seen: SeenKey<'s, 'a>,
}

/// Looks at every key.
fn look<'s, 'a>(redis: &mut Redis, call: &'s CallOnKeys<'a>, now: Timestamp) -> Result<Vec<Looked<'s, 'a>>, Error> {
    let mut looked = Vec::with_capacity(call.specs.len());
    for key in &call.specs {
        looked.push(Looked::at(redis, call, key, now)?);
    }
    if looked.iter().all(|key| redis.still_holds(&key.found)) {
        return Ok(looked);
    }
    // Whatever expired has been deleted by now. First those that are missing, whose opening says that others may run;
    // those that are there then stay as they are found.
    for missing in [true, false] {
        for (key, spec) in looked.iter_mut().zip(&call.specs) {
            if key.found.is_missing() == missing {
                *key = Looked::at(redis, call, spec, now)?;
            }
        }
    }
    Ok(looked)
}

impl<'s, 'a> Looked<'s, 'a> {
    fn at(
        redis: &mut Redis,
        call: &CallOnKeys<'a>,
        (name, on_key): &'s KeySpec<'a>,
        now: Timestamp,
    ) -> Result<Looked<'s, 'a>, Error> {
        let name = *name;
        if let Some(spec) = plain(call, on_key) {
            match with_limit!(spec, limit => look_plain(redis, name, limit, spec.ask, now)) {
                Ok((found, seen)) => return Ok(Looked { name, found, seen: SeenKey::One(seen, spec) }),
                Err(Error::WrongType { holds, .. }) if several::is_served(spec, holds) => {}
                Err(refused) => return Err(refused),
            }
        }
        let (found, of_parts) = look_at_parts(redis, name, call_on_key(call, on_key)?, now)?;
        Ok(Looked { name, found, seen: SeenKey::Parts(of_parts) })
    }

    /// Makes the change that the look announced if the call as a whole is `allowed`, and sees to a clock gone back in
    /// any case. A call that only `looks` is not counted as denied. Nothing can fail any more.
    fn charge(
        &self,
        redis: &mut Redis,
        ruling: Option<&Ruling>,
        now: Timestamp,
        allowed: bool,
        looks: bool,
    ) -> Decision {
        let (decision, outcome) = self.decide(redis, now, allowed, looks);
        redis.ruled(ruling.map(|ruling| &*ruling.name));
        if let Some(ruling) = ruling {
            // One that others denied has not been admitted by this policy.
            let charges = outcome.charges && (allowed || self.seen.denies());
            ruling.counts.count(&Outcome { charges, ..outcome });
        }
        decision
    }

    fn decide(&self, redis: &mut Redis, now: Timestamp, allowed: bool, looks: bool) -> (Decision, Outcome) {
        match &self.seen {
            SeenKey::One(seen, spec) => {
                if seen.count(allowed, || looks) {
                    redis.denied(self.name, now);
                }
                let decision =
                    with_limit!(spec, limit => charge_plain(redis, &self.found, &seen.look, limit, now, allowed));
                let decision = decision.keeping(spec.kept);
                (decision, Outcome::of(&decision, Purpose::of(spec.ask)))
            }
            SeenKey::Parts(parts) => {
                if several::count(&parts.seen, &parts.call, allowed, looks, parts.missing) {
                    redis.denied(self.name, now);
                }
                let answer = match parts.plain {
                    None => parts.charge(redis, &self.found, now, allowed),
                    Some(kind) => of_plain!(
                        kind,
                        Plain => parts.charge_plain::<Plain>(redis, &self.found, self.name, now, allowed),
                        parts.nothing(Held::Parts(&PartsUsage::default()), now)
                    ),
                };
                (answer.decision, limit::outcome(&parts.call, &answer))
            }
        }
    }
}

fn look_plain<L: Limit>(
    redis: &mut Redis,
    name: KeyName,
    limit: &L,
    ask: Ask,
    now: Timestamp,
) -> Result<(Found, Seen), Error> {
    let key = redis.open::<L::Usage>(name)?;
    let seen = Seen::at(limit, key.usage(), key.is_missing(), now, ask);
    let changes = seen.look.change() != Change::Nothing || key.usage().is_after(now);
    let found = if changes { key.close_to_change(now) } else { key.close() };
    Ok((found, seen))
}

#[inline(never)]
fn look_at_parts<'s, 'a>(
    redis: &mut Redis,
    name: KeyName,
    call: Cow<'s, Call<'a>>,
    now: Timestamp,
) -> Result<(Found, Box<OfParts<'s, 'a>>), Error> {
    let refused = match redis.open::<PartsUsage>(name) {
        Ok(key) => {
            let missing = key.is_missing();
            let of_parts = OfParts::of(key.call(), call, Held::Parts(key.usage()), None, missing, now);
            return Ok((key.close_to_change(now), Box::new(of_parts)));
        }
        Err(refused @ Error::WrongType { .. }) => refused,
        Err(other) => return Err(other),
    };
    let kind = several::plain_kind(redis, name, &call, refused)?;
    of_plain!(kind, Plain => {
        let key = redis.open::<Plain>(name)?;
        let of_parts = OfParts::of(key.call(), call, Held::plain(key.usage()), Some(kind), false, now);
        Ok((key.close_to_change(now), Box::new(of_parts)))
    }, Err(Error::Internal))
}

fn charge_plain<L: Limit>(
    redis: &mut Redis,
    found: &Found,
    look: &Look,
    limit: &L,
    now: Timestamp,
    allowed: bool,
) -> Decision {
    let change = if allowed { look.change() } else { Change::Nothing };
    let unused = L::Usage::default();
    let nothing = |usage: &L::Usage| look.decision(limit, usage, now, false);
    // Another kind is what others have put there meanwhile.
    let Ok(found) = redis.find_again::<L::Usage>(found, now) else { return nothing(&unused) };
    let Some(mut usage) = redis.change::<L::Usage>(&found) else {
        if !matches!(change, Change::Charge(_)) {
            return nothing(&unused);
        }
        let mut usage = unused;
        change.apply(limit, &mut usage, now);
        let decision = look.decision(limit, &usage, now, true);
        redis.record_new(&found, usage, Expiry::of(now, decision.reset).after_charge(None, false), now);
        return decision;
    };
    if change == Change::Nothing {
        let decision = nothing(&usage);
        if let Some(step) = step_back(&mut *usage, now, |usage, now| limit.reset(usage, now)) {
            usage.record(step.expiry(found.expires_at()), now);
        }
        return decision;
    }
    let moved = move_back(&mut *usage, now);
    change.apply(limit, &mut usage, now);
    guard::point();
    let decision = look.decision(limit, &usage, now, true);
    usage.record(Expiry::of(now, decision.reset).after_charge(found.expires_at(), moved), now);
    decision
}

impl<'s, 'a> OfParts<'s, 'a> {
    fn of(
        redis: &Redis,
        call: Cow<'s, Call<'a>>,
        held: Held,
        plain: Option<Kind>,
        missing: bool,
        now: Timestamp,
    ) -> OfParts<'s, 'a> {
        guard::point();
        let mut seen = SeenParts::at(&call, held, now);
        several::make_room(&mut seen, &call, held, now, || redis.out_of_memory());
        let entries = several::check_entries(&seen, &call, held, now);
        let grows = several::grows(&seen, &call, held, now);
        OfParts { call, seen, plain, missing, entries, grows }
    }

    /// The answer to a call that has changed nothing.
    fn nothing(&self, held: Held, now: Timestamp) -> Answer {
        self.seen.answer(&self.call, held, now, false)
    }

    /// Whether anything is written: a strike is, though the call is denied, and the release of a lease by a settlement,
    /// though no key knows its id any more.
    fn changes(&self, allowed: bool) -> bool {
        let goes_on = allowed || self.call.purpose == Purpose::Settle;
        (goes_on && self.seen.changes()) || self.seen.strikes()
    }

    fn charge(&self, redis: &mut Redis, found: &Found, now: Timestamp, allowed: bool) -> Answer {
        let changes = self.changes(allowed);
        let stays = found.is_missing() || redis.still_holds(found);
        let mut unused = PartsUsage::default();
        let Ok(found) = redis.find_again::<PartsUsage>(found, now) else {
            return self.nothing(Held::Parts(&unused), now);
        };
        let Some(mut usage) = redis.change::<PartsUsage>(&found) else {
            if !changes {
                return self.nothing(Held::Parts(&unused), now);
            }
            unused.charge(&self.call, &self.seen, now);
            let answer = self.seen.answer(&self.call, Held::Parts(&unused), now, true);
            let expires_at = Expiry::of(now, unused.reset(now)).after_charge(None, false);
            if !unused.is_unused() {
                redis.record_new(&found, unused, expires_at, now);
            }
            return answer;
        };
        if !changes {
            let answer = self.nothing(Held::Parts(&usage), now);
            if let Some(step) = step_back(&mut *usage, now, PartsUsage::reset) {
                usage.record(step.expiry(found.expires_at()), now);
            }
            return answer;
        }
        let moved = move_back(&mut *usage, now);
        let again;
        let seen = if stays {
            &self.seen
        } else {
            again = self.seen.again(&self.call, Held::Parts(&usage), now);
            &again
        };
        usage.charge(&self.call, seen, now);
        guard::point();
        let answer = seen.answer(&self.call, Held::Parts(&usage), now, true);
        let expires_at = Expiry::of(now, usage.reset(now)).after_charge(found.expires_at(), moved);
        usage.record(expires_at, now);
        answer
    }

    /// Of a plain key, which becomes one with parts if it cannot remember what is charged.
    fn charge_plain<U: Single>(
        &self,
        redis: &mut Redis,
        found: &Found,
        name: KeyName,
        now: Timestamp,
        allowed: bool,
    ) -> Answer {
        let changes = self.changes(allowed);
        if changes && !self.seen.stays_plain(&self.call) {
            return self.convert::<U>(redis, name, now);
        }
        let mut unused = U::default();
        // Another kind is what others have put there meanwhile.
        let Ok(found) = redis.find_again::<U>(found, now) else { return self.nothing(Held::plain(&unused), now) };
        let Some(mut usage) = redis.change::<U>(&found) else {
            // Others have deleted it.
            if !changes {
                return self.nothing(Held::plain(&unused), now);
            }
            self.seen.charge_plain(&self.call, &mut unused, now);
            let answer = self.seen.answer(&self.call, Held::plain(&unused), now, true);
            if !unused.is_unused() {
                let expiry = Expiry::of(now, self.call.reset_of_plain(&unused, now));
                redis.record_new(&found, unused, expiry.after_charge(None, false), now);
            }
            return answer;
        };
        if !changes {
            let answer = self.nothing(Held::plain(&*usage), now);
            let reset = |usage: &U, now| self.call.reset_of_plain(usage, now);
            if let Some(step) = step_back(&mut *usage, now, reset) {
                usage.record(step.expiry(found.expires_at()), now);
            }
            return answer;
        }
        let moved = move_back(&mut *usage, now);
        self.seen.charge_plain(&self.call, &mut *usage, now);
        guard::point();
        let answer = self.seen.answer(&self.call, Held::plain(&*usage), now, true);
        let expiry = Expiry::of(now, self.call.reset_of_plain(&*usage, now));
        usage.record(expiry.after_charge(found.expires_at(), moved), now);
        answer
    }

    fn convert<U: Single>(&self, redis: &mut Redis, name: KeyName, now: Timestamp) -> Answer {
        // Another kind is what others have put there meanwhile.
        let Ok(key) = redis.open::<U>(name) else {
            return self.nothing(Held::Parts(&PartsUsage::default()), now);
        };
        let (converted, answer) = key.converted(now, |parts| {
            parts.charge(&self.call, &self.seen, now);
            self.seen.answer(&self.call, Held::Parts(parts), now, true)
        });
        redis.convert(name, converted, now);
        answer
    }
}
