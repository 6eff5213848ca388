//! Limits defined by a policy: `RL.LIMIT`, `RL.DELAY`, and the option `POLICY` of other calls.
//!
//! If a plain key can store the usage of a policy, a call is evaluated like one with the same spec. Otherwise it is a
//! composite call over the limits of the policy, on one key.

use super::reply;
use crate::charge::{self, charge_one, charge_several};
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::server::policy_table::EffectivePolicy;
use crate::waiting::queue_order;
use ratelimit_core::syntax::{PolicyRequest, name_of_policy};
use ratelimit_core::wire::args::{Args, KeyIndex};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Timestamp};

/// `RL.LIMIT key name [OR name ...] [options]`
pub fn limit(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let name = name_of_policy(&mut args)?;
    let now = redis::now();
    if args.is_empty() {
        let policy = redis.state.policies.find_by_name(name, now)?;
        return charge_without_options(redis, key, &policy, now).map(|decision| Reply::decision(&decision));
    }
    charge_by_policy(redis, key, &PolicyRequest::after_first_name(name, &mut args)?, now)
}

/// `RL.DELAY key name [OR name ...] [options]`
pub fn delay(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let name = name_of_policy(&mut args)?;
    let now = redis::now();
    if args.is_empty() {
        let policy = redis.state.policies.find_by_name(name, now)?;
        policy.limits.reject_longer_reply()?;
        return charge_without_options(redis, key, &policy, now).map(|decision| Reply::delay(decision.verdict));
    }
    let policy_request = PolicyRequest::after_first_name(name, &mut args)?;
    let policy = redis.state.policies.find_first(&policy_request, now)?;
    policy_request.reject_longer_reply(&policy.limits)?;
    let mut request = policy_request.request(&policy.limits)?;
    queue_order::put_behind_waiters(redis, key, &mut request);
    let answer = charge::charge(redis, key, &request, Some(&policy), now)?;
    Ok(Reply::delay(answer.decision.verdict))
}

/// Charges a call under a policy if its limits grant it; returns the reply.
pub fn charge_by_policy(
    redis: &mut Redis,
    key: KeyIndex,
    policy_request: &PolicyRequest,
    now: Timestamp,
) -> Result<Reply, Error> {
    let policy = redis.state.policies.find_first(policy_request, now)?;
    let mut request = policy_request.request(&policy.limits)?;
    queue_order::put_behind_waiters(redis, key, &mut request);
    let answer = charge::charge(redis, key, &request, Some(&policy), now)?;
    Ok(reply(&request, &answer, Some(&policy)))
}

/// Returns the reply to a call under a policy without charging it.
pub fn peek_by_policy(
    redis: &mut Redis,
    key: KeyIndex,
    policy_request: &PolicyRequest,
    now: Timestamp,
) -> Result<Reply, Error> {
    let policy = redis.state.policies.find_first(policy_request, now)?;
    let mut request = policy_request.request(&policy.limits)?;
    queue_order::put_peek_behind_waiters(redis, key, &mut request);
    let answer = charge::peek(redis, key, &request, now)?;
    Ok(reply(&request, &answer, Some(&policy)))
}

/// Charges a call that has the name of a policy and no options, if the limits grant it.
#[inline(always)]
fn charge_without_options(
    redis: &mut Redis,
    key: KeyIndex,
    policy: &EffectivePolicy,
    now: Timestamp,
) -> Result<Decision, Error> {
    if let Some(spec) = policy.limits.plain() {
        return charge_one(redis, key, spec, Some(policy), now);
    }
    let call = policy.limits.composite()?;
    charge_several(redis, key, &call, Some(policy), now).map(|answer| answer.decision)
}
