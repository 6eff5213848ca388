//! One algorithm on one key: `RL.TOKENBUCKET` and its siblings, the generic `RL.TAKE`, and `RL.PEEK`.

use super::{behind, limit, several};
use crate::redis::{self, Redis};
use crate::reply::Reply;
use ratelimit_core::args::{Args, KeyName};
use ratelimit_core::error::Error;
use ratelimit_core::spec::{Asked, Behind, Call, Numbers, Spec};
use ratelimit_core::with_limit;
use ratelimit_core::{Decision, Timestamp};

/// `RL.TOKENBUCKET key capacity refill period [options]`
pub fn token_bucket(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::token_bucket)
}

/// `RL.LEAKYBUCKET key capacity leak period [options]`
pub fn leaky_bucket(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::leaky_bucket)
}

/// `RL.FIXED key limit window [ALIGNED [OFFSET offset] [ANCHOR day]] [options]`
pub fn fixed_window(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::fixed_window)
}

/// `RL.SLIDING key limit window [STRICT] [options]`
pub fn sliding_window(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::sliding_window)
}

/// `RL.SLIDINGLOG key limit window [options]`
pub fn sliding_log(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::sliding_log)
}

/// `RL.TAKE key [options] spec [spec ...]`
pub fn take(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let mut asked = Asked::take(&mut args)?;
    behind::take(redis, key, &mut asked);
    charge_with_options(redis, key, asked)
}

/// `RL.PEEK key [options] spec [spec ...]`
pub fn peek(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let mut asked = Asked::peek(&mut args)?;
    behind::look(redis, key, &mut asked);
    let now = redis::now();
    match asked {
        Asked::One(spec) => peek_one(redis, key, &spec, now).map(|decision| Reply::decision(&decision)),
        Asked::Several(call) => several::peek(redis, key, &call, now).map(|answer| several::reply(&call, &answer)),
        Asked::Policy(by) => limit::peek(redis, key, &by, now),
    }
}

/// Reads a spec of one algorithm, and charges it.
pub fn charge<'a>(
    redis: &mut Redis,
    mut args: Args<'a>,
    read: impl FnOnce(&mut Args<'a>, &mut Behind<'a>) -> Result<Numbers<'a>, Error>,
) -> Result<Reply, Error> {
    let (key, mut behind) = (args.key()?, Behind::default());
    let numbers = read(&mut args, &mut behind)?;
    // Here the compiler knows which algorithm it is.
    if behind.is_nothing(&args) {
        return charge_one(redis, key, &Spec::plain(numbers));
    }
    charge_with_options(redis, key, Asked::alone(&mut args, &numbers, &behind)?)
}

/// The decision on a call that changes nothing.
pub(super) fn peek_asked(redis: &mut Redis, key: KeyName, asked: &Asked, now: Timestamp) -> Result<Decision, Error> {
    match asked {
        Asked::One(spec) => peek_one(redis, key, spec, now),
        Asked::Several(call) => several::peek(redis, key, call, now).map(|answer| answer.decision),
        Asked::Policy(_) => Err(Error::Internal),
    }
}

/// The decision on a call that is charged if its limits allow it.
pub(super) fn charge_asked(redis: &mut Redis, key: KeyName, asked: &Asked, now: Timestamp) -> Result<Decision, Error> {
    match asked {
        Asked::One(spec) => decide_one(redis, key, spec, now),
        Asked::Several(call) => several::charge(redis, key, call, now).map(|answer| answer.decision),
        Asked::Policy(_) => Err(Error::Internal),
    }
}

fn peek_one(redis: &mut Redis, key: KeyName, spec: &Spec, now: Timestamp) -> Result<Decision, Error> {
    match with_limit!(spec, limit => super::peek(redis, key, limit, spec.ask, now)) {
        Ok(decision) => Ok(decision.keeping(spec.kept)),
        Err(refused) => several::peek(redis, key, &several::of_one(spec, refused)?, now).map(|answer| answer.decision),
    }
}

#[inline(never)]
fn charge_with_options(redis: &mut Redis, key: KeyName, asked: Asked) -> Result<Reply, Error> {
    match asked {
        Asked::One(spec) => charge_one(redis, key, &spec),
        Asked::Several(call) => charge_several(redis, key, &call),
        Asked::Policy(by) => limit::charge(redis, key, &by, redis::now()),
    }
}

/// The reply to a call of one spec, which is charged if its limit allows it.
#[inline(always)]
pub(super) fn charge_one(redis: &mut Redis, key: KeyName, spec: &Spec) -> Result<Reply, Error> {
    decide_one(redis, key, spec, redis::now()).map(|decision| Reply::decision(&decision))
}

#[inline(always)]
fn decide_one(redis: &mut Redis, key: KeyName, spec: &Spec, now: Timestamp) -> Result<Decision, Error> {
    match with_limit!(spec, limit => super::charge(redis, key, limit, spec.ask, now)) {
        Ok(decision) => Ok(decision.keeping(spec.kept)),
        Err(refused) => several::charge_one(redis, key, spec, now, refused),
    }
}

#[inline(never)]
fn charge_several(redis: &mut Redis, key: KeyName, call: &Call) -> Result<Reply, Error> {
    several::charge(redis, key, call, redis::now()).map(|answer| several::reply(call, &answer))
}
