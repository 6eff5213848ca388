//! Several limits in one call, all or nothing: `RL.MTAKE` and `RL.MPEEK`.
//!
//! Every key is looked at before any is charged, in one instant, and what changes travels as one effect. Keys are
//! opened one after another: others may run when a later one is opened, and change an earlier one. So a key is looked
//! at again if they may have.

use super::several::{self, of_plain};
use super::{Seen, move_back, step_back};
use crate::redis::key::Found;
use crate::redis::{self, Redis, guard};
use crate::reply::{Reply, Row};
use ratelimit_core::args::{Args, KeyName};
use ratelimit_core::error::Error;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::parts::{Held, PartsUsage, Seen as SeenParts, Single};
use ratelimit_core::spec::{Call, CallOnKeys, Counts, KeySpec, Purpose, Spec};
use ratelimit_core::with_limit;
use ratelimit_core::{Ask, Change, Decision, Kind, Limit, Look, Timestamp, Usage};

/// `RL.MTAKE numkeys key [key ...] [options] spec [spec ...]`
pub fn take(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let call = CallOnKeys::take(&mut args)?;
    let now = redis::now();
    let looked = look(redis, &call, now)?;
    let allowed = admits(&call, looked.iter().map(|key| &key.seen));
    if allowed {
        looked.iter().try_for_each(|key| key.seen.check_entries())?;
        looked.iter().try_for_each(|key| key.seen.check_memory(redis))?;
    }
    redis.stats.decided(allowed);
    Ok(reply(&call, allowed, looked.iter().map(|key| (&key.seen, key.charge(redis, now, allowed)))))
}

/// `RL.MPEEK numkeys key [key ...] [options] spec [spec ...]`
pub fn peek(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let call = CallOnKeys::peek(&mut args)?;
    let now = redis::now();
    let mut peeked = Vec::with_capacity(call.specs.len());
    for key in &call.specs {
        peeked.push(SeenKey::peek(redis, &call, key, now)?);
    }
    let allowed = admits(&call, peeked.iter().map(|(seen, _)| seen));
    if allowed {
        peeked.iter().try_for_each(|(seen, _)| seen.check_entries())?;
    }
    Ok(reply(&call, allowed, peeked.iter().map(|(seen, decision)| (seen, *decision))))
}

/// Whether the call as a whole may go on. A settlement may if any key knows its id.
fn admits<'s, 'a: 's>(call: &CallOnKeys, mut seen: impl Iterator<Item = &'s SeenKey<'a>>) -> bool {
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
    decisions: impl Iterator<Item = (&'s SeenKey<'a>, Decision)>,
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
enum SeenKey<'a> {
    /// Of a plain key, or a missing one.
    One(Seen),
    /// Of a key with parts, or one that has to become that.
    Parts(Box<OfParts<'a>>),
}

struct OfParts<'a> {
    call: Call<'a>,
    seen: SeenParts,
    /// What the key holds if it is a plain one.
    plain: Option<Kind>,
    missing: bool,
    /// Whether it may have no more entries, or no memory.
    entries: Result<(), Error>,
    grows: bool,
}

impl<'a> SeenKey<'a> {
    fn denies(&self) -> bool {
        match self {
            SeenKey::One(seen) => seen.look.denies(),
            SeenKey::Parts(parts) => parts.seen.denies(),
        }
    }

    fn knows(&self) -> bool {
        matches!(self, SeenKey::Parts(parts) if parts.seen.knows())
    }

    fn check_entries(&self) -> Result<(), Error> {
        match self {
            SeenKey::One(seen) => seen.check_entries(),
            SeenKey::Parts(parts) => parts.entries.clone(),
        }
    }

    fn check_memory(&self, redis: &Redis) -> Result<(), Error> {
        match self {
            SeenKey::One(seen) => seen.check_memory(redis),
            SeenKey::Parts(parts) if parts.grows && redis.out_of_memory() => Err(Error::OutOfMemory),
            SeenKey::Parts(_) => Ok(()),
        }
    }

    /// Looks at a key for RL.MPEEK: what it has shown, and its decision.
    fn peek(
        redis: &mut Redis,
        call: &CallOnKeys<'a>,
        (name, spec): &KeySpec<'a>,
        now: Timestamp,
    ) -> Result<(SeenKey<'a>, Decision), Error> {
        if is_plain(call, spec) {
            let plain = with_limit!(spec, limit => peek_plain(redis, *name, limit, spec, now));
            match plain {
                Ok((seen, decision)) => return Ok((SeenKey::One(seen), decision)),
                Err(Error::WrongType { holds, .. }) if holds == Kind::Limits.name() => {}
                Err(refused) => return Err(refused),
            }
        }
        let call = call_on_key(call, *spec);
        let (seen, entries, answer) = several::look(redis, *name, &call, now)?;
        let of_parts = OfParts { call, seen, plain: None, missing: false, entries, grows: false };
        Ok((SeenKey::Parts(Box::new(of_parts)), answer.decision))
    }
}

/// Whether a plain key can serve a spec.
fn is_plain(call: &CallOnKeys, spec: &Spec) -> bool {
    call.counts == Counts::Every && spec.name.is_none()
}

/// A call on several keys, as it is for one of them.
fn call_on_key<'a>(call: &CallOnKeys<'a>, spec: Spec<'a>) -> Call<'a> {
    let of_key = Call::of_one(spec);
    let purpose = if call.purpose == Purpose::Charge { of_key.purpose } else { call.purpose };
    Call { counts: call.counts, purpose, ..of_key }
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
    spec: &'s Spec<'a>,
    found: Found,
    seen: SeenKey<'a>,
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
        (name, spec): &'s KeySpec<'a>,
        now: Timestamp,
    ) -> Result<Looked<'s, 'a>, Error> {
        let name = *name;
        if is_plain(call, spec) {
            let plain = with_limit!(spec, limit => look_plain(redis, name, limit, spec.ask, now));
            match plain {
                Ok((found, seen)) => return Ok(Looked { name, spec, found, seen: SeenKey::One(seen) }),
                Err(Error::WrongType { holds, .. }) if holds == Kind::Limits.name() => {}
                Err(refused) => return Err(refused),
            }
        }
        let (found, of_parts) = look_at_parts(redis, name, call_on_key(call, *spec), now)?;
        Ok(Looked { name, spec, found, seen: SeenKey::Parts(of_parts) })
    }

    /// Makes the change that the look announced if the call as a whole is `allowed`, and sees to a clock gone back in
    /// any case. Nothing can fail any more.
    fn charge(&self, redis: &mut Redis, now: Timestamp, allowed: bool) -> Decision {
        match &self.seen {
            SeenKey::One(seen) => {
                if seen.count(allowed) {
                    redis.denied(self.name);
                }
                let decision =
                    with_limit!(self.spec, limit => charge_plain(redis, &self.found, &seen.look, limit, now, allowed));
                decision.keeping(self.spec.kept)
            }
            SeenKey::Parts(parts) => {
                if several::count(&parts.seen, &parts.call, allowed, parts.missing) {
                    redis.denied(self.name);
                }
                match parts.plain {
                    None => parts.charge(redis, &self.found, now, allowed),
                    Some(kind) => of_plain!(
                        kind,
                        Plain => parts.charge_plain::<Plain>(redis, self.name, now, allowed),
                        parts.nothing(Held::Parts(&PartsUsage::default()), now)
                    ),
                }
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
fn look_at_parts<'a>(
    redis: &mut Redis,
    name: KeyName,
    call: Call<'a>,
    now: Timestamp,
) -> Result<(Found, Box<OfParts<'a>>), Error> {
    let refused = match redis.open::<PartsUsage>(name) {
        Ok(key) => {
            let missing = key.is_missing();
            let of_parts = OfParts::of(call, Held::Parts(key.usage()), None, missing, now);
            return Ok((key.close_to_change(now), Box::new(of_parts)));
        }
        Err(refused @ Error::WrongType { .. }) => refused,
        Err(other) => return Err(other),
    };
    let kind = several::plain_kind(redis, name, &call, refused)?;
    of_plain!(kind, Plain => {
        let key = redis.open::<Plain>(name)?;
        let of_parts = OfParts::of(call, Held::plain(key.usage()), Some(kind), false, now);
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

impl<'a> OfParts<'a> {
    fn of(call: Call<'a>, held: Held, plain: Option<Kind>, missing: bool, now: Timestamp) -> OfParts<'a> {
        guard::point();
        let seen = SeenParts::at(&call, held, now);
        let entries = several::check_entries(&seen, &call, held, now);
        let grows = several::grows(&seen, &call, held, now);
        OfParts { call, seen, plain, missing, entries, grows }
    }

    /// The answer to a call that has changed nothing.
    fn nothing(&self, held: Held, now: Timestamp) -> Decision {
        self.seen.answer(&self.call, held, now, false).decision
    }

    fn charge(&self, redis: &mut Redis, found: &Found, now: Timestamp, allowed: bool) -> Decision {
        let changes = allowed && self.seen.changes();
        let mut unused = PartsUsage::default();
        let Ok(found) = redis.find_again::<PartsUsage>(found, now) else {
            return self.nothing(Held::Parts(&unused), now);
        };
        let Some(mut usage) = redis.change::<PartsUsage>(&found) else {
            if !changes {
                return self.nothing(Held::Parts(&unused), now);
            }
            unused.charge(&self.call, &self.seen, now);
            let decision = self.seen.answer(&self.call, Held::Parts(&unused), now, true).decision;
            let expires_at = Expiry::of(now, unused.reset(now)).after_charge(None, false);
            if !unused.is_unused() {
                redis.record_new(&found, unused, expires_at, now);
            }
            return decision;
        };
        if !changes {
            let decision = self.nothing(Held::Parts(&usage), now);
            if let Some(step) = step_back(&mut *usage, now, PartsUsage::reset) {
                usage.record(step.expiry(found.expires_at()), now);
            }
            return decision;
        }
        let moved = move_back(&mut *usage, now);
        usage.charge(&self.call, &self.seen, now);
        guard::point();
        let decision = self.seen.answer(&self.call, Held::Parts(&usage), now, true).decision;
        let expires_at = Expiry::of(now, usage.reset(now)).after_charge(found.expires_at(), moved);
        usage.record(expires_at, now);
        decision
    }

    /// Of a plain key, which becomes one with parts if it is charged.
    fn charge_plain<U: Single>(&self, redis: &mut Redis, name: KeyName, now: Timestamp, allowed: bool) -> Decision {
        // Another kind is what others have put there meanwhile.
        let Ok(mut key) = redis.open::<U>(name) else {
            return self.nothing(Held::Parts(&PartsUsage::default()), now);
        };
        if allowed && self.seen.changes() {
            let (parts, expires_at) = several::with_parts(key, now, |parts| parts.charge(&self.call, &self.seen, now));
            let decision = self.seen.answer(&self.call, Held::Parts(&parts), now, true).decision;
            redis.convert::<U, _>(name, parts, expires_at, now);
            return decision;
        }
        let decision = self.nothing(Held::plain(key.usage()), now);
        let reset = |usage: &U, now| self.call.reset_of_plain(usage, now);
        if let Some(step) = step_back(key.usage_mut(), now, reset) {
            key.moved_back(&step);
        }
        decision
    }
}
