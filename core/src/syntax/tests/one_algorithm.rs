//! Commands for one algorithm, and RL.THROTTLE: accepted and rejected arguments.

use super::*;
use crate::algorithm::fixed_window::calendar::Offset;

#[test]
fn cost_and_mode_are_parsed() {
    for (text, request) in [
        ("TOKENBUCKET 200 100 60s", Request::Take(Amount::ONE)),
        ("tokenbucket 200 100 60s cost 2", Request::Take(units(2))),
        ("TOKENBUCKET 200 100 60s COST 0", Request::Take(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s COST -0 FORCE", Request::Force(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s COST -2", Request::Refund(units(2))),
        ("TOKENBUCKET 200 100 60s COST -0.0000001", Request::Refund(Amount::ZERO)),
        ("TOKENBUCKET 200 100 60s UPTO COST 10", Request::UpTo(units(10))),
        ("TOKENBUCKET 200 100 60s MAXWAIT 0", Request::Within(Amount::ONE, Span::ZERO)),
        ("FIXED 5 1m FORCE ALIGNED COST 3", Request::Force(units(3))),
        ("SLIDING 5 1m UPTO", Request::UpTo(Amount::ONE)),
        ("LEAKYBUCKET 5 1 1s COST 0.5", Request::Take(Amount::saturating(500_000))),
        ("SLIDING 5 1m COST 2 STRICT", Request::Take(units(2))),
        ("SLIDINGLOG 5 1m FORCE", Request::Force(Amount::ONE)),
        ("CONCURRENCY 5 1m me", Request::Take(Amount::ONE)),
        ("CONCURRENCY 5 1m me COST 0.1", Request::Take(Amount::saturating(100_000))),
        ("CONCURRENCY 5 1m me cost 0.0000001", Request::Take(Amount::saturating(1))),
        ("TOKENBUCKET 5 1 1s maxwait 1.5s COST 3", Request::Within(units(3), Span::from_micros(1_500_000))),
        ("FIXED 5 1m COST 1000000000000 upto", Request::UpTo(Amount::MAX_ARGUMENT)),
    ] {
        assert_eq!(parse_request(text), Ok(request), "{text}");
    }
}

#[test]
fn error_names_the_word_or_the_argument() {
    for (text, error) in [
        (
            "NOSUCH 1 1s",
            "ERR syntax error, unexpected 'NOSUCH', where an option, POLICY or an algorithm is needed: COST, UPTO, FORCE, \
             MAXWAIT, KEEP, ONCE, SETTLE or EACH; TOKENBUCKET, LEAKYBUCKET, FIXED, SLIDING, SLIDINGLOG, CONCURRENCY or SKETCH; \
             for a policy: RL.TAKE key POLICY name",
        ),
        ("TOKENBUCKET 1 1 1s COST 1 COST 2", "ERR syntax error, unexpected 'COST', which is given twice"),
        ("TOKENBUCKET 1 1 1s UPTO FORCE", "ERR syntax error, unexpected 'FORCE', which cannot be combined with UPTO"),
        (
            "FIXED 1 1s MAXWAIT 5s",
            "ERR syntax error, unexpected 'MAXWAIT', where an option of the spec before, BAN or an algorithm is needed: \
             COST, UPTO, FORCE, KEEP, AS, ALIGNED, OFFSET, ANCHOR, ONCE or SETTLE; TOKENBUCKET, LEAKYBUCKET, FIXED, SLIDING, \
             SLIDINGLOG, CONCURRENCY or SKETCH",
        ),
        ("FIXED 1 1s ALIGNED aligned", "ERR syntax error, unexpected 'aligned', which is given twice"),
        ("CONCURRENCY 1 1s", "ERR holder is missing: CONCURRENCY limit ttl holder"),
        ("CONCURRENCY 1 1s me COST 0", "ERR cost must be a number above 0, up to 1000000000000, such as 1, not '0'"),
        ("CONCURRENCY 1 1s me COST -1", "ERR cost must be a number above 0, up to 1000000000000, such as 1, not '-1'"),
        ("CONCURRENCY 1 0 me", "ERR ttl must be a duration from 1us to 3650d, such as 60s, not '0'"),
        ("TOKENBUCKET 1 1", "ERR period is missing: TOKENBUCKET capacity refill period"),
        ("TOKENBUCKET 1 1 1s COST", "ERR cost is missing: COST amount"),
        (
            "TOKENBUCKET x 1 1s",
            "ERR capacity must be a number such as 100, not 'x' (TOKENBUCKET capacity refill period, with no key between)",
        ),
        ("TOKENBUCKET 1 0 1s", "ERR refill must be a number from 0.000001 to 1000000000000, such as 100, not '0'"),
        ("LEAKYBUCKET 1 -1 1s", "ERR leak must be a number from 0.000001 to 1000000000000, such as 100, not '-1'"),
        (
            "TOKENBUCKET 1e12 1 1s",
            "ERR refill must be enough to refill the capacity within 36500d, such as the capacity itself, not '1'",
        ),
        ("TOKENBUCKET 1 1 0s", "ERR period must be a duration from 1us to 3650d, such as 60s, not '0s'"),
        ("SLIDING 1 1S", "ERR window must be a duration such as 60s, not '1S' (units, in lower case: us ms s m h d)"),
        ("FIXED -1 1s", "ERR limit must be a number from 0 to 1000000000000, such as 100, not '-1'"),
        ("FIXED 1 1s COST x", "ERR cost must be a number such as 1, not 'x'"),
        (
            "FIXED 1 1s COST 0 UPTO",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10, not '0'",
        ),
        (
            "FIXED 1 1s COST -1 UPTO",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10, not '-1'",
        ),
        // A whole number only after rounding up.
        (
            "FIXED 1 1s COST 0.9999999 UPTO",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10, not '0.9999999'",
        ),
        (
            "FIXED 1 1s COST 0.5 UPTO",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10, not '0.5'",
        ),
        (
            "FIXED 1 1s COST -1 FORCE",
            "ERR cost must be a number from 0 to 1000000000000 with FORCE or MAXWAIT, such as 1, not '-1'",
        ),
        (
            "TOKENBUCKET 1 1 1s MAXWAIT 1x",
            "ERR maxwait must be 0 or a duration such as 500ms, not '1x' (units: us ms s m h d)",
        ),
    ] {
        assert_eq!(parse_request(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn limit_of_each_algorithm_is_parsed() {
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
        ("FIXED 7 60s", AnyLimit::FixedWindow(FixedWindow::new(units(7), minute()))),
        ("FIXED 7 60s aligned", AnyLimit::FixedWindow(FixedWindow::aligned(units(7), minute(), Offset::UTC))),
        ("SLIDING 7 60s", AnyLimit::SlidingWindow(SlidingWindow::new(units(7), minute()))),
        ("SLIDING 7 60s strict", AnyLimit::StrictWindow(StrictWindow::new(units(7), minute()))),
        ("SLIDINGLOG 7 60s", AnyLimit::SlidingLog(SlidingLog::new(units(7), minute()))),
        ("CONCURRENCY 7 60s me", AnyLimit::Concurrency(Concurrency::new(units(7), minute()))),
    ] {
        assert_eq!(format!("{:?}", plain_spec(&words(text)).unwrap().limit), format!("{limit:?}"), "{text}");
    }
}

fn parse_throttle(text: &str) -> Result<(Bucket, Request), Error> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.THROTTLE"[..]).chain(text.split(' ').map(str::as_bytes)).collect();
    throttle(&mut Args::new(&words))
}

#[test]
fn throttle_capacity_is_max_burst_plus_one() {
    for (text, capacity, refill, period, request) in [
        ("15 30 60", 16, 30, "60s", Request::Take(Amount::ONE)),
        ("0 1 1 5", 1, 1, "1s", Request::Take(units(5))),
        ("15 30 60 0", 16, 30, "60s", Request::Take(Amount::ZERO)),
        ("999999999999 1000000000000 315360000 1000000000000", 1_000_000_000_000, 1_000_000_000_000, "3650d", {
            Request::Take(Amount::MAX_ARGUMENT)
        }),
    ] {
        let period = Period::parse(period.as_bytes()).unwrap();
        let expected = Bucket::new(units(capacity), units(refill), period, Discipline::Burst).unwrap();
        let (bucket, parsed) = parse_throttle(text).unwrap();
        assert_eq!((format!("{bucket:?}"), parsed), (format!("{expected:?}"), request), "{text}");
    }
}

#[test]
fn error_of_throttle_names_the_argument() {
    const COUNT: &str = "ERR count must be a whole number from 1 to 1000000000000, such as 30, not";
    const PERIOD: &str = "ERR period must be a whole number of seconds from 1 to 315360000, such as 60, not";
    for (text, error) in [
        ("15 30", "ERR period is missing: RL.THROTTLE key max_burst count period [quantity]".to_owned()),
        ("15 30 60 1 1", "ERR syntax error, unexpected '1', where no more words can follow".to_owned()),
        ("1.5 30 60", "ERR max_burst must be a whole number from 0 to 999999999999, such as 15, not '1.5'".to_owned()),
        (
            "1000000000000 30 60",
            "ERR max_burst must be a whole number from 0 to 999999999999, such as 15, not '1000000000000'".to_owned(),
        ),
        ("15 0 60", format!("{COUNT} '0'")),
        ("15 1000000000001 60", format!("{COUNT} '1000000000001'")),
        ("15 30 0", format!("{PERIOD} '0'")),
        (
            "15 30 60s",
            "ERR period must be a whole number of seconds such as 60, not '60s' \
             (the order is key max_burst count period [quantity])"
                .to_owned(),
        ),
        ("15 30 315360001", format!("{PERIOD} '315360001'")),
        ("15 30 60 -1", "ERR quantity must be a whole number from 0 to 1000000000000, such as 1, not '-1'".to_owned()),
        (
            "99 1 315360000",
            "ERR count must be enough to refill the burst within 36500d, such as max_burst itself, not '1'".to_owned(),
        ),
    ] {
        assert_eq!(parse_throttle(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn release_takes_at_least_one_holder_of_1_to_256_bytes() {
    const HOLDER: &str = "ERR holder must be a name of 1 to 256 bytes, such as worker-7, not";
    let (longest, too_long) = ([0xff; MAX_HOLDER], [b'x'; MAX_HOLDER + 1]);
    let parse = |words: &[&[u8]]| holders(&mut Args::new(&words)).map(|holders| holders.concat());
    assert_eq!(parse(&[b"RL.RELEASE", b"a"]), Ok(b"a".to_vec()));
    assert_eq!(parse(&[b"RL.RELEASE", b"a", b"b", b"a"]), Ok(b"aba".to_vec()));
    assert_eq!(parse(&[b"RL.RELEASE", &longest]), Ok(longest.to_vec()));
    assert_eq!(parse(&[b"RL.RELEASE"]), Err(Error::WrongArity));
    for (words, shown) in [
        (&[&b"RL.RELEASE"[..], b""][..], "''".to_owned()),
        (&[b"RL.RELEASE", b"a", b""], "''".to_owned()),
        (&[b"RL.RELEASE", &too_long], format!("'{}...'", "x".repeat(32))),
    ] {
        assert_eq!(parse(words).unwrap_err().to_string(), format!("{HOLDER} {shown}"));
    }
}

#[test]
fn error_truncates_long_words() {
    for junk in [&[0xff; 1000][..], &[b'x'; 1000]] {
        let calls: [&[&[u8]]; 4] = [
            &[b"1", b"a", junk, b"5", b"6"],
            &[b"1", b"a", b"COST", b"5", junk],
            &[b"2", b"a", b"b", b"FIXED", b"5", b"6", junk, b"5", b"6"],
            &[b"1", b"a", b"FIXED", b"5", b"6", junk],
        ];
        let errors_of_many_keys = calls.map(|call| parse_mtake(call).unwrap_err());
        let calls: [&[&[u8]]; 3] = [&[junk], &[b"EACH", junk], &[b"FIXED", b"5", b"6", junk]];
        let errors_of_one_key = calls.map(|call| {
            let words: Vec<&[u8]> = std::iter::once(&b"RL.TAKE"[..]).chain(call.iter().copied()).collect();
            plain_spec(&words).unwrap_err()
        });
        let own_command: Vec<&[u8]> = vec![b"RL.FIXED", b"5", b"6", junk];
        let error = parse_one_algorithm(&mut Args::new(&own_command), Spec::fixed_window).unwrap_err();
        for error in errors_of_many_keys.into_iter().chain(errors_of_one_key).chain([error]) {
            let text = error.to_string();
            assert!(text.contains("...'") && text.len() < 300, "{} bytes: {text}", text.len());
        }
    }
}

#[test]
fn displayed_limit_is_the_spec_it_was_parsed_from() {
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
        assert_eq!(plain_spec(&self::words(text)).unwrap().limit.to_string(), words);
    }
    assert_eq!(Span::ZERO.to_string(), "0");
}

#[test]
fn bucket_that_refills_slower_than_36500_days_is_rejected() {
    for (algorithm, rate) in [("TOKENBUCKET", "refill"), ("LEAKYBUCKET", "leak")] {
        let parse_bucket = |text: &str| parse(&[&[algorithm][..], &text.split(' ').collect::<Vec<&str>>()].concat());
        for text in [
            "36500.000001 1 1d",
            "36501 1 24h",
            "36500 0.999999 1d",
            "10.000001 1 3650d",
            "1e12 1 1s",
            "1e12 0.000001 3650d",
        ] {
            assert_eq!(
                parse_bucket(text).unwrap_err(),
                Error::out_of_range(rate, &FAST_RATE, text.split(' ').nth(1).unwrap().as_bytes()).to_string(),
                "{text}"
            );
        }
        for text in [
            "36500 1 1d",
            "10 1 3650d",
            "0 0.000001 3650d",
            "1e12 1e11 3650d",
            "1e12 1e12 3650d",
            "0.000001 0.000001 3650d",
        ] {
            assert!(parse_bucket(text).is_ok(), "{text}");
        }
    }
}

#[test]
fn throttle_rejects_fractions_and_out_of_range_numbers() {
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
        let message = parse_throttle(text).unwrap_err().to_string();
        assert!(message.starts_with(&format!("ERR {argument} must be ")), "{text}: {message}");
    }
    // The count that the error proposes is accepted.
    for burst in ["315360", "999999999999"] {
        let (slow, fast) = (format!("{burst} 1 315360000"), format!("{burst} {burst} 315360000"));
        let expected = Error::out_of_range("count", &FAST_COUNT, b"1");
        assert_eq!((parse_throttle(&slow).err(), parse_throttle(&fast).is_ok()), (Some(expected), true), "{burst}");
    }
}
