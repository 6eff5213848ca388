//! Limits that the server knows by name: `RL.LIMIT`, `RL.DELAY`, and what `POLICY` stands for in other calls.
//!
//! A policy that a plain key can serve is decided as a spec of the same words is. Any other is a call over its limits,
//! on one key.

use super::{behind, charge as charge_plain, several};
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::server::policy_table::Ruling;
use ratelimit_core::args::{Args, KeyName};
use ratelimit_core::composite::Answer;
use ratelimit_core::error::Error;
use ratelimit_core::policy::Outcome;
use ratelimit_core::spec::{Asked, ByPolicy, Call, Purpose, Spec, name_of_policy};
use ratelimit_core::with_limit;
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
    charge(redis, key, &ByPolicy::behind(name, &mut args)?, now)
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
    let by = ByPolicy::behind(name, &mut args)?;
    let ruling = redis.global.policies.find(&by, now)?;
    by.refuse_more_to_tell(&ruling.policy)?;
    let mut asked = by.asked(&ruling.policy)?;
    behind::take(redis, key, &mut asked);
    let verdict = match asked {
        Asked::One(spec) => charge_one(redis, key, &spec, &ruling, now)?.verdict,
        Asked::Several(call) => charge_several(redis, key, &call, &ruling, now)?.decision.verdict,
        Asked::Policy(_) => return Err(Error::Internal),
    };
    Ok(Reply::delay(verdict))
}

/// The reply to a call that asks for a policy, and is charged if that allows it.
pub fn charge(redis: &mut Redis, key: KeyName, by: &ByPolicy, now: Timestamp) -> Result<Reply, Error> {
    let ruling = redis.global.policies.find(by, now)?;
    let mut asked = by.asked(&ruling.policy)?;
    behind::take(redis, key, &mut asked);
    match asked {
        Asked::One(spec) => charge_one(redis, key, &spec, &ruling, now).map(|decision| Reply::decision(&decision)),
        Asked::Several(call) => {
            let answer = charge_several(redis, key, &call, &ruling, now)?;
            Ok(several::reply_by(&call, &answer, Some(&ruling.name)))
        }
        Asked::Policy(_) => Err(Error::Internal),
    }
}

/// The same of a call that changes nothing.
pub fn peek(redis: &mut Redis, key: KeyName, by: &ByPolicy, now: Timestamp) -> Result<Reply, Error> {
    let ruling = redis.global.policies.find(by, now)?;
    let mut asked = by.asked(&ruling.policy)?;
    behind::look(redis, key, &mut asked);
    let call = match asked {
        Asked::One(spec) => Call::of_one(spec),
        Asked::Several(call) => *call,
        Asked::Policy(_) => return Err(Error::Internal),
    };
    let answer = several::peek(redis, key, &call, now)?;
    Ok(several::reply_by(&call, &answer, Some(&ruling.name)))
}

/// The decision on a call that says no more than a policy's name.
#[inline(always)]
fn charge_named(redis: &mut Redis, key: KeyName, ruling: &Ruling, now: Timestamp) -> Result<Decision, Error> {
    if let Some(spec) = ruling.policy.plain() {
        return charge_one(redis, key, &spec, ruling, now);
    }
    let call = ruling.policy.call()?;
    charge_several(redis, key, &call, ruling, now).map(|answer| answer.decision)
}

#[inline(always)]
fn charge_one(
    redis: &mut Redis,
    key: KeyName,
    spec: &Spec,
    ruling: &Ruling,
    now: Timestamp,
) -> Result<Decision, Error> {
    let decision = match with_limit!(spec, limit => charge_plain(redis, key, limit, spec.ask, now)) {
        Ok(decision) => decision.keeping(spec.kept),
        Err(refused) => {
            let call = several::of_one(spec, refused)?;
            return charge_several(redis, key, &call, ruling, now).map(|answer| answer.decision);
        }
    };
    redis.ruled(Some(&ruling.name));
    ruling.counts.count(&Outcome::of(&decision, Purpose::of(spec.ask)));
    Ok(decision)
}

#[inline(never)]
fn charge_several(
    redis: &mut Redis,
    key: KeyName,
    call: &Call,
    ruling: &Ruling,
    now: Timestamp,
) -> Result<Answer, Error> {
    let answer = several::charge(redis, key, call, now)?;
    redis.ruled(Some(&ruling.name));
    ruling.counts.count(&outcome(call, &answer));
    Ok(answer)
}

/// What has become of a call, for its policy's counts.
pub(super) fn outcome(call: &Call, answer: &Answer) -> Outcome {
    let Answer { decision, shadow_denied, banned, repeated, .. } = answer;
    let (shadow_denied, banned, repeated) = (*shadow_denied, *banned, *repeated);
    Outcome { shadow_denied, banned, repeated, ..Outcome::of(decision, call.purpose) }
}
