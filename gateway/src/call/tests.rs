use super::{Call, CallDecision, LimitDecision, Operation, Reply, Rule};
use crate::charge::ChargingMode;
use crate::limit::parse_limits;
use ratelimit_core::Amount;
use redis::Value;

fn amount(text: &str) -> Amount {
    Amount::parse_up(text.as_bytes()).expect("a number")
}

fn call(operation: Operation, id: Option<&str>) -> Call {
    let rule = Rule::Policies(vec!["gold".into(), "default".into()]);
    let id = id.map(|id| id.as_bytes().to_vec());
    Call { key: b"k".to_vec(), rule, operation, id, id_lifetime: "5m".into(), charge: ChargingMode::AllOrNone }
}

/// Returns the words of the command for a call.
fn command_words(call: &Call) -> String {
    let packed = call.command().get_packed_command();
    let text = String::from_utf8(packed).expect("text");
    text.split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn command_has_the_options_of_the_call() {
    assert_eq!(command_words(&call(Operation::Take(Amount::ONE), None)), "RL.LIMIT k gold OR default EACH");
    assert_eq!(
        command_words(&call(Operation::Take(amount("2.5")), Some("i"))),
        "RL.LIMIT k gold OR default EACH COST 2.5 ONCE i 5m"
    );
    assert_eq!(command_words(&call(Operation::Take(Amount::ZERO), None)), "RL.LIMIT k gold OR default EACH COST 0");
    assert_eq!(command_words(&call(Operation::GiveBack(amount("3")), None)), "RL.LIMIT k gold OR default EACH COST -3");
    assert_eq!(
        command_words(&call(Operation::Settle(amount("7")), Some("i"))),
        "RL.LIMIT k gold OR default EACH SETTLE i 7"
    );
    assert_eq!(command_words(&call(Operation::Release, Some("i"))), "RL.RELEASE k i");
    let always = |operation, id| Call { charge: ChargingMode::Always, ..call(operation, id) };
    let forced = always(Operation::Take(amount("2")), Some("i"));
    assert_eq!(command_words(&forced), "RL.LIMIT k gold OR default EACH COST 2 FORCE ONCE i 5m");
    assert_eq!(command_words(&always(Operation::Take(Amount::ZERO), None)), "RL.LIMIT k gold OR default EACH COST 0");
    assert_eq!(
        command_words(&call(Operation::Force(amount("7")), None)),
        "RL.LIMIT k gold OR default EACH COST 7 FORCE"
    );
    let limits = Rule::Limits(["FIXED", "5", "1m", "ALIGNED"].map(String::from).to_vec());
    let inline = Call { rule: limits, ..call(Operation::Take(Amount::ONE), Some("i")) };
    assert_eq!(command_words(&inline), "RL.TAKE k EACH ONCE i 5m FIXED 5 1m ALIGNED");
    assert_eq!(command_words(&inline.rollback()), "RL.TAKE k EACH SETTLE i 0 FIXED 5 1m ALIGNED");
}

#[test]
fn policy_whose_limits_all_have_force_is_always_charged() {
    let take = call(Operation::Take(Amount::ONE), None);
    let mode = |limits| take.charging_mode_under(&parse_limits(limits));
    assert_eq!(mode("FIXED 5 1m FORCE COST 2 FIXED 9 1d FORCE"), ChargingMode::Always);
    assert_eq!(mode("FIXED 5 1m FORCE FIXED 9 1d SHADOW"), ChargingMode::Always);
    assert_eq!(mode("FIXED 5 1m FORCE FIXED 9 1d"), ChargingMode::AllOrNone);
    assert_eq!(mode("FIXED 5 1m SHADOW"), ChargingMode::AllOrNone);
    assert_eq!(take.charging_mode_under(&[]), ChargingMode::AllOrNone);
}

fn integers(numbers: [i64; 5]) -> Value {
    Value::Array(numbers.map(Value::Int).to_vec())
}

#[test]
fn reply_with_a_decision_is_parsed() {
    let limits = Value::Array(vec![integers([1, 10, 7, 0, 300]), integers([0, 5, 0, 900, 900])]);
    let reply = Value::Array(vec![Value::Int(0), Value::Int(900), limits, Value::BulkString(b"gold".to_vec())]);
    let Reply::Decided(decision) = call(Operation::Take(Amount::ONE), None).parse_reply(Ok(reply)) else {
        panic!("no decision")
    };
    assert_eq!((decision.allowed, decision.wait_ms, decision.policy.as_deref()), (false, 900, Some("gold")));
    assert_eq!(decision.governing(&[], Amount::ONE).map(|(index, limit)| (index, limit.limit)), Some((1, 5)));
    assert!(matches!(call(Operation::Take(Amount::ONE), None).parse_reply(Ok(Value::Nil)), Reply::Refused(_)));
}

#[test]
fn limit_with_the_fewest_further_calls_governs_an_allowed_call() {
    let limit = |remaining| LimitDecision { allowed: true, limit: 100, remaining, wait_ms: 0, reset_ms: 1 };
    let decision = CallDecision {
        allowed: true,
        wait_ms: 0,
        limit_decisions: vec![limit(9), limit(3), limit(3)],
        policy: None,
        version: None,
    };
    let governing = |limits: &[_]| decision.governing(limits, Amount::ONE).map(|(index, _)| index);
    assert_eq!(governing(&[]), Some(1));
    assert_eq!(governing(&parse_limits("FIXED 9 1m FIXED 3 1h SHADOW FIXED 3 1d")), Some(2));
    assert_eq!(governing(&parse_limits("FIXED 9 1m COST 5 FIXED 3 1h FIXED 3 1d COST 6")), Some(2));
}
