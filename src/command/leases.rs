//! Giving leases of a concurrency limit back: `RL.RELEASE`.

use super::step_back;
use crate::redis::{self, Redis, guard};
use crate::reply::Reply;
use crate::server::queues::Grant;
use ratelimit_core::args::{Args, KeyName};
use ratelimit_core::composite::PartsUsage;
use ratelimit_core::error::Error;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::leases::ConcurrencyUsage;
use ratelimit_core::spec::holders;
use ratelimit_core::{Kind, Span, Timestamp, Usage};

/// `RL.RELEASE key holder [holder ...]`
pub fn release(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = args.key()?;
    let holders = holders(&mut args)?;
    let now = redis::now();
    let give_up =
        if redis.global.queues.any() { waiting_without_lease(redis, name, &holders, now) } else { Vec::new() };
    let released = release_from_key(
        redis,
        name,
        now,
        |leases| leases.release(&holders, now),
        |parts| parts.release(&holders, now),
    )?;
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
    waiting.retain(|holder| waits(redis, holder) && expires_at(redis, name, holder, now).is_none());
    waiting
}

/// Gives a lease back that was granted to a client that had gone, unless its holder has renewed it since.
pub fn give_back(redis: &mut Redis, name: KeyName, Grant { holder, expires_at, .. }: &Grant, now: Timestamp) {
    let holders = [&**holder];
    let released = release_from_key(
        redis,
        name,
        now,
        |leases| if leases.lease_until(holder, now) == Some(*expires_at) { leases.release(&holders, now) } else { 0 },
        |parts| if parts.lease_until(holder, now) == Some(*expires_at) { parts.release(&holders, now) } else { 0 },
    );
    // What the key holds now, if it is something else, has no such lease.
    drop(released);
}

/// Moves the leases of a key back with the clock, if that has gone back: as a denied call does.
pub fn follow_clock(redis: &mut Redis, name: KeyName, now: Timestamp) {
    // What holds no leases has none to move.
    drop(release_from_key(redis, name, now, |_| 0, |_| 0));
}

/// When a holder's lease of a key expires; `None` if it has none.
pub fn expires_at(redis: &mut Redis, name: KeyName, holder: &[u8], now: Timestamp) -> Option<Timestamp> {
    match redis.peek::<ConcurrencyUsage>(name) {
        Ok(key) => key.usage().lease_until(holder, now),
        Err(_) => redis.peek::<PartsUsage>(name).ok()?.usage().lease_until(holder, now),
    }
}

/// Releases leases of a key, whatever it holds them in; how many.
fn release_from_key(
    redis: &mut Redis,
    name: KeyName,
    now: Timestamp,
    of_plain: impl FnOnce(&mut ConcurrencyUsage) -> usize,
    of_parts: impl FnOnce(&mut PartsUsage) -> usize,
) -> Result<usize, Error> {
    match release_from(redis, name, now, ConcurrencyUsage::time_to_last_expiry, of_plain) {
        Err(Error::WrongType { holds, .. }) if holds == Kind::Limits.name() => {
            release_from(redis, name, now, PartsUsage::reset, of_parts)
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
) -> Result<usize, Error> {
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
    Ok(released)
}
