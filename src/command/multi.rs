//! Several limits in one call, all or nothing: `RL.MTAKE` and `RL.MPEEK`.
//!
//! Every key is opened and looked at before any is charged, in one instant, and what changes travels as one effect.

use super::AnyLooked;
use crate::args::Args;
use crate::error::Error;
use crate::limiter::{Decision, Timestamp};
use crate::redis::effect::Outcome;
use crate::redis::key::Access;
use crate::redis::{self, Redis};
use crate::reply;
use crate::spec::{Part, several};

/// `RL.MTAKE numkeys key [key ...] spec [spec ...]`
pub fn take(redis: &Redis, args: Args) -> Result<(), Error> {
    let parts = read(args)?;
    let now = redis::now();
    let mut looked = look(redis, &parts, now, Access::Change)?;
    let allowed = pass(&looked, now)?;
    if allowed {
        looked.iter().try_for_each(|key| key.check_memory(redis, now))?;
    }
    let settled: Vec<(Decision, Outcome)> = looked.iter_mut().map(|key| key.settle(now, allowed)).collect();
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
    pass(&looked, now)?;
    let decisions: Vec<Decision> = looked.iter().map(|key| key.answer(now)).collect();
    reply::decisions(redis, decisions.iter().zip(&looked).map(|(decision, key)| (decision, key.denies())));
    Ok(())
}

/// Whether all pass; refused if they would and a key would get more entries than it may have.
fn pass(looked: &[AnyLooked], now: Timestamp) -> Result<bool, Error> {
    let allowed = !looked.iter().any(AnyLooked::denies);
    if allowed {
        looked.iter().try_for_each(|key| key.check_entries(now))?;
    }
    Ok(allowed)
}

fn read(mut args: Args<'_>) -> Result<Vec<Part<'_>>, Error> {
    let parts = several(&mut args)?;
    args.end()?;
    Ok(parts)
}

/// Opens every key and looks at it.
fn look<'a>(
    redis: &'a Redis,
    parts: &'a [Part<'a>],
    now: Timestamp,
    access: Access,
) -> Result<Vec<AnyLooked<'a>>, Error> {
    let mut looked = Vec::with_capacity(parts.len());
    for (name, spec) in parts {
        looked.push(AnyLooked::at(redis, *name, spec, now, access)?);
    }
    Ok(looked)
}
