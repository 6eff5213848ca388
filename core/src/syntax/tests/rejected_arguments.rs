//! Validation and rounding of every argument of every algorithm.

use super::*;

const NO_NUMBERS: [&str; 41] = [
    "", " ", "x", "ten", "1x", "1s", "0x10", "1,5", "1_000", "\u{661}", "1/2", "1%", "1.", ".5", ".", "1.5.5", "1..5",
    "+1", "+", "-", "--1", "+-1", "- 1", " 1", "1 ", "1\n", "e", "e1", "1e", "1e+", "1e-", "1e1.5", "1ee1", "1E3",
    "1e 3", "1.e3", "nan", "NaN", "inf", "-inf", "Infinity",
];

/// Numbers above the maximum, which are rejected before rounding.
const TOO_MUCH: [&str; 8] = [
    "1000000000001",
    "1000000000000.000001",
    "1000000000000.0000001",
    "1e13",
    "1e300",
    "18446744073709551616",
    "1e9223372036854775808",
    "1e99999999999999999999",
];

const LESS_THAN_0: [&str; 4] = ["-1", "-0.0000001", "-1e-99999999999999999999", "-1e12"];

const TOO_SLOW: [&str; 6] = ["0", "0.0", "0e5", "0.0000009", "9e-7", "0.00000099999999999999"];

/// The error names the argument and its valid range, for each kind of invalid word.
#[test]
fn error_names_the_argument_for_any_invalid_word() {
    let long = ["9".repeat(100), format!("1000000000000.{}1", "0".repeat(100)), format!("{}us", "9".repeat(100))];
    let amounts =
        || NO_NUMBERS.iter().chain(&TOO_MUCH).chain(&LESS_THAN_0).copied().chain(long.iter().map(String::as_str));
    let durations = || NO_DURATIONS.iter().chain(&NO_TIME).copied().chain(long.iter().map(String::as_str));
    for (algorithm, arguments) in ARGUMENTS {
        for (place, (name, _)) in arguments.iter().enumerate() {
            let (refused, must_be): (Vec<&str>, &MustBe) = match *name {
                "capacity" | "limit" => (amounts().collect(), &AMOUNT),
                "refill" | "leak" => (amounts().chain(TOO_SLOW).collect(), &RATE),
                "holder" => (vec![""], &HOLDER),
                _ => (durations().collect(), &DURATION),
            };
            let position = Position { syntax: syntax(algorithm), is_first: place == 0 };
            for word in refused {
                let mut words = valid(algorithm, arguments);
                words[place + 1] = word;
                let of_calendar = algorithm == "FIXED" && *name == "window" && matches!(word, "1w" | "1y");
                let expected = if of_calendar {
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
    let negative: Vec<String> = TOO_MUCH.iter().map(|much| format!("-{much}")).collect();
    let costs = NO_NUMBERS.iter().chain(&TOO_MUCH).copied().chain(negative.iter().map(String::as_str));
    for (algorithm, arguments) in ARGUMENTS {
        let must_be = if algorithm == "CONCURRENCY" { &COST_OF_LEASE } else { &COST };
        for cost in costs.clone().chain(["-.5", "-1.", "-+1"]) {
            let words = [valid(algorithm, arguments), vec!["COST", cost]].concat();
            let expected = Error::out_of_range("cost", must_be, cost.as_bytes()).to_string();
            assert_eq!(parse(&words).unwrap_err(), expected, "{algorithm} {cost:?}");
        }
    }
    for maxwait in NO_DURATIONS {
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
    for (limit, most) in [("0.0000001", "0"), ("1.9999999", "1.999999"), ("0.30000000000000004", "0.3")] {
        for (algorithm, arguments) in ARGUMENTS {
            let mut words = valid(algorithm, arguments);
            words[1] = limit;
            let read = parse(&words).unwrap().0.to_string();
            assert_eq!(read.split(' ').nth(1), Some(most), "{algorithm}");
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
