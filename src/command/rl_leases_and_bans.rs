//! Leases of a concurrency limit, `RL.ACQUIRE` and `RL.RELEASE`, and manual bans, `RL.BAN`.
//!
//! A call of RL.ACQUIRE with BLOCK that would be denied waits in the queue of its key instead (`src/waiting/`).

use super::rl_take;
use crate::charge;
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::waiting::{self, queue_order};
use ratelimit_core::syntax::{self, AcquireOptions, KeyRequest, Spec, SpecOptions};
use ratelimit_core::wire::args::{Args, KeyIndex};
use ratelimit_core::wire::error::Error;

/// `RL.ACQUIRE key limit ttl holder [COST cost] [KEEP amount] [AS name] [NX] [BLOCK duration] [FENCE]`
pub fn acquire(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let (key, mut options) = (args.key()?, SpecOptions::default());
    let (parsed, acquire_options) = Spec::acquire(&mut args, &mut options)?;
    if options.is_plain(&args) && acquire_options == AcquireOptions::default() && !redis.state.queues.has_waiters() {
        return rl_take::charge_spec(redis, key, &Spec::plain(parsed));
    }
    acquire_in_turn(redis, key, KeyRequest::build_single_with_options(&mut args, &parsed, &options)?, acquire_options)
}

#[inline(never)]
fn acquire_in_turn(
    redis: &mut Redis,
    index: KeyIndex,
    mut request: KeyRequest,
    AcquireOptions { block, fence }: AcquireOptions,
) -> Result<Reply, Error> {
    queue_order::put_behind_waiters(redis, index, &mut request);
    let now = redis::now();
    if fence {
        waiting::assign_token(redis, &mut request, now);
    }
    if waiting::wait(redis, index, &mut request, block, now)? {
        return Ok(Reply::Later);
    }
    let decision = charge::charge(redis, index, &request, None, now)?.decision;
    Ok(waiting::reply_with_token(redis, index, &request, &decision, now))
}

/// `RL.RELEASE key holder [holder ...]`
pub fn release(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let holders = syntax::holders(&mut args)?;
    let now = redis::now();
    let to_deny = waiting::holders_waiting_without_lease(redis, key, &holders, now);
    let released = charge::release(redis, key, &holders, None, now)?;
    for holder in to_deny {
        waiting::deny(redis, key, holder, now);
    }
    Ok(Reply::count(released))
}

/// `RL.BAN key duration`
pub fn ban(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let duration = syntax::ban_duration(&mut args)?;
    let now = redis::now();
    charge::ban(redis, key, duration, now).map(Reply::millis)
}
