//! One algorithm on one key: `RL.TOKENBUCKET` and its siblings, the generic `RL.TAKE`, and `RL.PEEK`.

use crate::redis::{self, Redis};
use crate::reply::Reply;
use ratelimit_core::args::Args;
use ratelimit_core::error::Error;
use ratelimit_core::spec::Spec;
use ratelimit_core::with_limit;

/// `RL.TOKENBUCKET key capacity refill period [COST cost] [UPTO | FORCE | MAXWAIT duration]`
pub fn token_bucket(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::token_bucket)
}

/// `RL.LEAKYBUCKET key capacity leak period [COST cost] [UPTO | FORCE]`
pub fn leaky_bucket(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::leaky_bucket)
}

/// `RL.FIXED key limit window [ALIGNED] [COST cost] [UPTO | FORCE]`
pub fn fixed_window(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::fixed_window)
}

/// `RL.SLIDING key limit window [STRICT] [COST cost] [UPTO | FORCE]`
pub fn sliding_window(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::sliding_window)
}

/// `RL.SLIDINGLOG key limit window [COST cost] [UPTO | FORCE]`
pub fn sliding_log(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::sliding_log)
}

/// `RL.TAKE key algorithm ...`
pub fn take(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    charge(redis, args, Spec::any)
}

/// `RL.PEEK key algorithm ...`
pub fn peek(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let spec = Spec::any(&mut args)?;
    args.end()?;
    let now = redis::now();
    let decision = with_limit!(spec, limit => super::peek(redis, key, limit, spec.ask, now))?;
    Ok(Reply::decision(&decision))
}

/// Reads a spec of one kind, or of any, and charges it.
pub fn charge<'a>(
    redis: &mut Redis,
    mut args: Args<'a>,
    read: impl FnOnce(&mut Args<'a>) -> Result<Spec<'a>, Error>,
) -> Result<Reply, Error> {
    let key = args.key()?;
    let spec = read(&mut args)?;
    args.end()?;
    let now = redis::now();
    let decision = with_limit!(spec, limit => super::charge(redis, key, limit, spec.ask, now))?;
    Ok(Reply::decision(&decision))
}
