use super::{BoundedMap, LocalLimits, MAX_ENTRIES};
use crate::call::{Call, Operation, Reply, Rule};
use crate::charge::ChargingMode;
use crate::policy_cache::{PolicyCache, PolicyRow};
use ratelimit_core::Amount;
use std::time::Duration;
use tokio::time::Instant;

fn amount(text: &str) -> Amount {
    Amount::parse_up(text.as_bytes()).expect("an amount")
}

fn call(key: &str, words: &str, operation: Operation, id: Option<&str>) -> Call {
    let rule = Rule::Limits(words.split(' ').map(str::to_owned).collect());
    let id = id.map(|id| id.as_bytes().to_vec());
    Call {
        key: key.as_bytes().to_vec(),
        rule,
        operation,
        id,
        id_lifetime: "5m".to_owned(),
        charge: ChargingMode::AllOrNone,
    }
}

fn take(key: &str, words: &str) -> Call {
    call(key, words, Operation::Take(Amount::ONE), None)
}

/// Decides the calls of a request. Returns `Some(true)` for a call that passes, `Some(false)` for a call that is
/// denied, and `None` for an undecided call.
fn decide(local: &LocalLimits, calls: &[Call]) -> Vec<Option<bool>> {
    let mut replies = vec![Reply::Lost(String::new()); calls.len()];
    local.decide(calls, &mut replies, &PolicyCache::default());
    let passes = |reply| if let Reply::Local(decision, _) = reply { Some(decision.allowed) } else { None };
    replies.into_iter().map(passes).collect()
}

fn passes(local: &LocalLimits, call: &Call) -> bool {
    decide(local, std::slice::from_ref(call)) == [Some(true)]
}

#[tokio::test(start_paused = true)]
async fn share_of_a_limit_passes_and_recovers() {
    let local = LocalLimits::new(0.25);
    let call_of_a = take("a", "FIXED 8 1m");
    assert_eq!([(); 3].map(|()| passes(&local, &call_of_a)), [true, true, false]);
    assert!(passes(&local, &take("b", "FIXED 8 1m")), "keys are independent");
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!([(); 2].map(|()| passes(&local, &call_of_a)), [true, false]);
    assert_eq!([(); 2].map(|()| passes(&local, &take("c", "FIXED 1 1m"))), [true, false], "at least one unit");
    assert!(!passes(&local, &take("d", "FIXED 0 1m")));
    assert!(!passes(&local, &call("e", "FIXED 8 1m", Operation::Take(amount("3")), None)), "exceeds the share");
}

#[tokio::test(start_paused = true)]
async fn denied_request_is_not_charged() {
    let local = LocalLimits::new(1.0);
    let (wide, tight) = (take("wide", "FIXED 3 1h"), take("tight", "FIXED 1 1h"));
    let request = [wide.clone(), tight];
    assert_eq!(decide(&local, &request), [Some(true), Some(true)]);
    assert_eq!(decide(&local, &request), [Some(true), Some(false)]);
    assert_eq!([(); 3].map(|()| passes(&local, &wide)), [true, true, false], "the denied request was not charged");
}

#[tokio::test(start_paused = true)]
async fn charging_modes_always_and_independent_charge_denied_requests() {
    let local = LocalLimits::new(1.0);
    let take_in_mode = |cost, charge| Call { charge, ..call("a", "FIXED 10 1h", Operation::Take(amount(cost)), None) };
    let always = |cost| passes(&local, &take_in_mode(cost, ChargingMode::Always));
    assert_eq!([always("8"), always("5"), always("1"), always("0")], [true, false, false, false]);
    let local = LocalLimits::new(1.0);
    let tight = take("tight", "FIXED 0 1h");
    let (independent, all_or_none) = (ChargingMode::Independent, ChargingMode::AllOrNone);
    decide(&local, &[take_in_mode("6", independent), tight.clone()]);
    assert!(!passes(&local, &take_in_mode("6", independent)), "6 were charged although another limit denied");
    assert!(passes(&local, &take_in_mode("4", all_or_none)), "the second 6 were not charged");
    assert_eq!(decide(&local, &[call("a", "FIXED 10 1h", Operation::Force(amount("9")), None), tight])[0], Some(true));
    assert!(!passes(&local, &take_in_mode("0", all_or_none)));
}

#[tokio::test(start_paused = true)]
async fn limits_with_force_are_charged_beyond_their_capacity() {
    let local = LocalLimits::new(1.0);
    let take = |cost, words| call("a", words, Operation::Take(amount(cost)), None);
    assert!(!passes(&local, &take("12", "FIXED 10 1h FORCE FIXED 100 1d AS day")));
    assert!(!passes(&local, &take("89", "FIXED 100 1d AS day")), "12 of the day are used");
    assert!(!passes(&local, &take("89", "FIXED 10 1h FORCE FIXED 100 1d AS day")));
    assert!(
        passes(&local, &take("88", "FIXED 100 1d AS day")),
        "nothing was charged, because a limit without FORCE denied"
    );
}

#[tokio::test(start_paused = true)]
async fn call_with_an_id_is_charged_once_and_can_be_settled() {
    let local = LocalLimits::new(1.0);
    let words = "TOKENBUCKET 10000 10000 1h";
    let reserve = |id| call("a", words, Operation::Take(amount("4000")), Some(id));
    assert!(["x", "x", "y"].iter().all(|id| passes(&local, &reserve(id))));
    assert!(!passes(&local, &reserve("z")));
    assert!(passes(&local, &call("a", words, Operation::Settle(amount("1000")), Some("x"))));
    assert!(passes(&local, &reserve("z")));
    assert!(passes(&local, &call("a", words, Operation::GiveBack(amount("4000")), None)));
    assert!(passes(&local, &reserve("w")));
}

#[tokio::test(start_paused = true)]
async fn only_calls_of_cached_policies_are_decided() {
    let (local, policies) = (LocalLimits::new(1.0), PolicyCache::default());
    let specs = "FIXED 1 1h CONCURRENCY 1 1m".to_owned();
    let row = PolicyRow { name: "user".to_owned(), version: 1, specs };
    policies.replace(String::new(), vec![row]);
    let call_of_policies =
        |names: [&str; 2]| Call { rule: Rule::Policies(names.map(str::to_owned).to_vec()), ..take("a", "") };
    let mut all_replies = vec![];
    for names in [["none", "user"], ["none", "user"], ["none", "nobody"]] {
        let mut replies = [Reply::Refused("no".to_owned())];
        local.decide(&[call_of_policies(names)], &mut replies, &policies);
        all_replies.extend(replies);
    }
    let local_decision = |reply: &Reply| match reply {
        Reply::Local(decision, Some(error)) => Some((decision.allowed, decision.policy.clone()?, *error.clone())),
        _ => None,
    };
    let expected = |passes| Some((passes, "user".to_owned(), Reply::Refused("no".to_owned())));
    assert_eq!(all_replies.iter().map(local_decision).collect::<Vec<_>>(), [expected(true), expected(false), None]);
}

#[test]
fn map_never_exceeds_its_maximum() {
    let (mut map, start) = (BoundedMap::default(), Instant::now());
    for n in 0..3 * MAX_ENTRIES {
        map.insert(n, (), start + Duration::from_millis(n as u64));
        assert!(map.0.len() <= MAX_ENTRIES);
    }
    assert!(map.0.contains_key(&(3 * MAX_ENTRIES - 1)) && !map.0.contains_key(&0));
    for n in 0..2 * MAX_ENTRIES {
        map.insert(n, (), start);
    }
    assert!(map.0.len() <= MAX_ENTRIES);
}
