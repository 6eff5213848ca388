//! Giving leases of a concurrency limit back: `RL.RELEASE`.

use crate::charge;
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::server::queues::Grant;
use ratelimit_core::Timestamp;
use ratelimit_core::syntax::holders;
use ratelimit_core::wire::args::{Args, KeyName};
use ratelimit_core::wire::error::Error;

/// `RL.RELEASE key holder [holder ...]`
pub fn release(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = args.key()?;
    let holders = holders(&mut args)?;
    let now = redis::now();
    let give_up =
        if redis.global.queues.any() { waiting_without_lease(redis, name, &holders, now) } else { Vec::new() };
    let released = charge::release(redis, name, &holders, now)?;
    for holder in give_up {
        redis.deny_waiting(name, holder, now);
    }
    Ok(Reply::count(released))
}

/// Those who wait for a lease and have none that they could give back, and so give up. Whoever goes away and says so on
/// another connection may be heard there first: a lease that it was granted afterwards would be nobody's.
#[cold]
fn waiting_without_lease<'h>(redis: &mut Redis, name: KeyName, holders: &[&'h [u8]], now: Timestamp) -> Vec<&'h [u8]> {
    let waits = |redis: &Redis, holder: &[u8]| redis.global.queues.waits(redis.db(), redis.key_bytes(name), holder);
    let mut waiting = holders.to_vec();
    waiting.retain(|holder| waits(redis, holder) && charge::lease_until(redis, name, holder, now).is_none());
    waiting
}

/// Gives a lease back that was granted to a client that had gone, unless its holder has renewed it since.
pub fn give_back(redis: &mut Redis, name: KeyName, Grant { holder, expires_at, .. }: &Grant, now: Timestamp) {
    // What the key holds now, if it is something else, has no such lease.
    drop(charge::give_back(redis, name, holder, *expires_at, now));
}
