//! Several limits in one call, all or nothing: `RL.MTAKE` and `RL.MPEEK`.
//!
//! Every key is opened and looked at before any is charged, in one instant, and what changes travels as one effect.

use super::Looked;
use crate::args::Args;
use crate::error::Error;
use crate::limiter::{Decision, Timestamp};
use crate::redis::effect::Outcome;
use crate::redis::key::Access;
use crate::redis::{self, Redis};
use crate::reply;
use crate::spec::{Part, several, with_limit};

/// `RL.MTAKE numkeys key [key ...] spec [spec ...]`
pub fn take(redis: &Redis, args: Args) -> Result<(), Error> {
    let parts = read(args)?;
    let now = redis::now();
    let mut looked = look(redis, &parts, now, Access::Change)?;
    let allowed = pass(&looked)?;
    if allowed {
        looked.iter().try_for_each(|key| key.check_memory(redis))?;
    }
    let settle =
        |((_, spec), key): (&Part, &mut Looked)| with_limit!(&spec.limit, limit => key.settle(limit, now, allowed));
    let settled: Vec<(Decision, Outcome)> = parts.iter().zip(&mut looked).map(settle).collect();
    redis.stats.decided(allowed);
    redis.propagate(parts.iter().zip(&settled).map(|((name, _), (_, outcome))| (*name, outcome)));
    let decisions = settled.iter().map(|(decision, _)| decision);
    reply::decisions(redis, decisions.zip(&looked).map(|(decision, key)| (decision, key.denies())));
    Ok(())
}

/// `RL.MPEEK numkeys key [key ...] spec [spec ...]`
pub fn peek(redis: &Redis, args: Args) -> Result<(), Error> {
    let parts = read(args)?;
    let now = redis::now();
    let looked = look(redis, &parts, now, Access::Look)?;
    pass(&looked)?;
    let answer = |((_, spec), key): (&Part, &Looked)| with_limit!(&spec.limit, limit => key.answer(limit, now));
    let decisions: Vec<Decision> = parts.iter().zip(&looked).map(answer).collect();
    reply::decisions(redis, decisions.iter().zip(&looked).map(|(decision, key)| (decision, key.denies())));
    Ok(())
}

/// Whether all pass; refused if they would and a key would get more entries than it may have.
fn pass(looked: &[Looked]) -> Result<bool, Error> {
    let allowed = !looked.iter().any(Looked::denies);
    if allowed {
        looked.iter().try_for_each(Looked::check_entries)?;
    }
    Ok(allowed)
}

fn read(mut args: Args<'_>) -> Result<Vec<Part<'_>>, Error> {
    let parts = several(&mut args)?;
    args.end()?;
    Ok(parts)
}

/// Opens every key and looks at it.
fn look<'a>(redis: &'a Redis, parts: &[Part], now: Timestamp, access: Access) -> Result<Vec<Looked<'a>>, Error> {
    let mut looked = Vec::with_capacity(parts.len());
    for (name, spec) in parts {
        looked.push(with_limit!(&spec.limit, limit => Looked::at(redis, *name, limit, spec.ask, now, access))?);
    }
    Ok(looked)
}
