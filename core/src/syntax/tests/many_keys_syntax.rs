//! Requests on several keys: a spec for each, and options for all.

use super::*;

#[test]
fn error_of_many_keys_names_numkeys_and_the_found_word() {
    const MUST_BE: &str = "ERR numkeys must be the number of keys and of specs, such as 2 for two of each";
    let names = one_of(&Spec::ALGORITHMS.map(|(name, _)| name));
    let instead_of_spec = |word: &str| {
        format!(
            "ERR syntax error, unexpected '{word}', where an option, POLICY or an algorithm is needed: \
             COST, FORCE, MAXWAIT, KEEP, ONCE or SETTLE; {names}; numkeys must be the number of keys"
        )
    };
    let after_last_spec = |word: &str| {
        format!(
            "ERR syntax error, unexpected '{word}' after the last spec; \
             numkeys must be the number of keys and of specs"
        )
    };
    for (text, error) in [
        ("0 a FIXED 5 6", format!("{MUST_BE}, not '0'")),
        ("a b FIXED 5 6 FIXED 5 6", format!("{MUST_BE}, not 'a'")),
        ("9 a b FIXED 5 6 FIXED 5 6", format!("{MUST_BE}, not '9'")),
        ("1 a b FIXED 5 6 FIXED 5 6", instead_of_spec("b")),
        ("3 a b FIXED 5 6 FIXED 5 6", instead_of_spec("5")),
        // The duplicate key is not reported, because numkeys is wrong.
        ("6 a b FIXED 5 6 FIXED 5 6", instead_of_spec("5")),
        ("8 a b FIXED 5 6 FIXED 5 6", format!("{MUST_BE} (there are specs for 0 of 8 keys)")),
        ("2 a b FIXED 5 6", format!("{MUST_BE} (there are specs for 1 of 2 keys)")),
        ("2 a b TOKENBUKET 5 5 6 FIXED 5 6", format!("{}; did you mean TOKENBUCKET?", instead_of_spec("TOKENBUKET"))),
        ("1 a FIXED 5 6 FIXED 5 6", after_last_spec("FIXED")),
        ("1 a FIXED 5 6 MAXWAIT 1s", after_last_spec("MAXWAIT")),
        (
            "2 a b FIXED 5 6 TOKENBUKET 5 5 6",
            format!(
                "ERR syntax error, unexpected 'TOKENBUKET', \
                 where an option of the spec before, POLICY or an algorithm is needed: \
                 COST, UPTO, FORCE, KEEP, AS, ALIGNED, OFFSET, ANCHOR, ONCE or SETTLE; {names}; did you mean TOKENBUCKET?"
            ),
        ),
        (
            "2 a b FIXED 5 6 UPTO FIXED 5 6",
            "ERR syntax error, unexpected 'UPTO', since RL.MTAKE and RL.MPEEK take all or nothing".to_owned(),
        ),
        ("2 a b FIXED 5 6 FIXED 5", "ERR window is missing: FIXED limit window".to_owned()),
        (
            "2 a a FIXED 5 6 FIXED 5 6",
            "ERR keys must be different from each other, such as {alice}:minute {alice}:day, not 'a' twice".to_owned(),
        ),
    ] {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        assert_eq!(parse_mtake(&words).unwrap_err().to_string(), error, "{text}");
    }
    assert_eq!(parse_mtake(&[b"2", b"a", b"b", b"FIXED", b"5", b"6", b"FIXED", b"5", b"6"]), Ok(2));
}

#[test]
fn options_before_the_first_spec_apply_to_all_keys() {
    let parse = |text: &str| {
        take_keys(&mut Args::new(leaked(text))).map(|call| {
            let specs = call.keys.iter().map(|(_, of_key)| {
                let KeyRequest::One(spec) = of_key else { unreachable!("{of_key:?}") };
                (spec.request, spec.keep.whole_units())
            });
            let specs = specs.collect::<Vec<_>>();
            (specs, call.idempotency, call.purpose)
        })
    };
    let (once, settle) = (
        Idempotency::Once { id: b"a", ttl: Period::parse(b"1m").unwrap() },
        Idempotency::Settle { id: b"a", amount: units(7) },
    );
    for (text, first, second, idempotency, purpose) in [
        ("2 a b FIXED 9 1m FIXED 9 1m COST 2", (take(1), 0), (take(2), 0), Idempotency::Every, Purpose::Charge),
        ("2 a b COST 3 FIXED 9 1m FIXED 9 1m COST 2", (take(3), 0), (take(2), 0), Idempotency::Every, Purpose::Charge),
        (
            "2 a b COST 3 FORCE FIXED 9 1m FIXED 9 1m COST 2",
            (Request::Force(units(3)), 0),
            (take(2), 0),
            Idempotency::Every,
            Purpose::Charge,
        ),
        ("2 a b KEEP 50% ONCE a 1m FIXED 9 1m FIXED 8 1m KEEP 1", (take(1), 4), (take(1), 1), once, Purpose::Charge),
        (
            "2 a b MAXWAIT 1s TOKENBUCKET 9 9 1m FIXED 9 1m",
            (Request::Within(Amount::ONE, Span::SECOND), 0),
            (take(1), 0),
            Idempotency::Every,
            Purpose::Charge,
        ),
        ("2 a b SETTLE a 7 FIXED 9 1m FIXED 9 1m COST 2", (ZERO_COST, 0), (ZERO_COST, 0), settle, Purpose::Settle),
        (
            "2 a b COST -1 FIXED 9 1m CONCURRENCY 9 1m me",
            (Request::Refund(Amount::ONE), 0),
            (ZERO_COST, 0),
            Idempotency::Every,
            Purpose::Refund,
        ),
        (
            "2 a b COST 0 FIXED 9 1m FIXED 9 1m COST 5",
            (ZERO_COST, 0),
            (ZERO_COST, 0),
            Idempotency::Every,
            Purpose::Peek,
        ),
        (
            "2 a b FIXED 9 1m COST -1 FIXED 9 1m",
            (Request::Refund(Amount::ONE), 0),
            (take(1), 0),
            Idempotency::Every,
            Purpose::Charge,
        ),
    ] {
        assert_eq!(parse(text), Ok((vec![first, second], idempotency, purpose)), "{text}");
    }
    // Limits of different keys may have the same identity.
    assert!(parse("2 a b CONCURRENCY 9 1m me AS x CONCURRENCY 9 1m me AS x").is_ok());
    for (text, error) in [
        ("1 a UPTO FIXED 9 1m", "unexpected 'UPTO', since RL.MTAKE and RL.MPEEK take all or nothing"),
        ("1 a COST 2 upto FIXED 9 1m", "unexpected 'UPTO', since RL.MTAKE and RL.MPEEK take all or nothing"),
        (
            "1 a EACH FIXED 9 1m",
            "unexpected 'EACH', where an option, POLICY or an algorithm is needed: COST, FORCE, MAXWAIT,",
        ),
        ("1 a FIXED 9 1m ONCE a 1m", "unexpected 'ONCE', which is for all specs and must come before the first"),
        ("1 a FIXED 9 1m SETTLE a 1", "unexpected 'SETTLE', which is for all specs and must come before the first"),
        ("1 a FIXED 9 1m BAN 1 1s 1s", "unexpected 'BAN' after the last spec"),
        (
            "2 a b FIXED 9 1m BAN 1 1s 1s FIXED 9 1m",
            "unexpected 'BAN', where an option of the spec before, POLICY or an alg",
        ),
    ] {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.starts_with(&format!("ERR syntax error, {error}")), "{text}: {message}");
    }
    let with_once = Err(Error::out_of_range("cost", &COST_WITH_ONCE, b"-1"));
    assert_eq!(parse("1 a ONCE a 1m COST -1 FIXED 9 1m"), with_once);
    assert_eq!(parse("1 a ONCE a 1m FIXED 9 1m COST -1"), with_once);
    assert_eq!(parse("2 a b COST 5"), Err(Error::TooFewSpecs { keys: 2, specs: 0 }));
    let peek = |text: &str| peek_keys(&mut Args::new(leaked(text)));
    assert_eq!(peek("1 a ONCE a 1m FIXED 9 1m").unwrap().idempotency, Idempotency::Every);
    let refused = "ERR syntax error, unexpected 'SETTLE', since a peek cannot settle a charge";
    assert_eq!(peek("1 a SETTLE a 1 FIXED 9 1m").unwrap_err().to_string(), refused);
}

#[test]
fn call_is_a_peek_if_no_key_is_charged() {
    for (text, is_peek) in [
        ("2 a b COST 0 FIXED 9 1m FIXED 9 1m", true),
        ("2 a b FIXED 9 1m COST 0 FIXED 9 1m COST 0", true),
        ("2 a b FIXED 9 1m COST 0 FIXED 9 1m", false),
        ("2 a b FIXED 9 1m FIXED 9 1m", false),
        ("2 a b FIXED 9 1m COST -1 FIXED 9 1m COST 0", false),
        ("2 a b FIXED 9 1m COST 0 AS x FIXED 9 1m COST 0", true),
        ("2 a b FIXED 9 1m AS x FIXED 9 1m COST 0", false),
        ("2 a b SETTLE a 7 FIXED 9 1m FIXED 9 1m", false),
        ("1 a POLICY gold", false),
    ] {
        let call = take_keys(&mut Args::new(leaked(text))).unwrap();
        assert_eq!(call.is_peek(), is_peek, "{text}");
    }
    // The composite request of a policy.
    let mut call = take_keys(&mut Args::new(leaked("1 a FIXED 9 1m COST 0"))).unwrap();
    let KeyRequest::One(spec) = call.keys[0].1 else { unreachable!("a plain key serves the spec") };
    for purpose in [Purpose::Peek, Purpose::Charge] {
        let request = CompositeRequest { purpose, ..CompositeRequest::of_one(spec) };
        call.keys[0].1 = KeyRequest::Composite(Box::new(request));
        assert_eq!(call.is_peek(), purpose == Purpose::Peek);
    }
}
