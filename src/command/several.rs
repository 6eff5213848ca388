//! A call over several limits on one key, or one that needs such a key: a name, an id, a ban.
//!
//! A plain key serves such a call too, as the part of the first limit of its kind. It becomes a key with parts when the
//! call has to store what a plain key cannot; a denied call or a look never does that.

use super::{move_back, step_back};
use crate::config;
use crate::redis::key::Key;
use crate::redis::{Redis, guard, listeners};
use crate::reply::{Reply, Row};
use crate::stats;
use ratelimit_core::args::KeyName;
use ratelimit_core::composite::{Answer, Held, MAX_PARTS, PartsUsage, Seen, Single, Straight};
use ratelimit_core::error::Error;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::spec::{Call, Purpose, Spec};
use ratelimit_core::{Decision, Kind, Span, Timestamp};

/// Runs `$body` with `$usage` as the type of what a plain key of `$kind` remembers; `$other` for a key with parts.
macro_rules! of_plain {
    ($kind:expr, $usage:ident => $body:expr, $other:expr) => {
        match $kind {
            Kind::Bucket => {
                type $usage = ratelimit_core::bucket::BucketUsage;
                $body
            }
            Kind::FixedWindow => {
                type $usage = ratelimit_core::fixed_window::FixedWindowUsage;
                $body
            }
            Kind::SlidingWindow => {
                type $usage = ratelimit_core::sliding_window::SlidingWindowUsage;
                $body
            }
            Kind::StrictWindow => {
                type $usage = ratelimit_core::strict_window::StrictWindowUsage;
                $body
            }
            Kind::SlidingLog => {
                type $usage = ratelimit_core::log::SlidingLogUsage;
                $body
            }
            Kind::Concurrency => {
                type $usage = ratelimit_core::leases::ConcurrencyUsage;
                $body
            }
            Kind::Limits => $other,
        }
    };
}
pub(super) use of_plain;

/// The kind of a key that holds no parts, if it serves the call: one limit alone that meets another kind is a mistake.
/// `Err(refused)` if it does not.
pub(super) fn plain_kind(redis: &mut Redis, name: KeyName, call: &Call, refused: Error) -> Result<Kind, Error> {
    let Some(kind) = redis.kind(name) else { return Err(refused) };
    match call.specs.as_slice() {
        [Spec { limit, by_policy: false, .. }] if limit.kind() != kind => {
            Err(Error::WrongType { holds: kind.name(), needs: limit.kind().name() })
        }
        _ => Ok(kind),
    }
}

/// Whether a key of another kind serves a spec: one with parts does, and what another definition of a policy left is no
/// mistake.
pub(super) fn is_served(spec: &Spec, holds: &str) -> bool {
    holds == Kind::Limits.name() || (spec.by_policy && Kind::ALL.iter().any(|kind| kind.name() == holds))
}

/// A call of one spec, which a key of another type has refused: a key with parts serves it.
#[cold]
pub(super) fn of_one<'a>(spec: &Spec<'a>, refused: Error) -> Result<Call<'a>, Error> {
    match refused {
        Error::WrongType { holds, .. } if is_served(spec, holds) => Ok(Call::of_one(*spec)),
        refused => Err(refused),
    }
}

/// The same, charged.
#[cold]
pub(super) fn charge_one(
    redis: &mut Redis,
    name: KeyName,
    spec: &Spec,
    now: Timestamp,
    refused: Error,
) -> Result<Decision, Error> {
    let call = of_one(spec, refused)?;
    charge(redis, name, &call, now).map(|answer| answer.decision)
}

/// What is replied.
pub(super) fn reply(call: &Call, answer: &Answer) -> Reply {
    reply_by(call, answer, None)
}

/// The same, of a policy of that name.
pub(super) fn reply_by(call: &Call, answer: &Answer, policy: Option<&[u8]>) -> Reply {
    if call.each {
        let each = call.specs.iter().zip(&answer.each);
        let each = each.map(|(spec, decision)| Reply::named(Row::decision(decision), spec.name)).collect();
        Reply::each(answer.decision.verdict, each, policy)
    } else {
        Reply::decision(&answer.decision)
    }
}

/// The answer to a call that changes nothing.
pub fn peek(redis: &mut Redis, name: KeyName, call: &Call, now: Timestamp) -> Result<Answer, Error> {
    let (_, entries, answer) = look(redis, name, call, now)?;
    entries.map(|()| answer)
}

/// What a look has shown, whether going on would add one entry too many, and the answer.
type Looked = (Seen, Result<(), Error>, Answer);

/// The same, of one key of several.
pub(super) fn look(redis: &mut Redis, name: KeyName, call: &Call, now: Timestamp) -> Result<Looked, Error> {
    let refused = match redis.peek::<PartsUsage>(name) {
        Ok(key) => return Ok(answer_look(call, Held::Parts(key.usage()), now)),
        Err(refused @ Error::WrongType { .. }) => refused,
        Err(other) => return Err(other),
    };
    of_plain!(plain_kind(redis, name, call, refused)?, Plain => {
        let key = redis.peek::<Plain>(name)?;
        Ok(answer_look(call, Held::plain(key.usage()), now))
    }, Err(Error::Internal))
}

fn answer_look(call: &Call, held: Held, now: Timestamp) -> Looked {
    guard::point();
    let mut seen = Seen::at(call, held, now);
    make_room(&mut seen, call, held, now, || false);
    let entries = check_entries(&seen, call, held, now);
    let answer = seen.answer(call, held, now, false);
    (seen, entries, answer)
}

/// The answer to a call, which is charged if its limits allow it.
pub fn charge(redis: &mut Redis, name: KeyName, call: &Call, now: Timestamp) -> Result<Answer, Error> {
    let refused = match redis.open::<PartsUsage>(name) {
        Ok(key) => return charge_parts(key, call, now),
        Err(refused @ Error::WrongType { .. }) => refused,
        Err(other) => return Err(other),
    };
    of_plain!(
        plain_kind(redis, name, call, refused)?,
        Plain => charge_plain::<Plain>(redis, name, call, now),
        Err(Error::Internal)
    )
}

fn charge_parts(mut key: Key<PartsUsage>, call: &Call, now: Timestamp) -> Result<Answer, Error> {
    guard::point();
    if let Some(seen) = key.usage().look_straight(call, now) {
        return Ok(charge_straight(key, call, &seen, now));
    }
    let held = Held::Parts(key.usage());
    let mut seen = Seen::at(call, held, now);
    make_room(&mut seen, call, held, now, || key.call().out_of_memory());
    if admit(&seen, call, held, key.is_missing(), now, key.call())? {
        key.denied(now);
    }
    if !seen.changes() && !seen.strikes() {
        let answer = seen.answer(call, Held::Parts(key.usage()), now, false);
        if let Some(step) = step_back(key.usage_mut(), now, PartsUsage::reset) {
            key.moved_back(&step);
        }
        return Ok(answer);
    }
    let usage = key.usage_mut();
    let moved = move_back(usage, now);
    usage.charge(call, &seen, now);
    guard::point();
    let answer = seen.answer(call, Held::Parts(usage), now, true);
    let expiry = Expiry::of(now, usage.reset(now));
    key.charged(now, expiry, moved);
    Ok(answer)
}

/// Nothing of it can be refused: it adds no part and no entry.
fn charge_straight(mut key: Key<PartsUsage>, call: &Call, seen: &Straight, now: Timestamp) -> Answer {
    key.call().stats.decided(!seen.denies());
    count_limits(seen.limits(call), seen.denies(), !seen.denies(), false);
    if seen.denies() {
        key.denied(now);
        return key.usage().deny_straight(call, seen, now);
    }
    let usage = key.usage_mut();
    // A debug build checks what would be told, though there is nobody.
    let told = cfg!(debug_assertions) || listeners::any();
    let answer = usage.charge_straight(call, seen, told, now);
    guard::point();
    let expiry = Expiry::of(now, usage.reset(now));
    key.charged(now, expiry, false);
    answer
}

fn charge_plain<U: Single>(redis: &mut Redis, name: KeyName, call: &Call, now: Timestamp) -> Result<Answer, Error> {
    let mut key = redis.open::<U>(name)?;
    guard::point();
    let held = Held::plain(key.usage());
    let mut seen = Seen::at(call, held, now);
    make_room(&mut seen, call, held, now, || key.call().out_of_memory());
    if admit(&seen, call, held, false, now, key.call())? {
        key.denied(now);
    }
    if !seen.changes() && !seen.strikes() {
        let answer = seen.answer(call, Held::plain(key.usage()), now, false);
        if let Some(step) = step_back(key.usage_mut(), now, |usage, now| call.reset_of_plain(usage, now)) {
            key.moved_back(&step);
        }
        return Ok(answer);
    }
    if seen.stays_plain(call) {
        let usage = key.usage_mut();
        let moved = move_back(usage, now);
        seen.charge_plain(call, usage, now);
        guard::point();
        let answer = seen.answer(call, Held::plain(usage), now, true);
        let expiry = Expiry::of(now, call.reset_of_plain(usage, now));
        key.charged(now, expiry, moved);
        return Ok(answer);
    }
    let (converted, answer) = key.converted(now, |parts| {
        parts.charge(call, &seen, now);
        seen.answer(call, Held::Parts(parts), now, true)
    });
    redis.convert(name, converted, now);
    Ok(answer)
}

/// Refuses if going on would add an entry to a part that has as many as it may have, or one part too many.
pub(super) fn check_entries(seen: &Seen, call: &Call, held: Held, now: Timestamp) -> Result<(), Error> {
    if seen.has_too_many_parts(held, now) {
        return Err(Error::TooManyParts { most: MAX_PARTS });
    }
    for (kind, entries, _) in seen.entries(call, held, now) {
        if let Some((most, setting)) = config::max_entries(kind).filter(|(most, _)| entries > *most) {
            return Err(Error::TooManyEntries { most, setting });
        }
    }
    Ok(())
}

/// Whether going on would make a key, a part or an entry.
pub(super) fn grows(seen: &Seen, call: &Call, held: Held, now: Timestamp) -> bool {
    seen.makes_parts() || seen.entries(call, held, now).any(|(_, _, grows)| grows)
}

/// Leaves out what only limits in the shadow would add, if there is no room for it: they never deny.
pub(super) fn make_room(seen: &mut Seen, call: &Call, held: Held, now: Timestamp, out_of_memory: impl Fn() -> bool) {
    let casts_shadow = call.specs.iter().any(|spec| spec.shadow);
    let full = || check_entries(seen, call, held, now).is_err() || (grows(seen, call, held, now) && out_of_memory());
    if casts_shadow && full() {
        seen.leave_shadows_out();
    }
}

/// Refuses what there is no room for, and counts what is left: a call on one key, that may be `missing`. Whether the key
/// denies it.
fn admit(seen: &Seen, call: &Call, held: Held, missing: bool, now: Timestamp, redis: &Redis) -> Result<bool, Error> {
    check_entries(seen, call, held, now)?;
    if grows(seen, call, held, now) && redis.out_of_memory() {
        return Err(Error::OutOfMemory);
    }
    if seen.admits() || call.purpose != Purpose::Look {
        redis.stats.decided(seen.admits());
    }
    Ok(count(seen, call, true, call.purpose == Purpose::Look, missing))
}

/// Counts the limits of a call that as a whole is `allowed`, or only `looks`, on a key that it may make. Whether the key
/// denies it: a look that does not pass is no denial.
pub(super) fn count(seen: &Seen, call: &Call, allowed: bool, looks: bool, missing: bool) -> bool {
    if looks && seen.denies() {
        return false;
    }
    let makes = allowed && missing && seen.changes();
    count_limits(seen.limits(call), seen.denies(), allowed && seen.admits(), makes);
    seen.denies()
}

/// Counts limits, with whether each denies, and the whole of a call that they deny or that is `admitted`, and that may
/// make its key.
fn count_limits(limits: impl Iterator<Item = (Kind, bool)>, denies: bool, admitted: bool, makes: bool) {
    for (kind, denies) in limits.chain([(Kind::Limits, denies)]) {
        if let Some(stats) = stats::of(kind) {
            if denies {
                stats.denied.count();
            } else if admitted {
                stats.admitted.count();
            }
        }
    }
    if let (true, Some(stats)) = (makes, stats::of(Kind::Limits)) {
        stats.keys_made.count();
    }
}

/// `RL.BAN`'s part of it: bans a key, of whatever kind, or makes one that is only banned.
pub(super) fn ban(redis: &mut Redis, name: KeyName, duration: Span, now: Timestamp) -> Result<Span, Error> {
    let refused = match redis.open::<PartsUsage>(name) {
        Ok(key) => return ban_parts(key, duration, now),
        Err(refused @ Error::WrongType { .. }) => refused,
        Err(other) => return Err(other),
    };
    let kind = redis.kind(name).ok_or(refused)?;
    if duration == Span::ZERO {
        return Ok(Span::ZERO);
    }
    if redis.out_of_memory() {
        return Err(Error::OutOfMemory);
    }
    of_plain!(kind, Plain => {
        let key = redis.open::<Plain>(name)?;
        let (converted, left) = key.converted(now, |parts| {
            parts.ban(duration, now);
            parts.banned(now)
        });
        redis.convert(name, converted, now);
        Ok(left)
    }, Err(Error::Internal))
}

fn ban_parts(mut key: Key<PartsUsage>, duration: Span, now: Timestamp) -> Result<Span, Error> {
    if !key.usage().can_ban(duration, now) {
        return Ok(key.usage().banned(now));
    }
    if key.is_missing() && key.call().out_of_memory() {
        return Err(Error::OutOfMemory);
    }
    let usage = key.usage_mut();
    let moved = move_back(usage, now);
    usage.ban(duration, now);
    guard::point();
    let left = usage.banned(now);
    let expiry = Expiry::of(now, usage.reset(now));
    key.charged(now, expiry, moved);
    Ok(left)
}
