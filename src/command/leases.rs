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
use ratelimit_core::{Kind, Span, Timestamp, Usage};

/// `RL.ACQUIRE key limit ttl holder [COST cost] [KEEP amount] [AS name] [NX]`
pub fn acquire(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    super::algorithm::charge(redis, args, Spec::concurrency)
}

/// `RL.RELEASE key holder [holder ...]`
pub fn release(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = args.key()?;
    let holders = holders(&mut args)?;
    let now = redis::now();
    let of_plain =
        release_from(redis, name, now, ConcurrencyUsage::time_to_last_expiry, |leases| leases.release(&holders, now));
    match of_plain {
        Err(Error::WrongType { holds, .. }) if holds == Kind::Limits.name() => {
            release_from(redis, name, now, PartsUsage::reset, |parts| parts.release(&holders, now))
        }
        released => released,
    }
}

/// Releases leases from what a key remembers, which recovers after its `reset`.
fn release_from<U: Usage>(
    redis: &mut Redis,
    name: KeyName,
    now: Timestamp,
    reset: impl Fn(&U, Timestamp) -> Span,
    release: impl FnOnce(&mut U) -> usize,
) -> Result<Reply, Error> {
    let mut key = redis.open::<U>(name)?;
    let usage = key.usage_mut();
    let step = step_back(usage, now, &reset);
    let released = release(usage);
    guard::point();
    let expiry = Expiry::of(now, reset(usage, now));
    if released > 0 {
        key.charged(now, expiry, step.is_some());
    } else if let Some(step) = step {
        key.moved_back(&step);
    }
    Ok(Reply::count(released))
}
