//! KEEP: the amount that stays available after a call.

use super::*;
use crate::algorithm::fixed_window::calendar::Offset;

#[test]
fn keep_accepts_an_amount_or_a_percentage() {
    let millionths = Amount::saturating;
    for (text, expected) in [
        ("KEEP 3", units(3)),
        ("KEEP 0", Amount::ZERO),
        ("KEEP 0.0000001", millionths(1)),
        ("KEEP 10", units(10)),
        ("KEEP 20%", units(2)),
        ("KEEP 0%", Amount::ZERO),
        ("KEEP 100%", units(10)),
        ("KEEP 1e2%", units(10)),
        ("KEEP 12.5%", millionths(1_250_000)),
        // Rounded up to a millionth, for any number of digits.
        ("KEEP 0.000001%", millionths(1)),
        ("KEEP 33.33333%", millionths(3_333_333)),
        ("KEEP 33.333333%", millionths(3_333_334)),
        ("KEEP 33.33333000000000000000000000000000000001%", millionths(3_333_334)),
        ("KEEP 99.999999999999999999999999999%", units(10)),
        // Capped at the limit.
        ("KEEP 11", units(10)),
        ("KEEP 1e12", units(10)),
    ] {
        for (algorithm, arguments) in ARGUMENTS {
            let spec = valid_spec(algorithm, arguments).join(" ");
            let lowered = units(10).minus(expected);
            assert_eq!(keep_and_limit(&format!("{spec} {text}")), (expected, lowered), "{spec} {text}");
            assert_eq!(keep_and_limit(&format!("{spec} COST 2 {text}")), (expected, lowered), "{spec} {text}");
        }
        assert_eq!(keep_and_limit(&format!("{text} FIXED 10 1m")), (expected, units(10).minus(expected)), "{text}");
    }
    for keep in ["", "x", "-1", "-1%", "%", "100.0000001%", "100.00000000000000000000000000001%", "101%", "1e3%", "5 %"]
    {
        let refused = Error::out_of_range("keep", &KEEP, keep.as_bytes()).to_string();
        for limit in ["10", "0"] {
            assert_eq!(parse(&["FIXED", limit, "1m", "KEEP", keep]).unwrap_err(), refused, "{keep:?}");
        }
        assert_eq!(parse(&["KEEP", keep, "FIXED", "10", "1m"]).unwrap_err(), refused, "{keep:?}");
    }
    // Exact to the last millionth of the largest limit.
    assert_eq!(keep_and_limit("FIXED 1e12 1m KEEP 1e-16%"), (millionths(1), millionths(999_999_999_999_999_999)));
    assert_eq!(
        keep_and_limit("FIXED 1e12 1m KEEP 99.9999999999999999%"),
        (millionths(999_999_999_999_999_999), millionths(1))
    );
    assert_eq!(keep_and_limit("FIXED 999999999999.999999 1m KEEP 50%").0, millionths(500_000_000_000_000_000));
}

#[test]
fn kept_amount_applies_to_the_cost_of_the_call_and_percentage_to_any_cost() {
    let kept_units = |text: &str| {
        let call = composite(text).unwrap_or_else(|error| unreachable!("{text}: {error}"));
        call.specs.iter().map(|spec| spec.keep.whole_units()).collect::<Vec<u64>>()
    };
    for (text, expected) in [
        ("KEEP 3 FIXED 10 1m SLIDING 20 1m", [3, 3]),
        ("KEEP 3 FIXED 10 1m COST 1 SLIDING 20 1m", [0, 3]),
        ("KEEP 3 FIXED 10 1m CONCURRENCY 20 1m me", [3, 0]),
        ("KEEP 10% FIXED 10 1m SLIDING 20 1m", [1, 2]),
        ("KEEP 10% FIXED 10 1m COST 1 CONCURRENCY 20 1m me", [1, 2]),
        ("KEEP 10% FIXED 10 1m KEEP 4 SLIDING 20 1m", [4, 2]),
        ("KEEP 3 FIXED 10 1m KEEP 50% SLIDING 20 1m", [5, 3]),
        ("FIXED 10 1m KEEP 4 SLIDING 20 1m", [4, 0]),
        ("KEEP 3 FIXED 10 1m CONCURRENCY 20 1m me KEEP 1", [3, 1]),
        ("COST 0 KEEP 3 FIXED 10 1m SLIDING 20 1m COST 1 KEEP 5", [3, 5]),
        ("FORCE FIXED 10 1m COST 1 KEEP 4 SLIDING 20 1m", [4, 0]),
    ] {
        assert_eq!(kept_units(text), expected, "{text}");
    }
}

#[test]
fn keep_is_rejected_with_force_settle_and_negative_cost() {
    let refused = "ERR syntax error, unexpected 'KEEP', which cannot be combined with FORCE, SETTLE or a negative cost";
    for text in [
        "FIXED 10 1m KEEP 1 FORCE",
        "FIXED 10 1m FORCE KEEP 0",
        "FIXED 10 1m KEEP 10% COST -1",
        "KEEP 1 FORCE FIXED 10 1m",
        "KEEP 1 FORCE FIXED 10 1m COST 1 SLIDING 10 1m COST 1",
        "FORCE FIXED 10 1m KEEP 1 SLIDING 10 1m",
        "KEEP 10% FIXED 10 1m COST 1 FORCE SLIDING 10 1m",
        "KEEP 1 FIXED 10 1m FORCE SLIDING 10 1m",
        "COST -1 KEEP 1 FIXED 10 1m SLIDING 10 1m",
        "COST -1 FIXED 10 1m SLIDING 10 1m COST 1 KEEP 1",
        "COST -1 FIXED 10 1m CONCURRENCY 10 1m me KEEP 1",
        "SETTLE a 1 FIXED 10 1m KEEP 1",
        "SETTLE a 1 FIXED 10 1m COST 1 KEEP 1 SLIDING 10 1m",
    ] {
        assert_eq!(composite(text).unwrap_err().to_string(), refused, "{text}");
    }
    // The amount to keep applies to the call's cost, but not to a spec with its own cost, which may have FORCE.
    assert!(composite("KEEP 1 FIXED 10 1m COST 1 FORCE SLIDING 10 1m").is_ok());
}

#[test]
fn keeping_more_than_the_limit_is_always_denied() {
    for text in ["COST 0", "COST 0.000001", "COST 5", "UPTO"] {
        for (algorithm, arguments) in &ARGUMENTS[..5] {
            let spec = valid_spec(algorithm, arguments).join(" ");
            let decide_keeping =
                |keep: &str| decide(plain_spec(leaked(&format!("{spec} {text} KEEP {keep}"))).unwrap());
            let decision = decide_keeping("10.000001");
            assert_eq!(
                (decision.verdict, decision.limit, decision.remaining),
                (Verdict::Never, units(10), Amount::ZERO),
                "{spec}"
            );
            // Keeping exactly the limit admits a cost of zero.
            let verdict = decide_keeping("10").verdict;
            assert_eq!(verdict, if text == "COST 0" { Verdict::Allowed(Span::ZERO) } else { Verdict::Never }, "{spec}");
        }
    }
    let wait = "TOKENBUCKET 10 1 1s COST 0 MAXWAIT 5s KEEP 11";
    assert_eq!(decide(plain_spec(leaked(wait)).unwrap()).verdict, Verdict::Never);
    for words in ["COST 0 CONCURRENCY 10 1m me KEEP 11", "CONCURRENCY 10 1m me KEEP 11"] {
        assert_eq!(decide(plain_spec(leaked(words)).unwrap()).verdict, Verdict::Never);
    }
}

#[test]
fn keep_does_not_change_the_purpose_of_a_zero_cost_call() {
    for (text, purpose) in [
        ("FIXED 10 1m COST 0 AS a KEEP 9", Purpose::Peek),
        ("FIXED 10 1m COST 0 AS a KEEP 11", Purpose::Peek),
        ("COST 0 KEEP 11 FIXED 10 1m AS a", Purpose::Peek),
        ("COST 0 MAXWAIT 1s KEEP 11 TOKENBUCKET 10 1 1s AS a", Purpose::Peek),
        ("COST 0 FIXED 10 1m SLIDING 10 1m KEEP 11", Purpose::Peek),
        ("COST 0 KEEP 11 CONCURRENCY 10 1m me AS a", Purpose::Peek),
        ("FIXED 10 1m COST 0.000001 AS a KEEP 11", Purpose::Charge),
        ("FIXED 10 1m UPTO AS a KEEP 11", Purpose::Charge),
    ] {
        let call = composite(text).unwrap();
        assert_eq!(call.purpose, purpose, "{text}");
        assert_eq!(call.specs.iter().all(|spec| spec.request.is_peek()), purpose == Purpose::Peek, "{text}");
    }
}

/// Returns the decision for an unused key.
fn decide(spec: Spec) -> Decision {
    fn of<L: Limit>(limit: &L, request: Request) -> Decision {
        let (usage, now) = (L::Usage::default(), Timestamp::EPOCH);
        evaluate(limit, &usage, now, request).decision(limit, &usage, now, false)
    }
    crate::algorithm::any::with_limit!(spec, limit => of(limit, spec.request)).with_keep(spec.keep)
}

proptest! {
    /// A call with KEEP equals a call whose cost is higher by the kept amount, and `remaining` is lower by it.
    #[test]
    fn keep_is_decided_like_a_higher_cost(
        limit in amounts(), window in lengths(), keep in amounts(), cost in amounts(), used in amounts(),
        first_span in lengths(), second_span in lengths(),
    ) {
        let (now, third, limit) =
            (Timestamp::from_clock(1_700_000_000_000_000), Amount::saturating(limit / 3), Amount::saturating(limit));
        let period = Period::new(Span::from_micros(window)).unwrap();
        let keep = Amount::saturating(keep).min(limit);
        let limits = [
            Bucket::new(limit, limit.minus(third), period, Discipline::Burst)
                .map(AnyLimit::Bucket).ok(),
            Bucket::new(limit, limit, period, Discipline::Queue).map(AnyLimit::Bucket).ok(),
            Some(AnyLimit::FixedWindow(FixedWindow::new(limit, period))),
            Some(AnyLimit::FixedWindow(FixedWindow::aligned(limit, period, Offset::UTC))),
            Some(AnyLimit::SlidingWindow(SlidingWindow::new(limit, period))),
            Some(AnyLimit::StrictWindow(StrictWindow::new(limit, period))),
            Some(AnyLimit::SlidingLog(SlidingLog::new(limit, period))),
        ];
        let cost = Amount::saturating(cost).min(Amount::MAX_ARGUMENT.minus(keep));
        for whole in limits.into_iter().flatten() {
            let spec = Spec::plain(ParsedLimit::of(whole));
            let keeping = spec.with_keep(keep);
            prop_assert_eq!(keeping.limit.limit(), limit.minus(keep));
            prop_assert_eq!(keeping.limit.identity(), whole.identity());
            let spans = [first_span, second_span];
            compare_with_lowered(&spec.limit, &keeping.limit, now, spans, Amount::saturating(used), cost, keep)?;
        }
    }
}

/// Compares the lowered limit with the whole one, on a usage with plain and forced charges of `used` and `cost`. The
/// clock advances by each of `spans` microseconds.
fn compare_with_lowered(
    whole: &AnyLimit,
    lowered: &AnyLimit,
    now: Timestamp,
    spans: [u64; 2],
    used: Amount,
    cost: Amount,
    keep: Amount,
) -> Result<(), TestCaseError> {
    fn compare<L: Limit>(
        [whole, lowered]: [&L; 2],
        now: Timestamp,
        spans: [u64; 2],
        used: Amount,
        cost: Amount,
        keep: Amount,
    ) -> Result<(), TestCaseError> {
        let (mut usage, mut now) = (L::Usage::default(), now);
        for span in spans {
            call(whole, &mut usage, now, Request::Take(used));
            call(whole, &mut usage, now, Request::Force(cost));
            now = now.plus(Span::from_micros(span));
            prop_assert_eq!(lowered.verdict(&usage, now, cost), whole.verdict(&usage, now, cost.plus(keep)));
            prop_assert_eq!(lowered.remaining(&usage, now), whole.remaining(&usage, now).minus(keep));
            prop_assert_eq!(lowered.reset(&usage, now), whole.reset(&usage, now));
        }
        Ok(())
    }
    macro_rules! compare_variants {
        ($($variant:ident),*) => {
            match (whole, lowered) {
                $((AnyLimit::$variant(whole), AnyLimit::$variant(lowered)) => {
                    compare([whole, lowered], now, spans, used, cost, keep)
                })*
                _ => unreachable!("both limits are of one kind"),
            }
        };
    }
    compare_variants!(Bucket, FixedWindow, SlidingWindow, StrictWindow, SlidingLog)
}
