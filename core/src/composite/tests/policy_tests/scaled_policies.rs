//! Policies that are scaled or redefined.

use super::*;

#[test]
fn redefined_policy_resets_no_usage() {
    let mut server = Server::default();
    let first = "FIXED 5 1h";
    assert_eq!(remaining_units(&server.limit("COST 4", first, 0)), [1]);
    assert!(server.plain().is_some());
    // New numbers apply immediately.
    assert_eq!(remaining_units(&server.limit_without_write("COST 3", "FIXED 6 1h", 0)), [2]);
    assert!(server.limit_without_write("", "FIXED 3 1h", 0).decision.verdict != GRANTED);
    // Another algorithm starts with an unused component beside the old one. This is not a wrong type. A denial leaves
    // the key unchanged.
    let other = "TOKENBUCKET 5 5 1h";
    assert!(server.limit_without_write("COST 9", other, 0).decision.verdict == Verdict::Never);
    assert!(server.plain().is_some());
    assert_eq!(remaining_units(&server.limit("COST 2", other, 0)), [3]);
    assert_eq!(remaining_units(&server.limit("COST 1", "FIXED 5 1h AS a SLIDING 5 1h", 0)), [0, 4]);
    for (policy, remaining) in [(other, 3), ("SLIDING 5 1h", 4), ("FIXED 5 1h AS a", 0), ("FIXED 5 1h", 5)] {
        assert_eq!(remaining_units(&server.limit("COST 0", policy, 0)), [remaining], "{policy}");
    }
    // A call with an inline spec of another kind is a wrong type.
    let mut plain = Server::default();
    plain.limit("", first, 0);
    assert_eq!(plain.try_take("SLIDING 5 1h", 0).err(), Some(CallError::WrongType));
}

#[test]
fn denial_by_another_algorithm_keeps_the_expiry_of_a_plain_key() {
    for (plain, other) in [
        ("SLIDING 5 1h STRICT", "FIXED 0 1h"),
        ("CONCURRENCY 5 1h me", "FIXED 0 1h"),
        ("FIXED 5 1h", "SLIDING 0 1h"),
        ("FIXED 5 1h ALIGNED", "SLIDING 0 1h"),
        ("TOKENBUCKET 5 5 1h", "FIXED 0 1h"),
        ("SLIDING 5 1h", "FIXED 0 1h"),
        ("SLIDINGLOG 5 1h", "FIXED 0 1h"),
    ] {
        let mut server = Server::default();
        server.take(plain, 10);
        let before = remaining_units(&server.peek(plain, 10));
        // The clock moves backwards.
        assert!(!server.limit("", other, 5).decision.verdict.allowed());
        server.expire(at(600));
        assert_eq!(remaining_units(&server.peek(plain, 600)), before.clone(), "{plain}");
    }
}

#[test]
fn key_lives_until_recovered_at_the_slower_rate() {
    // A plain key, and a composite key.
    for first_call in ["", "SLIDING 9 1s AS other"] {
        let mut server = Server::default();
        if !first_call.is_empty() {
            server.take(first_call, 0);
        }
        let policy = "TOKENBUCKET 10 10 1m";
        server.limit_scaled("COST 60", policy, "10", 0);
        // The usage recovers after 36 seconds at the higher rate, and after 6 minutes at the original one.
        assert!(!server.expire(at(300)));
        assert_eq!(server.limit("", policy, 300).decision.verdict, Verdict::After(seconds(6)));
        assert_eq!(server.limit("", policy, 306).decision.verdict, GRANTED);
        assert_eq!(remaining_units(&server.limit_scaled("", policy, "10", 306)), [89]);
    }
    // A settlement and a refund under a scale.
    for options in ["SETTLE r1 40", "COST -20"] {
        let (mut server, policy) = (Server::default(), "TOKENBUCKET 10 10 1m AS a");
        server.limit_scaled("COST 60 ONCE r1 1s", policy, "10", 0);
        server.limit_scaled(options, policy, "10", 0);
        // A component that has recovered is removed by the next change.
        server.take("SLIDING 9 1us AS other", 100);
        assert!(!server.expire(at(170)), "{options}");
        let verdict = server.limit("COST 10", policy, 170).decision.verdict;
        assert_eq!(verdict, Verdict::After(seconds(70)), "{options}");
    }
}

#[test]
fn scale_of_zero_denies_all_calls_and_keeps_the_recovery() {
    let policy = "TOKENBUCKET 10 10 1m FIXED 5 1h AS a LEAKYBUCKET 5 5 1h AS b SLIDINGLOG 5 1h SHADOW";
    let mut server = Server::default();
    server.limit("COST 4", policy, 0);
    let before = server.key_as_stored();
    for options in ["", "COST 0.000001", "COST 9 UPTO", "COST 2 MAXWAIT 3650d", "ONCE r1 1h", "COST 0"] {
        let answer = server.limit_scaled(options, policy, "0", 1);
        assert!(!answer.decision.verdict.allowed(), "{options}");
        assert_eq!(remaining_units(&answer), [0; 4], "{options}");
        assert_eq!(server.key_as_stored(), before, "{options}");
    }
    assert_eq!(remaining_units(&server.limit("COST 0", policy, 24)), [10, 1, 1, 1]);
    // A settlement under a scale of zero neither resets usage nor extends its recovery.
    server.limit("COST 6 ONCE r1 1h", "TOKENBUCKET 10 10 1m", 24);
    server.limit_scaled("SETTLE r1 7", "TOKENBUCKET 10 10 1m", "0", 30);
    assert_eq!(server.limit("COST 0", "TOKENBUCKET 10 10 1m", 30).decision.reset, seconds(36));
}

/// Returns the product of two decimals in millionths, rounded down.
fn product(text: &str, factor: &str) -> u128 {
    let millionths = |text: &str| u128::from(Amount::parse_down(text.as_bytes()).unwrap().millionths());
    (millionths(text) * millionths(factor) / 1_000_000).min(1_000_000_000_000_000_000)
}

/// Returns the policy with each capacity, limit, refill and leak multiplied by a factor.
fn with_multiplied_numbers(policy: &str, factor: &str) -> String {
    let decimal = |millionths: u128| format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
    let (mut words, mut previous_two) = (Vec::new(), ["", ""]);
    for word in policy.split(' ') {
        let buckets = ["TOKENBUCKET", "LEAKYBUCKET"];
        words.push(match previous_two {
            [_, previous] if buckets.contains(&previous) => decimal(product(word, factor)),
            [before_previous, _] if buckets.contains(&before_previous) => decimal(product(word, factor).max(1)),
            [_, "FIXED" | "SLIDING" | "SLIDINGLOG" | "CONCURRENCY"] => decimal(product(word, factor)),
            _ => word.to_owned(),
        });
        previous_two = [previous_two[1], word];
    }
    words.join(" ")
}

fn run_inline(server: &mut Server, call_text: &CallText, now: Timestamp) -> Option<Answer> {
    composite_laws::run_call(server, call_text, now, false).ok().map(|result| result.answer)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 2, ..ProptestConfig::default() })]

    #[test]
    fn scale_equals_multiplied_numbers(
        history in histories(ALL), factor in select(vec!["0.000001", "0.1", "0.333333", "1", "2.5", "999.999999", "1000"]),
    ) {
        composite_laws::check_each_call(history, |now, _| now, |server, call_text, now| {
            let Some((text, _)) = &call_text.policy else { return };
            let multiplied_text = with_multiplied_numbers(text, factor);
            // A policy that would take too long to refill is invalid.
            if policy(&multiplied_text).is_err() {
                return;
            }
            let [scaled, multiplied] = [(text, factor), (&multiplied_text, "1")].map(|(text, factor)| {
                run_inline(&mut server.clone(), &CallText { policy: Some((text.clone(), factor)), ..call_text.clone() }, now)
            });
            assert_eq!(scaled, multiplied, "{call_text:?}");
        });
    }

    #[test]
    fn scale_of_zero_denies_every_cost_and_writes_nothing(history in histories(PLAIN)) {
        composite_laws::check_each_call(history, Timestamp::max, |server, call_text, now| {
            let Some((text, _)) = &call_text.policy else { return };
            let call_text = CallText { policy: Some((text.clone(), "0")), ..call_text.clone() };
            let costs = call_text.with_request(false, |request| {
                crate::composite::tests::server::call_of(request).specs.iter().any(|spec| !spec.shadow && spec.request != Request::Take(Amount::ZERO))
            });
            let passes = call_text.has("FORCE") || ["COST -", "COST 0 "].iter().any(|word| call_text.text.contains(word));
            if costs != Ok(true) || passes {
                return;
            }
            let before = server.key_as_stored();
            if let Some(answer) = run_inline(server, &call_text, now) {
                assert_eq!(answer.decision.verdict, Verdict::Never, "{call_text:?}");
                assert_eq!(server.key_as_stored(), before, "{call_text:?}");
            }
        });
    }

    /// Neither the key nor a component is removed before it has recovered at the original rate.
    #[test]
    fn charges_under_a_scale_outlast_the_scale(
        limits in vec(limits(), 1..=3), first_call in select(vec!["", "FIXED 9 1h AS other"]),
        charges in vec(charge(), 1..=4), percent in 0..=150u64,
    ) {
        let text = limits.join(" ");
        prop_assume!(!text.contains("CONCURRENCY") && policy(&text).is_ok());
        let (mut server, mut now) = (Server::default(), at(0));
        if !first_call.is_empty() {
            composite_laws::run_inline(&mut server, first_call, now, false).unwrap();
        }
        let mut reset = Span::ZERO;
        for (passed, options, factor) in charges {
            now = now.plus(seconds(passed));
            let Some(answer) = run_inline(&mut server, &CallText::by_policy(options, &text, factor), now) else { return Ok(()) };
            reset = answer.each.iter().map(|decision| decision.reset).max().unwrap();
        }
        // Before or after the recovery under the scale.
        let then = now.plus(Span::from_micros(reset.micros() / 100 * percent));
        // Times saturate at the last timestamp, so unrecovered state is removed then, too.
        if then >= Timestamp::MAX {
            return Ok(());
        }
        let mut kept = server.clone();
        if !server.expire(then) {
            composite_laws::run_inline(&mut server, "CONCURRENCY 9 1us last", then, false).ok();
        }
        let peek = CallText::by_policy("", &text, "1");
        let [kept, swept] = [&mut kept, &mut server].map(|server| {
            let result = composite_laws::run_call(server, &peek, then, true).unwrap();
            result.answer.each.iter().map(|decision| decision.remaining).collect::<Vec<_>>()
        });
        prop_assert_eq!(kept, swept, "{} at {:?}", text, then);
    }
}

/// Generates the seconds since the previous call, the options and the scale.
fn charge() -> impl Strategy<Value = (u64, &'static str, &'static str)> {
    (0..100u64, select(vec!["", "COST 3", "COST 20", "COST 9 FORCE", "COST -1"]), select(vec!["1", "2", "10", "1000"]))
}
