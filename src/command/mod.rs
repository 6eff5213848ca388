//! One file a command family; what they share is here, once: look, then charge, on one key.

pub mod acquire;
pub mod algorithm;
pub mod ban;
pub mod behind;
pub mod docs;
pub mod effect;
pub mod info;
pub mod kinds;
pub mod leases;
pub mod limit;
pub mod multi;
pub mod policies;
mod several;
pub mod throttle;
pub mod top;

use crate::config;
use crate::redis::{Redis, guard};
use crate::stats;
use ratelimit_core::args::KeyName;
use ratelimit_core::error::Error;
use ratelimit_core::expiry::{Expiry, StepBack};
use ratelimit_core::{Ask, Change, Decision, Kind, Limit, Look, Span, Timestamp, Usage, look};

/// The answer to a call on one key that changes nothing.
fn peek<L: Limit>(redis: &mut Redis, name: KeyName, limit: &L, ask: Ask, now: Timestamp) -> Result<Decision, Error> {
    let key = redis.peek::<L::Usage>(name)?;
    let seen = Seen::at(limit, key.usage(), key.is_missing(), now, ask);
    seen.check_entries()?;
    Ok(seen.look.decision(limit, key.usage(), now, false))
}

/// The answer to a call on one key, which is charged if its limit allows it.
fn charge<L: Limit>(redis: &mut Redis, name: KeyName, limit: &L, ask: Ask, now: Timestamp) -> Result<Decision, Error> {
    let mut key = redis.open::<L::Usage>(name)?;
    let seen = Seen::at(limit, key.usage(), key.is_missing(), now, ask);
    seen.check_entries()?;
    seen.check_memory(key.call())?;
    if !seen.look.denies() {
        key.call().stats.decided(true);
    }
    if seen.count(true, || ask.is_look()) {
        key.call().stats.decided(false);
        key.denied(now);
    }
    if seen.look.change() == Change::Nothing {
        let decision = seen.look.decision(limit, key.usage(), now, false);
        if let Some(step) = step_back(key.usage_mut(), now, |usage, now| limit.reset(usage, now)) {
            key.moved_back(&step);
        }
        return Ok(decision);
    }
    let usage = key.usage_mut();
    let moved = move_back(usage, now);
    seen.look.change().apply(limit, usage, now);
    guard::point();
    let decision = seen.look.decision(limit, usage, now, true);
    key.charged(now, Expiry::of(now, decision.reset), moved);
    Ok(decision)
}

/// Moves what was written later than `now` back to `now`; whether there was any.
fn move_back(usage: &mut impl Usage, now: Timestamp) -> bool {
    let ahead = usage.is_after(now);
    if ahead {
        usage.move_back(now);
    }
    ahead
}

/// Moves a usage back with the clock, and says what its expiry goes by: the one thing that a call which charges nothing
/// writes. `None` if the clock has not gone back.
fn step_back<U: Usage>(usage: &mut U, now: Timestamp, reset: impl Fn(&U, Timestamp) -> Span) -> Option<StepBack> {
    let back = usage.ahead(now);
    if back == Span::ZERO {
        return None;
    }
    let then = now.plus(back);
    let before = Expiry::of(then, reset(usage, then));
    usage.move_back(now);
    let after = Expiry::of(now, reset(usage, now));
    Some(StepBack { now, back, recovery: usage.recovery(), before, after })
}

/// What a look at a key has shown, and what going on would add to it.
#[derive(Clone, Copy)]
struct Seen {
    kind: Kind,
    look: Look,
    /// How many entries the key would have after a charge that adds one.
    entries: Option<usize>,
    /// Whether that is more than it has.
    grows: bool,
    /// Whether the key would be made.
    makes: bool,
}

impl Seen {
    /// Looks.
    #[inline(always)]
    fn at<L: Limit>(limit: &L, usage: &L::Usage, missing: bool, now: Timestamp, ask: Ask) -> Seen {
        guard::point();
        let look = look(limit, usage, now, ask);
        let charges = matches!(look.change(), Change::Charge(_));
        let entries = if charges { limit.entries_after_charge(usage, now) } else { None };
        let grows = entries.is_some_and(|entries| entries > usage.entries());
        Seen { kind: L::Usage::KIND, look, entries, grows, makes: charges && missing }
    }

    /// Refuses if going on would add an entry to a key that has as many as it may have.
    fn check_entries(&self) -> Result<(), Error> {
        match (self.entries, config::max_entries(self.kind)) {
            (Some(entries), Some((most, setting))) if entries > most => Err(Error::TooManyEntries { most, setting }),
            _ => Ok(()),
        }
    }

    /// Refuses if going on would make a key or add an entry, and the server is out of memory. Calls on what exists go
    /// on.
    fn check_memory(&self, redis: &Redis) -> Result<(), Error> {
        if (self.makes || self.grows) && redis.out_of_memory() { Err(Error::OutOfMemory) } else { Ok(()) }
    }

    /// Counts the limit, of a call that as a whole is `allowed`, or only `looks`. Whether it denies the call: a look
    /// that does not pass is no denial.
    fn count(&self, allowed: bool, looks: impl Fn() -> bool) -> bool {
        let denies = self.look.denies();
        if denies && looks() {
            return false;
        }
        if let Some(stats) = stats::of(self.kind) {
            if denies {
                stats.denied.count();
            } else if allowed {
                stats.admitted.count();
                if self.makes {
                    stats.keys_made.count();
                }
            }
        }
        denies
    }
}
