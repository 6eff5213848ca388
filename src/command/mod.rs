//! One file a command family; what all share is here, once: look at every key, then charge all or none, then reply.

pub mod algorithm;
pub mod docs;
pub mod effect;
pub mod info;
pub mod leases;
pub mod multi;
pub mod throttle;

use crate::args::KeyName;
use crate::config;
use crate::error::Error;
use crate::limiter::{Ask, Change, Decision, Limit, Look, Span, Timestamp, Usage, Verdict, look, take};
use crate::redis::Redis;
use crate::redis::effect::Changes;
use crate::redis::key::{Access, Key};
use crate::stats;

/// The answer to a call on one key that changes nothing.
fn peek<L: Limit>(redis: &Redis, name: KeyName, limit: &L, ask: Ask, now: Timestamp) -> Result<Decision, Error> {
    let looked = Looked::at(redis, name, limit, ask, now, Access::Look)?;
    looked.check_entries()?;
    Ok(looked.answer(limit, now))
}

/// The answer to a call on one key, which is charged if its limit allows it.
fn charge<L: Limit>(redis: &Redis, name: KeyName, limit: &L, ask: Ask, now: Timestamp) -> Result<Decision, Error> {
    let mut looked = Looked::at(redis, name, limit, ask, now, Access::Change)?;
    looked.check_entries()?;
    looked.check_memory(redis)?;
    redis.stats.decided(!looked.denies());
    let mut changes = Changes::default();
    let decision = looked.settle(limit, now, true, &mut changes);
    redis.propagate(&changes);
    Ok(decision)
}

/// A key of a call, open and looked at. Of any kind, since those of one call stand side by side in a list; the limit
/// that it was looked at under is said again to whatever depends on it.
struct Looked<'a> {
    key: Key<'a>,
    look: Look,
    /// How many entries the key would have after a charge that adds one.
    entries: Option<usize>,
    /// Whether going on would make the key or add an entry to it.
    grows: bool,
}

impl<'a> Looked<'a> {
    /// Opens the key and looks. `Err` if it holds something else.
    #[inline(always)]
    fn at<L: Limit>(
        redis: &'a Redis,
        name: KeyName,
        limit: &L,
        ask: Ask,
        now: Timestamp,
        access: Access,
    ) -> Result<Looked<'a>, Error> {
        let key = redis.open(name, L::Usage::KIND, access)?;
        let look = with_usage(&key, now, |usage| look(limit, usage, now, ask));
        let charges = matches!(look.change(), Change::Charge(_));
        let entries =
            if charges { with_usage(&key, now, |usage| limit.entries_after_charge(usage, now)) } else { None };
        let grows = match key.usage::<L::Usage>() {
            Some(usage) => entries.is_some_and(|entries| entries > usage.entries()),
            None => charges,
        };
        Ok(Looked { key, look, entries, grows })
    }

    /// Whether it passes, or when.
    fn verdict(&self) -> Verdict {
        self.look.verdict()
    }

    /// Whether it stands in the way of the others.
    fn denies(&self) -> bool {
        self.look.denies()
    }

    /// Refuses if going on would add an entry to a key that has as many as it may have.
    fn check_entries(&self) -> Result<(), Error> {
        match (self.entries, config::max_entries(self.key.kind())) {
            (Some(entries), Some((most, setting))) if entries > most => Err(Error::TooManyEntries { most, setting }),
            _ => Ok(()),
        }
    }

    /// Refuses if going on would make a key or add an entry, and the server is out of memory. Calls on what exists
    /// go on.
    fn check_memory(&self, redis: &Redis) -> Result<(), Error> {
        if self.grows && redis.out_of_memory() { Err(Error::OutOfMemory) } else { Ok(()) }
    }

    /// The answer if nothing is charged.
    fn answer<L: Limit>(&self, limit: &L, now: Timestamp) -> Decision {
        with_usage(&self.key, now, |usage| self.look.decision(limit, usage, now, false))
    }

    /// Makes the change that the look announced if the call as a whole is `allowed`, and sees to a clock gone back in
    /// any case. Nothing can fail any more.
    #[inline(always)]
    fn settle<L: Limit>(&mut self, limit: &L, now: Timestamp, allowed: bool, changes: &mut Changes<'a>) -> Decision {
        let stats = stats::of(L::Usage::KIND);
        if self.denies() {
            stats.denied.count();
            if config::DENIAL_EVENTS.get() != 0 {
                self.key.denied();
            }
        } else if allowed {
            stats.admitted.count();
        }
        let change = if allowed { self.look.change() } else { Change::Nothing };
        let Some(usage) = self.key.usage_mut::<L::Usage>() else {
            let mut usage = L::Usage::default();
            if !matches!(change, Change::Charge(_)) {
                return self.look.decision(limit, &usage, now, false);
            }
            take(limit, &mut usage, now, change);
            let decision = self.look.decision(limit, &usage, now, true);
            self.key.create(usage);
            stats.keys_made.count();
            self.key.written::<L::Usage>(now, decision.reset, changes);
            return decision;
        };
        let ahead = usage.ahead(now);
        if ahead != Span::ZERO {
            usage.move_back(now);
        }
        take(limit, usage, now, change);
        let decision = self.look.decision(limit, usage, now, allowed);
        if change != Change::Nothing {
            self.key.written::<L::Usage>(now, decision.reset, changes);
        } else if ahead != Span::ZERO {
            self.key.moved_back::<L::Usage>(now, ahead, decision.reset, changes);
        }
        decision
    }
}

/// Runs `run` with what the key remembers, or with nothing used, but nothing that was written later than `now`.
fn with_usage<U: Usage, T>(key: &Key, now: Timestamp, run: impl FnOnce(&U) -> T) -> T {
    match key.usage::<U>() {
        None => run(&U::default()),
        Some(usage) if usage.is_after(now) => {
            let mut usage = usage.clone();
            usage.move_back(now);
            run(&usage)
        }
        Some(usage) => run(usage),
    }
}
