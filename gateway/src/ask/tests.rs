use super::{Call, Decision, Reply, Rule, Verb, Verdict};
use crate::charge::Charge;
use crate::windows::windows;
use ratelimit_core::Amount;
use redis::Value;

fn amount(text: &str) -> Amount {
    Amount::parse_up(text.as_bytes()).expect("a number")
}

fn call(verb: Verb, id: Option<&str>) -> Call {
    let rule = Rule::Policies(vec!["gold".into(), "default".into()]);
    let id = id.map(|id| id.as_bytes().to_vec());
    Call { key: b"k".to_vec(), rule, verb, id, remembered: "5m".into(), charge: Charge::AllOrNone }
}

fn words(call: &Call) -> String {
    let packed = call.command().get_packed_command();
    let text = String::from_utf8(packed).expect("text");
    text.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_call_is_one_command() {
    assert_eq!(words(&call(Verb::Take(Amount::ONE), None)), "RL.LIMIT k gold OR default EACH");
    assert_eq!(
        words(&call(Verb::Take(amount("2.5")), Some("i"))),
        "RL.LIMIT k gold OR default EACH COST 2.5 ONCE i 5m"
    );
    assert_eq!(words(&call(Verb::Take(Amount::ZERO), None)), "RL.LIMIT k gold OR default EACH COST 0");
    assert_eq!(words(&call(Verb::GiveBack(amount("3")), None)), "RL.LIMIT k gold OR default EACH COST -3");
    assert_eq!(words(&call(Verb::Settle(amount("7")), Some("i"))), "RL.LIMIT k gold OR default EACH SETTLE i 7");
    assert_eq!(words(&call(Verb::Release, Some("i"))), "RL.RELEASE k i");
    let always = |verb, id| Call { charge: Charge::Always, ..call(verb, id) };
    let forced = always(Verb::Take(amount("2")), Some("i"));
    assert_eq!(words(&forced), "RL.LIMIT k gold OR default EACH COST 2 FORCE ONCE i 5m");
    assert_eq!(words(&always(Verb::Take(Amount::ZERO), None)), "RL.LIMIT k gold OR default EACH COST 0");
    assert_eq!(words(&call(Verb::Charge(amount("7")), None)), "RL.LIMIT k gold OR default EACH COST 7 FORCE");
    let limits = Rule::Limits(["FIXED", "5", "1m", "ALIGNED"].map(String::from).to_vec());
    let inline = Call { rule: limits, ..call(Verb::Take(Amount::ONE), Some("i")) };
    assert_eq!(words(&inline), "RL.TAKE k EACH ONCE i 5m FIXED 5 1m ALIGNED");
    assert_eq!(words(&inline.undone()), "RL.TAKE k EACH SETTLE i 0 FIXED 5 1m ALIGNED");
}

#[test]
fn a_policy_of_forced_limits_is_always_charged() {
    let take = call(Verb::Take(Amount::ONE), None);
    let charge = |words| take.charge_under(&windows(words));
    assert_eq!(charge("FIXED 5 1m FORCE COST 2 FIXED 9 1d FORCE"), Charge::Always);
    assert_eq!(charge("FIXED 5 1m FORCE FIXED 9 1d SHADOW"), Charge::Always);
    assert_eq!(charge("FIXED 5 1m FORCE FIXED 9 1d"), Charge::AllOrNone);
    assert_eq!(charge("FIXED 5 1m SHADOW"), Charge::AllOrNone);
    assert_eq!(take.charge_under(&[]), Charge::AllOrNone);
}

fn numbers(numbers: [i64; 5]) -> Value {
    Value::Array(numbers.map(Value::Int).to_vec())
}

#[test]
fn a_reply_names_each_limit_and_the_policy() {
    let each = Value::Array(vec![numbers([1, 10, 7, 0, 300]), numbers([0, 5, 0, 900, 900])]);
    let reply = Value::Array(vec![Value::Int(0), Value::Int(900), each, Value::BulkString(b"gold".to_vec())]);
    let Reply::Decided(verdict) = call(Verb::Take(Amount::ONE), None).reply(Ok(reply)) else {
        panic!("it was decided")
    };
    assert_eq!((verdict.allowed, verdict.wait_ms, verdict.policy.as_deref()), (false, 900, Some("gold")));
    assert_eq!(verdict.governing(&[], Amount::ONE).map(|(place, decision)| (place, decision.limit)), Some((1, 5)));
    assert!(matches!(call(Verb::Take(Amount::ONE), None).reply(Ok(Value::Nil)), Reply::Refused(_)));
}

#[test]
fn of_limits_that_pass_the_one_that_runs_out_first_governs() {
    let of = |remaining| Decision { allowed: true, limit: 100, remaining, wait_ms: 0, reset_ms: 1 };
    let verdict = Verdict { allowed: true, wait_ms: 0, each: vec![of(9), of(3), of(3)], policy: None, version: None };
    let place = |windows: &[_]| verdict.governing(windows, Amount::ONE).map(|(place, _)| place);
    assert_eq!(place(&[]), Some(1));
    assert_eq!(place(&windows("FIXED 9 1m FIXED 3 1h SHADOW FIXED 3 1d")), Some(2));
    assert_eq!(place(&windows("FIXED 9 1m COST 5 FIXED 3 1h FIXED 3 1d COST 6")), Some(2));
}
