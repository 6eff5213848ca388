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
use crate::limiter::bucket::Bucket;
use crate::limiter::fixed_window::FixedWindow;
use crate::limiter::leases::Concurrency;
use crate::limiter::log::SlidingLog;
use crate::limiter::sliding_window::SlidingWindow;
use crate::limiter::strict_window::StrictWindow;
use crate::limiter::{Ask, Change, Decision, Limit, Look, Span, Timestamp, Usage, look, take};
use crate::redis::Redis;
use crate::redis::effect::Outcome;
use crate::redis::key::{Access, Key};
use crate::spec::{AnyLimit, Spec};
use crate::stats;
use std::iter::once;

/// The answer to a call on one key that changes nothing.
fn peek<L: Limit>(redis: &Redis, name: KeyName, limit: &L, ask: Ask, now: Timestamp) -> Result<Decision, Error> {
    let looked = Looked::at(redis, name, limit, ask, now, Access::Look)?;
    looked.check_entries(now)?;
    Ok(looked.answer(now))
}

/// The answer to a call on one key, which is charged if its limit allows it.
fn charge<L: Limit>(redis: &Redis, name: KeyName, limit: &L, ask: Ask, now: Timestamp) -> Result<Decision, Error> {
    let mut looked = Looked::at(redis, name, limit, ask, now, Access::Change)?;
    looked.check_entries(now)?;
    looked.check_memory(redis, now)?;
    redis.stats.decided(!looked.denies());
    let (decision, outcome) = looked.settle(now, true);
    redis.propagate(once((name, &outcome)));
    Ok(decision)
}

/// A key of a call, open and looked at.
struct Looked<'a, L: Limit> {
    key: Key<'a, L::Usage>,
    limit: &'a L,
    look: Look,
}

impl<'a, L: Limit> Looked<'a, L> {
    /// Opens the key and looks. `Err` if it holds something else.
    fn at(
        redis: &'a Redis,
        name: KeyName,
        limit: &'a L,
        ask: Ask,
        now: Timestamp,
        access: Access,
    ) -> Result<Looked<'a, L>, Error> {
        let key = redis.open(name, access)?;
        let look = with_usage(&key, now, |usage| look(limit, usage, now, ask));
        Ok(Looked { key, limit, look })
    }

    /// Whether going on would use more.
    fn charges(&self) -> bool {
        matches!(self.look.change(), Change::Charge(_))
    }

    /// How many entries the key would have after a charge that adds one.
    fn entries_after_charge(&self, now: Timestamp) -> Option<usize> {
        if !self.charges() {
            return None;
        }
        with_usage(&self.key, now, |usage| self.limit.entries_after_charge(usage, now))
    }

    /// Whether it stands in the way of the others.
    fn denies(&self) -> bool {
        self.look.denies()
    }

    /// Refuses if going on would add an entry to a key that has as many as it may have.
    fn check_entries(&self, now: Timestamp) -> Result<(), Error> {
        match (self.entries_after_charge(now), config::max_entries(L::Usage::KIND)) {
            (Some(entries), Some((most, setting))) if entries > most => Err(Error::TooManyEntries { most, setting }),
            _ => Ok(()),
        }
    }

    /// Refuses if going on would make a key or add an entry, and the server is out of memory. Calls on what exists
    /// go on.
    fn check_memory(&self, redis: &Redis, now: Timestamp) -> Result<(), Error> {
        let grows = match self.key.usage() {
            Some(usage) => self.entries_after_charge(now).is_some_and(|entries| entries > usage.entries()),
            None => self.charges(),
        };
        if grows && redis.out_of_memory() { Err(Error::OutOfMemory) } else { Ok(()) }
    }

    /// The answer if nothing is charged.
    fn answer(&self, now: Timestamp) -> Decision {
        with_usage(&self.key, now, |usage| self.look.decision(self.limit, usage, now, false))
    }

    /// Makes the change that the look announced if the call as a whole is `allowed`, and sees to a clock gone back in
    /// any case. Nothing can fail any more. Returns the answer, and what the key has come to.
    fn settle(&mut self, now: Timestamp, allowed: bool) -> (Decision, Outcome) {
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
        let Some(usage) = self.key.usage_mut() else {
            let mut usage = L::Usage::default();
            if !matches!(change, Change::Charge(_)) {
                return (self.look.decision(self.limit, &usage, now, false), Outcome::Unchanged);
            }
            take(self.limit, &mut usage, now, change);
            let decision = self.look.decision(self.limit, &usage, now, true);
            self.key.create(usage);
            stats.keys_made.count();
            return (decision, self.key.written(now, decision.reset));
        };
        let ahead = usage.ahead(now);
        if ahead != Span::ZERO {
            usage.move_back(now);
        }
        take(self.limit, usage, now, change);
        let decision = self.look.decision(self.limit, usage, now, allowed);
        let outcome = if change != Change::Nothing {
            self.key.written(now, decision.reset)
        } else if ahead != Span::ZERO {
            self.key.moved_back(now, ahead, decision.reset)
        } else {
            Outcome::Unchanged
        };
        (decision, outcome)
    }
}

/// The same, whatever the kind of the limit: side by side in one list, where a box each would cost an allocation a key.
enum AnyLooked<'a> {
    Bucket(Looked<'a, Bucket>),
    FixedWindow(Looked<'a, FixedWindow>),
    SlidingWindow(Looked<'a, SlidingWindow>),
    StrictWindow(Looked<'a, StrictWindow>),
    SlidingLog(Looked<'a, SlidingLog>),
    Concurrency(Looked<'a, Concurrency<'a>>),
}

/// Runs the same on whichever it is.
macro_rules! with_looked {
    ($any:expr, $looked:ident => $body:expr) => {
        match $any {
            AnyLooked::Bucket($looked) => $body,
            AnyLooked::FixedWindow($looked) => $body,
            AnyLooked::SlidingWindow($looked) => $body,
            AnyLooked::StrictWindow($looked) => $body,
            AnyLooked::SlidingLog($looked) => $body,
            AnyLooked::Concurrency($looked) => $body,
        }
    };
}

impl<'a> AnyLooked<'a> {
    fn at(
        redis: &'a Redis,
        name: KeyName,
        spec: &'a Spec<'a>,
        now: Timestamp,
        access: Access,
    ) -> Result<AnyLooked<'a>, Error> {
        let ask = spec.ask;
        Ok(match &spec.limit {
            AnyLimit::Bucket(limit) => AnyLooked::Bucket(Looked::at(redis, name, limit, ask, now, access)?),
            AnyLimit::FixedWindow(limit) => AnyLooked::FixedWindow(Looked::at(redis, name, limit, ask, now, access)?),
            AnyLimit::SlidingWindow(limit) => {
                AnyLooked::SlidingWindow(Looked::at(redis, name, limit, ask, now, access)?)
            }
            AnyLimit::StrictWindow(limit) => AnyLooked::StrictWindow(Looked::at(redis, name, limit, ask, now, access)?),
            AnyLimit::SlidingLog(limit) => AnyLooked::SlidingLog(Looked::at(redis, name, limit, ask, now, access)?),
            AnyLimit::Concurrency(limit) => AnyLooked::Concurrency(Looked::at(redis, name, limit, ask, now, access)?),
        })
    }

    fn denies(&self) -> bool {
        with_looked!(self, looked => looked.denies())
    }

    fn check_entries(&self, now: Timestamp) -> Result<(), Error> {
        with_looked!(self, looked => looked.check_entries(now))
    }

    fn check_memory(&self, redis: &Redis, now: Timestamp) -> Result<(), Error> {
        with_looked!(self, looked => looked.check_memory(redis, now))
    }

    fn answer(&self, now: Timestamp) -> Decision {
        with_looked!(self, looked => looked.answer(now))
    }

    fn settle(&mut self, now: Timestamp, allowed: bool) -> (Decision, Outcome) {
        with_looked!(self, looked => looked.settle(now, allowed))
    }
}

/// Runs `run` with what the key remembers, or with nothing used, but nothing that was written later than `now`.
fn with_usage<U: Usage, T>(key: &Key<U>, now: Timestamp, run: impl FnOnce(&U) -> T) -> T {
    match key.usage() {
        None => run(&U::default()),
        Some(usage) if usage.is_after(now) => {
            let mut usage = usage.clone();
            usage.move_back(now);
            run(&usage)
        }
        Some(usage) => run(usage),
    }
}
