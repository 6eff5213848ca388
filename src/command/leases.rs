//! A concurrency limit: `RL.ACQUIRE` and `RL.RELEASE`.

use crate::args::Args;
use crate::error::Error;
use crate::limiter::leases::LeasesUsage;
use crate::limiter::{Span, Usage};
use crate::redis::key::{Access, Key};
use crate::redis::{self, Redis};
use crate::spec::{Spec, holder};

/// `RL.ACQUIRE key limit ttl holder [COST cost]`
pub fn acquire(redis: &Redis, args: Args) -> Result<(), Error> {
    super::algorithm::charge(redis, args, Spec::concurrency)
}

/// `RL.RELEASE key holder [holder ...]`
pub fn release(redis: &Redis, mut args: Args) -> Result<(), Error> {
    let (name, _) = args.key()?;
    let mut holders = vec![holder(&mut args)?];
    while !args.is_empty() {
        holders.push(holder(&mut args)?);
    }
    let now = redis::now();
    let mut key: Key<LeasesUsage> = redis.open(name, Access::Change)?;
    let Some(usage) = key.usage_mut() else {
        redis.reply_integer(0);
        return Ok(());
    };
    let clock_went_back = usage.is_after(now);
    if clock_went_back {
        usage.move_back(now);
    }
    let released = usage.release(&holders, now);
    if clock_went_back || released > 0 {
        let last_lapse: Span = usage.time_to_last_lapse(now);
        let outcome = key.written(now, last_lapse);
        redis.propagate(&[(name, outcome)]);
    }
    redis.reply_integer(i64::try_from(released).unwrap_or(i64::MAX));
    Ok(())
}
