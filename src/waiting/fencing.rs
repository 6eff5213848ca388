//! Fencing tokens in calls of RL.ACQUIRE with FENCE, and in their replies.

use super::queue_order;
use crate::charge;
use crate::redis::Redis;
use crate::reply::Reply;
use ratelimit_core::syntax::KeyRequest;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::{Decision, Timestamp};

/// Adds a new fencing token to a call, which its lease gets unless it has one. An unused token is harmless, as the next
/// one is larger.
#[cold]
pub fn assign_token(redis: &Redis, request: &mut KeyRequest, now: Timestamp) {
    let token = redis.global.fencing.next(now);
    for spec in queue_order::specs(request) {
        spec.fence = token;
    }
}

/// Returns the reply to a call: with FENCE also the token of the lease that its holder has, or 0 if it is denied.
pub fn reply(redis: &mut Redis, index: KeyIndex, request: &KeyRequest, decision: &Decision, now: Timestamp) -> Reply {
    let spec = match request {
        KeyRequest::One(spec) => Some(spec),
        KeyRequest::Composite(call) => call.specs.first(),
        KeyRequest::Policy(_) => None,
    };
    let Some(spec) = spec.filter(|spec| spec.fence.is_some()) else { return Reply::decision(decision) };
    let token = if decision.verdict.allowed() { charge::lease_token(redis, index, spec.holder, now) } else { 0 };
    Reply::fenced(decision, token)
}
