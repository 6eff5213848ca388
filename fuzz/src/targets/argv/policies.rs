//! Words of RL.POLICYSET, RL.POLICYSCALE and RL.LIMIT, and POLICY in other calls.

use super::{assert_rejected_or_writable, parse};
use crate::laws::{assert_error_text, assert_policy, parse_policy};
use ratelimit_core::AnyLimit;
use ratelimit_core::policy::{Condition, MergeOutcome, Origin, PolicyLookup, ScaleOutcome, ScaleStep, Scaling, Table};
use ratelimit_core::syntax::{Idempotency, KeyRequest, Policy, PolicyRequest, name_of_policy};
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Amount, Request, Timestamp};

/// Maximum length of a policy's name in bytes.
const MAX_POLICY: usize = 256;

/// Policies that a call may find by a name.
const POLICIES: [&str; 6] = [
    "FIXED 5 1m",
    "TOKENBUCKET 60 60 1m COST 1 AS requests TOKENBUCKET 9000 9000 1m AS tokens SHADOW",
    "LEAKYBUCKET 5 1 1s BAN 3 1m 1h",
    "CONCURRENCY 3 1m COST 2 SLIDING 9 1h STRICT",
    "SLIDINGLOG 5 1m SHADOW",
    "FIXED 5 1m FORCE SLIDING 9 1h COST 2 FORCE",
];

/// Options of calls on a parsed policy.
const OPTIONS: [&str; 10] = [
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

/// Asserts that RL.POLICYSET, RL.POLICYSCALE and RL.LIMIT reject the words with a short error, or have the effect of
/// their arguments.
pub fn assert_policy_commands<'a>(words: &'a Vec<&'a [u8]>) {
    match set(words) {
        Err(error) => assert_error_text(&error),
        Ok((name, condition, policy)) => {
            assert_policy(&policy);
            assert_set(name, condition, &policy);
            let parsed = parse_policy(policy.to_string().as_bytes()).expect("a displayed policy can be parsed");
            for options in OPTIONS {
                let call = format!("RL.LIMIT k p {options}");
                let call: Vec<&[u8]> = call.split_whitespace().map(str::as_bytes).collect();
                let call = limit(&call).expect("the options are valid");
                assert_request(&call, &policy);
                assert_lease_has_holder(&call, &policy);
                assert_eq!(format!("{:?}", call.request(&parsed)), format!("{:?}", call.request(&policy)));
            }
            assert_prebuilt_request(&policy);
        }
    }
    match scaling(words) {
        Err(error) => assert_error_text(&error),
        Ok((name, scaling)) => POLICIES.iter().for_each(|policy| assert_scaled(name, scaling, policy)),
    }
    let call = limit(words);
    match &call {
        Err(error) => assert_error_text(error),
        Ok(call) => {
            assert_valid_request(call);
            for policy in POLICIES {
                assert_lease_has_holder(call, &parse_policy(policy.as_bytes()).expect("the policy is valid"));
            }
        }
    }
    // RL.LIMIT k p ... is RL.TAKE k POLICY p ....
    if words.len() > 2 {
        let mut take = words.clone();
        take.insert(2, b"POLICY");
        match (call, parse(&take, |args| KeyRequest::take(args, None))) {
            (Ok(call), Ok(KeyRequest::Policy(take))) => assert_eq!(format!("{take:?}"), format!("{call:?}")),
            (Err(Error::Unexpected { .. }), Err(Error::Unexpected { .. })) => {}
            (Err(call), Err(take)) => assert_eq!(take.to_string(), call.to_string()),
            (call, take) => panic!("{call:?}, but {take:?}"),
        }
    }
}

/// Asserts that a call on a policy is valid with any policy that it may find.
pub fn assert_valid_request(call: &PolicyRequest) {
    assert!(call.names().all(|name| (1..=MAX_POLICY).contains(&name.len())));
    let missing = call.no_such_policy();
    assert_error_text(&missing);
    assert!(missing.to_string().len() < 300 * call.names().count());
    for text in POLICIES {
        let policy = parse_policy(text.as_bytes()).expect("the policy is valid");
        for factor in [Amount::ZERO, Amount::saturating(1), Amount::ONE, Amount::saturating(1_500_000)] {
            assert_request(call, &policy.scaled(factor));
        }
    }
}

/// Asserts that the request of a call on a policy is rejected with a short error, or has the limits and the holder that
/// it should have.
fn assert_request(call: &PolicyRequest, policy: &Policy) {
    let request = call.request(policy);
    assert_rejected_or_writable(&request);
    let (specs, idempotency) = match request {
        Err(_) => return,
        Ok(KeyRequest::One(spec)) => (vec![spec], Idempotency::Every),
        Ok(KeyRequest::Composite(call)) => (call.specs, call.idempotency),
        Ok(KeyRequest::Policy(unresolved)) => panic!("{unresolved:?} has no specs"),
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
    match call.reject_longer_reply(policy) {
        Err(error) => assert_error_text(&error),
        Ok(()) => {
            let is_queue = |limit: AnyLimit| limit.to_string().starts_with("LEAKYBUCKET");
            let has_longer_reply =
                |request| matches!(request, Request::UpTo(_) | Request::ForceUpTo(_) | Request::Within(..));
            assert!(!call.each());
            assert!(specs.iter().all(|spec| !has_longer_reply(spec.request) && !is_queue(spec.limit)));
        }
    }
}

/// Asserts that a call that charges takes no lease without a holder.
fn assert_lease_has_holder(call: &PolicyRequest, policy: &Policy) {
    let specs = match call.request(policy) {
        Ok(KeyRequest::Composite(request)) => request.specs,
        request => return assert!(!matches!(request, Ok(KeyRequest::One(spec)) if spec.is_held_by_id())),
    };
    let without_holder = specs.iter().filter(|spec| spec.is_held_by_id() && spec.holder_or_item.is_empty());
    without_holder.for_each(|spec| assert_eq!(spec.request, Request::Take(Amount::ZERO)));
}

/// Asserts that the prebuilt request of a call without options is equal to the request of a parsed call.
fn assert_prebuilt_request(policy: &Policy) {
    let words: Vec<&[u8]> = vec![b"RL.LIMIT", b"k", b"p"];
    let parsed = format!("{:?}", limit(&words).expect("the call is valid").request(policy));
    let prebuilt = match policy.plain() {
        Some(spec) => Ok(KeyRequest::One(*spec)),
        None => policy.composite().map(|call| KeyRequest::Composite(Box::new(call.into_owned()))),
    };
    assert_eq!(format!("{prebuilt:?}"), parsed);
}

/// Asserts that a policy that is set is found by its name, here and in a table that receives its record.
fn assert_set(name: &[u8], condition: Condition, policy: &Policy) {
    let now = Timestamp::from_clock(1_700_000_000_000_000);
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    let set = here.set(name, Condition::Always, policy, now, 1).expect("there is room");
    let first = now.micros();
    assert!(set.changed && set.version == first);
    let record = here.record(name, now).expect("the policy is set");
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
            assert_error_text(&error);
            assert!(matches!(condition, Condition::OverVersion(version) if version != first));
        }
    }
}

/// Asserts that a scale applies to a policy until it ends.
fn assert_scaled(name: &[u8], scaling: Scaling, text: &str) {
    let now = Timestamp::from_clock(1_700_000_000_000_000);
    let policy = parse_policy(text.as_bytes()).expect("the policy is valid");
    let mut table = Table::of_node(1);
    table.set(name, Condition::Always, &policy, now, 1).expect("there is room");
    let ScaleOutcome { facts, changed } = table.scale(name, scaling, now).expect("the policy exists");
    assert!(changed, "the first change is never ignored");
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
    let expected = if scaling.duration.is_some() { &policy } else { &scaled };
    assert_eq!(shown(&table, name, later), expected.to_string());
}

/// Returns the limits that a call finds by the name, as text.
fn shown(table: &Table, name: &[u8], now: Timestamp) -> String {
    match table.find(name, now) {
        PolicyLookup::Found(policy) => policy.limits.to_string(),
        found => panic!("{found:?}"),
    }
}

/// Parses `RL.POLICYSET name [NX | VERSION version] spec [spec ...]`.
fn set<'a>(words: &'a Vec<&'a [u8]>) -> Result<(&'a [u8], Condition, Policy), Error> {
    let mut args = Args::new(words);
    let (name, condition) = (name_of_policy(&mut args)?, Condition::parse(&mut args)?);
    let policy = Policy::parse(&mut args)?;
    assert!(args.is_empty());
    Ok((name, condition, policy))
}

/// Parses the arguments of RL.POLICYSCALE after its name.
fn scaling<'a>(words: &'a Vec<&'a [u8]>) -> Result<(&'a [u8], Scaling), Error> {
    let mut args = Args::new(words);
    let (name, scaling) = (name_of_policy(&mut args)?, Scaling::parse(&mut args)?);
    assert!(args.is_empty());
    Ok((name, scaling))
}

/// Parses `RL.LIMIT key name [OR name ...] [options]`.
fn limit<'a>(words: &'a Vec<&'a [u8]>) -> Result<PolicyRequest<'a>, Error> {
    let mut args = Args::new(words);
    args.key()?;
    let name = name_of_policy(&mut args)?;
    let call = PolicyRequest::after_first_name(name, &mut args)?;
    assert!(args.is_empty());
    Ok(call)
}
