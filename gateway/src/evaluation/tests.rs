use super::rollback::identifiable_calls;
use super::{Caller, DenialLog, Evaluator, RequestPart, RuleCall};
use crate::call::{Call, CallDecision, Operation, Reply, Rule};
use crate::charge::ChargingMode;
use crate::metrics::{NearLimitRatio, Outcome};
use crate::outage_mode::OutageMode;
use crate::policy_cache::PolicyRow;
use crate::upstream::tests::{DENIED_KEY, FakeServer, GRANTED, wait_until};
use crate::upstream::{Address, Upstream};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use ratelimit_core::Amount;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Timeout that no test reaches.
const TIMEOUT: Duration = Duration::from_mins(1);

fn part(key: &str, operation: Operation, id: Option<&str>) -> RequestPart {
    let call = Call {
        key: key.as_bytes().to_vec(),
        rule: Rule::Policies(vec!["p".into()]),
        operation,
        id: id.map(|id| id.as_bytes().to_vec()),
        id_lifetime: "5m".into(),
        charge: ChargingMode::AllOrNone,
    };
    RequestPart::Call(RuleCall::new(call))
}

/// Returns a part that charges 1 of `rl:allowed` in a charging mode.
fn charging_part(charge: ChargingMode) -> RequestPart {
    let mut part = part("rl:allowed", Operation::Take(Amount::ONE), None);
    if let RequestPart::Call(rule_call) = &mut part {
        rule_call.call.charge = charge;
    }
    part
}

#[test]
fn single_charging_call_gets_no_id() {
    for other in [part("b", Operation::GiveBack(Amount::ONE), None), RequestPart::NoLimit, RequestPart::Unlimited] {
        let calls = identifiable_calls(&[part("a", Operation::Take(Amount::ONE), None), other], TIMEOUT);
        assert!(calls.iter().all(|call| call.id.is_none()));
    }
}

#[test]
fn several_charging_calls_get_ids_for_rollback() {
    let parts = [part("a", Operation::Take(Amount::ONE), None), part("b", Operation::Take(Amount::ONE), Some("x"))];
    let calls = identifiable_calls(&parts, TIMEOUT);
    assert_eq!((calls[0].id.as_ref().map(Vec::len), calls[0].id_lifetime.as_str()), (Some(16), "240000ms"));
    assert_eq!((calls[1].id.as_deref(), calls[1].id_lifetime.as_str()), (Some(&b"x"[..]), "5m"));
    for charge in [ChargingMode::Independent, ChargingMode::Always] {
        assert!(identifiable_calls(&[charging_part(charge), parts[1].clone()], TIMEOUT)[0].id.is_none());
    }
    assert_eq!(identifiable_calls(&parts, Duration::from_millis(100))[0].id_lifetime, "2000ms");
    // A call without a cost is denied during a ban.
    for other in [part("b", Operation::Take(Amount::ZERO), None), RequestPart::CostTooHigh] {
        let calls = identifiable_calls(&[part("a", Operation::Take(Amount::ONE), None), other], TIMEOUT);
        assert!(calls[0].id.is_some());
    }
}

#[test]
fn calls_on_one_key_get_different_ids() {
    let repeated = || part("a", Operation::Take(Amount::ONE), Some("x"));
    let ids: Vec<_> =
        identifiable_calls(&[repeated(), repeated(), repeated()], TIMEOUT).iter().map(|call| call.id.clone()).collect();
    assert_eq!(ids, [Some(b"x".to_vec()), Some(b"x#2".to_vec()), Some(b"x#3".to_vec())]);
}

/// Returns an evaluator without a server.
fn offline_evaluator(outage_mode: OutageMode) -> Evaluator {
    evaluator(Arc::new(Upstream::new(Address::parse("redis://localhost").unwrap())), outage_mode)
}

fn caller_with_timeout(timeout: Duration) -> Caller {
    Caller { timeout: Some(timeout), span: None }
}

fn evaluator(upstream: Arc<Upstream>, outage_mode: OutageMode) -> Evaluator {
    Evaluator {
        upstream,
        policies: Arc::default(),
        outage_mode,
        local: None,
        timeout: TIMEOUT,
        shadow: false,
        remember_denials: Duration::ZERO,
        near_limit_ratio: NearLimitRatio::default(),
        in_flight: Arc::new(Semaphore::new(1)),
        denial_log: DenialLog::new(0),
        error_logged_at: std::sync::Mutex::default(),
    }
}

/// Combines parts, each with its modes (`quota`, `shadow`) and `true` if it is over its limit. Returns `true` if the
/// request passes, and for each part `true` if it denies the request.
fn combine(parts: &[(&str, bool)]) -> (bool, Vec<bool>) {
    let with_mode = |(mode, _): &(&str, bool)| {
        let RequestPart::Call(rule_call) = part("a", Operation::Take(Amount::ONE), None) else { panic!("no call") };
        RequestPart::Call(RuleCall { shadow: mode.contains("shadow"), quota: mode.contains("quota"), ..rule_call })
    };
    let reply = |(_, is_over): &(&str, bool)| {
        let limit_decisions = vec![];
        Reply::Decided(CallDecision { allowed: !is_over, wait_ms: 1, limit_decisions, policy: None, version: None })
    };
    let (parts, replies): (Vec<_>, Vec<_>) = parts.iter().map(|part| (with_mode(part), reply(part))).unzip();
    let decision = offline_evaluator(OutageMode::Open).combine(&parts, &replies);
    (decision.allowed, decision.parts.iter().map(|part| part.denies).collect())
}

#[test]
fn quotas_deny_only_together() {
    assert_eq!(combine(&[("quota", true), ("quota", false)]), (true, vec![false, false]));
    assert_eq!(combine(&[("quota", true), ("quota", true)]), (false, vec![true, true]));
    assert_eq!(combine(&[("quota", true), ("", false)]), (false, vec![true, false]));
    assert_eq!(combine(&[("quota", true), ("quota", false), ("", true)]), (false, vec![false, false, true]));
}

#[test]
fn part_in_shadow_mode_denies_nothing() {
    assert_eq!(combine(&[("shadow", true), ("", false)]), (true, vec![false, false]));
    assert_eq!(combine(&[("shadow quota", true)]), (true, vec![false]));
    let quotas = combine(&[("shadow quota", true), ("quota", true)]);
    assert_eq!(quotas, (true, vec![false, false]), "a quota in shadow mode counts as not exceeded");
}

#[test]
fn outage_mode_decides_calls_without_a_reply() {
    let take = part("a", Operation::Take(Amount::ONE), None);
    let give_back = part("a", Operation::GiveBack(Amount::ONE), None);
    for reply in [Reply::Lost, Reply::Refused, Reply::Forbidden].map(|reply| reply(String::new())) {
        for (outage, allowed) in [(OutageMode::Open, true), (OutageMode::Closed, false), (OutageMode::Local(0.5), true)]
        {
            let evaluator = offline_evaluator(outage);
            let decision = evaluator.combine(std::slice::from_ref(&take), std::slice::from_ref(&reply));
            assert_eq!((decision.allowed, decision.is_undecided), (allowed, true), "{outage:?} {reply:?}");
            assert!(evaluator.combine(std::slice::from_ref(&give_back), std::slice::from_ref(&reply)).allowed);
        }
    }
}

#[tokio::test]
async fn charge_that_cannot_be_rolled_back_is_counted() {
    for (answer, settlements, unsettled_charges) in [
        ("*4\r\n:1\r\n:0\r\n*0\r\n$3\r\napi\r\n", 1, 0),
        ("-LOADING\r\n", 2, 1),
        ("-NOPOLICY\r\n", 1, 1),
        ("-WRONGTYPE\r\n", 1, 1),
    ] {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _counts = metrics::set_default_local_recorder(&recorder);
        let (fake, upstream) = FakeServer::start().await;
        fake.set_settlement_reply(answer);
        let evaluator = Arc::new(evaluator(upstream, OutageMode::Open));
        let parts = ["rl:allowed", DENIED_KEY].map(|key| part(key, Operation::Take(Amount::ONE), None));
        let decision = evaluator.evaluate("api".to_owned(), parts.into(), Caller::default()).await;
        assert!(!decision.allowed && decision.parts[1].denies);
        assert_eq!(fake.count("rl:allowed"), 1 + settlements, "{answer}");
        assert_eq!(fake.count(DENIED_KEY), 1, "a denied call is not rolled back");
        let unsettled_total = metric_value(&recorder, "ratelimit_gateway_unsettled_total");
        assert_eq!(unsettled_total, unsettled_charges.to_string(), "{answer}");
    }
}

#[tokio::test]
async fn only_charging_mode_all_or_none_is_rolled_back() {
    for (charge, calls) in [(ChargingMode::AllOrNone, 2), (ChargingMode::Independent, 1), (ChargingMode::Always, 1)] {
        let (fake, upstream) = FakeServer::start().await;
        let evaluator = Arc::new(evaluator(upstream, OutageMode::Open));
        let parts = [charging_part(charge), part(DENIED_KEY, Operation::Take(Amount::ONE), None)];
        assert!(!evaluator.evaluate("api".to_owned(), parts.into(), Caller::default()).await.allowed);
        assert_eq!(fake.count("rl:allowed"), calls, "{charge:?}");
    }
}

#[tokio::test]
async fn charge_of_a_forced_policy_is_not_rolled_back() {
    let (fake, upstream) = FakeServer::start().await;
    let evaluator = evaluator(upstream, OutageMode::Open);
    let row = PolicyRow { name: "api".to_owned(), version: 1, specs: "FIXED 1 1h FORCE".to_owned() };
    evaluator.policies.replace(String::new(), vec![row]);
    let evaluator = Arc::new(evaluator);
    let parts = [charging_part(ChargingMode::AllOrNone), part(DENIED_KEY, Operation::Take(Amount::ONE), None)];
    assert!(!evaluator.evaluate("api".to_owned(), parts.into(), Caller::default()).await.allowed);
    assert_eq!(fake.count("rl:allowed"), 1);
}

#[test]
fn limits_of_a_call_come_from_its_policy_or_its_words() {
    let evaluator = offline_evaluator(OutageMode::Open);
    let decision = CallDecision { allowed: true, wait_ms: 0, limit_decisions: vec![], policy: None, version: None };
    let words = Rule::Limits("FIXED 1 1h FORCE".split(' ').map(str::to_owned).collect());
    assert!(evaluator.limits(&words, &decision)[0].is_forced);
    assert!(evaluator.limits(&Rule::Policies(vec!["api".to_owned()]), &decision).is_empty());
}

/// Returns the value of a counter or gauge, or "0" before its first change.
fn metric_value(recorder: &PrometheusRecorder, name: &str) -> String {
    let rendered = recorder.handle().render();
    let value = rendered.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or("0").to_owned()
}

#[tokio::test]
async fn timeout_of_a_caller_is_no_failure_of_the_server() {
    let (fake, upstream) = FakeServer::start().await;
    fake.set_reply(None);
    let evaluator =
        Arc::new(Evaluator { in_flight: Arc::new(Semaphore::new(100)), ..evaluator(upstream, OutageMode::Open) });
    let parts = || [part("rl:a", Operation::Take(Amount::ONE), None)];
    for _ in 0..20 {
        let decision = evaluator.evaluate("api".to_owned(), parts().into(), caller_with_timeout(Duration::ZERO)).await;
        assert_eq!((decision.allowed, decision.is_undecided), (true, true));
    }
    fake.set_reply(Some(GRANTED));
    assert!(
        !evaluator.evaluate("api".to_owned(), parts().into(), Caller::default()).await.is_undecided,
        "a caller without a timeout gets a decision"
    );
}

#[tokio::test]
async fn calls_of_callers_with_short_timeouts_fail_at_the_gateways_timeout() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let (fake, upstream) = FakeServer::start().await;
    fake.set_reply(None);
    let (timeout, in_flight) = (Duration::from_millis(50), Arc::new(Semaphore::new(100)));
    let evaluator = Arc::new(Evaluator { timeout, in_flight, ..evaluator(upstream, OutageMode::Open) });
    for _ in 0..3 {
        let parts = [part("rl:a", Operation::Take(Amount::ONE), None)];
        assert!(
            evaluator.evaluate("api".to_owned(), parts.into(), caller_with_timeout(Duration::ZERO)).await.is_undecided
        );
    }
    wait_until(|| metric_value(&recorder, "ratelimit_gateway_outage") == "1").await;
}

#[tokio::test]
async fn denial_is_returned_at_the_deadline_and_rolled_back_after_it() {
    let (fake, upstream) = FakeServer::start().await;
    fake.set_settlement_reply("");
    let evaluator = Arc::new(evaluator(upstream, OutageMode::Open));
    let parts = ["rl:allowed", DENIED_KEY].map(|key| part(key, Operation::Take(Amount::ONE), None));
    let decision =
        evaluator.evaluate("api".to_owned(), parts.into(), caller_with_timeout(Duration::from_millis(500))).await;
    assert!(!decision.allowed && !decision.is_undecided);
    assert_eq!(fake.count("rl:allowed"), 2, "the settlement has been sent and has no reply yet");
    assert_eq!(evaluator.in_flight.available_permits(), 0, "the rollback continues");
    fake.set_settlement_reply(GRANTED);
    wait_until(|| evaluator.in_flight.available_permits() == 1).await;
    assert_eq!(fake.count("rl:allowed"), 2);
}

#[tokio::test]
async fn late_charge_of_a_request_denied_in_an_outage_is_rolled_back() {
    let (fake, upstream) = FakeServer::start().await;
    fake.set_reply(None);
    let evaluator = Arc::new(evaluator(upstream, OutageMode::Closed));
    let parts = ["rl:a", "rl:b"].map(|key| part(key, Operation::Take(Amount::ONE), None));
    let decision =
        evaluator.evaluate("api".to_owned(), parts.into(), caller_with_timeout(Duration::from_millis(50))).await;
    assert!(!decision.allowed && decision.is_undecided);
    fake.set_reply(Some(GRANTED));
    wait_until(|| evaluator.in_flight.available_permits() == 1).await;
    assert_eq!([fake.count("rl:a"), fake.count("rl:b")], [2, 2], "each call is charged and rolled back");
}

#[tokio::test]
async fn request_above_the_in_flight_limit_is_answered_without_the_server() {
    let (fake, upstream) = FakeServer::start().await;
    let evaluator =
        Arc::new(Evaluator { in_flight: Arc::new(Semaphore::new(0)), ..evaluator(upstream, OutageMode::Closed) });
    let decision = evaluator
        .evaluate("api".to_owned(), [part("rl:a", Operation::Take(Amount::ONE), None)].into(), Caller::default())
        .await;
    assert!(decision.is_undecided && !decision.allowed);
    assert_eq!((decision.parts[0].outcome, fake.count("rl:a")), (Outcome::Outage, 0));
}
