//! Release of leases of a concurrency limit: `RL.RELEASE`.

use crate::charge;
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::waiting;
use ratelimit_core::syntax::holders;
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;

/// `RL.RELEASE key holder [holder ...]`
pub fn release(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = args.key()?;
    let holders = holders(&mut args)?;
    let now = redis::now();
    let to_deny =
        if redis.global.queues.any() { waiting::waiting_without_lease(redis, name, &holders, now) } else { Vec::new() };
    let released = charge::release(redis, name, &holders, None, now)?;
    for holder in to_deny {
        waiting::deny(redis, name, holder, now);
    }
    Ok(Reply::count(released))
}
