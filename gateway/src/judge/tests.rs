use super::rollback::identified;
use super::{Judge, Outage, Question, RequestPart};
use crate::ask::{Call, Reply, Rule, Verb, Verdict};
use crate::charge::Charge;
use crate::link::tests::{DECIDES, DENIED, Fake, until};
use crate::link::{Address, Link, Listener as _, PolicyRow};
use crate::seen::Outcome;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use ratelimit_core::Amount;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Longer than anything but a test that hangs takes.
const LONG: Duration = Duration::from_mins(1);

fn asked(key: &str, verb: Verb, id: Option<&str>) -> RequestPart {
    let call = Call {
        key: key.as_bytes().to_vec(),
        rule: Rule::Policies(vec!["p".into()]),
        verb,
        id: id.map(|id| id.as_bytes().to_vec()),
        remembered: "5m".into(),
        charge: Charge::AllOrNone,
    };
    RequestPart::Server(Question::new(call))
}

/// Part that charges 1 of `rl:allowed` in this mode.
fn charged(charge: Charge) -> RequestPart {
    let mut part = asked("rl:allowed", Verb::Take(Amount::ONE), None);
    if let RequestPart::Server(question) = &mut part {
        question.call.charge = charge;
    }
    part
}

#[test]
fn one_call_that_charges_needs_no_id() {
    for other in [asked("b", Verb::GiveBack(Amount::ONE), None), RequestPart::Nothing, RequestPart::Unlimited] {
        let one = identified(&[asked("a", Verb::Take(Amount::ONE), None), other], LONG);
        assert!(one.iter().all(|call| call.id.is_none()));
    }
}

#[test]
fn several_calls_have_ids_to_undo_them_by() {
    let parts = [asked("a", Verb::Take(Amount::ONE), None), asked("b", Verb::Take(Amount::ONE), Some("x"))];
    let several = identified(&parts, LONG);
    assert_eq!((several[0].id.as_ref().map(Vec::len), several[0].remembered.as_str()), (Some(16), "240000ms"));
    assert_eq!((several[1].id.as_deref(), several[1].remembered.as_str()), (Some(&b"x"[..]), "5m"));
    for charge in [Charge::Independent, Charge::Always] {
        assert!(identified(&[charged(charge), parts[1].clone()], LONG)[0].id.is_none());
    }
    assert_eq!(identified(&parts, Duration::from_millis(100))[0].remembered, "2000ms");
    // What only looks is denied to who is banned.
    for other in [asked("b", Verb::Take(Amount::ZERO), None), RequestPart::TooMuch] {
        let calls = identified(&[asked("a", Verb::Take(Amount::ONE), None), other], LONG);
        assert!(calls[0].id.is_some());
    }
}

#[test]
fn the_same_key_again_is_another_call() {
    let part = || asked("a", Verb::Take(Amount::ONE), Some("x"));
    let ids: Vec<_> = identified(&[part(), part(), part()], LONG).iter().map(|call| call.id.clone()).collect();
    assert_eq!(ids, [Some(b"x".to_vec()), Some(b"x#2".to_vec()), Some(b"x#3".to_vec())]);
}

/// One that asks nobody.
fn judge(outage: Outage) -> Judge {
    asking(Arc::new(Link::new(Address::parse("redis://localhost").unwrap())), outage)
}

fn asking(link: Arc<Link>, outage: Outage) -> Judge {
    Judge {
        link,
        table: Arc::default(),
        outage,
        local: None,
        timeout: LONG,
        shadow: false,
        in_flight: Arc::new(Semaphore::new(1)),
        told: std::sync::Mutex::default(),
    }
}

/// Whether a request passes whose parts are quotas or not, in the shadow or not, and over their limits or not; and which
/// of them deny.
fn concluded(parts: &[(&str, bool)]) -> (bool, Vec<bool>) {
    let question = |(mode, _): &(&str, bool)| {
        let RequestPart::Server(question) = asked("a", Verb::Take(Amount::ONE), None) else { panic!("another") };
        RequestPart::Server(Question { shadow: mode.contains("shadow"), quota: mode.contains("quota"), ..question })
    };
    let reply = |(_, over): &(&str, bool)| {
        Reply::Decided(Verdict { allowed: !over, wait_ms: 1, each: vec![], policy: None, version: None })
    };
    let (asked, replies): (Vec<_>, Vec<_>) = parts.iter().map(|part| (question(part), reply(part))).unzip();
    let judgement = judge(Outage::Open).concluded(&asked, &replies);
    (judgement.allowed, judgement.parts.iter().map(|part| part.denies).collect())
}

#[test]
fn quotas_deny_only_together() {
    assert_eq!(concluded(&[("quota", true), ("quota", false)]), (true, vec![false, false]));
    assert_eq!(concluded(&[("quota", true), ("quota", true)]), (false, vec![true, true]));
    assert_eq!(concluded(&[("quota", true), ("", false)]), (false, vec![true, false]));
    assert_eq!(concluded(&[("quota", true), ("quota", false), ("", true)]), (false, vec![false, false, true]));
}

#[test]
fn what_is_in_the_shadow_denies_nobody() {
    assert_eq!(concluded(&[("shadow", true), ("", false)]), (true, vec![false, false]));
    assert_eq!(concluded(&[("shadow quota", true)]), (true, vec![false]));
    let beside = concluded(&[("shadow quota", true), ("quota", true)]);
    assert_eq!(beside, (true, vec![false, false]), "a quota in the shadow is never used up");
}

#[test]
fn who_cannot_be_asked_about_denies_where_that_is_wanted() {
    let question = asked("a", Verb::Take(Amount::ONE), None);
    let looks = asked("a", Verb::GiveBack(Amount::ONE), None);
    for reply in [Reply::Lost, Reply::Refused, Reply::Forbidden].map(|reply| reply(String::new())) {
        for (outage, allowed) in [(Outage::Open, true), (Outage::Closed, false), (Outage::Local(0.5), true)] {
            let judgement = judge(outage).concluded(std::slice::from_ref(&question), std::slice::from_ref(&reply));
            assert_eq!((judgement.allowed, judgement.unknown), (allowed, true), "{outage:?} {reply:?}");
            assert!(judge(outage).concluded(std::slice::from_ref(&looks), std::slice::from_ref(&reply)).allowed);
        }
    }
}

#[tokio::test]
async fn a_charge_that_cannot_be_undone_is_counted() {
    // How often each settlement is sent, and how many charges stand.
    for (answer, sent, unsettled) in [
        ("*4\r\n:1\r\n:0\r\n*0\r\n$3\r\napi\r\n", 1, 0),
        ("-LOADING\r\n", 2, 1),
        ("-NOPOLICY\r\n", 1, 1),
        ("-WRONGTYPE\r\n", 1, 1),
    ] {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _counts = metrics::set_default_local_recorder(&recorder);
        let (fake, link) = Fake::started().await;
        fake.settle(answer);
        let judge = Arc::new(asking(link, Outage::Open));
        let parts = ["rl:allowed", DENIED].map(|key| asked(key, Verb::Take(Amount::ONE), None));
        let judgement = judge.judge("api".to_owned(), parts.into(), None).await;
        assert!(!judgement.allowed && judgement.parts[1].denies);
        assert_eq!(fake.count("rl:allowed"), 1 + sent, "{answer}");
        assert_eq!(fake.count(DENIED), 1, "what was denied has nothing to give back");
        assert_eq!(value(&recorder, "ratelimit_gateway_unsettled_total"), unsettled.to_string(), "{answer}");
    }
}

#[tokio::test]
async fn only_all_or_none_is_rolled_back() {
    for (charge, calls) in [(Charge::AllOrNone, 2), (Charge::Independent, 1), (Charge::Always, 1)] {
        let (fake, link) = Fake::started().await;
        let judge = Arc::new(asking(link, Outage::Open));
        let parts = [charged(charge), asked(DENIED, Verb::Take(Amount::ONE), None)];
        assert!(!judge.judge("api".to_owned(), parts.into(), None).await.allowed);
        assert_eq!(fake.count("rl:allowed"), calls, "{charge:?}");
    }
}

#[tokio::test]
async fn charge_of_a_forced_policy_is_not_rolled_back() {
    let (fake, link) = Fake::started().await;
    let judge = asking(link, Outage::Open);
    let row = PolicyRow { name: "api".to_owned(), version: 1, specs: "FIXED 1 1h FORCE".to_owned() };
    judge.table.policies(String::new(), vec![row]);
    let judge = Arc::new(judge);
    let parts = [charged(Charge::AllOrNone), asked(DENIED, Verb::Take(Amount::ONE), None)];
    assert!(!judge.judge("api".to_owned(), parts.into(), None).await.allowed);
    assert_eq!(fake.count("rl:allowed"), 1);
}

#[test]
fn limits_of_a_call_are_those_of_its_policy_or_its_words() {
    let judge = judge(Outage::Open);
    let verdict = Verdict { allowed: true, wait_ms: 0, each: vec![], policy: None, version: None };
    let words = Rule::Limits("FIXED 1 1h FORCE".split(' ').map(str::to_owned).collect());
    assert!(judge.windows(&words, &verdict)[0].forced);
    assert!(judge.windows(&Rule::Policies(vec!["api".to_owned()]), &verdict).is_empty());
}

/// Value of a counter or gauge; "0" before its first change.
fn value(recorder: &PrometheusRecorder, name: &str) -> String {
    let rendered = recorder.handle().render();
    let found = rendered.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or("0").to_owned()
}

#[tokio::test]
async fn deadline_of_a_caller_is_no_failure_of_the_server() {
    let (fake, link) = Fake::started().await;
    fake.answer(None);
    let judge = Arc::new(Judge { in_flight: Arc::new(Semaphore::new(100)), ..asking(link, Outage::Open) });
    let part = || [asked("rl:a", Verb::Take(Amount::ONE), None)];
    for _ in 0..20 {
        let judgement = judge.judge("api".to_owned(), part().into(), Some(Duration::ZERO)).await;
        assert_eq!((judgement.allowed, judgement.unknown), (true, true));
    }
    fake.answer(Some(DECIDES));
    assert!(!judge.judge("api".to_owned(), part().into(), None).await.unknown, "a patient caller gets a decision");
}

#[tokio::test]
async fn calls_of_impatient_callers_fail_once_the_timeout_is_over() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let (fake, link) = Fake::started().await;
    fake.answer(None);
    let (timeout, in_flight) = (Duration::from_millis(50), Arc::new(Semaphore::new(100)));
    let judge = Arc::new(Judge { timeout, in_flight, ..asking(link, Outage::Open) });
    for _ in 0..3 {
        let part = [asked("rl:a", Verb::Take(Amount::ONE), None)];
        assert!(judge.judge("api".to_owned(), part.into(), Some(Duration::ZERO)).await.unknown);
    }
    until(|| value(&recorder, "ratelimit_gateway_outage") == "1").await;
}

#[tokio::test]
async fn denial_is_answered_at_the_deadline_and_rolled_back_behind_it() {
    let (fake, link) = Fake::started().await;
    fake.settle("");
    let judge = Arc::new(asking(link, Outage::Open));
    let parts = ["rl:allowed", DENIED].map(|key| asked(key, Verb::Take(Amount::ONE), None));
    let judgement = judge.judge("api".to_owned(), parts.into(), Some(Duration::from_millis(500))).await;
    assert!(!judgement.allowed && !judgement.unknown);
    assert_eq!(fake.count("rl:allowed"), 2, "the settlement has been sent and has no reply yet");
    assert_eq!(judge.in_flight.available_permits(), 0, "the rollback goes on");
    fake.settle(DECIDES);
    until(|| judge.in_flight.available_permits() == 1).await;
    assert_eq!(fake.count("rl:allowed"), 2);
}

#[tokio::test]
async fn charge_behind_the_denial_of_an_outage_is_rolled_back() {
    let (fake, link) = Fake::started().await;
    fake.answer(None);
    let judge = Arc::new(asking(link, Outage::Closed));
    let parts = ["rl:a", "rl:b"].map(|key| asked(key, Verb::Take(Amount::ONE), None));
    let judgement = judge.judge("api".to_owned(), parts.into(), Some(Duration::from_millis(50))).await;
    assert!(!judgement.allowed && judgement.unknown);
    fake.answer(Some(DECIDES));
    until(|| judge.in_flight.available_permits() == 1).await;
    assert_eq!([fake.count("rl:a"), fake.count("rl:b")], [2, 2], "each is charged and given back");
}

#[tokio::test]
async fn who_comes_when_all_places_are_taken_is_answered_without_the_server() {
    let (fake, link) = Fake::started().await;
    let judge = Arc::new(Judge { in_flight: Arc::new(Semaphore::new(0)), ..asking(link, Outage::Closed) });
    let judgement = judge.judge("api".to_owned(), [asked("rl:a", Verb::Take(Amount::ONE), None)].into(), None).await;
    assert!(judgement.unknown && !judgement.allowed);
    assert_eq!((judgement.parts[0].outcome, fake.count("rl:a")), (Outcome::Outage, 0));
}
