//! Limits that the server knows by name: `RL.LIMIT`, `RL.DELAY`, and what `POLICY` stands for in other calls.
//!
//! A policy that a plain key can serve is decided as a spec of the same words is. Any other is a call over its limits,
//! on one key.

use super::reply;
use crate::charge::{self, charge_one, charge_several};
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::server::policy_table::Ruling;
use crate::waiting::queue_order;
use ratelimit_core::syntax::{ByPolicy, name_of_policy};
use ratelimit_core::wire::args::{Args, KeyName};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Timestamp};

/// `RL.LIMIT key name [OR name ...] [options]`
pub fn limit(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let name = name_of_policy(&mut args)?;
    let now = redis::now();
    if args.is_empty() {
        let ruling = redis.global.policies.named(name, now)?;
        return charge_named(redis, key, &ruling, now).map(|decision| Reply::decision(&decision));
    }
    charge(redis, key, &ByPolicy::after_first_name(name, &mut args)?, now)
}

/// `RL.DELAY key name [OR name ...] [options]`
pub fn delay(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let name = name_of_policy(&mut args)?;
    let now = redis::now();
    if args.is_empty() {
        let ruling = redis.global.policies.named(name, now)?;
        ruling.policy.refuse_more_to_tell()?;
        return charge_named(redis, key, &ruling, now).map(|decision| Reply::delay(decision.verdict));
    }
    let by = ByPolicy::after_first_name(name, &mut args)?;
    let ruling = redis.global.policies.find(&by, now)?;
    by.refuse_more_to_tell(&ruling.policy)?;
    let mut request = by.request(&ruling.policy)?;
    queue_order::place_take(redis, key, &mut request);
    let answer = charge::charge(redis, key, &request, Some(&ruling), now)?;
    Ok(Reply::delay(answer.decision.verdict))
}

/// The reply to a call that asks for a policy, and is charged if that allows it.
pub fn charge(redis: &mut Redis, key: KeyName, by: &ByPolicy, now: Timestamp) -> Result<Reply, Error> {
    let ruling = redis.global.policies.find(by, now)?;
    let mut request = by.request(&ruling.policy)?;
    queue_order::place_take(redis, key, &mut request);
    let answer = charge::charge(redis, key, &request, Some(&ruling), now)?;
    Ok(reply(&request, &answer, Some(&ruling)))
}

/// The reply to a call that asks for a policy, and changes nothing.
pub fn peek(redis: &mut Redis, key: KeyName, by: &ByPolicy, now: Timestamp) -> Result<Reply, Error> {
    let ruling = redis.global.policies.find(by, now)?;
    let mut request = by.request(&ruling.policy)?;
    queue_order::place_look(redis, key, &mut request);
    let answer = charge::peek(redis, key, &request, now)?;
    Ok(reply(&request, &answer, Some(&ruling)))
}

/// The decision on a call that says no more than a policy's name.
#[inline(always)]
fn charge_named(redis: &mut Redis, key: KeyName, ruling: &Ruling, now: Timestamp) -> Result<Decision, Error> {
    if let Some(spec) = ruling.policy.plain() {
        return charge_one(redis, key, spec, Some(ruling), now);
    }
    let call = ruling.policy.composite()?;
    charge_several(redis, key, &call, Some(ruling), now).map(|answer| answer.decision)
}
