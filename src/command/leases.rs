//! A concurrency limit: `RL.ACQUIRE` and `RL.RELEASE`.

use super::step_back;
use crate::redis::{self, Redis, guard};
use crate::reply::Reply;
use ratelimit_core::args::{Args, KeyName};
use ratelimit_core::error::Error;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::leases::ConcurrencyUsage;
use ratelimit_core::parts::PartsUsage;
use ratelimit_core::spec::{Spec, holders};
use ratelimit_core::{Kind, Timestamp};

/// `RL.ACQUIRE key limit ttl holder [COST cost] [KEEP amount] [AS name] [NX]`
pub fn acquire(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    super::algorithm::charge(redis, args, Spec::concurrency)
}

/// `RL.RELEASE key holder [holder ...]`
pub fn release(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = args.key()?;
    let holders = holders(&mut args)?;
    let now = redis::now();
    match release_leases(redis, name, &holders, now) {
        Err(Error::WrongType { holds, .. }) if holds == Kind::Limits.name() => release_part(redis, name, &holders, now),
        released => released,
    }
}

fn release_leases(redis: &mut Redis, name: KeyName, holders: &[&[u8]], now: Timestamp) -> Result<Reply, Error> {
    let mut key = redis.open::<ConcurrencyUsage>(name)?;
    let usage = key.usage_mut();
    let step = step_back(usage, now, ConcurrencyUsage::time_to_last_expiry);
    let released = usage.release(holders, now);
    guard::point();
    let expiry = Expiry::of(now, usage.time_to_last_expiry(now));
    if released > 0 {
        key.charged(now, expiry, step.is_some());
    } else if let Some(step) = step {
        key.moved_back(&step);
    }
    Ok(Reply::count(released))
}

/// The same on a key with parts, one of which may be leases.
#[cold]
fn release_part(redis: &mut Redis, name: KeyName, holders: &[&[u8]], now: Timestamp) -> Result<Reply, Error> {
    let mut key = redis.open::<PartsUsage>(name)?;
    let usage = key.usage_mut();
    let step = step_back(usage, now, PartsUsage::reset);
    let released = usage.release(holders, now);
    guard::point();
    let expiry = Expiry::of(now, usage.reset(now));
    if released > 0 {
        key.charged(now, expiry, step.is_some());
    } else if let Some(step) = step {
        key.moved_back(&step);
    }
    Ok(Reply::count(released))
}
