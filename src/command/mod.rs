//! One file a command family; what all share is here, once: look at every key, then charge all or none, then reply.

pub mod algorithm;
pub mod docs;
pub mod effect;

use crate::args::KeyName;
use crate::error::Error;
use crate::limiter::{Ask, Change, Decision, Limit, Look, Timestamp, Usage, look, take};
use crate::redis::Redis;
use crate::redis::effect::Text;
use crate::redis::key::{Access, Key};

/// Looks at what `key` holds, as if a clock gone back had been seen to already.
fn look_at<L: Limit>(key: &Key<L::Usage>, limit: &L, now: Timestamp, ask: Ask) -> Look {
    with_usage(key, now, |usage| look(limit, usage, now, ask))
}

/// The answer to a call that changes nothing.
fn peek<L: Limit>(redis: &Redis, name: KeyName, limit: &L, ask: Ask) -> Result<Decision, Error> {
    let now = redis.now();
    let key = redis.open(name, Access::Look)?;
    let look = look_at(&key, limit, now, ask);
    Ok(with_usage(&key, now, |usage| look.decision(limit, usage, now, false)))
}

/// Charges a single key, if its limit allows it.
fn charge<L: Limit>(redis: &Redis, name: KeyName, limit: &L, ask: Ask) -> Result<Decision, Error> {
    let now = redis.now();
    let mut key = redis.open(name, Access::Change)?;
    let look = look_at(&key, limit, now, ask);
    refuse_when_out_of_memory(redis, &key, &look)?;
    let (decision, effect) = settle(&mut key, limit, now, &look, true);
    if let Some(effect) = effect {
        redis.propagate(&[(name, effect.bytes())]);
    }
    Ok(decision)
}

/// Memory is asked for only by a call that would make a key.
fn refuse_when_out_of_memory<U: Usage>(redis: &Redis, key: &Key<U>, look: &Look) -> Result<(), Error> {
    let makes_a_key = key.usage().is_none() && matches!(look.change(), Change::Charge(_));
    if makes_a_key && redis.out_of_memory() { Err(Error::OutOfMemory) } else { Ok(()) }
}

/// The second step, after every key of the call was looked at: makes the change that `look` announced if the call as
/// a whole is `allowed`, and mends a clock gone back in any case. Nothing can fail any more.
fn settle<L: Limit>(
    key: &mut Key<L::Usage>,
    limit: &L,
    now: Timestamp,
    look: &Look,
    allowed: bool,
) -> (Decision, Option<Text>) {
    let change = if allowed { look.change() } else { Change::Nothing };
    let Some(usage) = key.usage_mut() else {
        let mut usage = L::Usage::default();
        if let Change::Charge(_) = change {
            take(limit, &mut usage, now, change);
            let decision = look.decision(limit, &usage, now, true);
            key.create(usage);
            return (decision, Some(key.written(now, decision.reset)));
        }
        return (look.decision(limit, &usage, now, false), None);
    };
    let clock_went_back = usage.is_after(now);
    if clock_went_back {
        usage.move_back(now);
    }
    take(limit, usage, now, change);
    let decision = look.decision(limit, usage, now, allowed);
    let changed = clock_went_back || change != Change::Nothing;
    (decision, changed.then(|| key.written(now, decision.reset)))
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

