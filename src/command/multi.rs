//! Several limits in one call, all or nothing: `RL.MTAKE` and `RL.MPEEK`.
//!
//! Every key is opened and looked at before any is charged, in one instant, and what changes travels as one effect.

use super::Looked;
use crate::args::Args;
use crate::error::Error;
use crate::limiter::{Decision, Timestamp, Verdict};
use crate::redis::effect::Changes;
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
    redis.stats.decided(allowed);
    let mut changes = Changes::default();
    let mut decisions = Vec::with_capacity(parts.len());
    for ((_, spec), key) in parts.iter().zip(&mut looked) {
        decisions.push(with_limit!(&spec.limit, limit => key.settle(limit, now, allowed, &mut changes)));
    }
    redis.propagate(&changes);
    reply::decisions(redis, allowed, wait(&looked, allowed), &decisions);
    Ok(())
}

/// `RL.MPEEK numkeys key [key ...] spec [spec ...]`
pub fn peek(redis: &Redis, args: Args) -> Result<(), Error> {
    let parts = read(args)?;
    let now = redis::now();
    let looked = look(redis, &parts, now, Access::Look)?;
    let allowed = pass(&looked)?;
    let answer = |((_, spec), key): (&Part, &Looked)| with_limit!(&spec.limit, limit => key.answer(limit, now));
    let decisions: Vec<Decision> = parts.iter().zip(&looked).map(answer).collect();
    reply::decisions(redis, allowed, wait(&looked, allowed), &decisions);
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

/// If all passed, the longest hold (a FORCE that did not fit has passed, and its wait is no hold); else the longest
/// wait of those that stood in the way.
fn wait(looked: &[Looked], allowed: bool) -> Option<Verdict> {
    looked.iter().filter(|key| if allowed { key.verdict().allowed() } else { key.denies() }).map(Looked::verdict).max()
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
