//! Commands for managing policies (`RL.POLICYSET` and its siblings), and the command that propagates their records.

use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::server::fencing::Fencing;
use crate::server::settings::MAX_POLICIES;
use ratelimit_core::policy::{Condition, DeletionRequest, MergeOutcome, Origin, Pattern, ScaleOutcome, Scaling, Table};
use ratelimit_core::syntax::{Policy, name_of_policy};
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::{Error, Expected, Needed, Reason, Syntax};

/// `RL.POLICYSET name [NX | VERSION version] spec [FORCE | SHADOW] [spec [FORCE | SHADOW] ...]`
pub fn set(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = name_of_policy(&mut args)?;
    let condition = Condition::parse(&mut args)?;
    let policy = Policy::parse(&mut args)?;
    if !redis::policy_persistence::are_persisted() {
        return Err(Error::PoliciesOff);
    }
    let max_policies = usize::try_from(MAX_POLICIES.get()).unwrap_or(usize::MAX);
    let set = change(redis, |table| table.set(name, condition, &policy, redis::now(), max_policies))?;
    if set.changed {
        redis.propagate_policies_to_cluster(&[name]);
    }
    Ok(Reply::version(set.version))
}

/// `RL.POLICYSCALE name factor | MUL factor [MIN least] [EVERY duration] | ADD step [MAX most] [EVERY duration]
/// [FOR duration]`
pub fn scale(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = name_of_policy(&mut args)?;
    let scaling = Scaling::parse(&mut args)?;
    let ScaleOutcome { facts, changed } = change(redis, |table| table.scale(name, scaling, redis::now()))?;
    if changed {
        redis.propagate_policies_to_cluster(&[name]);
    }
    Ok(Reply::scale(&facts))
}

/// Changes the table of policies. The stamps of the changes name this node.
fn change<T>(redis: &Redis, change: impl FnOnce(&mut Table) -> T) -> T {
    redis.state.policies.with(|table| {
        table.set_node(redis::bus::stamp_node());
        change(table)
    })
}

/// `RL.POLICYGET name`
pub fn get(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let name = name_of_policy(&mut args)?;
    args.end()?;
    let facts = redis.state.policies.with(|table| table.get(name, redis::now()));
    Ok(facts.map_or(Reply::Null, |facts| Reply::policy(&facts)))
}

const MATCH: Syntax = Syntax { word: "MATCH", arguments: "pattern" };

/// `RL.POLICYLIST [MATCH pattern]`
pub fn list(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let pattern = match args.peek() {
        None => None,
        Some(_) if args.accept("MATCH") => Some(Pattern::compile(args.argument("pattern", &MATCH)?)?),
        Some(word) => {
            let needed = Needed::instead_of(word, Expected::Word, vec!["MATCH"], Vec::new());
            return Err(Error::unexpected(word, Reason::Needed(needed)));
        }
    };
    args.end()?;
    let policies = redis.state.policies.with(|table| table.list(pattern.as_ref(), redis::now()));
    Ok(Reply::Array(policies.into_iter().map(Reply::listed_policy).collect()))
}

/// `RL.POLICYDEL name VERSION version | name [name ...]`
pub fn delete(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let (deletion, now) = (DeletionRequest::parse(&mut args)?, redis::now());
    let names = match deletion {
        DeletionRequest::OfNames(names) => names,
        DeletionRequest::OfVersion(name, version) => {
            change(redis, |table| table.delete_version(name, version, now))?;
            redis.propagate_policies_to_cluster(&[name]);
            return Ok(Reply::count(1));
        }
    };
    let mut deleted = Vec::new();
    let result = change(redis, |table| {
        names.into_iter().try_for_each(|name| {
            if table.delete(name, now)? {
                deleted.push(name);
            }
            Ok(())
        })
    });
    // Deletions are propagated even if a later one has failed.
    redis.propagate_policies_to_cluster(&deleted);
    result.map(|()| Reply::count(deleted.len()))
}

/// `RL.POLICYEFFECT record [record ...]`
///
/// Internal, but safe for any client: other commands could produce the same policies, and a stamp from a client that is
/// more than a day ahead is rejected.
pub fn effect(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let mut records = vec![args.word()?];
    while !args.is_empty() {
        records.push(args.word()?);
    }
    let (policies, now, origin) = (&redis.state.policies, redis::now(), redis.origin());
    // The record of the last fencing token is propagated with policies, but is not a policy.
    let token_before = redis.state.fencing.record();
    for token in records.iter().filter_map(|record| Fencing::parse(record)) {
        redis.state.fencing.observe(token, origin != Origin::Peer, now);
    }
    records.retain(|record| Fencing::parse(record).is_none());
    if origin == Origin::Peer {
        policies.with(|table| records.iter().try_for_each(|record| table.check(record, now)))?;
    } else if !records.iter().all(|record| Table::name_in(record).is_some()) {
        return Err(Error::InvalidEffect);
    }
    redis::policy_persistence::warn_if_not_persisted(&redis.state.policy_load);
    if origin != Origin::Peer {
        redis.propagate_verbatim();
    }
    let mut changed = Vec::new();
    for record in records {
        let outcome = policies.with(|table| table.merge(record, origin, now));
        if outcome == MergeOutcome::Changed && origin == Origin::Peer {
            changed.extend(Table::name_in(record));
        }
    }
    // The merged records, not the received ones: a replica does not compare stamps.
    redis.propagate_policies(&changed);
    if origin == Origin::Peer {
        // After a failover, the replica must not issue a token below one that this server has seen.
        let token = redis.state.fencing.record().filter(|token| token_before.as_ref() != Some(token));
        if let Some(token) = token {
            redis.propagate_record(&token);
        }
    }
    Ok(Reply::Ok)
}
