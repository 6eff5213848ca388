//! Properties of a key with several limits that hold after any calls.

mod rejected_payloads;

use super::script::{ALL, CallText, Command, PLAIN, Step, histories, words};
use super::server::{CallError, CallResult, Server};
use crate::algorithm::any::{AnyUsage, PlainUsage, with_limit};
use crate::composite::idempotency::{Charge, IdempotencyTable};
use crate::composite::{Component, ComponentIdentity, CompositeEvaluation, CompositeUsage, StoredUsage};
use crate::limit::{Decision, Limit, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, KeyRequest};
use crate::testing::calls::us;
use crate::testing::encoded_fields::encoded;
use crate::testing::step_counter;
use crate::usage_kind::UsageKind;
use crate::wire::args::{Args, Words};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

/// Runs a call with inline limits, or peeks.
pub fn run_inline(server: &mut Server, text: &str, now: Timestamp, peeks: bool) -> Result<CallResult, CallError> {
    let words = words(text);
    server.call(&KeyRequest::take(&mut Args::new(&words), None).unwrap(), now, peeks)
}

/// Runs a call, by a policy or inline, or peeks.
pub fn run_call(
    server: &mut Server,
    call_text: &CallText,
    now: Timestamp,
    peeks: bool,
) -> Result<CallResult, CallError> {
    call_text.with_request(peeks, |request| server.call(request, now, peeks)).unwrap_or(Err(CallError::NoHolder))
}

fn decide(server: &mut Server, text: &str, now: Timestamp) -> Decision {
    run_inline(server, text, now, false).unwrap().answer.decision
}

/// Peeks, and returns the kind of each limit with `true` if the limit allows the call.
fn decisions_of_limits(server: &mut Server, call_text: &CallText, now: Timestamp) -> Vec<(UsageKind, bool)> {
    let with_each = CallText { text: format!("EACH {}", call_text.text), ..call_text.clone() };
    let decisions = with_each.with_request(true, |request| {
        let KeyRequest::Composite(composite) = request else { return Vec::new() };
        let each = server.call(request, now, true).unwrap().answer.each;
        let kinds = composite.specs.iter().map(|spec| spec.limit.kind());
        kinds.zip(each).map(|(kind, decision)| (kind, decision.verdict.allowed())).collect()
    });
    decisions.unwrap()
}

fn at(seconds: u64) -> Timestamp {
    us(1_700_000_000_000_000 + seconds * 1_000_000)
}

/// Runs `law` before each call of a history. `clock` maps the time of the history and the previous time to the time of
/// the call.
pub fn check_each_call(
    (begin, steps): (Timestamp, Vec<Step>),
    clock: fn(Timestamp, Timestamp) -> Timestamp,
    law: impl Fn(&mut Server, &CallText, Timestamp),
) {
    let (mut server, mut now, mut last) = (Server::default(), begin, None);
    for step in steps {
        now = clock(step.when.after(now, last.as_ref()), now);
        if let Command::Take(call_text) = &step.command {
            law(&mut server, call_text, now);
            last = run_call(&mut server, call_text, now, false).ok().map(|result| result.answer.decision);
        }
    }
}

#[test]
fn wait_of_a_renewal_ignores_the_expiry_of_its_lease() {
    let mut server = Server::default();
    let log = "SLIDINGLOG 1 1m";
    assert!(decide(&mut server, &format!("{log} CONCURRENCY 1 3s h1"), at(0)).verdict.allowed());
    let renewal = CallText::inline(&format!("{log} CONCURRENCY 0 3s h1"));
    let denied = run_call(&mut server, &renewal, at(1), true).unwrap().answer.decision;
    assert_eq!(denied.verdict, Verdict::After(Span::from_micros(59_000_000)));
    let limits =
        |server: &mut Server, now| decisions_of_limits(server, &renewal, now).into_iter().map(|(_, allows)| allows);
    assert!(limits(&mut server, at(1)).eq([false, true]));
    assert!(limits(&mut server, at(60)).eq([true, false]));
}

proptest! {
    #[test]
    fn wait_is_exact(history in histories(PLAIN)) {
        check_each_call(history, Timestamp::max, |server, call_text, now| {
            let forces = call_text.has("FORCE");
            // A renewal ignores KEEP until the lease has expired.
            if call_text.has("CONCURRENCY") && call_text.has("KEEP") {
                return;
            }
            let Ok(result) = run_call(server, call_text, now, true) else { return };
            let passes = |server: &mut Server, then: Timestamp| {
                run_call(server, call_text, then, true).unwrap().answer.decision.verdict.allowed()
            };
            // A renewal passes under a lowered limit as well, until the lease has expired.
            let only_expired_lease_denies = |server: &mut Server, then: Timestamp| {
                let limits_at = |server: &mut Server, time| decisions_of_limits(server, call_text, time);
                let mut limits = limits_at(server, now).into_iter().zip(limits_at(server, then));
                limits.all(|((kind, allows_now), (_, allows_then))| {
                    allows_then || (allows_now && kind == UsageKind::Concurrency)
                })
            };
            match result.answer.decision.verdict {
                Verdict::After(wait) if !forces && now.plus(wait) < Timestamp::MAX => {
                    assert!(!passes(server, now.plus(wait.minus(Span::from_micros(1)))), "{call_text:?}");
                    let then = now.plus(wait);
                    assert!(passes(server, then) || only_expired_lease_denies(server, then), "{call_text:?}");
                }
                Verdict::Never => assert!(!passes(&mut Server::default(), now) || call_text.has("SETTLE"), "{call_text:?}"),
                Verdict::After(_) | Verdict::Allowed(_) => {}
            }
        });
    }

    #[test]
    fn id_is_charged_once_and_settled_once(
        history in histories(ALL),
    ) {
        check_each_call(history, |now, _| now, |server, call_text, now| {
            let Ok(first) = run_call(server, call_text, now, false) else { return };
            // The state before the repetition is known for composite keys only.
            let has_recorded_id = call_text.has("ONCE") && first.writes && server.components().is_some();
            let before = server.stored();
            let admitted = first.answer.decision.verdict.allowed();
            if !admitted || !(has_recorded_id || call_text.has("SETTLE")) {
                return;
            }
            let repetition = run_call(server, call_text, now, false).unwrap();
            let ids = server.components().and_then(CompositeUsage::extras).map_or(0, |extras| extras.records.len());
            if ids > 0 {
                assert!(repetition.answer.decision.verdict.allowed(), "{call_text:?}");
                assert_eq!(repetition.answer.decision.granted, first.answer.decision.granted, "{call_text:?}");
                assert_eq!(server.stored(), before, "{call_text:?}");
            }
        });
    }

}

// Slow properties, with fewer cases.
proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn calls_with_other_limits_reset_no_usage(
        history in histories(PLAIN), others in others(),
    ) {
        check_each_call(history, Timestamp::max, |server, call_text, now| {
            // The usage of a plain key is claimed by the first limit of its kind.
            let is_claimed = |component: &Component| !component.is_unclaimed();
            if !server.components().is_some_and(|components| components.components.iter().all(is_claimed)) {
                return;
            }
            // The other calls may be rejected.
            let call_others = |server: &mut Server| others.iter().for_each(|other| drop(run_inline(server, other, now, false)));
            // The first calls remove the components that have recovered.
            call_others(server);
            let Ok(result) = run_call(server, call_text, now, true) else { return };
            call_others(server);
            let Ok(after) = run_call(server, call_text, now, true) else { return };
            for (before, after) in result.answer.each.iter().zip(&after.answer.each) {
                assert!(after.remaining <= before.remaining, "{call_text:?}");
            }
        });
    }
}

/// Generates calls that peek and charge, on limits that the scripts do not use.
fn others() -> impl Strategy<Value = Vec<&'static str>> {
    subsequence(
        vec![
            "FIXED 1 2s",
            "TOKENBUCKET 9 9 2s",
            "COST 0 SLIDING 3 2s FIXED 1 3s AS c",
            "COST 2 SLIDING 3 2s STRICT SLIDINGLOG 3 2s AS c",
            "COST 2 FIXED 1000 2s AS d SLIDINGLOG 1000 2s AS d TOKENBUCKET 9 9 2s AS d",
            "CONCURRENCY 5 1m other",
        ],
        1..=6,
    )
}

#[test]
fn discarded_effect_leaves_the_same_state_as_an_encoded_effect() {
    let take = |usage: &mut CompositeUsage, text: &str, now: Timestamp| {
        let words = words(text);
        let call = call_of_text(&words);
        let evaluation = CompositeEvaluation::at(&call, StoredUsage::Composite(usage), now);
        usage.charge(&call, &evaluation, now);
    };
    let rates = "TOKENBUCKET 9 1 1s FIXED 9 1h SLIDING 9 1h SLIDING 9 2h STRICT SLIDINGLOG 9 1h";
    for first in [rates.to_owned(), format!("ONCE id 1h {rates}"), format!("{rates} AS name")] {
        let (mut encoding, mut discarding) = (CompositeUsage::default(), CompositeUsage::default());
        for (second, text) in (1..).zip([&*first, rates, "FIXED 9 1h", "SLIDINGLOG 9 1h", &first]) {
            take(&mut encoding, text, at(second));
            take(&mut discarding, text, at(second));
            encoding.encode_effect(&mut crate::wire::codec::Discard);
            discarding.discard_effect();
            assert_eq!(format!("{encoding:?}"), format!("{discarding:?}"), "{first}, then {text}");
        }
    }
}

#[test]
fn steps_of_a_call_are_independent_of_ids_and_other_components() {
    // The key has sixteen components. A call charges four of them.
    let four_limits = |limit: &str| -> String {
        let named = (0..4).map(|number| limit.replace('#', &format!("n{number}")));
        named.collect::<Vec<_>>().join(" ")
    };
    let limits =
        ["TOKENBUCKET 9999 1 1s AS #", "FIXED 9999 1h AS #", "SLIDING 9999 1h AS #", "SLIDINGLOG 9999 1h AS #"];
    let take = |usage: &mut CompositeUsage, text: &str, now: Timestamp| {
        let words = words(text);
        let call = call_of_text(&words);
        let evaluation = CompositeEvaluation::at(&call, StoredUsage::Composite(usage), now);
        if evaluation.changes() {
            usage.charge(&call, &evaluation, now);
            usage.encode_effect(&mut crate::wire::codec::Discard);
        }
        evaluation.answer(&call, StoredUsage::Composite(usage), now, true)
    };
    let steps = [1, 1000].map(|ids| {
        let mut usage = CompositeUsage::default();
        for id in 0..ids {
            for (number, limit) in limits.iter().enumerate() {
                let text = format!("ONCE {number}-{id} 1h {}", four_limits(limit));
                assert!(take(&mut usage, &text, at(0)).decision.verdict.allowed());
            }
        }
        assert_eq!(usage.components.len(), 16);
        [
            "ONCE 0-0 1h FIXED 1 1s".to_owned(),
            format!("COST 0 {}", four_limits(limits[0])),
            format!("ONCE new 1h {}", four_limits(limits[0])),
            format!("COST 2 {}", four_limits(limits[1])),
            format!("COST 2 {}", four_limits(limits[3])),
            format!("SETTLE 1-0 0 {}", four_limits(limits[1])),
            format!("SETTLE 2-0 3 {}", four_limits(limits[2])),
            format!("COST -1 {}", four_limits(limits[2])),
        ]
        .map(|text| step_counter::count(|| take(&mut usage, &text, at(1))))
    });
    // A thousand ids add at most 32 steps for each of the four components.
    for (one_id, many_ids) in steps[0].iter().zip(&steps[1]) {
        assert!(*many_ids <= one_id + 4 * 32, "{steps:?}");
    }
}

/// Event in the history of a key whose calls are settled.
#[derive(Clone, Debug)]
enum Event {
    /// Charge of an estimated cost.
    Charge(u64),
    /// Settlement of a call with its actual cost.
    Settle(Index, u64),
}

/// Limits that support settlements, with different windows, and large enough to grant any history.
const SETTLEABLE: [&str; 9] = [
    "TOKENBUCKET 1000 7 1s",
    "LEAKYBUCKET 1000 3 2s",
    "FIXED 1000 10s",
    "FIXED 1000 7s ALIGNED",
    "FIXED 1000 1w ALIGNED",
    "SLIDING 1000 10s",
    "SLIDING 1000 7s",
    "SLIDING 1000 9s STRICT",
    "SLIDINGLOG 1000 8s",
];

proptest! {
    /// A higher cost than the estimated one is charged at the time of the settlement.
    #[test]
    fn settled_usage_equals_that_of_a_history_with_the_actual_costs(
        specs in subsequence(SETTLEABLE.to_vec(), 1..=4),
        events in vec((0..4_000_000u64, event()), 1..=30),
        later in vec(0..12_000_000u64, 1..=3),
    ) {
        let specs = specs.join(" ");
        let mut server = Server::default();
        // Each call with its actual cost, and each settlement with the cost above the estimate.
        let mut history: Vec<(Timestamp, u64)> = Vec::new();
        // Number, estimated cost and index in the history of each call that has not been settled.
        let mut calls = Vec::new();
        let mut now = at(0);
        for (number, (later, event)) in events.iter().enumerate() {
            now = now.plus(Span::from_micros(*later));
            match event {
                Event::Charge(cost) => {
                    let text = format!("COST {cost} ONCE c{number} 1d {specs}");
                    prop_assert!(decide(&mut server, &text, now).verdict.allowed());
                    calls.push((number, *cost, history.len()));
                    history.push((now, *cost));
                }
                Event::Settle(which, amount) if !calls.is_empty() => {
                    let (number, cost, index) = calls.remove(which.index(calls.len()));
                    let text = format!("SETTLE c{number} {amount} {specs}");
                    prop_assert!(decide(&mut server, &text, now).verdict.allowed());
                    history[index].1 = cost.min(*amount);
                    if *amount > cost {
                        history.push((now, amount - cost));
                    }
                }
                Event::Settle(..) => {}
            }
        }
        if history.is_empty() {
            return Ok(());
        }
        let words = words(&specs);
        let call = super::server::call_of(&KeyRequest::take(&mut Args::new(&words), None).unwrap());
        for later in std::iter::once(0).chain(later) {
            let then = now.plus(Span::from_micros(later));
            let decisions = run_inline(&mut server, &format!("EACH COST 0 {specs}"), then, true).unwrap().answer.each;
            for (spec, Decision { remaining, .. }) in call.specs.iter().zip(decisions) {
                let replayed = with_limit!(spec, limit => replay(limit, &history, then));
                prop_assert!(remaining <= replayed, "{} remaining: {remaining:?}, replayed: {replayed:?}", spec.limit);
                let is_rounded = matches!(spec.limit, crate::algorithm::any::AnyLimit::Bucket(_));
                let max = remaining.plus(if is_rounded { Amount::saturating(2) } else { Amount::ZERO });
                prop_assert!(replayed <= max, "{} remaining: {remaining:?}, replayed: {replayed:?}", spec.limit);
            }
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (1..=9u64).prop_map(Event::Charge),
        // No amount of 0: a call that is settled to 0 has opened its window, but the replay would not open it.
        2 => (any::<Index>(), 1..=12u64).prop_map(|(call, amount)| Event::Settle(call, amount)),
    ]
}

/// Returns the remaining amount of a limit after the charges of a history.
fn replay<L: Limit>(limit: &L, history: &[(Timestamp, u64)], then: Timestamp) -> Amount {
    let mut usage = L::Usage::default();
    for (now, cost) in history {
        limit.charge(&mut usage, *now, Amount::saturating(cost * 1_000_000));
    }
    limit.remaining(&usage, then)
}

/// Parses a call with inline limits.
pub fn call_of_text(words: &dyn Words) -> CompositeRequest<'_> {
    super::server::call_of(&KeyRequest::take(&mut Args::new(words), None).unwrap())
}
