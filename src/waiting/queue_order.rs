//! Queue order: a new call of any command goes behind the calls that wait for a lease of its key.

use super::timer;
use crate::redis::Redis;
use ratelimit_core::AnyLimit;
use ratelimit_core::syntax::{KeyRequest, Spec};
use ratelimit_core::wire::args::KeyIndex;

/// Places a call that takes leases of a key behind the waiting calls, and applies its limit to them. Specs of other
/// algorithms are not changed.
#[inline(always)]
pub fn place_take(redis: &Redis, index: KeyIndex, request: &mut KeyRequest) {
    if redis.global.queues.any() {
        for spec in specs(request) {
            place_behind(redis, index, spec, true);
        }
    }
}

/// Places a call that only peeks behind the waiting calls of its key, without applying its limit to them.
#[inline(always)]
pub fn place_peek(redis: &Redis, index: KeyIndex, request: &mut KeyRequest) {
    if redis.global.queues.any() {
        for spec in specs(request) {
            place_behind(redis, index, spec, false);
        }
    }
}

/// Returns the specs of a call.
pub fn specs<'s, 'a>(request: &'s mut KeyRequest<'a>) -> &'s mut [Spec<'a>] {
    match request {
        KeyRequest::One(spec) => std::slice::from_mut(spec),
        KeyRequest::Composite(call) => &mut call.specs,
        KeyRequest::Policy(_) => &mut [],
    }
}

/// Places a spec behind the waiting calls if it takes leases. With `takes`, its limit is applied to them.
#[cold]
fn place_behind(redis: &Redis, index: KeyIndex, spec: &mut Spec, takes: bool) {
    let limit = spec.limit.raised_by(spec.keep).limit();
    let AnyLimit::Concurrency(concurrency) = &mut spec.limit else { return };
    let (queues, db, key) = (&redis.global.queues, redis.db(), redis.key_bytes(index));
    let is_limit = takes && !spec.shadow && !spec.request.is_peek();
    let callers_wait_ahead = if is_limit {
        let (callers_wait_ahead, limit_changed) = queues.limit_to(db, key, limit);
        if limit_changed {
            timer::arm(redis.entry());
        }
        callers_wait_ahead
    } else {
        queues.waiting(db, key) > 0
    };
    *concurrency = concurrency.behind(callers_wait_ahead);
}
