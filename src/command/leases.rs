//! A concurrency limit: `RL.ACQUIRE` and `RL.RELEASE`.

use crate::args::Args;
use crate::error::Error;
use crate::limiter::leases::LeasesUsage;
use crate::limiter::{Span, Usage};
use crate::redis::effect::Changes;
use crate::redis::key::Access;
use crate::redis::{self, Redis};
use crate::spec::{Spec, holders};

/// `RL.ACQUIRE key limit ttl holder [COST cost]`
pub fn acquire(redis: &Redis, args: Args) -> Result<(), Error> {
    super::algorithm::charge(redis, args, Spec::concurrency)
}

/// `RL.RELEASE key holder [holder ...]`
pub fn release(redis: &Redis, mut args: Args) -> Result<(), Error> {
    let (name, _) = args.key()?;
    let holders = holders(&mut args)?;
    let now = redis::now();
    let mut key = redis.open(name, LeasesUsage::KIND, Access::Change)?;
    let Some(usage) = key.usage_mut::<LeasesUsage>() else {
        redis.reply_integer(0);
        return Ok(());
    };
    let ahead = usage.ahead(now);
    if ahead != Span::ZERO {
        usage.move_back(now);
    }
    let released = usage.release(&holders, now);
    let last_lapse = usage.time_to_last_lapse(now);
    let mut changes = Changes::default();
    if released > 0 {
        key.written::<LeasesUsage>(now, last_lapse, &mut changes);
    } else if ahead != Span::ZERO {
        key.moved_back::<LeasesUsage>(now, ahead, last_lapse, &mut changes);
    }
    redis.propagate(&changes);
    redis.reply_integer(i64::try_from(released).unwrap_or(i64::MAX));
    Ok(())
}
