//! Words of policies: those of RL.POLICYSET, RL.POLICYSCALE and RL.LIMIT, and POLICY in other calls.

use super::{assert_refused_or_sayable, parse};
use crate::laws::{assert_policy, assert_wire, read_policy};
use ratelimit_core::AnyLimit;
use ratelimit_core::policy::{Condition, MergeOutcome, Origin, PolicyLookup, ScaleOutcome, ScaleStep, Scaling, Table};
use ratelimit_core::syntax::{Idempotency, KeyRequest, Policy, PolicyRequest, name_of_policy};
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Amount, Request, Timestamp};

/// Maximum length of a policy's name in bytes.
const MAX_POLICY: usize = 256;

/// Policies that calls by a name may find.
const POLICIES: [&str; 6] = [
    "FIXED 5 1m",
    "TOKENBUCKET 60 60 1m COST 1 AS requests TOKENBUCKET 9000 9000 1m AS tokens SHADOW",
    "LEAKYBUCKET 5 1 1s BAN 3 1m 1h",
    "CONCURRENCY 3 1m COST 2 SLIDING 9 1h STRICT",
    "SLIDINGLOG 5 1m SHADOW",
    "FIXED 5 1m FORCE SLIDING 9 1h COST 2 FORCE",
];

/// Options of calls by a policy that was parsed.
const CALLS: [&str; 10] = [
    "",
    "COST 0",
    "COST 2.5 EACH",
    "COST -2",
    "COST 3 UPTO",
    "COST 3 FORCE",
    "MAXWAIT 1m KEEP 50%",
    "ONCE id 1m",
    "ONCE id 1m COST 0",
    "SETTLE id 7",
];

pub fn assert_read<'a>(words: &'a Vec<&'a [u8]>) {
    match set(words) {
        Err(error) => assert_wire(&error),
        Ok((name, condition, policy)) => {
            assert_policy(&policy);
            assert_set(name, condition, &policy);
            let again = read_policy(policy.to_string().as_bytes()).expect("what displays is read");
            for options in CALLS {
                let call = format!("RL.LIMIT k p {options}");
                let call: Vec<&[u8]> = call.split_whitespace().map(str::as_bytes).collect();
                let by = limit(&call).expect("such a call is read");
                assert_request(&by, &policy);
                assert_takes_no_unheld_lease(&by, &policy);
                assert_eq!(format!("{:?}", by.request(&again)), format!("{:?}", by.request(&policy)));
            }
            assert_name_alone_asks_the_same(&policy);
        }
    }
    match scaling(words) {
        Err(error) => assert_wire(&error),
        Ok((name, scaling)) => POLICIES.iter().for_each(|policy| assert_scaled(name, scaling, policy)),
    }
    let by = limit(words);
    match &by {
        Err(error) => assert_wire(error),
        Ok(by) => {
            assert_valid_request(by);
            for policy in POLICIES {
                assert_takes_no_unheld_lease(by, &read_policy(policy.as_bytes()).expect("it is one"));
            }
        }
    }
    // RL.LIMIT k p ... is RL.TAKE k POLICY p ....
    if words.len() > 2 {
        let mut take = words.clone();
        take.insert(2, b"POLICY");
        match (by, parse(&take, |args| KeyRequest::take(args, None))) {
            (Ok(by), Ok(KeyRequest::Policy(take))) => assert_eq!(format!("{take:?}"), format!("{by:?}")),
            (Err(Error::Unexpected { .. }), Err(Error::Unexpected { .. })) => {}
            (Err(by), Err(take)) => assert_eq!(take.to_string(), by.to_string()),
            (by, take) => panic!("{by:?} but {take:?}"),
        }
    }
}

/// Asserts that a call by a policy is valid with any policy that it may find.
pub fn assert_valid_request(by: &PolicyRequest) {
    assert!(by.names().all(|name| (1..=MAX_POLICY).contains(&name.len())));
    let missing = by.no_such_policy();
    assert_wire(&missing);
    assert!(missing.to_string().len() < 300 * by.names().count());
    for text in POLICIES {
        let policy = read_policy(text.as_bytes()).expect("it is one");
        for factor in [Amount::ZERO, Amount::saturating(1), Amount::ONE, Amount::saturating(1_500_000)] {
            assert_request(by, &policy.scaled(factor));
        }
    }
}

fn assert_request(by: &PolicyRequest, policy: &Policy) {
    let request = by.request(policy);
    assert_refused_or_sayable(&request);
    let (specs, idempotency) = match request {
        Err(_) => return,
        Ok(KeyRequest::One(spec)) => (vec![spec], Idempotency::Every),
        Ok(KeyRequest::Composite(call)) => (call.specs, call.idempotency),
        Ok(KeyRequest::Policy(by)) => panic!("{by:?} asks for a policy"),
    };
    assert_eq!(specs.len(), policy.limit_count());
    for spec in &specs {
        assert!(spec.by_policy);
        match idempotency {
            Idempotency::Once { id, .. } | Idempotency::Settle { id, .. } if spec.is_held_by_id() => {
                assert_eq!(spec.holder_or_item, id)
            }
            _ => assert!(spec.holder_or_item.is_empty()),
        }
    }
    match by.reject_longer_reply(policy) {
        Err(error) => assert_wire(&error),
        Ok(()) => {
            let queues = |limit: AnyLimit| limit.to_string().starts_with("LEAKYBUCKET");
            let tells_more =
                |request| matches!(request, Request::UpTo(_) | Request::ForceUpTo(_) | Request::Within(..));
            assert!(!by.each() && specs.iter().all(|spec| !tells_more(spec.request) && !queues(spec.limit)));
        }
    }
}

/// Asserts that a call that charges takes no lease without a holder.
fn assert_takes_no_unheld_lease(by: &PolicyRequest, policy: &Policy) {
    let specs = match by.request(policy) {
        Ok(KeyRequest::Composite(call)) => call.specs,
        request => return assert!(!matches!(request, Ok(KeyRequest::One(spec)) if spec.is_held_by_id())),
    };
    let unheld = specs.iter().filter(|spec| spec.is_held_by_id() && spec.holder_or_item.is_empty());
    unheld.for_each(|spec| assert_eq!(spec.request, Request::Take(Amount::ZERO)));
}

/// Asserts that the request that is prepared once for all calls with only a name is equal to that of a parsed call.
fn assert_name_alone_asks_the_same(policy: &Policy) {
    let words: Vec<&[u8]> = vec![b"RL.LIMIT", b"k", b"p"];
    let at_length = format!("{:?}", limit(&words).expect("it is a call").request(policy));
    let at_once = match policy.plain() {
        Some(spec) => Ok(KeyRequest::One(*spec)),
        None => policy.composite().map(|call| KeyRequest::Composite(Box::new(call.into_owned()))),
    };
    assert_eq!(format!("{at_once:?}"), at_length);
}

/// Asserts that a policy that is set is found by its name, here and in a table that receives its record.
fn assert_set(name: &[u8], condition: Condition, policy: &Policy) {
    let now = Timestamp::from_clock(1_700_000_000_000_000);
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    let set = here.set(name, Condition::Always, policy, now, 1).expect("there is room");
    let first = now.micros();
    assert!(set.changed && set.version == first);
    let record = here.record(name, now).expect("it was set");
    assert!(there.check(&record, now).is_ok());
    assert_eq!(there.merge(&record, Origin::Peer, now), MergeOutcome::Changed);
    assert_eq!(here.digests(), there.digests());
    for table in [&here, &there] {
        assert_eq!(shown(table, name, now), policy.to_string());
    }
    match here.set(name, condition, policy, now, 1) {
        Ok(set) => {
            assert_eq!(set.changed, condition != Condition::IfMissing);
            assert_eq!(set.version, if set.changed { first + 1 } else { first });
            assert!(!matches!(condition, Condition::OverVersion(version) if version != first));
        }
        Err(error) => {
            assert_wire(&error);
            assert!(matches!(condition, Condition::OverVersion(version) if version != first));
        }
    }
}

/// Asserts that a scale applies to a policy until it ends.
fn assert_scaled(name: &[u8], scaling: Scaling, text: &str) {
    let now = Timestamp::from_clock(1_700_000_000_000_000);
    let policy = read_policy(text.as_bytes()).expect("it is one");
    let mut table = Table::of_node(1);
    table.set(name, Condition::Always, &policy, now, 1).expect("there is room");
    let ScaleOutcome { facts, changed } = table.scale(name, scaling, now).expect("there is such a policy");
    assert!(changed, "nobody has changed it before");
    assert_eq!(facts.scale_left, scaling.duration.map(|duration| duration.span()));
    match scaling.step {
        ScaleStep::Set(factor) => assert_eq!(facts.scale, factor),
        ScaleStep::Multiply { min, .. } => assert!((min.min(Amount::ONE)..=Amount::ONE).contains(&facts.scale)),
        ScaleStep::Add { max, .. } => assert!((Amount::ONE..=max.max(Amount::ONE)).contains(&facts.scale)),
    }
    let scaled = policy.scaled(facts.scale);
    assert_policy(&scaled);
    assert_eq!(shown(&table, name, now), scaled.to_string());
    let later = now.plus(scaling.duration.map_or(ratelimit_core::Span::SECOND, |duration| duration.span()));
    let then = if scaling.duration.is_some() { &policy } else { &scaled };
    assert_eq!(shown(&table, name, later), then.to_string());
}

fn shown(table: &Table, name: &[u8], now: Timestamp) -> String {
    match table.find(name, now) {
        PolicyLookup::Found(policy) => policy.limits.to_string(),
        found => panic!("{found:?}"),
    }
}

/// `RL.POLICYSET name [NX | VERSION version] spec [SHADOW] [spec [SHADOW] ...]`
fn set<'a>(words: &'a Vec<&'a [u8]>) -> Result<(&'a [u8], Condition, Policy), Error> {
    let mut args = Args::new(words);
    let (name, condition) = (name_of_policy(&mut args)?, Condition::parse(&mut args)?);
    let policy = Policy::parse(&mut args)?;
    assert!(args.is_empty());
    Ok((name, condition, policy))
}

/// `RL.POLICYSCALE name factor [FOR duration]`
fn scaling<'a>(words: &'a Vec<&'a [u8]>) -> Result<(&'a [u8], Scaling), Error> {
    let mut args = Args::new(words);
    let (name, scaling) = (name_of_policy(&mut args)?, Scaling::parse(&mut args)?);
    assert!(args.is_empty());
    Ok((name, scaling))
}

/// `RL.LIMIT key name [OR name ...] [options]`
fn limit<'a>(words: &'a Vec<&'a [u8]>) -> Result<PolicyRequest<'a>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    let name = name_of_policy(&mut args)?;
    let by = PolicyRequest::after_first_name(name, &mut args)?;
    assert!(args.is_empty());
    Ok(by)
}
