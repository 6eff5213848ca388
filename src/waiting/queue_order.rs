//! Queue order: a new call that takes leases, by whatever command, goes behind the calls that already wait for a lease
//! of its key.

use super::timer;
use crate::redis::Redis;
use ratelimit_core::AnyLimit;
use ratelimit_core::syntax::{KeyRequest, Spec};
use ratelimit_core::wire::args::KeyIndex;

/// Puts the CONCURRENCY specs of a call behind the waiting calls of its key. Their limit becomes that of the queue, by
/// which the waiting calls are evaluated from now on.
#[inline(always)]
pub fn put_behind_waiters(redis: &Redis, index: KeyIndex, request: &mut KeyRequest) {
    if redis.state.queues.has_waiters() {
        put_specs_behind_waiters(redis, index, request, true);
    }
}

/// Puts the CONCURRENCY specs of a peek behind the waiting calls of its key, without changing the limit of the queue.
#[inline(always)]
pub fn put_peek_behind_waiters(redis: &Redis, index: KeyIndex, request: &mut KeyRequest) {
    if redis.state.queues.has_waiters() {
        put_specs_behind_waiters(redis, index, request, false);
    }
}

/// Returns the specs of a call; none for a call by policy that has not been replaced by its specs yet.
pub fn specs<'s, 'a>(request: &'s mut KeyRequest<'a>) -> &'s mut [Spec<'a>] {
    match request {
        KeyRequest::One(spec) => std::slice::from_mut(spec),
        KeyRequest::Composite(call) => &mut call.specs,
        KeyRequest::Policy(_) => &mut [],
    }
}

/// Puts each spec that takes leases behind the waiting calls. If `takes` is `true`, its limit becomes that of the queue,
/// unless the spec is in shadow mode or a peek.
#[cold]
fn put_specs_behind_waiters(redis: &Redis, index: KeyIndex, request: &mut KeyRequest, takes: bool) {
    let (queues, db, key) = (&redis.state.queues, redis.db(), redis.key_bytes(index));
    for spec in specs(request) {
        let limit_before_keep = spec.limit.raised_by(spec.keep).limit();
        let AnyLimit::Concurrency(concurrency) = &mut spec.limit else { continue };
        let applies_limit = takes && !spec.shadow && !spec.request.is_peek();
        let has_waiters_ahead = if applies_limit {
            let (has_waiters_ahead, limit_changed) = queues.apply_limit(db, key, limit_before_keep);
            if limit_changed {
                timer::arm(redis.entry());
            }
            has_waiters_ahead
        } else {
            queues.waiter_count(db, key) > 0
        };
        *concurrency = concurrency.with_waiters_ahead(has_waiters_ahead);
    }
}
