//! Several specs on one key: options, names and identities.

use super::*;

/// Returns the requests of a call with two specs.
fn two_requests(text: &str) -> [Request; 2] {
    let requests = requests(&composite(text).unwrap_or_else(|error| unreachable!("{text}: {error}")));
    requests.try_into().unwrap()
}

#[test]
fn options_before_the_first_spec_apply_to_all() {
    for (options, request) in [
        ("COST 5", take(5)),
        ("cost 5 force", Request::Force(units(5))),
        ("UPTO COST 5", Request::UpTo(units(5))),
        ("FORCE", Request::Force(Amount::ONE)),
        ("COST 0", ZERO_COST),
        ("COST 0 FORCE", Request::Force(Amount::ZERO)),
        ("COST -2", Request::Refund(units(2))),
        ("EACH", take(1)),
        ("ONCE a 1s", take(1)),
        ("EACH COST 3 ONCE a 1s", take(3)),
    ] {
        assert_eq!(two_requests(&format!("{options} FIXED 10 1m SLIDING 10 1m")), [request, request], "{options}");
    }
    // A plain key can serve a single spec.
    for (options, request) in [
        ("COST 5", take(5)),
        ("UPTO COST 5", Request::UpTo(units(5))),
        ("COST -2", Request::Refund(units(2))),
        ("COST 0", ZERO_COST),
        ("FORCE", Request::Force(Amount::ONE)),
    ] {
        for spec in ["FIXED 10 1m", "TOKENBUCKET 10 1 1s"] {
            assert_eq!(parse_request(&format!("{options} {spec}")), Ok(request), "{options} {spec}");
        }
    }
    assert_eq!(
        parse_request("MAXWAIT 5s TOKENBUCKET 10 1 1s"),
        Ok(Request::Within(Amount::ONE, Span::SECOND.times(5)))
    );
}

#[test]
fn options_after_a_spec_override_those_of_the_call() {
    let wait = |cost, seconds| Request::Within(units(cost), Span::SECOND.times(seconds));
    for (text, first, second) in [
        ("COST 4000 FIXED 60 1m COST 1 SLIDING 10 1m", take(1), take(4000)),
        ("COST 4000 FIXED 60 1m SLIDING 10 1m COST 1", take(4000), take(1)),
        // The mode of the call belongs to the call's cost.
        ("COST 4 FORCE FIXED 60 1m COST 1 SLIDING 10 1m", take(1), Request::Force(units(4))),
        ("COST 4 UPTO FIXED 60 1m COST 1 SLIDING 10 1m", take(1), Request::UpTo(units(4))),
        ("COST 4 MAXWAIT 5s TOKENBUCKET 9 9 1m COST 1 TOKENBUCKET 9 9 1s", take(1), wait(4, 5)),
        ("FORCE FIXED 60 1m COST 1 SLIDING 10 1m", take(1), Request::Force(Amount::ONE)),
        // The spec has a mode, and the cost is that of the call.
        ("COST 4 FIXED 60 1m FORCE SLIDING 10 1m", Request::Force(units(4)), take(4)),
        ("COST 4 UPTO FIXED 60 1m FORCE SLIDING 10 1m", Request::Force(units(4)), Request::UpTo(units(4))),
        ("COST 4 FORCE TOKENBUCKET 9 9 1m MAXWAIT 2s SLIDING 10 1m", wait(4, 2), Request::Force(units(4))),
        ("COST 4 MAXWAIT 5s TOKENBUCKET 9 9 1m MAXWAIT 2s TOKENBUCKET 9 9 1s", wait(4, 2), wait(4, 5)),
        // The spec has a mode and a cost.
        ("COST 4 FIXED 60 1m FORCE COST 2 SLIDING 10 1m", Request::Force(units(2)), take(4)),
        // MAXWAIT applies to token buckets only.
        ("COST 4 MAXWAIT 5s TOKENBUCKET 9 9 1m SLIDING 10 1m", wait(4, 5), take(4)),
        ("COST 4 MAXWAIT 5s LEAKYBUCKET 9 9 1m FIXED 10 1m", take(4), take(4)),
        ("MAXWAIT 5s SLIDINGLOG 9 1m SLIDING 10 1m STRICT", take(1), take(1)),
        // The cost of the call does not apply to a lease.
        ("COST 4 FORCE CONCURRENCY 9 1m me FIXED 10 1m", take(1), Request::Force(units(4))),
        ("COST 4 CONCURRENCY 9 1m me COST 2 FIXED 10 1m", take(2), take(4)),
        ("UPTO COST 4 FIXED 10 1m CONCURRENCY 9 1m me", Request::UpTo(units(4)), take(1)),
        // A call that charges nothing does not charge a spec's own cost either.
        ("COST 0 FIXED 10 1m COST 5 SLIDING 9 1m", ZERO_COST, ZERO_COST),
        ("COST 0 FIXED 10 1m COST 5 FORCE SLIDING 9 1m", ZERO_COST, ZERO_COST),
        ("COST 0 FIXED 10 1m CONCURRENCY 9 1m me", ZERO_COST, ZERO_COST),
        ("COST 0 FIXED 10 1m CONCURRENCY 9 1m me COST 2", ZERO_COST, ZERO_COST),
        ("COST -3 FIXED 10 1m COST 5 SLIDING 9 1m", ZERO_COST, Request::Refund(units(3))),
        ("COST -3 FIXED 10 1m CONCURRENCY 9 1m me", Request::Refund(units(3)), ZERO_COST),
        ("COST 0 FORCE FIXED 10 1m COST 5 SLIDING 9 1m", ZERO_COST, Request::Force(Amount::ZERO)),
        ("SETTLE a 7 FIXED 10 1m COST 5 SLIDING 9 1m", ZERO_COST, ZERO_COST),
        ("SETTLE a 7 FIXED 10 1m COST 5 FORCE CONCURRENCY 9 1m me", ZERO_COST, ZERO_COST),
        // A call that charges may have a spec with a cost of zero.
        ("COST 4 FIXED 10 1m COST 0 SLIDING 9 1m", ZERO_COST, take(4)),
    ] {
        assert_eq!(two_requests(text), [first, second], "{text}");
    }
    // The same for a single spec.
    for (text, request) in [
        ("COST 4 FORCE FIXED 60 1m COST 1", take(1)),
        ("COST 4 FIXED 60 1m UPTO", Request::UpTo(units(4))),
        ("COST 4 FIXED 60 1m COST -1", Request::Refund(Amount::ONE)),
        ("COST 0 FIXED 60 1m COST 1", ZERO_COST),
        ("COST 5 CONCURRENCY 9 1m me", take(1)),
        ("COST 0 CONCURRENCY 9 1m me", ZERO_COST),
    ] {
        assert_eq!(parse_request(text), Ok(request), "{text}");
    }
}

#[test]
fn purpose_follows_the_cost_of_the_call() {
    for (text, purpose) in [
        ("FIXED 10 1m SLIDING 9 1m", Purpose::Charge),
        ("FIXED 10 1m COST 0 SLIDING 9 1m COST 0", Purpose::Charge),
        ("COST 0 FIXED 10 1m COST 1 SLIDING 9 1m", Purpose::Peek),
        ("COST -0 FORCE FIXED 10 1m SLIDING 9 1m", Purpose::Peek),
        ("COST -1 FIXED 10 1m SLIDING 9 1m", Purpose::Refund),
        ("COST -0.0000001 FIXED 10 1m SLIDING 9 1m", Purpose::Refund),
        ("SETTLE a 0 FIXED 10 1m SLIDING 9 1m", Purpose::Settle),
        ("ONCE a 1s FIXED 10 1m SLIDING 9 1m", Purpose::Charge),
        // The cost of a single spec is the cost of the call.
        ("FIXED 10 1m AS a", Purpose::Charge),
        ("FIXED 10 1m AS a COST 0", Purpose::Peek),
        ("FIXED 10 1m AS a COST 0 FORCE", Purpose::Peek),
        ("TOKENBUCKET 10 1 1s AS a COST 0 MAXWAIT 1s", Purpose::Peek),
        ("FIXED 10 1m AS a COST -1", Purpose::Refund),
        ("FIXED 10 1m AS a UPTO", Purpose::Charge),
        ("FIXED 10 1m SETTLE a 0", Purpose::Settle),
        // A refund is never denied, but a lease of a plain key could be.
        ("COST -1 CONCURRENCY 10 1m me", Purpose::Refund),
        ("COST -1 FIXED 10 1m COST 1", Purpose::Refund),
    ] {
        assert_eq!(composite(text).unwrap().purpose, purpose, "{text}");
    }
}

#[test]
fn upto_and_negative_cost_are_rejected_for_one_of_several_specs() {
    let upto = "ERR syntax error, unexpected 'UPTO', since RL.MTAKE and RL.MPEEK take all or nothing";
    let cost = "ERR cost must be a number from 0 to 1000000000000 behind one of several limits, such as 1, not";
    for (text, error) in [
        ("FIXED 10 1m UPTO SLIDING 9 1m", upto),
        ("UPTO FIXED 10 1m SLIDING 9 1m COST 2 UPTO", upto),
        ("FIXED 10 1m COST -1 SLIDING 9 1m", &format!("{cost} '-1'")),
        ("COST -2 FIXED 10 1m SLIDING 9 1m COST -1", &format!("{cost} '-1'")),
        ("COST 0 FIXED 10 1m SLIDING 9 1m COST -0.0000001", &format!("{cost} '-0.0000001'")),
        // The options of the call are validated even if each spec overrides them.
        (
            "COST 0.5 UPTO FIXED 10 1m COST 1 SLIDING 9 1m COST 1",
            "ERR cost must be a whole number from 1 to 1000000000000 with UPTO, such as 10, not '0.5'",
        ),
        (
            "COST -1 FORCE FIXED 10 1m COST 1 SLIDING 9 1m COST 1",
            "ERR cost must be a number from 0 to 1000000000000 with FORCE or MAXWAIT, such as 1, not '-1'",
        ),
        (
            "COST -1 FIXED 10 1m FORCE SLIDING 9 1m",
            "ERR cost must be a number from 0 to 1000000000000 with FORCE or MAXWAIT, such as 1, not '-1'",
        ),
    ] {
        assert_eq!(composite(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn more_than_8_specs_are_rejected() {
    let windows = |count: usize| (1..=count).map(|hours| format!("FIXED 10 {hours}h")).collect::<Vec<_>>().join(" ");
    for count in 2..=8 {
        let call = composite(&windows(count)).unwrap();
        assert_eq!(call.specs.len(), count);
        assert_eq!((call.idempotency, call.each, call.ban), (Idempotency::Every, false, None));
    }
    let refused = "ERR syntax error, unexpected 'FIXED', since a call has 8 specs at most";
    assert_eq!(composite(&windows(9)).unwrap_err().to_string(), refused);
    assert_eq!(
        composite(&format!("{} BAN 1 1s 1s", windows(8))).unwrap().specs.len(),
        MAX_SPECS,
        "a ban is not a spec"
    );
}

#[test]
fn specs_of_one_kind_need_different_windows_or_names() {
    let unnamed = "ERR specs of one kind must have different windows or different names, such as \
                   FIXED 10 1m AS burst, not";
    let unnamed = |one, other| format!("{unnamed} {one} and {other}");
    let names =
        "ERR names must be different from each other for limits of one kind, such as AS requests, not 'a' twice";
    let names = || names.to_owned();
    let leases = || "ERR syntax error, unexpected 'CONCURRENCY', since a key can have only one".to_owned();
    for (text, error) in [
        ("TOKENBUCKET 10 1 1m TOKENBUCKET 20 2 60s", unnamed("TOKENBUCKET 10 1 1m", "TOKENBUCKET 20 2 1m")),
        ("TOKENBUCKET 10 1 1m LEAKYBUCKET 20 2 1m", unnamed("TOKENBUCKET 10 1 1m", "LEAKYBUCKET 20 2 1m")),
        ("FIXED 10 1m FIXED 20 1m", unnamed("FIXED 10 1m", "FIXED 20 1m")),
        ("FIXED 10 1m ALIGNED FIXED 20 1m ALIGNED", unnamed("FIXED 10 1m ALIGNED", "FIXED 20 1m ALIGNED")),
        ("SLIDING 10 1m SLIDING 20 1m", unnamed("SLIDING 10 1m", "SLIDING 20 1m")),
        ("SLIDING 10 1m STRICT SLIDING 20 1m STRICT", unnamed("SLIDING 10 1m STRICT", "SLIDING 20 1m STRICT")),
        ("SLIDINGLOG 10 1m SLIDINGLOG 20 1m", unnamed("SLIDINGLOG 10 1m", "SLIDINGLOG 20 1m")),
        ("FIXED 10 1m SLIDING 10 1m FIXED 10 2m FIXED 20 1m", unnamed("FIXED 10 1m", "FIXED 20 1m")),
        ("FIXED 10 1m FIXED 20 1m KEEP 5 BAN 1 1s 1s", unnamed("FIXED 10 1m", "FIXED 20 1m")),
        ("FIXED 10 1m AS a FIXED 20 2m AS a", names()),
        ("TOKENBUCKET 10 1 1m AS a LEAKYBUCKET 20 2 2m AS a", names()),
        ("CONCURRENCY 10 1m me CONCURRENCY 10 2m you", leases()),
        ("CONCURRENCY 10 1m me AS a CONCURRENCY 10 1m me AS b", leases()),
    ] {
        assert_eq!(composite(text).unwrap_err().to_string(), error, "{text}");
    }
    for text in [
        "TOKENBUCKET 10 1 1m TOKENBUCKET 20 2 1h",
        "FIXED 10 1m FIXED 20 1m ALIGNED",
        "FIXED 10 1m SLIDING 20 1m SLIDINGLOG 30 1m SLIDING 20 1m STRICT TOKENBUCKET 5 5 1m",
        "FIXED 10 1m AS a FIXED 20 1m",
        "FIXED 10 1m AS a FIXED 20 1m AS b FIXED 30 1m AS A",
        "FIXED 10 1m AS a SLIDING 20 1m AS a",
        "CONCURRENCY 10 1m me FIXED 10 1m",
    ] {
        assert!(composite(text).is_ok(), "{text}");
    }
}

#[test]
fn identity_of_a_limit_is_its_kind_and_window() {
    for (text, kind, micros, flags) in [
        ("TOKENBUCKET 10 1 1m", UsageKind::Bucket, 60_000_000, 0),
        ("LEAKYBUCKET 10 1 2us", UsageKind::Bucket, 2, 0),
        ("FIXED 10 1h", UsageKind::FixedWindow, 3_600_000_000, 0),
        ("FIXED 10 1h ALIGNED", UsageKind::FixedWindow, 3_600_000_000, 1),
        ("SLIDING 10 1m", UsageKind::SlidingWindow, 60_000_000, 0),
        ("SLIDING 10 1m STRICT", UsageKind::StrictWindow, 60_000_000, 0),
        ("SLIDINGLOG 10 1m", UsageKind::SlidingLog, 60_000_000, 0),
        ("CONCURRENCY 10 1m me", UsageKind::Concurrency, 0, 0),
    ] {
        let limit = plain_spec(&words(text)).unwrap().limit;
        assert_eq!((limit.kind(), limit.identity()), (kind, Identity { micros, options: flags }), "{text}");
        assert_eq!(limit.limit(), units(10), "{text}");
    }
}

#[test]
fn name_of_1_to_32_letters_is_accepted() {
    let longest = "aZ09_-".repeat(6)[..MAX_SPEC_NAME].to_owned();
    for name in ["a", "requests", "AS", "COST", "0", "_", "-", &longest] {
        for spec in ["TOKENBUCKET 9 9 1m", "LEAKYBUCKET 9 9 1m", "FIXED 9 1m", "SLIDING 9 1m", "SLIDINGLOG 9 1m"] {
            let text = format!("{spec} AS {name} COST 2");
            let call = composite(&text).unwrap();
            assert_eq!((call.specs.len(), call.specs[0].name), (1, Some(name.as_bytes())), "{text}");
            assert_eq!((call.specs[0].request, call.specs[0].has_own_cost), (take(2), true));
        }
        let text = format!("FIXED 9 1m CONCURRENCY 9 1m me AS {name}");
        assert_eq!(composite(&text).unwrap().specs[1].name, Some(name.as_bytes()));
    }
    for name in ["", " ", "a b", "a.b", "a%", "\u{e4}", "a\n", &format!("{longest}x")] {
        let refused = Error::out_of_range("name", &NAME, name.as_bytes()).to_string();
        assert_eq!(parse(&["FIXED", "9", "1m", "AS", name]).unwrap_err(), refused, "{name:?}");
    }
    assert_eq!(parse(&["FIXED", "9", "1m", "AS"]).unwrap_err(), "ERR name is missing: AS name");
}

#[test]
fn command_of_one_algorithm_rejects_a_second_spec() {
    for (text, word) in [
        ("FIXED 9 1m FIXED 9 2m", "FIXED"),
        ("FIXED 9 1m BAN 1 1s 1s", "BAN"),
        ("FIXED 9 1m EACH", "EACH"),
        ("FIXED 9 1m COST 1 POLICY a", "POLICY"),
    ] {
        let needed = "where an option is needed: COST, UPTO, FORCE, KEEP, AS, ALIGNED, OFFSET, ANCHOR, ONCE or SETTLE";
        let expected = format!("ERR syntax error, unexpected '{word}', {needed}; did you mean RL.TAKE?");
        assert_eq!(parse_own_command(text).unwrap_err().to_string(), expected);
    }
    for (text, request) in [
        ("FIXED 9 1m", take(1)),
        ("FIXED 9 1m COST 2 KEEP 3", take(2)),
        ("CONCURRENCY 9 1m me COST 2", take(2)),
        ("TOKENBUCKET 9 9 1m MAXWAIT 0", Request::Within(Amount::ONE, Span::ZERO)),
    ] {
        assert_eq!(parse_own_command(text).unwrap().request, request, "{text}");
    }
}

#[test]
fn nx_is_parsed_only_as_an_option() {
    for (text, nx) in [
        ("CONCURRENCY 9 1m me", false),
        ("CONCURRENCY 9 1m me NX", true),
        ("CONCURRENCY 9 1m NX", false),
        ("CONCURRENCY 9 1m NX nx COST 2", true),
        ("COST 0 CONCURRENCY 9 1m me NX", true),
        ("FIXED 9 1m ALIGNED", false),
        ("SLIDING 9 1m STRICT", false),
    ] {
        assert_eq!(plain_spec(&words(text)).unwrap().nx, nx, "{text}");
    }
}

#[test]
fn malformed_call_on_many_keys_is_rejected() {
    let (numkeys, missing) = ("ERR numkeys must be", "ERR window is missing: FIXED limit window");
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
        ("2 a FIXED 5 60", "ERR syntax error, unexpected '5', where an option, POLICY or an algorithm is needed"),
        (
            "2 a b c FIXED 5 60 FIXED 5 60 FIXED 5 60",
            "ERR syntax error, unexpected 'c', where an option, POLICY or an algorithm is needed",
        ),
        ("2 a b FIXED 5 60 MAXWAIT 1s FIXED 5 60", "ERR syntax error, unexpected 'MAXWAIT', where an option of"),
        ("2 a b FIXED 5 60 FIXED 5 60 UPTO", "ERR syntax error, unexpected 'UPTO', since RL.MTAKE and RL.MPEEK take"),
        ("2 a b FIXED 5 60 FIXED 5 60 extra", "ERR syntax error, unexpected 'extra' after the last spec"),
        ("2 a b FIXED 5 60 NOSUCH 5 60", "ERR syntax error, unexpected 'NOSUCH'"),
        ("2 a b FIXED 5 60 COST FIXED 5 60", "ERR cost must be"),
        ("2 a b FIXED 5 60 FIXED 5 0", "ERR window must be"),
        ("2 a b FIXED 5 60 FIXED 5 60 COST -1 FORCE", "ERR cost must be"),
        ("2 a b FIXED 5 60 TOKENBUCKET 1e12 1 1s", "ERR refill must be"),
        ("2 a b FIXED 5 60 FIXED 5 60 COST 1 COST 1", "ERR syntax error, unexpected 'COST'"),
        ("3 a b a FIXED 5 60 FIXED 5 60 FIXED 5 60", "ERR keys must be different"),
        ("2 a b FIXED 5 60 FIXED 5", missing),
    ] {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        let message = parse_mtake(&words).unwrap_err().to_string();
        assert!(message.starts_with(error), "{text}: {message}");
    }
}
