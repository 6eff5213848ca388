use super::{Bounded, Local, MOST};
use crate::ask::{Call, Reply, Rule, Verb};
use crate::charge::Charge;
use crate::link::{Listener as _, PolicyRow};
use crate::told_policies::Table;
use ratelimit_core::Amount;
use std::time::Duration;
use tokio::time::Instant;

fn amount(text: &str) -> Amount {
    Amount::parse_up(text.as_bytes()).expect("an amount")
}

fn call(key: &str, words: &str, verb: Verb, id: Option<&str>) -> Call {
    let rule = Rule::Limits(words.split(' ').map(str::to_owned).collect());
    let id = id.map(|id| id.as_bytes().to_vec());
    Call { key: key.as_bytes().to_vec(), rule, verb, id, remembered: "5m".to_owned(), charge: Charge::AllOrNone }
}

fn take(key: &str, words: &str) -> Call {
    call(key, words, Verb::Take(Amount::ONE), None)
}

/// Whether each passes, decided together.
fn decided(local: &Local, calls: &[Call]) -> Vec<Option<bool>> {
    let mut replies = vec![Reply::Lost(String::new()); calls.len()];
    local.decide(calls, &mut replies, &Table::default());
    let passes = |reply| if let Reply::Local(verdict, _) = reply { Some(verdict.allowed) } else { None };
    replies.into_iter().map(passes).collect()
}

fn passes(local: &Local, call: &Call) -> bool {
    decided(local, std::slice::from_ref(call)) == [Some(true)]
}

#[tokio::test(start_paused = true)]
async fn a_share_of_a_limit_passes_and_recovers() {
    let local = Local::new(0.25);
    let one = take("a", "FIXED 8 1m");
    assert_eq!([(); 3].map(|()| passes(&local, &one)), [true, true, false]);
    assert!(passes(&local, &take("b", "FIXED 8 1m")), "each key for itself");
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!([(); 2].map(|()| passes(&local, &one)), [true, false]);
    assert_eq!([(); 2].map(|()| passes(&local, &take("c", "FIXED 1 1m"))), [true, false], "one of a small limit");
    assert!(!passes(&local, &take("d", "FIXED 0 1m")));
    assert!(!passes(&local, &call("e", "FIXED 8 1m", Verb::Take(amount("3")), None)), "more than the share");
}

#[tokio::test(start_paused = true)]
async fn all_of_a_request_is_charged_or_nothing() {
    let local = Local::new(1.0);
    let (wide, tight) = (take("wide", "FIXED 3 1h"), take("tight", "FIXED 1 1h"));
    let both = [wide.clone(), tight];
    assert_eq!(decided(&local, &both), [Some(true), Some(true)]);
    assert_eq!(decided(&local, &both), [Some(true), Some(false)]);
    assert_eq!([(); 3].map(|()| passes(&local, &wide)), [true, true, false], "what was denied has used nothing");
}

#[tokio::test(start_paused = true)]
async fn always_charges_past_the_limit_and_each_for_itself() {
    let local = Local::new(1.0);
    let charge = |cost, charge| Call { charge, ..call("a", "FIXED 10 1h", Verb::Take(amount(cost)), None) };
    let always = |cost| passes(&local, &charge(cost, Charge::Always));
    assert_eq!([always("8"), always("5"), always("1"), always("0")], [true, false, false, false]);
    let local = Local::new(1.0);
    let tight = take("tight", "FIXED 0 1h");
    decided(&local, &[charge("6", Charge::Independent), tight.clone()]);
    assert!(!passes(&local, &charge("6", Charge::Independent)), "the first 6 are charged, although another denies");
    assert!(passes(&local, &charge("4", Charge::AllOrNone)), "6 more did not fit");
    assert_eq!(decided(&local, &[call("a", "FIXED 10 1h", Verb::Charge(amount("9")), None), tight])[0], Some(true));
    assert!(!passes(&local, &charge("0", Charge::AllOrNone)));
}

#[tokio::test(start_paused = true)]
async fn limits_with_force_are_charged_past_their_end() {
    let local = Local::new(1.0);
    let cost = |cost, words| call("a", words, Verb::Take(amount(cost)), None);
    assert!(!passes(&local, &cost("12", "FIXED 10 1h FORCE FIXED 100 1d AS day")));
    assert!(!passes(&local, &cost("89", "FIXED 100 1d AS day")), "12 are used of the day");
    assert!(!passes(&local, &cost("89", "FIXED 10 1h FORCE FIXED 100 1d AS day")));
    assert!(passes(&local, &cost("88", "FIXED 100 1d AS day")), "another limit has denied: nothing was charged");
}

#[tokio::test(start_paused = true)]
async fn ids_count_once_and_are_settled() {
    let local = Local::new(1.0);
    let words = "TOKENBUCKET 10000 10000 1h";
    let reserve = |id| call("a", words, Verb::Take(amount("4000")), Some(id));
    assert!(["x", "x", "y"].iter().all(|id| passes(&local, &reserve(id))));
    assert!(!passes(&local, &reserve("z")));
    assert!(passes(&local, &call("a", words, Verb::Settle(amount("1000")), Some("x"))));
    assert!(passes(&local, &reserve("z")));
    assert!(passes(&local, &call("a", words, Verb::GiveBack(amount("4000")), None)));
    assert!(passes(&local, &reserve("w")));
}

#[tokio::test(start_paused = true)]
async fn policies_are_those_that_the_server_told_of() {
    let (local, table) = (Local::new(1.0), Table::default());
    let specs = "FIXED 1 1h CONCURRENCY 1 1m".to_owned();
    let row = PolicyRow { name: "user".to_owned(), version: 1, specs };
    table.policies(String::new(), vec![row]);
    let by = |names: [&str; 2]| Call { rule: Rule::Policies(names.map(str::to_owned).to_vec()), ..take("a", "") };
    let mut told = vec![];
    for names in [["none", "user"], ["none", "user"], ["none", "nobody"]] {
        let mut replies = [Reply::Refused("no".to_owned())];
        local.decide(&[by(names)], &mut replies, &table);
        told.extend(replies);
    }
    let allowed = |reply: &Reply| match reply {
        Reply::Local(verdict, Some(refusal)) => Some((verdict.allowed, verdict.policy.clone()?, *refusal.clone())),
        _ => None,
    };
    let expected = |passes| Some((passes, "user".to_owned(), Reply::Refused("no".to_owned())));
    assert_eq!(told.iter().map(allowed).collect::<Vec<_>>(), [expected(true), expected(false), None]);
}

#[test]
fn what_is_remembered_is_bounded() {
    let (mut kept, began) = (Bounded::default(), Instant::now());
    for n in 0..3 * MOST {
        kept.keep(n, (), began + Duration::from_millis(n as u64));
        assert!(kept.0.len() <= MOST);
    }
    assert!(kept.0.contains_key(&(3 * MOST - 1)) && !kept.0.contains_key(&0));
    for n in 0..2 * MOST {
        kept.keep(n, (), began);
    }
    assert!(kept.0.len() <= MOST);
}
