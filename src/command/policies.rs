//! What operators say of policies: `RL.POLICYSET` and its siblings, and what of that travels to other servers.

use crate::config::MAX_POLICIES;
use crate::policies;
use crate::redis::{self, Redis};
use crate::reply::Reply;
use ratelimit_core::args::Args;
use ratelimit_core::error::Error;
use ratelimit_core::policy::{Condition, Facts, Scaling};
use ratelimit_core::spec::{Policy, name_of_policy};

/// `RL.POLICYSET name [NX | VERSION version] spec [SHADOW] [spec [SHADOW] ...]`
pub fn set(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = name_of_policy(&mut args)?;
    let condition = Condition::read(&mut args)?;
    let policy = Policy::read(&mut args)?;
    if !redis::policies::are_kept() {
        return Err(Error::PoliciesOff);
    }
    policies::stamp_as(redis::bus::node());
    let most = usize::try_from(MAX_POLICIES.get()).unwrap_or(usize::MAX);
    let set = policies::set(name, condition, &policy, redis::now(), most)?;
    if set.changed {
        redis.policies_changed(&[name]);
    }
    Ok(Reply::version(set.version))
}

/// `RL.POLICYSCALE name factor [FOR duration]`
pub fn scale(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = name_of_policy(&mut args)?;
    let scaling = Scaling::read(&mut args)?;
    policies::stamp_as(redis::bus::node());
    let facts = policies::scale(name, scaling, redis::now())?;
    redis.policies_changed(&[name]);
    Ok(Reply::scale(&facts))
}

/// `RL.POLICYGET name`
pub fn get(_redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = name_of_policy(&mut args)?;
    args.end()?;
    Ok(policies::get(name, redis::now()).map_or(Reply::Null, |facts| Reply::policy(&facts)))
}

/// `RL.POLICYLIST [MATCH pattern]`
pub fn list(_redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let pattern = if args.accept("MATCH") { Some(args.word()?) } else { None };
    args.end()?;
    let row = |facts: Facts| {
        Reply::Array(vec![Reply::Bytes(facts.name), Reply::version(facts.version), Reply::Bytes(facts.specs)])
    };
    Ok(Reply::Array(policies::list(pattern, redis::now()).into_iter().map(row).collect()))
}

/// `RL.POLICYDEL name [name ...]`
pub fn delete(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let (mut names, now) = (vec![name_of_policy(&mut args)?], redis::now());
    while !args.is_empty() {
        names.push(name_of_policy(&mut args)?);
    }
    policies::stamp_as(redis::bus::node());
    let mut deleted = Vec::new();
    let done = names.into_iter().try_for_each(|name| {
        if policies::delete(name, now)? {
            deleted.push(name);
        }
        Ok(())
    });
    // What was deleted is, though the rest may have failed.
    redis.policies_changed(&deleted);
    done.map(|()| Reply::count(deleted.len()))
}

/// `RL.POLICYEFFECT record [record ...]`
///
/// Internal, and harmless in anybody's hands: what it can make a command could have made.
pub fn effect(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let mut records = vec![args.word()?];
    while !args.is_empty() {
        records.push(args.word()?);
    }
    if !records.iter().all(|record| policies::is_record(record)) {
        return Err(Error::InvalidEffect);
    }
    redis::policies::warn_unless_they_last();
    redis.propagate_verbatim();
    for record in records {
        policies::merge(record, redis::now());
    }
    Ok(Reply::Ok)
}
