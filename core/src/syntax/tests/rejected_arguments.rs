//! Validation and rounding of every argument of every algorithm.

use super::*;

/// Words that are malformed as a number.
const INVALID_NUMBERS: [&str; 41] = [
    "", " ", "x", "ten", "1x", "1s", "0x10", "1,5", "1_000", "\u{661}", "1/2", "1%", "1.", ".5", ".", "1.5.5", "1..5",
    "+1", "+", "-", "--1", "+-1", "- 1", " 1", "1 ", "1\n", "e", "e1", "1e", "1e+", "1e-", "1e1.5", "1ee1", "1E3",
    "1e 3", "1.e3", "nan", "NaN", "inf", "-inf", "Infinity",
];

/// Numbers above the maximum, which are rejected before rounding.
const ABOVE_MAXIMUM: [&str; 8] = [
    "1000000000001",
    "1000000000000.000001",
    "1000000000000.0000001",
    "1e13",
    "1e300",
    "18446744073709551616",
    "1e9223372036854775808",
    "1e99999999999999999999",
];

/// Negative numbers, also those that round to zero.
const NEGATIVE_NUMBERS: [&str; 4] = ["-1", "-0.0000001", "-1e-99999999999999999999", "-1e12"];

/// Refills of less than a millionth.
const TOO_SLOW_REFILLS: [&str; 6] = ["0", "0.0", "0e5", "0.0000009", "9e-7", "0.00000099999999999999"];

#[test]
fn error_names_the_argument_for_any_invalid_word() {
    let long = ["9".repeat(100), format!("1000000000000.{}1", "0".repeat(100)), format!("{}us", "9".repeat(100))];
    let amounts = || {
        INVALID_NUMBERS
            .iter()
            .chain(&ABOVE_MAXIMUM)
            .chain(&NEGATIVE_NUMBERS)
            .copied()
            .chain(long.iter().map(String::as_str))
    };
    let durations = || INVALID_DURATIONS.iter().chain(&ZERO_DURATIONS).copied().chain(long.iter().map(String::as_str));
    for (algorithm, arguments) in ARGUMENTS {
        for (index, (name, _)) in arguments.iter().enumerate() {
            let (invalid_words, must_be): (Vec<&str>, &MustBe) = match *name {
                "capacity" | "limit" => (amounts().collect(), &AMOUNT),
                "refill" | "leak" => (amounts().chain(TOO_SLOW_REFILLS).collect(), &RATE),
                "holder" => (vec![""], &HOLDER),
                _ => (durations().collect(), &DURATION),
            };
            let position = Position { syntax: syntax(algorithm), is_first: index == 0 };
            for word in invalid_words {
                let mut words = valid_spec(algorithm, arguments);
                words[index + 1] = word;
                let is_calendar_window = algorithm == "FIXED" && *name == "window" && matches!(word, "1w" | "1y");
                let expected = if is_calendar_window {
                    Error::hinted(name, &WINDOW, word.as_bytes(), Hint::NotAligned)
                } else {
                    Error::out_of_range_at(name, must_be, word.as_bytes(), position)
                };
                assert_eq!(parse(&words).unwrap_err(), expected.to_string(), "{algorithm} {name} {word:?}");
            }
        }
    }
}

#[test]
fn invalid_cost_or_maxwait_is_rejected() {
    let negative: Vec<String> = ABOVE_MAXIMUM.iter().map(|number| format!("-{number}")).collect();
    let costs = INVALID_NUMBERS.iter().chain(&ABOVE_MAXIMUM).copied().chain(negative.iter().map(String::as_str));
    for (algorithm, arguments) in ARGUMENTS {
        let must_be = if algorithm == "CONCURRENCY" { &COST_OF_LEASE } else { &COST };
        for cost in costs.clone().chain(["-.5", "-1.", "-+1"]) {
            let words = [valid_spec(algorithm, arguments), vec!["COST", cost]].concat();
            let expected = Error::out_of_range("cost", must_be, cost.as_bytes()).to_string();
            assert_eq!(parse(&words).unwrap_err(), expected, "{algorithm} {cost:?}");
        }
    }
    for maxwait in INVALID_DURATIONS {
        let words = ["TOKENBUCKET", "10", "1", "1s", "MAXWAIT", maxwait];
        let expected = Error::out_of_range("maxwait", &MAXWAIT, maxwait.as_bytes()).to_string();
        assert_eq!(parse(&words).unwrap_err(), expected, "{maxwait:?}");
    }
}

#[test]
fn zero_maxwait_is_accepted_in_any_unit() {
    for maxwait in ["0", "0s", "0us", "0.0", "0e5d"] {
        assert_eq!(parse(&["TOKENBUCKET", "1", "1", "1s", "MAXWAIT", maxwait]).unwrap().1, {
            Request::Within(Amount::ONE, Span::ZERO)
        });
    }
}

#[test]
fn limit_and_refund_round_down_and_cost_rounds_up() {
    let millionths = Amount::saturating;
    for (limit, rounded) in [("0.0000001", "0"), ("1.9999999", "1.999999"), ("0.30000000000000004", "0.3")] {
        for (algorithm, arguments) in ARGUMENTS {
            let mut words = valid_spec(algorithm, arguments);
            words[1] = limit;
            let shown = parse(&words).unwrap().0.to_string();
            assert_eq!(shown.split(' ').nth(1), Some(rounded), "{algorithm}");
        }
    }
    for (cost, request) in [
        ("0.0000001", Request::Take(millionths(1))),
        ("4.9999999", Request::Take(units(5))),
        ("0.30000000000000004", Request::Take(millionths(300_001))),
        ("1e-06", Request::Take(millionths(1))),
        ("1e-99999999999999999999", Request::Take(millionths(1))),
        ("-0.0000001", Request::Refund(Amount::ZERO)),
        ("-0.9999999", Request::Refund(millionths(999_999))),
        ("-1e-99999999999999999999", Request::Refund(Amount::ZERO)),
        ("-1e12", Request::Refund(Amount::MAX_ARGUMENT)),
        ("-0.0", Request::Take(Amount::ZERO)),
        ("-0e5", Request::Take(Amount::ZERO)),
    ] {
        assert_eq!(parse(&["FIXED", "10", "60s", "COST", cost]).unwrap().1, request, "{cost}");
    }
}
