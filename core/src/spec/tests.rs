use super::*;

fn read(text: &str) -> Result<Ask, Error> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.TAKE"[..]).chain(text.split(' ').map(str::as_bytes)).collect();
    let mut args = Args::new(&words);
    let spec = Spec::any(&mut args)?;
    args.end().map(|()| spec.ask)
}

fn units(units: u64) -> Amount {
    Amount::saturating(units * 1_000_000)
}

#[test]
fn reads_what_is_asked() {
    for (text, ask) in [
        ("TOKENBUCKET 200 100 60s", Ask::Take(Amount::ONE)),
        ("tokenbucket 200 100 60s cost 2", Ask::Take(units(2))),
        ("TOKENBUCKET 200 100 60s COST 0", Ask::Take(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s COST -0 FORCE", Ask::Force(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s COST -2", Ask::GiveBack(units(2))),
        ("TOKENBUCKET 200 100 60s COST -0.0000001", Ask::GiveBack(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s UPTO COST 10", Ask::UpTo(units(10))),
        ("TOKENBUCKET 200 100 60s MAXWAIT 0", Ask::Within(Amount::ONE, Span::ZERO)),
        ("FIXED 5 1m FORCE ALIGNED COST 3", Ask::Force(units(3))),
        ("SLIDING 5 1m UPTO", Ask::UpTo(Amount::ONE)),
        ("LEAKYBUCKET 5 1 1s COST 0.5", Ask::Take(Amount::saturating(500_000))),
        ("SLIDING 5 1m COST 2 STRICT", Ask::Take(units(2))),
        ("SLIDINGLOG 5 1m FORCE", Ask::Force(Amount::ONE)),
        ("CONCURRENCY 5 1m me", Ask::Take(Amount::ONE)),
        ("CONCURRENCY 5 1m me COST 0.1", Ask::Take(Amount::saturating(100_000))),
        ("CONCURRENCY 5 1m me cost 0.0000001", Ask::Take(Amount::saturating(1))),
        ("TOKENBUCKET 5 1 1s maxwait 1.5s COST 3", Ask::Within(units(3), Span::from_micros(1_500_000))),
        ("FIXED 5 1m COST 1000000000000 upto", Ask::UpTo(Amount::MAX_ARGUMENT)),
    ] {
        assert_eq!(read(text), Ok(ask), "{text}");
    }
}

#[test]
fn refuses_with_the_word_or_the_argument() {
    for (text, error) in [
        (
            "NOSUCH 1 1s",
            "ERR syntax error, unexpected 'NOSUCH', where an algorithm is needed: TOKENBUCKET, LEAKYBUCKET, FIXED, \
             SLIDING, SLIDINGLOG or CONCURRENCY",
        ),
        ("TOKENBUCKET 1 1 1s COST 1 COST 2", "ERR syntax error, unexpected 'COST'"),
        ("TOKENBUCKET 1 1 1s UPTO FORCE", "ERR syntax error, unexpected 'FORCE'"),
        ("FIXED 1 1s MAXWAIT 5s", "ERR syntax error, unexpected 'MAXWAIT'"),
        ("FIXED 1 1s ALIGNED aligned", "ERR syntax error, unexpected 'aligned'"),
        ("SLIDING 1 1s ALIGNED", "ERR syntax error, unexpected 'ALIGNED'"),
        ("CONCURRENCY 1 1s me UPTO", "ERR syntax error, unexpected 'UPTO'"),
        ("CONCURRENCY 1 1s", "ERR wrong number of arguments"),
        ("CONCURRENCY 1 1s me COST 0", "ERR cost must be a number above 0, up to 1000000000000, such as 1"),
        ("CONCURRENCY 1 1s me COST -1", "ERR cost must be a number above 0, up to 1000000000000, such as 1"),
        ("CONCURRENCY 1 0 me", "ERR ttl must be a duration from 1us to 3650d, such as 60s"),
        ("TOKENBUCKET 1 1", "ERR wrong number of arguments"),
        ("TOKENBUCKET 1 1 1s COST", "ERR wrong number of arguments"),
        ("TOKENBUCKET x 1 1s", "ERR capacity must be a number from 0 to 1000000000000, such as 100"),
        ("TOKENBUCKET 1 0 1s", "ERR refill must be a number from 0.000001 to 1000000000000, such as 100"),
        ("LEAKYBUCKET 1 -1 1s", "ERR leak must be a number from 0.000001 to 1000000000000, such as 100"),
        (
            "TOKENBUCKET 1e12 1 1s",
            "ERR refill must be enough to refill the capacity within 36500d, such as the capacity itself",
        ),
        ("TOKENBUCKET 1 1 0s", "ERR period must be a duration from 1us to 3650d, such as 60s"),
        ("FIXED 1 1S", "ERR window must be a duration from 1us to 3650d, such as 60s"),
        ("FIXED -1 1s", "ERR limit must be a number from 0 to 1000000000000, such as 100"),
        ("FIXED 1 1s COST x", "ERR cost must be a number from -1000000000000 to 1000000000000, such as 1"),
        ("FIXED 1 1s COST 0 UPTO", "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10"),
        ("FIXED 1 1s COST -1 UPTO", "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10"),
        // Rounded up it would be one.
        (
            "FIXED 1 1s COST 0.9999999 UPTO",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10",
        ),
        ("FIXED 1 1s COST 0.5 UPTO", "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10"),
        (
            "FIXED 1 1s COST -1 FORCE",
            "ERR cost must be a number from 0 to 1000000000000 with FORCE or MAXWAIT, such as 1",
        ),
        ("TOKENBUCKET 1 1 1s MAXWAIT 1x", "ERR maxwait must be 0 or a duration from 1us to 3650d, such as 500ms"),
    ] {
        assert_eq!(read(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn reads_the_limit_that_is_said() {
    let minute = || Period::parse(b"60s").unwrap();
    for (text, limit) in [
        (
            "TOKENBUCKET 7 3 60s",
            AnyLimit::Bucket(Bucket::new(units(7), units(3), minute(), Discipline::Burst).unwrap()),
        ),
        (
            "LEAKYBUCKET 7 3 60s",
            AnyLimit::Bucket(Bucket::new(units(7), units(3), minute(), Discipline::Queue).unwrap()),
        ),
        ("FIXED 7 60s", AnyLimit::FixedWindow(FixedWindow::new(units(7), minute(), false))),
        ("FIXED 7 60s aligned", AnyLimit::FixedWindow(FixedWindow::new(units(7), minute(), true))),
        ("SLIDING 7 60s", AnyLimit::SlidingWindow(SlidingWindow::new(units(7), minute()))),
        ("SLIDING 7 60s strict", AnyLimit::StrictWindow(StrictWindow::new(units(7), minute()))),
        ("SLIDINGLOG 7 60s", AnyLimit::SlidingLog(SlidingLog::new(units(7), minute()))),
        ("CONCURRENCY 7 60s me", AnyLimit::Concurrency(Concurrency::new(units(7), minute()))),
    ] {
        let words: Vec<&[u8]> = std::iter::once(&b"RL.TAKE"[..]).chain(text.split(' ').map(str::as_bytes)).collect();
        let spec = Spec::any(&mut Args::new(&words)).unwrap();
        assert_eq!(format!("{:?}", spec.limit), format!("{limit:?}"), "{text}");
    }
}

fn read_throttle(text: &str) -> Result<(Bucket, Ask), Error> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.THROTTLE"[..]).chain(text.split(' ').map(str::as_bytes)).collect();
    throttle(&mut Args::new(&words))
}

#[test]
fn a_throttle_is_a_bucket_of_one_more_than_its_burst() {
    for (text, capacity, refill, period, ask) in [
        ("15 30 60", 16, 30, "60s", Ask::Take(Amount::ONE)),
        ("0 1 1 5", 1, 1, "1s", Ask::Take(units(5))),
        ("15 30 60 0", 16, 30, "60s", Ask::Take(Amount::ZERO)),
        ("999999999999 1000000000000 315360000 1000000000000", 1_000_000_000_000, 1_000_000_000_000, "3650d", {
            Ask::Take(Amount::MAX_ARGUMENT)
        }),
    ] {
        let period = Period::parse(period.as_bytes()).unwrap();
        let expected = Bucket::new(units(capacity), units(refill), period, Discipline::Burst).unwrap();
        let (bucket, asked) = read_throttle(text).unwrap();
        assert_eq!((format!("{bucket:?}"), asked), (format!("{expected:?}"), ask), "{text}");
    }
}

#[test]
fn a_throttle_is_refused_with_the_argument() {
    const COUNT: &str = "ERR count must be a whole number from 1 to 1000000000000, such as 30";
    const PERIOD: &str = "ERR period must be a whole number of seconds from 1 to 315360000, such as 60";
    for (text, error) in [
        ("15 30", "ERR wrong number of arguments"),
        ("15 30 60 1 1", "ERR syntax error, unexpected '1'"),
        ("1.5 30 60", "ERR max_burst must be a whole number from 0 to 999999999999, such as 15"),
        ("1000000000000 30 60", "ERR max_burst must be a whole number from 0 to 999999999999, such as 15"),
        ("15 0 60", COUNT),
        ("15 1000000000001 60", COUNT),
        ("15 30 0", PERIOD),
        ("15 30 60s", PERIOD),
        ("15 30 315360001", PERIOD),
        ("15 30 60 -1", "ERR quantity must be a whole number from 0 to 1000000000000, such as 1"),
        ("99 1 315360000", "ERR count must be enough to refill the burst within 36500d, such as max_burst itself"),
    ] {
        assert_eq!(read_throttle(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn holders_are_names_of_1_to_256_bytes_and_one_at_least() {
    const HOLDER: &str = "ERR holder must be a name of 1 to 256 bytes, such as worker-7";
    let (longest, too_long) = ([0xff; MAX_HOLDER], [b'x'; MAX_HOLDER + 1]);
    let read = |words: &[&[u8]]| holders(&mut Args::new(&words)).map(|holders| holders.concat());
    assert_eq!(read(&[b"RL.RELEASE", b"a"]), Ok(b"a".to_vec()));
    assert_eq!(read(&[b"RL.RELEASE", b"a", b"b", b"a"]), Ok(b"aba".to_vec()));
    assert_eq!(read(&[b"RL.RELEASE", &longest]), Ok(longest.to_vec()));
    assert_eq!(read(&[b"RL.RELEASE"]), Err(Error::WrongArity));
    for words in [&[&b"RL.RELEASE"[..], b""][..], &[b"RL.RELEASE", b"a", b""], &[b"RL.RELEASE", &too_long]] {
        assert_eq!(read(words).unwrap_err().to_string(), HOLDER);
    }
}

fn read_several(words: &[&[u8]]) -> Result<usize, Error> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.MTAKE"[..]).chain(words.iter().copied()).collect();
    several(&mut Args::new(&words)).map(|parts| parts.len())
}

#[test]
fn several_are_refused_with_numkeys_if_it_may_be_wrong_and_with_what_was_found() {
    const MUST_BE: &str = "ERR numkeys must be the number of keys and of specs, such as 2 for two of each";
    let names = one_of(&Spec::ALGORITHMS.map(|(name, _)| name));
    let found = |word: &str| {
        format!(
            "ERR syntax error, unexpected '{word}', where an algorithm is needed: {names}; \
             numkeys must be the number of keys"
        )
    };
    let left = |word: &str| {
        format!(
            "ERR syntax error, unexpected '{word}' behind the last spec; \
             numkeys must be the number of keys and of specs"
        )
    };
    for (text, error) in [
        ("0 a FIXED 5 6", MUST_BE.to_owned()),
        ("a b FIXED 5 6 FIXED 5 6", MUST_BE.to_owned()),
        ("9 a b FIXED 5 6 FIXED 5 6", MUST_BE.to_owned()),
        ("1 a b FIXED 5 6 FIXED 5 6", found("b")),
        ("3 a b FIXED 5 6 FIXED 5 6", found("5")),
        // A key twice is not what is wrong.
        ("6 a b FIXED 5 6 FIXED 5 6", found("5")),
        ("8 a b FIXED 5 6 FIXED 5 6", format!("{MUST_BE} (there are specs for 0 of 8 keys)")),
        ("2 a b FIXED 5 6", format!("{MUST_BE} (there are specs for 1 of 2 keys)")),
        ("2 a b TOKENBUKET 5 5 6 FIXED 5 6", found("TOKENBUKET")),
        ("1 a FIXED 5 6 FIXED 5 6", left("FIXED")),
        ("1 a FIXED 5 6 MAXWAIT 1s", left("MAXWAIT")),
        (
            "2 a b FIXED 5 6 TOKENBUKET 5 5 6",
            format!(
                "ERR syntax error, unexpected 'TOKENBUKET', \
                 where an option of the spec before or an algorithm is needed: {names}"
            ),
        ),
        (
            "2 a b FIXED 5 6 UPTO FIXED 5 6",
            "ERR syntax error, unexpected 'UPTO', since several limits grant all or nothing".to_owned(),
        ),
        ("2 a b FIXED 5 6 FIXED 5", "ERR wrong number of arguments".to_owned()),
        (
            "2 a a FIXED 5 6 FIXED 5 6",
            "ERR keys must be different from each other, such as {alice}:minute {alice}:day".to_owned(),
        ),
    ] {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        assert_eq!(read_several(&words).unwrap_err().to_string(), error, "{text}");
    }
    assert_eq!(read_several(&[b"2", b"a", b"b", b"FIXED", b"5", b"6", b"FIXED", b"5", b"6"]), Ok(2));
}

#[test]
fn a_refusal_is_short_whatever_was_found() {
    let junk: &[u8] = &[0xff; 1000];
    let calls: [&[&[u8]]; 3] = [
        &[b"1", b"a", junk, b"5", b"6"],
        &[b"2", b"a", b"b", b"FIXED", b"5", b"6", junk, b"5", b"6"],
        &[b"1", b"a", b"FIXED", b"5", b"6", junk],
    ];
    for call in calls {
        let text = read_several(call).unwrap_err().to_string();
        assert!(text.contains("...'") && text.len() < 300, "{} bytes: {text}", text.len());
    }
}

#[test]
fn a_limit_displays_as_the_words_that_it_is_read_from() {
    for (text, words) in [
        ("tokenbucket 200 100 60s", "TOKENBUCKET 200 100 1m"),
        ("TOKENBUCKET 0.5 1e-06 100ms COST 0 FORCE", "TOKENBUCKET 0.5 0.000001 100ms"),
        ("LEAKYBUCKET 1000000 12.34 1.5h", "LEAKYBUCKET 1000000 12.34 90m"),
        ("FIXED 1000 1d ALIGNED", "FIXED 1000 1d ALIGNED"),
        ("FIXED 0 36h", "FIXED 0 36h"),
        ("SLIDING 100 90", "SLIDING 100 90s"),
        ("SLIDING 100 1us STRICT", "SLIDING 100 1us STRICT"),
        ("SLIDINGLOG 5 1500ms COST 3 UPTO", "SLIDINGLOG 5 1500ms"),
        ("CONCURRENCY 3 30s worker-7", "CONCURRENCY 3 30s"),
    ] {
        let said: Vec<&[u8]> = std::iter::once(&b"RL.TAKE"[..]).chain(text.split(' ').map(str::as_bytes)).collect();
        assert_eq!(Spec::any(&mut Args::new(&said)).unwrap().limit.to_string(), words);
    }
    assert_eq!(Span::ZERO.to_string(), "0");
}

/// Every algorithm, the arguments that it must have, and the words that may stand for them.
const ARGUMENTS: [(&str, &[(&str, &str)]); 6] = [
    ("TOKENBUCKET", &[("capacity", "10"), ("refill", "1"), ("period", "1s")]),
    ("LEAKYBUCKET", &[("capacity", "10"), ("leak", "1"), ("period", "1s")]),
    ("FIXED", &[("limit", "10"), ("window", "60s")]),
    ("SLIDING", &[("limit", "10"), ("window", "60s")]),
    ("SLIDINGLOG", &[("limit", "10"), ("window", "60s")]),
    ("CONCURRENCY", &[("limit", "10"), ("ttl", "60s"), ("holder", "me")]),
];

/// An algorithm and a word for each of its arguments.
fn valid(algorithm: &'static str, arguments: &[(&str, &'static str)]) -> Vec<&'static str> {
    std::iter::once(algorithm).chain(arguments.iter().map(|(_, word)| *word)).collect()
}

/// What is read of words that may hold anything, or how they are refused.
fn said<'a>(words: &[&'a str]) -> Result<(AnyLimit, Ask), String> {
    let words: Vec<&'a [u8]> = std::iter::once("RL.TAKE").chain(words.iter().copied()).map(str::as_bytes).collect();
    let mut args = Args::new(&words);
    let spec = Spec::any(&mut args).and_then(|spec| args.end().map(|()| (spec.limit, spec.ask)));
    spec.map_err(|error| error.to_string())
}

const NO_NUMBERS: [&str; 41] = [
    "", " ", "x", "ten", "1x", "1s", "0x10", "1,5", "1_000", "\u{661}", "1/2", "1%", "1.", ".5", ".", "1.5.5", "1..5",
    "+1", "+", "-", "--1", "+-1", "- 1", " 1", "1 ", "1\n", "e", "e1", "1e", "1e+", "1e-", "1e1.5", "1ee1", "1E3",
    "1e 3", "1.e3", "nan", "NaN", "inf", "-inf", "Infinity",
];
/// Checked before anything is rounded.
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
const NO_DURATIONS: [&str; 49] = [
    "",
    "s",
    "us",
    "x",
    "1S",
    "1Ms",
    "1MS",
    "1H",
    "1sec",
    "1min",
    "1w",
    "1y",
    "1ns",
    "1ss",
    "1 s",
    " 1s",
    "1s ",
    "1d2h",
    "1h30m",
    "00:01:00",
    "1.s",
    ".5s",
    "+1s",
    "1e",
    "1em",
    "1E3s",
    "infs",
    "inf",
    "nan",
    "1s\n",
    "-1s",
    "-1",
    "-0.5us",
    "3651d",
    "3650.0000001d",
    "3650.00000000000000000001d",
    "87600.1h",
    "315360000.000001",
    "315360000000001ms",
    "1e10",
    "1e400d",
    "1e99999999999999999999d",
    "99999999999999999999us",
    "0.9us",
    "0.0000009",
    "1e-7",
    "0.0009ms",
    "1e-99999999999999999999d",
    "-0",
];
const NO_TIME: [&str; 6] = ["0", "0s", "0us", "0d", "0.0", "0e9"];

/// Whatever the words of an argument are, of those that it refuses, the answer says its name and what it must be.
#[test]
fn an_argument_is_refused_by_its_name_whatever_it_says() {
    let long = ["9".repeat(100), format!("1000000000000.{}1", "0".repeat(100)), format!("{}us", "9".repeat(100))];
    let amounts =
        || NO_NUMBERS.iter().chain(&TOO_MUCH).chain(&LESS_THAN_0).copied().chain(long.iter().map(String::as_str));
    let durations = || NO_DURATIONS.iter().chain(&NO_TIME).copied().chain(long.iter().map(String::as_str));
    for (algorithm, arguments) in ARGUMENTS {
        for (place, (name, _)) in arguments.iter().enumerate() {
            let (refused, must_be): (Vec<&str>, MustBe) = match *name {
                "capacity" | "limit" => (amounts().collect(), AMOUNT),
                "refill" | "leak" => (amounts().chain(TOO_SLOW).collect(), RATE),
                "holder" => (vec![""], HOLDER),
                _ => (durations().collect(), DURATION),
            };
            for word in refused {
                let mut words = valid(algorithm, arguments);
                words[place + 1] = word;
                let expected = Error::out_of_range(name, must_be).to_string();
                assert_eq!(said(&words).unwrap_err(), expected, "{algorithm} {name} {word:?}");
            }
        }
    }
}

#[test]
fn a_cost_and_a_maxwait_are_refused_whatever_they_say() {
    let negative: Vec<String> = TOO_MUCH.iter().map(|much| format!("-{much}")).collect();
    let costs = NO_NUMBERS.iter().chain(&TOO_MUCH).copied().chain(negative.iter().map(String::as_str));
    for (algorithm, arguments) in ARGUMENTS {
        let must_be = if algorithm == "CONCURRENCY" { COST_OF_LEASE } else { COST };
        for cost in costs.clone().chain(["-.5", "-1.", "-+1"]) {
            let words = [valid(algorithm, arguments), vec!["COST", cost]].concat();
            let expected = Error::out_of_range("cost", must_be).to_string();
            assert_eq!(said(&words).unwrap_err(), expected, "{algorithm} {cost:?}");
        }
    }
    for maxwait in NO_DURATIONS {
        let words = ["TOKENBUCKET", "10", "1", "1s", "MAXWAIT", maxwait];
        let expected = Error::out_of_range("maxwait", PATIENCE).to_string();
        assert_eq!(said(&words).unwrap_err(), expected, "{maxwait:?}");
    }
}

#[test]
fn a_maxwait_of_nothing_may_have_any_unit() {
    for maxwait in ["0", "0s", "0us", "0.0", "0e5d"] {
        assert_eq!(said(&["TOKENBUCKET", "1", "1", "1s", "MAXWAIT", maxwait]).unwrap().1, {
            Ask::Within(Amount::ONE, Span::ZERO)
        });
    }
}

#[test]
fn a_limit_and_a_give_back_round_down_and_a_cost_up() {
    let millionths = Amount::saturating;
    for (limit, most) in [("0.0000001", "0"), ("1.9999999", "1.999999"), ("0.30000000000000004", "0.3")] {
        for (algorithm, arguments) in ARGUMENTS {
            let mut words = valid(algorithm, arguments);
            words[1] = limit;
            let read = said(&words).unwrap().0.to_string();
            assert_eq!(read.split(' ').nth(1), Some(most), "{algorithm}");
        }
    }
    for (cost, ask) in [
        ("0.0000001", Ask::Take(millionths(1))),
        ("4.9999999", Ask::Take(units(5))),
        ("0.30000000000000004", Ask::Take(millionths(300_001))),
        ("1e-06", Ask::Take(millionths(1))),
        ("1e-99999999999999999999", Ask::Take(millionths(1))),
        ("-0.0000001", Ask::GiveBack(Amount::ZERO)),
        ("-0.9999999", Ask::GiveBack(millionths(999_999))),
        ("-1e-99999999999999999999", Ask::GiveBack(Amount::ZERO)),
        ("-1e12", Ask::GiveBack(Amount::MAX_ARGUMENT)),
        ("-0.0", Ask::Take(Amount::ZERO)),
        ("-0e5", Ask::Take(Amount::ZERO)),
    ] {
        assert_eq!(said(&["FIXED", "10", "60s", "COST", cost]).unwrap().1, ask, "{cost}");
    }
}

/// All orders of a few words.
fn orders<'a>(words: &[&'a str]) -> Vec<Vec<&'a str>> {
    let [first, rest @ ..] = words else { return vec![Vec::new()] };
    let behind = |order: Vec<&'a str>| {
        (0..=order.len()).map(move |place| [&order[..place], &[*first], &order[place..]].concat())
    };
    orders(rest).into_iter().flat_map(behind).collect()
}

#[test]
fn options_come_in_any_order_and_any_case() {
    for (limit, options) in [
        ("TOKENBUCKET 10 1 1s", &["COST 12", "FORCE"][..]),
        ("TOKENBUCKET 10 1 1s", &["COST 12", "UPTO"]),
        ("TOKENBUCKET 10 1 1s", &["COST 7", "MAXWAIT 5"]),
        ("LEAKYBUCKET 10 1 1s", &["COST 12", "FORCE"]),
        ("FIXED 10 60s", &["ALIGNED", "COST 12", "UPTO"]),
        ("FIXED 10 60s", &["ALIGNED", "COST 12", "FORCE"]),
        ("FIXED 10 60s", &["ALIGNED", "COST -1"]),
        ("SLIDING 10 60s", &["STRICT", "COST 12", "UPTO"]),
        ("SLIDING 10 60s", &["STRICT", "COST 12", "FORCE"]),
        ("SLIDINGLOG 10 60s", &["COST 12", "FORCE"]),
    ] {
        let read = |options: &str| {
            let text = format!("{limit} {options}");
            let words: Vec<&str> = text.split(' ').collect();
            let (limit, ask) = said(&words).unwrap();
            (limit.to_string(), ask)
        };
        let expected = read(&options.join(" "));
        assert_ne!(expected.1, Ask::Take(Amount::ONE), "they are read at all");
        for order in orders(options) {
            let text = order.join(" ");
            let mixed: String = text
                .chars()
                .enumerate()
                .map(|(at, letter)| if at % 2 == 0 { letter.to_ascii_lowercase() } else { letter })
                .collect();
            for text in [text.to_lowercase(), mixed, text] {
                assert_eq!(read(&text), expected, "{limit} {text}");
            }
        }
    }
}

#[test]
fn a_word_out_of_place_is_told() {
    for (text, word) in [
        ("TOKENBUCKET 10 1 1s 5", "5"),
        ("TOKENBUCKET 10 1 1s COST 1 FOO", "FOO"),
        ("TOKENBUCKET 10 1 1s CO", "CO"),
        ("TOKENBUCKET 10 1 1s COSTS 1", "COSTS"),
        ("TOKENBUCKET 10 1 1s ALIGNED", "ALIGNED"),
        ("TOKENBUCKET 10 1 1s STRICT", "STRICT"),
        ("LEAKYBUCKET 10 1 1s MAXWAIT 1s", "MAXWAIT"),
        ("FIXED 10 60s STRICT", "STRICT"),
        ("FIXED 10 60s MAXWAIT 1s", "MAXWAIT"),
        ("FIXED 10 60s FIXED 10 60s", "FIXED"),
        ("SLIDING 10 60s ALIGNED", "ALIGNED"),
        ("SLIDING 10 60s MAXWAIT 1s", "MAXWAIT"),
        ("SLIDING 10 60s STRICT MAXWAIT 1s", "MAXWAIT"),
        ("SLIDINGLOG 10 60s STRICT", "STRICT"),
        ("SLIDINGLOG 10 60s MAXWAIT 1s", "MAXWAIT"),
        ("CONCURRENCY 10 60s me UPTO", "UPTO"),
        ("CONCURRENCY 10 60s me FORCE", "FORCE"),
        ("CONCURRENCY 10 60s me MAXWAIT 1s", "MAXWAIT"),
        ("CONCURRENCY 10 60s me extra", "extra"),
        // Twice
        ("TOKENBUCKET 10 1 1s COST 1 COST 1", "COST"),
        ("TOKENBUCKET 10 1 1s cost 1 UPTO cost 1", "cost"),
        ("TOKENBUCKET 10 1 1s UPTO UPTO", "UPTO"),
        ("TOKENBUCKET 10 1 1s FORCE COST 1 force", "force"),
        ("TOKENBUCKET 10 1 1s MAXWAIT 1s MAXWAIT 1s", "MAXWAIT"),
        ("FIXED 10 60s ALIGNED COST 1 Aligned", "Aligned"),
        ("SLIDING 10 60s STRICT STRICT", "STRICT"),
        ("SLIDINGLOG 10 60s COST 1 COST 1", "COST"),
        ("CONCURRENCY 10 60s me COST 1 COST 1", "COST"),
        // Two of which there may be one
        ("TOKENBUCKET 10 1 1s UPTO FORCE", "FORCE"),
        ("TOKENBUCKET 10 1 1s FORCE UPTO", "UPTO"),
        ("TOKENBUCKET 10 1 1s UPTO MAXWAIT 1s", "MAXWAIT"),
        ("TOKENBUCKET 10 1 1s MAXWAIT 1s COST 1 FORCE", "FORCE"),
        ("LEAKYBUCKET 10 1 1s UPTO FORCE", "FORCE"),
        ("FIXED 10 60s UPTO ALIGNED FORCE", "FORCE"),
        ("SLIDING 10 60s FORCE STRICT UPTO", "UPTO"),
        ("SLIDINGLOG 10 60s FORCE UPTO", "UPTO"),
    ] {
        assert_eq!(read(text), Err(Error::unexpected(word.as_bytes())), "{text}");
    }
    for name in ["RL.FIXED", "THROTTLE", "FIXE", "STRICT", "10"] {
        let algorithms = "TOKENBUCKET, LEAKYBUCKET, FIXED, SLIDING, SLIDINGLOG or CONCURRENCY";
        let expected = format!("ERR syntax error, unexpected '{name}', where an algorithm is needed: {algorithms}");
        assert_eq!(said(&[name, "10", "60s"]).unwrap_err(), expected);
    }
}

#[test]
fn a_cost_that_goes_with_no_other_option_is_told() {
    for (algorithm, arguments) in &ARGUMENTS[..5] {
        let words = |options: &[&'static str]| [&valid(algorithm, arguments), options].concat();
        let upto = Error::out_of_range("cost", COST_UPTO).to_string();
        for cost in [
            "0",
            "-0",
            "0.5",
            "1.5",
            "0.0000001",
            "1.000001",
            "1.0000001",
            "0.9999999",
            "1.9999999",
            "-1",
            "-0.0000001",
        ] {
            assert_eq!(said(&words(&["COST", cost, "UPTO"])).unwrap_err(), upto, "{algorithm} {cost}");
            assert_eq!(said(&words(&["UPTO", "COST", cost])).unwrap_err(), upto, "{algorithm} {cost}");
        }
        for (cost, most) in [("1", 1), ("1.0", 1), ("1e0", 1), ("10e-1", 1), ("1000000000000", 1_000_000_000_000)] {
            assert_eq!(said(&words(&["UPTO", "COST", cost])).unwrap().1, Ask::UpTo(units(most)), "{algorithm} {cost}");
        }
        let with_mode = Error::out_of_range("cost", COST_WITH_MODE).to_string();
        let modes: &[&[&str]] =
            if *algorithm == "TOKENBUCKET" { &[&["FORCE"], &["MAXWAIT", "1s"]] } else { &[&["FORCE"]] };
        for mode in modes {
            for cost in ["-1", "-0.0000001", "-1e12"] {
                let (cost, mode) = (vec!["COST", cost], mode.to_vec());
                for options in [[cost.clone(), mode.clone()].concat(), [mode, cost].concat()] {
                    assert_eq!(said(&words(&options)).unwrap_err(), with_mode, "{algorithm} {options:?}");
                }
            }
            let options = [vec!["COST", "-0"], mode.to_vec()].concat();
            let ask = said(&words(&options)).unwrap().1;
            assert!(matches!(ask, Ask::Force(Amount::ZERO) | Ask::Within(Amount::ZERO, _)), "{algorithm} {ask:?}");
        }
    }
    for cost in ["0", "-0", "-1"] {
        let expected = Error::out_of_range("cost", COST_OF_LEASE).to_string();
        assert_eq!(said(&["CONCURRENCY", "5", "60s", "me", "COST", cost]).unwrap_err(), expected);
    }
}

#[test]
fn a_missing_word_is_a_wrong_number_of_arguments() {
    let missing = Error::WrongArity.to_string();
    for (algorithm, arguments) in ARGUMENTS {
        let words = valid(algorithm, arguments);
        for length in 0..words.len() {
            assert_eq!(said(&words[..length]).unwrap_err(), missing, "{algorithm} {length}");
        }
        assert_eq!(said(&[&words[..], &["COST"]].concat()).unwrap_err(), missing, "{algorithm}");
    }
    assert_eq!(said(&["TOKENBUCKET", "10", "1", "1s", "MAXWAIT"]).unwrap_err(), missing);
}

#[test]
fn a_bucket_refills_within_36500_days() {
    for (algorithm, rate) in [("TOKENBUCKET", "refill"), ("LEAKYBUCKET", "leak")] {
        let read = |text: &str| said(&[&[algorithm][..], &text.split(' ').collect::<Vec<&str>>()].concat());
        for text in [
            "36500.000001 1 1d",
            "36501 1 24h",
            "36500 0.999999 1d",
            "10.000001 1 3650d",
            "1e12 1 1s",
            "1e12 0.000001 3650d",
        ] {
            assert_eq!(read(text).unwrap_err(), Error::out_of_range(rate, QUICK_RATE).to_string(), "{text}");
        }
        for text in [
            "36500 1 1d",
            "10 1 3650d",
            "0 0.000001 3650d",
            "1e12 1e11 3650d",
            "1e12 1e12 3650d",
            "0.000001 0.000001 3650d",
        ] {
            assert!(read(text).is_ok(), "{text}");
        }
    }
}

#[test]
fn a_throttle_takes_whole_numbers_only() {
    for (text, argument) in [
        ("4 1 1 1.5", "quantity"),
        ("4 1 1 x", "quantity"),
        ("4 1 1 +1", "quantity"),
        ("4 1 1 1e3", "quantity"),
        ("4 1 1 1000000000001", "quantity"),
        ("4 1 1 18446744073709551617", "quantity"),
        ("4 1 1 COST 1", "quantity"),
        ("4 1 -1", "period"),
        ("4 1 0.5", "period"),
        ("4 1 9223372036854775808", "period"),
        ("4 -1 1", "count"),
        ("4 1.5 1", "count"),
        ("4 9223372036854775808 1", "count"),
        ("999999999999 1 315360000", "count"),
        ("-1 1 1", "max_burst"),
        ("x 1 1", "max_burst"),
        ("9223372036854775807 1 1", "max_burst"),
    ] {
        let told = read_throttle(text).unwrap_err().to_string();
        assert!(told.starts_with(&format!("ERR {argument} must be ")), "{text}: {told}");
    }
    // What is told to be enough is.
    for burst in ["315360", "999999999999"] {
        let (slow, quick) = (format!("{burst} 1 315360000"), format!("{burst} {burst} 315360000"));
        let expected = Error::out_of_range("count", FAST_COUNT);
        assert_eq!((read_throttle(&slow).err(), read_throttle(&quick).is_ok()), (Some(expected), true), "{burst}");
    }
}

#[test]
fn of_several_each_is_read_like_one() {
    let (numkeys, arity) = ("ERR numkeys must be", "ERR wrong number");
    for (text, error) in [
        ("-1 a FIXED 5 60", numkeys),
        ("x a b FIXED 5 60 FIXED 5 60", numkeys),
        ("1.0 a FIXED 5 60", numkeys),
        ("2.5 a b FIXED 5 60 FIXED 5 60", numkeys),
        ("+2 a b FIXED 5 60 FIXED 5 60", numkeys),
        ("99999999999999999999 a b FIXED 5 60 FIXED 5 60", numkeys),
        (
            "4 a FIXED 5 60",
            "ERR numkeys must be the number of keys and of specs, such as 2 for two of each \
             (there are specs for 0 of 4 keys)",
        ),
        (
            "3 a b c FIXED 5 60 COST 2",
            "ERR numkeys must be the number of keys and of specs, such as 2 for two of each \
             (there are specs for 1 of 3 keys)",
        ),
        ("2 a FIXED 5 60", "ERR syntax error, unexpected '5', where an algorithm is needed"),
        ("2 a b c FIXED 5 60 FIXED 5 60 FIXED 5 60", "ERR syntax error, unexpected 'c', where an algorithm is needed"),
        ("2 a b FIXED 5 60 MAXWAIT 1s FIXED 5 60", "ERR syntax error, unexpected 'MAXWAIT', where an option of"),
        ("2 a b FIXED 5 60 FIXED 5 60 UPTO", "ERR syntax error, unexpected 'UPTO', since several"),
        ("2 a b FIXED 5 60 FIXED 5 60 extra", "ERR syntax error, unexpected 'extra' behind the last spec"),
        ("2 a b FIXED 5 60 NOSUCH 5 60", "ERR syntax error, unexpected 'NOSUCH'"),
        ("2 a b FIXED 5 60 COST FIXED 5 60", "ERR cost must be"),
        ("2 a b FIXED 5 60 FIXED 5 0", "ERR window must be"),
        ("2 a b FIXED 5 60 FIXED 5 60 COST -1 FORCE", "ERR cost must be"),
        ("2 a b FIXED 5 60 TOKENBUCKET 1e12 1 1s", "ERR refill must be"),
        ("2 a b FIXED 5 60 FIXED 5 60 COST 1 COST 1", "ERR syntax error, unexpected 'COST'"),
        ("3 a b a FIXED 5 60 FIXED 5 60 FIXED 5 60", "ERR keys must be different"),
        ("2 a b FIXED 5 60 FIXED 5", arity),
    ] {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        let told = read_several(&words).unwrap_err().to_string();
        assert!(told.starts_with(error), "{text}: {told}");
    }
}
