//! A concurrency limit: `RL.ACQUIRE` and `RL.RELEASE`.

use crate::redis::{self, Redis, guard};
use crate::reply::Reply;
use ratelimit_core::args::Args;
use ratelimit_core::error::Error;
use ratelimit_core::expiry::{Expiry, StepBack};
use ratelimit_core::leases::ConcurrencyUsage;
use ratelimit_core::spec::{Spec, holders};
use ratelimit_core::{Span, Usage};

/// `RL.ACQUIRE key limit ttl holder [COST cost]`
pub fn acquire(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    super::algorithm::charge(redis, args, Spec::concurrency)
}

/// `RL.RELEASE key holder [holder ...]`
pub fn release(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let (name, _) = args.key()?;
    let holders = holders(&mut args)?;
    let now = redis::now();
    let mut key = redis.open::<ConcurrencyUsage>(name)?;
    let usage = key.usage_mut();
    let back = usage.ahead(now);
    let before = Expiry::of(now.plus(back), usage.time_to_last_lapse(now.plus(back)));
    if back != Span::ZERO {
        usage.move_back(now);
    }
    let released = usage.release(&holders, now);
    guard::point();
    let after = Expiry::of(now, usage.time_to_last_lapse(now));
    let recovery = usage.recovery();
    if released > 0 {
        key.charged(now, after, back != Span::ZERO);
    } else if back != Span::ZERO {
        key.moved_back(&StepBack { now, back, recovery, before, after });
    }
    Ok(Reply::count(released))
}
