//! Limits of a policy with FORCE.

use super::*;
use crate::algorithm::any::with_limit;
use crate::composite::{Answer, CompositeEvaluation, CompositeUsage, StoredUsage};
use crate::limit::Decision;
use crate::number::Timestamp;
use crate::testing::calls::us;

/// Parses the options of RL.LIMIT, and returns the call on the policy as a composite request.
fn composite_call<'p>(text: &str, policy: &'p Policy) -> CompositeRequest<'p> {
    match request(text, policy).unwrap_or_else(|error| unreachable!("{text}: {error}")) {
        KeyRequest::One(spec) => CompositeRequest::of_one(spec),
        KeyRequest::Composite(call) => *call,
        KeyRequest::Policy(unresolved) => unreachable!("{unresolved:?}"),
    }
}

#[test]
fn force_is_rejected_for_leases_sketches_and_with_shadow() {
    let next = |options: &str| {
        format!(
            "where an option of the spec before, BAN or an algorithm is needed: {options}; TOKENBUCKET, LEAKYBUCKET, \
             FIXED, SLIDING, SLIDINGLOG, CONCURRENCY or SKETCH"
        )
    };
    for (text, word, reason) in [
        ("CONCURRENCY 5 1m FORCE", "FORCE", next("COST, AS or SHADOW")),
        ("SKETCH 5 5 1m FORCE", "FORCE", next("COST, SHADOW or SIZE")),
        ("FIXED 5 1m FORCE SHADOW", "SHADOW", "which cannot be combined with FORCE".to_owned()),
        ("SLIDING 5 1m SHADOW COST 1 FORCE", "FORCE", "which cannot be combined with SHADOW".to_owned()),
        ("TOKENBUCKET 5 5 1m FORCE FORCE", "FORCE", "which is given twice".to_owned()),
    ] {
        let refused = parse_policy(text).unwrap_err().to_string();
        assert_eq!(refused, format!("ERR syntax error, unexpected '{word}', {reason}"), "{text}");
    }
}

#[test]
fn forced_limit_is_charged_in_full_by_charging_calls_only() {
    let force = |cost: u64| Request::Force(units(cost));
    let policy = policy("FIXED 10 1m FORCE SLIDING 20 1m COST 3 FORCE TOKENBUCKET 30 30 1h FIXED 40 1h");
    for (text, expected) in [
        ("", [force(1), force(3), take(1), take(1)]),
        ("COST 12", [force(12), force(3), take(12), take(12)]),
        ("COST 12 FORCE", [force(12), force(3), force(12), force(12)]),
        ("COST 12 UPTO", {
            let up_to = Request::UpTo(units(12));
            [Request::ForceUpTo(units(12)), force(3), up_to, up_to]
        }),
        ("COST 12 MAXWAIT 5s", [force(12), force(3), Request::Within(units(12), Span::SECOND.times(5)), take(12)]),
        // Equal to a policy without FORCE.
        ("COST 0", [take(0), take(0), take(0), take(0)]),
        ("COST -2", {
            let refund = Request::Refund(units(2));
            [refund, take(0), refund, refund]
        }),
        ("SETTLE a 7", [take(0), take(0), take(0), take(0)]),
    ] {
        assert_eq!(requests(&request(text, &policy).unwrap()), expected, "{text}");
    }
    let limits_and_keeps = |text: &str| {
        let call = composite_call(text, &policy);
        call.specs.iter().map(|spec| (spec.limit.limit(), spec.keep)).collect::<Vec<_>>()
    };
    // KEEP does not apply to a forced limit.
    let whole = |limit: u64| (units(limit), Amount::ZERO);
    assert_eq!(limits_and_keeps("KEEP 50%"), [whole(10), whole(20), (units(15), units(15)), (units(20), units(20))]);
    assert_eq!(limits_and_keeps("KEEP 4")[..2], [whole(10), whole(20)]);
    assert_eq!(limits_and_keeps("COST 0 KEEP 4")[0], (units(6), units(4)), "a peek");
}

#[test]
fn peek_ignores_force_of_a_policy() {
    let policy = policy("FIXED 10 1m FORCE SLIDING 20 1m FORCE");
    for (text, expected) in [
        ("POLICY gold", take(1)),
        ("COST 12 POLICY gold", take(12)),
        ("COST 12 UPTO POLICY gold", Request::UpTo(units(12))),
        ("COST 12 FORCE POLICY gold", Request::Force(units(12))),
    ] {
        let KeyRequest::Policy(request) = KeyRequest::peek(&mut Args::new(words(text)), None).unwrap() else {
            unreachable!()
        };
        assert_eq!(requests(&request.request(&policy).unwrap()), [expected, expected], "{text}");
    }
    let peeked = KeyRequest::peek(&mut Args::new(words("KEEP 4 POLICY gold")), None).unwrap();
    let KeyRequest::Policy(request) = peeked else { unreachable!() };
    let Ok(KeyRequest::Composite(call)) = request.request(&policy) else { unreachable!() };
    assert_eq!(call.specs[0].keep, units(4));
}

#[test]
fn prebuilt_request_of_forced_limits_equals_the_parsed_one() {
    for text in
        ["FIXED 10 1m FORCE", "FIXED 10 1m FORCE SLIDING 9 1h COST 3 FORCE", "FIXED 10 1m AS a FORCE BAN 3 1m 1h"]
    {
        let policy = policy(text);
        assert!(policy.has_force() && policy.scaled(units(2)).has_force());
        let prebuilt = match policy.plain() {
            Some(spec) => Ok(KeyRequest::One(*spec)),
            None => policy.composite().map(|call| KeyRequest::Composite(Box::new(call.into_owned()))),
        };
        assert_eq!(format!("{prebuilt:?}"), format!("{:?}", request("", &policy)), "{text}");
    }
    assert!(!policy("FIXED 10 1m SHADOW").has_force());
}

/// Key under test.
#[derive(Default)]
struct Key(CompositeUsage);

impl Key {
    fn call(&mut self, call: &CompositeRequest, now: Timestamp) -> Answer {
        let call = &CompositeRequest { each: true, ..call.clone() };
        let evaluation = CompositeEvaluation::at(call, StoredUsage::Composite(&self.0), now);
        if evaluation.changes() || evaluation.is_strike() {
            self.0.charge(call, &evaluation, now);
        }
        evaluation.answer(call, StoredUsage::Composite(&self.0), now, evaluation.allows() && evaluation.changes())
    }

    /// Returns `true` if the call is allowed, with the remaining and the granted units.
    fn decide(&mut self, text: &str, policy: &Policy) -> (bool, u64, Option<u64>) {
        let Decision { verdict, remaining, granted, .. } = self.call(&composite_call(text, policy), us(0)).decision;
        (verdict.allowed(), remaining.whole_units(), granted.map(Amount::whole_units))
    }
}

#[test]
fn charge_past_a_forced_limit_is_stored_and_denied() {
    for text in ["FIXED 10 1h FORCE", "SLIDING 10 1h AS a FORCE", "TOKENBUCKET 10 10 1h FORCE BAN 1 1m 1h"] {
        let policy = policy(text);
        let allowed = |costs: &[&str]| {
            let mut key = Key::default();
            costs.iter().map(|cost| key.decide(&format!("COST {cost}"), &policy).0).collect::<Vec<_>>()
        };
        assert_eq!(allowed(&["0", "12", "0"]), [true, false, false], "{text}");
        assert_eq!(allowed(&["8", "5", "1", "0"]), [true, false, false, false], "{text}");
        assert_eq!(allowed(&["8", "2", "0", "1"]), [true, true, true, false], "{text}");
    }
}

#[test]
fn denial_by_another_limit_leaves_a_forced_one_uncharged() {
    let policy = policy("FIXED 10 1h FORCE FIXED 5 1d AS day BAN 2 1m 1h");
    let mut key = Key::default();
    assert_eq!(key.decide("COST 4", &policy), (true, 1, None));
    assert_eq!(key.decide("COST 2", &policy), (false, 1, None), "denied by the day");
    assert!(key.decide("COST 1 FORCE", &policy).0, "after one strike, with 5 of 10 used");
    // A denial by the forced limit is no strike: a second strike would ban.
    let long_window = self::policy("FIXED 10 1h FORCE FIXED 900 1d AS day BAN 2 1m 1h");
    for _ in 0..3 {
        assert!(!key.decide("COST 9", &long_window).0);
    }
    assert_eq!(key.0.remaining_ban(us(0)), Span::ZERO);
}

#[test]
fn upto_replies_the_grant_although_forced_limits_are_charged_in_full() {
    let single = policy("FIXED 10 1h FORCE");
    let mut key = Key::default();
    assert_eq!(key.decide("COST 7 UPTO", &single), (true, 3, Some(7)));
    assert_eq!(key.decide("COST 7 UPTO", &single), (false, 0, Some(7)), "charged past its limit");
    let pair = policy("FIXED 10 1h FORCE FIXED 3 1d AS day");
    let mut key = Key::default();
    let answer = key.call(&composite_call("COST 8 UPTO EACH", &pair), us(0));
    let shown =
        |one: &Decision| (one.verdict.allowed(), one.remaining.whole_units(), one.granted.map(Amount::whole_units));
    assert_eq!(answer.each.iter().map(shown).collect::<Vec<_>>(), [(true, 2, Some(3)), (true, 0, Some(3))]);
    let answer = key.call(&composite_call("COST 8 UPTO EACH", &pair), us(0));
    assert_eq!(answer.each.iter().map(shown).collect::<Vec<_>>(), [(false, 2, Some(0)), (false, 0, Some(0))], "denied");
    let mut key = Key::default();
    for _ in 0..2 {
        assert_eq!(key.decide("COST 12 UPTO ONCE a 1m", &single), (false, 0, Some(12)));
    }
}

/// Generates limits with their costs, and `true` for FORCE. Their windows are different, so that no two have the same
/// identity.
fn limits_of_call() -> impl Strategy<Value = Vec<(String, &'static str, bool)>> {
    let limit = |index: usize| {
        let text = select(vec!["FIXED 10 MINm", "SLIDING 10 MINm", "SLIDINGLOG 9 MINm", "TOKENBUCKET 8 8 MINm"]);
        let text = text.prop_map(move |text| text.replace("MIN", &(index + 1).to_string()));
        (text, select(vec!["", "", " COST 2", " COST 0"]), any::<bool>())
    };
    (1..=3_usize).prop_flat_map(move |count| (0..count).map(limit).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn force_of_a_policy_equals_force_after_the_spec(
        limits in limits_of_call(),
        calls in proptest::collection::vec((select(vec![0_u64, 1, 2, 5, 12]), 0..90_000_000_u64), 1..20),
        ban in select(vec!["", " BAN 2 1m 1m"]),
    ) {
        let specs_with = |mark: &dyn Fn(bool, &str) -> &'static str| {
            let specs = limits.iter().map(|(limit, cost, force)| format!("{limit}{cost}{}", mark(*force, cost)));
            format!("{}{ban}", specs.collect::<Vec<_>>().join(" "))
        };
        let policy = policy(&specs_with(&|force, _| if force { " FORCE" } else { "" }));
        let (mut by_policy, mut inline) = (Key::default(), Key::default());
        let mut now = 0;
        for (cost, elapsed) in calls {
            now += elapsed;
            // A cost of 0 charges nothing, and is denied while usage exceeds the limit.
            let text = specs_with(&|force, own_cost| if force && cost > 0 && own_cost != " COST 0" { " FORCE" } else { "" });
            let inline_call = match KeyRequest::take(&mut Args::new(words(&format!("COST {cost} {text}"))), None).unwrap() {
                KeyRequest::One(spec) => CompositeRequest::of_one(spec),
                KeyRequest::Composite(call) => *call,
                KeyRequest::Policy(unresolved) => unreachable!("{unresolved:?}"),
            };
            let policy_call = composite_call(&format!("COST {cost} EACH"), &policy);
            for (one, other) in policy_call.specs.iter().zip(&inline_call.specs) {
                prop_assert_eq!(one.request, other.request);
                with_limit!(one, limit => prop_assert_eq!(limit.limit(), other.limit.limit()));
            }
            let answer = by_policy.call(&policy_call, us(now));
            let expected = inline.call(&inline_call, us(now));
            prop_assert_eq!(answer.decision, expected.decision);
            prop_assert_eq!(answer.each, expected.each);
        }
    }
}
