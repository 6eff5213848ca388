//! One file a command family; what they share is here, once: look, then charge, on one key.

pub mod algorithm;
pub mod docs;
pub mod effect;
pub mod info;
pub mod kinds;
pub mod leases;
pub mod multi;
pub mod throttle;

use crate::config;
use crate::redis::key::Key;
use crate::redis::{Redis, guard};
use crate::stats;
use ratelimit_core::args::KeyName;
use ratelimit_core::error::Error;
use ratelimit_core::expiry::{Expiry, StepBack};
use ratelimit_core::{Ask, Change, Decision, Limit, Look, Span, Timestamp, Usage, look, take};

/// The answer to a call on one key that changes nothing.
fn peek<L: Limit>(redis: &mut Redis, name: KeyName, limit: &L, ask: Ask, now: Timestamp) -> Result<Decision, Error> {
    let key = redis.peek::<L::Usage>(name)?;
    let (look, growth) = looked(limit, key.usage(), key.is_missing(), now, ask);
    growth.check_entries(limit)?;
    Ok(look.decision(limit, key.usage(), now, false))
}

/// The answer to a call on one key, which is charged if its limit allows it.
#[inline(always)]
fn charge<L: Limit>(redis: &mut Redis, name: KeyName, limit: &L, ask: Ask, now: Timestamp) -> Result<Decision, Error> {
    let mut key = redis.open::<L::Usage>(name)?;
    let (look, growth) = looked(limit, key.usage(), key.is_missing(), now, ask);
    growth.check_entries(limit)?;
    growth.check_memory(key.call())?;
    key.call().stats.decided(!look.denies());
    count(&look, limit, growth, true);
    if look.denies() && config::DENIAL_EVENTS.get() != 0 {
        key.denied();
    }
    if look.change() == Change::Nothing {
        let decision = look.decision(limit, key.usage(), now, false);
        see_to_step_back(key, limit, now);
        return Ok(decision);
    }
    let usage = key.usage_mut();
    let moved = move_back(usage, now);
    take(limit, usage, now, look.change());
    guard::point();
    let decision = look.decision(limit, usage, now, true);
    key.charged(now, Expiry::of(now, decision.reset), moved);
    Ok(decision)
}

/// Counts a limit of a call that as a whole is `allowed`.
fn count<L: Limit>(look: &Look, _: &L, growth: Growth, allowed: bool) {
    let stats = stats::of(L::Usage::KIND);
    if look.denies() {
        stats.denied.count();
    } else if allowed {
        stats.admitted.count();
        if growth.makes {
            stats.keys_made.count();
        }
    }
}

/// Moves what was written later than `now` back to `now`; whether there was any.
fn move_back(usage: &mut impl Usage, now: Timestamp) -> bool {
    let ahead = usage.is_after(now);
    if ahead {
        usage.move_back(now);
    }
    ahead
}

/// Writes a clock gone back, the one thing that a call which charges nothing writes.
fn see_to_step_back<L: Limit>(mut key: Key<L::Usage>, limit: &L, now: Timestamp) {
    if let Some(step) = step_back(limit, key.usage_mut(), now) {
        key.moved_back(&step);
    }
}

/// Moves a usage back with the clock, and says what its expiry goes by. `None` if the clock has not gone back.
fn step_back<L: Limit>(limit: &L, usage: &mut L::Usage, now: Timestamp) -> Option<StepBack> {
    let back = usage.ahead(now);
    if back == Span::ZERO {
        return None;
    }
    let then = now.plus(back);
    let before = Expiry::of(then, limit.reset(usage, then));
    usage.move_back(now);
    let after = Expiry::of(now, limit.reset(usage, now));
    Some(StepBack { now, back, recovery: usage.recovery(), before, after })
}

/// Looks, and sees whether going on would make the key larger.
#[inline(always)]
fn looked<L: Limit>(limit: &L, usage: &L::Usage, missing: bool, now: Timestamp, ask: Ask) -> (Look, Growth) {
    guard::point();
    let look = look(limit, usage, now, ask);
    let charges = matches!(look.change(), Change::Charge(_));
    let entries = if charges { limit.entries_after_charge(usage, now) } else { None };
    let grows = entries.is_some_and(|entries| entries > usage.entries());
    (look, Growth { entries, grows, makes: charges && missing })
}

/// What a charge would add to what there is.
#[derive(Clone, Copy)]
struct Growth {
    /// How many entries the key would have after a charge that adds one.
    entries: Option<usize>,
    /// Whether that is more than it has.
    grows: bool,
    /// Whether the key would be made.
    makes: bool,
}

impl Growth {
    /// Refuses if going on would add an entry to a key that has as many as it may have.
    fn check_entries<L: Limit>(self, _: &L) -> Result<(), Error> {
        match (self.entries, config::max_entries(L::Usage::KIND)) {
            (Some(entries), Some((most, setting))) if entries > most => Err(Error::TooManyEntries { most, setting }),
            _ => Ok(()),
        }
    }

    /// Refuses if going on would make a key or add an entry, and the server is out of memory. Calls on what exists go
    /// on.
    fn check_memory(self, redis: &Redis) -> Result<(), Error> {
        if (self.makes || self.grows) && redis.out_of_memory() { Err(Error::OutOfMemory) } else { Ok(()) }
    }
}
