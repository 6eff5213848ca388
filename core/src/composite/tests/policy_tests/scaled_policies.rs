//! Policies that are scaled, or defined anew.

use super::*;

#[test]
fn another_definition_forgives_nothing_and_neither_does_the_way_back() {
    let mut server = Server::default();
    let first = "FIXED 5 1h";
    assert_eq!(left(&server.limit("COST 4", first, 0)), [1]);
    assert!(server.plain().is_some());
    // New numbers hold at once.
    assert_eq!(left(&server.limits_nothing("COST 3", "FIXED 6 1h", 0)), [2]);
    assert!(server.limits_nothing("", "FIXED 3 1h", 0).decision.verdict != NOW);
    // Another algorithm starts empty beside the old component: it is no mistake, and a denial leaves the key as it is.
    let other = "TOKENBUCKET 5 5 1h";
    assert!(server.limits_nothing("COST 9", other, 0).decision.verdict == Verdict::Never);
    assert!(server.plain().is_some());
    assert_eq!(left(&server.limit("COST 2", other, 0)), [3]);
    assert_eq!(left(&server.limit("COST 1", "FIXED 5 1h AS a SLIDING 5 1h", 0)), [0, 4]);
    for (policy, rest) in [(other, 3), ("SLIDING 5 1h", 4), ("FIXED 5 1h AS a", 0), ("FIXED 5 1h", 5)] {
        assert_eq!(left(&server.limit("COST 0", policy, 0)), [rest], "{policy}");
    }
    // To whom it is a command of its own, it is a mistake.
    let mut plain = Server::default();
    plain.limit("", first, 0);
    assert_eq!(plain.try_to_take("SLIDING 5 1h", 0).err(), Some(Refused::WrongType));
}

#[test]
fn a_denial_by_another_algorithm_does_not_shorten_what_a_plain_key_remembers() {
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
        let before = left(&server.peek(plain, 10));
        // The clock has gone back.
        assert!(!server.limit("", other, 5).decision.verdict.allowed());
        server.expire(at(600));
        assert_eq!(left(&server.peek(plain, 600)), before.clone(), "{plain}");
    }
}

#[test]
fn a_key_lives_as_the_slower_of_both_rates_asks() {
    // Plain, and with components.
    for begin in ["", "SLIDING 9 1s AS other"] {
        let mut server = Server::default();
        if !begin.is_empty() {
            server.take(begin, 0);
        }
        let policy = "TOKENBUCKET 10 10 1m";
        server.limit_scaled("COST 60", policy, "10", 0);
        // At the higher rate all of it has drained after 36 seconds, at its own after 6 minutes.
        assert!(!server.expire(at(300)));
        assert_eq!(server.limit("", policy, 300).decision.verdict, Verdict::After(seconds(6)));
        assert_eq!(server.limit("", policy, 306).decision.verdict, NOW);
        assert_eq!(left(&server.limit_scaled("", policy, "10", 306)), [89]);
    }
    // A settlement under a scale, too, and a give-back.
    for options in ["SETTLE r1 40", "COST -20"] {
        let (mut server, policy) = (Server::default(), "TOKENBUCKET 10 10 1m AS a");
        server.limit_scaled("COST 60 ONCE r1 1s", policy, "10", 0);
        server.limit_scaled(options, policy, "10", 0);
        // What has recovered goes with the next change.
        server.take("SLIDING 9 1us AS other", 100);
        assert!(!server.expire(at(170)), "{options}");
        let waits = server.limit("COST 10", policy, 170).decision.verdict;
        assert_eq!(waits, Verdict::After(seconds(70)), "{options}");
    }
}

#[test]
fn times_zero_nothing_passes_and_what_is_used_drains_as_before() {
    let policy = "TOKENBUCKET 10 10 1m FIXED 5 1h AS a LEAKYBUCKET 5 5 1h AS b SLIDINGLOG 5 1h SHADOW";
    let mut server = Server::default();
    server.limit("COST 4", policy, 0);
    let before = server.key_as_stored();
    for options in ["", "COST 0.000001", "COST 9 UPTO", "COST 2 MAXWAIT 3650d", "ONCE r1 1h", "COST 0"] {
        let answer = server.limit_scaled(options, policy, "0", 1);
        assert!(!answer.decision.verdict.allowed(), "{options}");
        assert_eq!(left(&answer), [0; 4], "{options}");
        assert_eq!(server.key_as_stored(), before, "{options}");
    }
    assert_eq!(left(&server.limit("COST 0", policy, 24)), [10, 1, 1, 1]);
    // What is settled meanwhile is neither forgiven nor kept longer.
    server.limit("COST 6 ONCE r1 1h", "TOKENBUCKET 10 10 1m", 24);
    server.limit_scaled("SETTLE r1 7", "TOKENBUCKET 10 10 1m", "0", 30);
    assert_eq!(server.limit("COST 0", "TOKENBUCKET 10 10 1m", 30).decision.reset, seconds(36));
}

/// A decimal times a factor, in millionths and rounded down.
fn times(text: &str, factor: &str) -> u128 {
    let millionths = |text: &str| u128::from(Amount::parse_down(text.as_bytes()).unwrap().millionths());
    (millionths(text) * millionths(factor) / 1_000_000).min(1_000_000_000_000_000_000)
}

/// "Capacity, limit, refill and leak times a factor": the same policy in other words.
fn by_hand(policy: &str, factor: &str) -> String {
    let decimal = |millionths: u128| format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000);
    let (mut words, mut before) = (Vec::new(), ["", ""]);
    for word in policy.split(' ') {
        let buckets = ["TOKENBUCKET", "LEAKYBUCKET"];
        words.push(match before {
            [_, last] if buckets.contains(&last) => decimal(times(word, factor)),
            [last, _] if buckets.contains(&last) => decimal(times(word, factor).max(1)),
            [_, "FIXED" | "SLIDING" | "SLIDINGLOG" | "CONCURRENCY"] => decimal(times(word, factor)),
            _ => word.to_owned(),
        });
        before = [before[1], word];
    }
    words.join(" ")
}

fn tell(server: &mut Server, said: &Said, now: Timestamp) -> Option<Answer> {
    composite_laws::tell_said(server, said, now, false).ok().map(|told| told.answer)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 2, ..ProptestConfig::default() })]

    #[test]
    fn a_scale_is_the_numbers_times_the_factor(
        history in histories(ALL), factor in select(vec!["0.000001", "0.1", "0.333333", "1", "2.5", "999.999999", "1000"]),
    ) {
        composite_laws::of_each_call(history, |now, _| now, |server, said, now| {
            let Some((text, _)) = &said.policy else { return };
            let other = by_hand(text, factor);
            // One that would take too long to refill is no policy.
            if policy(&other).is_err() {
                return;
            }
            let [scaled, by_hand] = [(text, factor), (&other, "1")].map(|(text, factor)| {
                tell(&mut server.clone(), &Said { policy: Some((text.clone(), factor)), ..said.clone() }, now)
            });
            assert_eq!(scaled, by_hand, "{said:?}");
        });
    }

    #[test]
    fn times_zero_every_cost_is_denied_and_nothing_is_written(history in histories(PLAIN)) {
        composite_laws::of_each_call(history, Timestamp::max, |server, said, now| {
            let Some((text, _)) = &said.policy else { return };
            let said = Said { policy: Some((text.clone(), "0")), ..said.clone() };
            let costs = said.asks(false, |asked| {
                crate::composite::tests::server::call_of(asked).specs.iter().any(|spec| !spec.shadow && spec.request != Request::Take(Amount::ZERO))
            });
            let passes = said.has("FORCE") || ["COST -", "COST 0 "].iter().any(|word| said.text.contains(word));
            if costs != Ok(true) || passes {
                return;
            }
            let before = server.key_as_stored();
            if let Some(answer) = tell(server, &said, now) {
                assert_eq!(answer.decision.verdict, Verdict::Never, "{said:?}");
                assert_eq!(server.key_as_stored(), before, "{said:?}");
            }
        });
    }

    /// Neither the key nor a component of it goes before it has recovered at the rate that comes back.
    #[test]
    fn what_was_charged_under_a_scale_is_not_forgiven_when_it_ends(
        limits in vec(limits(), 1..=3), begin in select(vec!["", "FIXED 9 1h AS other"]), charges in vec(charge(), 1..=4),
        later in 0..=150u64,
    ) {
        let text = limits.join(" ");
        prop_assume!(!text.contains("CONCURRENCY") && policy(&text).is_ok());
        let (mut server, mut now) = (Server::default(), at(0));
        if !begin.is_empty() {
            composite_laws::tell(&mut server, begin, now, false).unwrap();
        }
        let mut reset = Span::ZERO;
        for (after, options, factor) in charges {
            now = now.plus(seconds(after));
            let Some(answer) = tell(&mut server, &Said::by_policy(options, &text, factor), now) else { return Ok(()) };
            reset = answer.each.iter().map(|told| told.reset).max().unwrap();
        }
        // In hundredths of what it takes under the scale.
        let then = now.plus(Span::from_micros(reset.micros() / 100 * later));
        // From the last instant on times saturate, and what has not recovered goes, too.
        if then >= Timestamp::MAX {
            return Ok(());
        }
        let mut kept = server.clone();
        if !server.expire(then) {
            composite_laws::tell(&mut server, "CONCURRENCY 9 1us last", then, false).ok();
        }
        let looks = Said::by_policy("", &text, "1");
        let [kept, swept] = [&mut kept, &mut server].map(|server| {
            let told = composite_laws::tell_said(server, &looks, then, true).unwrap();
            told.answer.each.iter().map(|told| told.remaining).collect::<Vec<_>>()
        });
        prop_assert_eq!(kept, swept, "{} at {:?}", text, then);
    }
}

/// How long after the one before, and under which scale, what is asked.
fn charge() -> impl Strategy<Value = (u64, &'static str, &'static str)> {
    (0..100u64, select(vec!["", "COST 3", "COST 20", "COST 9 FORCE", "COST -1"]), select(vec!["1", "2", "10", "1000"]))
}
