//! ONCE, SETTLE, EACH and BAN: options of a call on one key as a whole.

use super::*;

#[test]
fn once_takes_an_id_and_a_ttl() {
    let (minute, longest) = (Period::parse(b"1m").unwrap(), "x".repeat(MAX_ID));
    for id in ["a", "req-17", "ONCE", &longest] {
        for text in [
            format!("ONCE {id} 1m FIXED 9 1m"),
            format!("FIXED 9 1m ONCE {id} 1m"),
            format!("FIXED 9 1m COST 5 ONCE {id} 60 UPTO"),
            format!("ONCE {id} 1m FIXED 9 1m SLIDING 9 1m"),
            format!("EACH ONCE {id} 1m COST 5 FIXED 9 1m CONCURRENCY 9 1m me"),
        ] {
            let idempotency = composite(&text).unwrap().idempotency;
            assert_eq!(idempotency, Idempotency::Once { id: id.as_bytes().to_vec().leak(), ttl: minute }, "{text}");
        }
    }
    let with_once = "ERR cost must be a number from 0 to 1000000000000 with ONCE, such as 1, not '-1'";
    let must_be_first = "which is for all specs and must come before the first";
    let id = |id: &str| Error::out_of_range("id", &ID, id.as_bytes()).to_string();
    let ttl = |ttl: &[u8]| Error::out_of_range("ttl", &DURATION, ttl).to_string();
    for (text, error) in [
        ("ONCE  1m FIXED 9 1m", id("").as_str()),
        (&format!("ONCE {longest}x 1m FIXED 9 1m"), &id(&format!("{longest}x"))),
        ("ONCE a 0 FIXED 9 1m", &ttl(b"0")),
        ("ONCE a b FIXED 9 1m", &ttl(b"b")),
        ("ONCE", "ERR id is missing: ONCE id ttl"),
        ("ONCE a", "ERR ttl is missing: ONCE id ttl"),
        ("ONCE a 1m", "ERR a spec is missing: RL.TAKE key [options] spec [spec ...]"),
        ("ONCE a 1m COST -1 FIXED 9 1m SLIDING 9 1m", with_once),
        ("ONCE a 1m COST -1 FIXED 9 1m COST 1 SLIDING 9 1m COST 1", with_once),
        ("ONCE a 1m FIXED 9 1m COST -1", with_once),
        ("COST -1 FIXED 9 1m ONCE a 1m", with_once),
        ("FIXED 9 1m COST -1 ONCE a 1m", with_once),
        ("FIXED 9 1m ONCE a 1m SLIDING 9 1m", &format!("ERR syntax error, unexpected 'ONCE', {must_be_first}")),
        ("FIXED 9 1m SLIDING 9 1m ONCE a 1m", &format!("ERR syntax error, unexpected 'ONCE', {must_be_first}")),
        ("FIXED 9 1m SLIDING 9 1m SETTLE a 1", &format!("ERR syntax error, unexpected 'SETTLE', {must_be_first}")),
        ("FIXED 9 1m EACH", &format!("ERR syntax error, unexpected 'EACH', {must_be_first}")),
        ("FIXED 9 1m SLIDING 9 1m each", &format!("ERR syntax error, unexpected 'EACH', {must_be_first}")),
        ("ONCE a 1m FIXED 9 1m ONCE b 1m", "ERR syntax error, unexpected 'ONCE', since the call has an id already"),
        ("ONCE a 1m FIXED 9 1m SETTLE a 1", "ERR syntax error, unexpected 'SETTLE', since the call has an id already"),
        ("SETTLE a 1 FIXED 9 1m ONCE a 1m", "ERR syntax error, unexpected 'ONCE', since the call has an id already"),
        (
            "ONCE a 1m SETTLE a 1 FIXED 9 1m",
            "ERR syntax error, unexpected 'SETTLE', which cannot be combined with ONCE",
        ),
        ("EACH EACH FIXED 9 1m", "ERR syntax error, unexpected 'EACH', which is given twice"),
    ] {
        assert_eq!(composite(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn settle_takes_an_amount_instead_of_a_cost() {
    for (text, amount) in [
        ("SETTLE a 7 FIXED 9 1m", "7"),
        ("FIXED 9 1m SETTLE a 0", "0"),
        ("SETTLE a 0.0000001 FIXED 9 1m SLIDING 9 1m", "0.000001"),
        ("FIXED 9 1m AS a SETTLE a 1e12", "1000000000000"),
        // The charge of a spec with its own cost stays.
        ("SETTLE a 7 FIXED 9 1m COST 2", "7"),
        ("SETTLE a 7 FIXED 9 1m COST 2 FORCE SLIDING 9 1m", "7"),
    ] {
        let call = composite(text).unwrap();
        assert_eq!(call.purpose, Purpose::Settle, "{text}");
        let expected = Idempotency::Settle { id: b"a", amount: Amount::parse_up(amount.as_bytes()).unwrap() };
        assert_eq!(call.idempotency, expected, "{text}");
        assert!(call.specs.iter().all(|spec| spec.request == ZERO_COST), "{text}");
        assert_eq!(call.specs[0].has_own_cost, text.contains("COST"), "{text}");
    }
    for (text, word) in [
        ("SETTLE a 7 COST 1 FIXED 9 1m", "COST"),
        ("UPTO SETTLE a 7 FIXED 9 1m", "UPTO"),
        ("SETTLE a 7 FORCE FIXED 9 1m SLIDING 9 1m", "FORCE"),
        ("MAXWAIT 1s SETTLE a 7 FIXED 9 1m SLIDING 9 1m", "MAXWAIT"),
        ("SETTLE a 7 KEEP 1 FIXED 9 1m SLIDING 9 1m", "KEEP"),
        ("FIXED 9 1m SETTLE a 7 COST 1", "COST"),
        ("FIXED 9 1m SETTLE a 7 UPTO", "UPTO"),
        ("COST 1 FIXED 9 1m SETTLE a 7", "COST"),
        ("FORCE FIXED 9 1m SETTLE a 7", "FORCE"),
        ("SETTLE a 7 FIXED 9 1m FORCE SLIDING 9 1m", "FORCE"),
        ("SETTLE a 7 TOKENBUCKET 9 9 1m MAXWAIT 1s", "MAXWAIT"),
    ] {
        let expected = format!("ERR syntax error, unexpected '{word}', since SETTLE sets the cost");
        assert_eq!(composite(text).unwrap_err().to_string(), expected, "{text}");
    }
    for (text, word) in [
        ("SETTLE a x FIXED 9 1m", "x"),
        ("SETTLE a -1 FIXED 9 1m", "-1"),
        ("FIXED 9 1m SETTLE a 1000000000001", "1000000000001"),
    ] {
        let amount = Error::out_of_range("amount", &SETTLED, word.as_bytes()).to_string();
        assert_eq!(composite(text).unwrap_err().to_string(), amount, "{text}");
    }
}

#[test]
fn peek_rejects_settle_and_ignores_once() {
    let peek = |text: &str| KeyRequest::peek(&mut Args::new(leaked(text)), None);
    for text in ["FIXED 9 1m ONCE a 1m COST 2", "COST 2 ONCE a 1m FIXED 9 1m", "COST 2 FIXED 9 1m"] {
        assert!(matches!(peek(text), Ok(KeyRequest::One(Spec { request, .. })) if request == take(2)), "{text}");
    }
    let Ok(KeyRequest::Composite(call)) = peek("ONCE a 1m FIXED 9 1m SLIDING 9 1m") else { unreachable!() };
    assert_eq!(call.idempotency, Idempotency::Every);
    for text in ["SETTLE a 1 FIXED 9 1m", "FIXED 9 1m SETTLE a 1", "SETTLE a 1 FIXED 9 1m SLIDING 9 1m"] {
        let refused = "ERR syntax error, unexpected 'SETTLE', since a peek cannot settle a charge";
        assert_eq!(peek(text).unwrap_err().to_string(), refused, "{text}");
    }
    // The ttl is validated although the peek ignores ONCE.
    assert_eq!(
        peek("FIXED 9 1m ONCE a x").unwrap_err().to_string(),
        Error::out_of_range("ttl", &DURATION, b"x").to_string()
    );
}

#[test]
fn each_before_the_specs_requests_all_decisions() {
    for (text, each) in [
        ("EACH FIXED 9 1m", true),
        ("COST 2 each FIXED 9 1m SLIDING 9 1m", true),
        ("COST 2 FIXED 9 1m SLIDING 9 1m", false),
    ] {
        assert_eq!(composite(text).unwrap().each, each, "{text}");
    }
}

#[test]
fn ban_is_accepted_only_after_the_last_spec() {
    let period = |text: &[u8]| Period::parse(text).unwrap();
    let ban =
        |strikes, window, block| Some(BanRule { strikes, window: period(window), block: period(block), longest: None });
    let growing = |longest| Some(BanRule { longest: Some(period(longest)), ..ban(3, b"1m", b"1h").unwrap() });
    for (text, expected) in [
        ("FIXED 9 1m BAN 10 1m 1h", ban(10, b"1m", b"1h")),
        ("FIXED 9 1m COST 2 UPTO ban 1 1us 3650d", ban(1, b"1us", b"3650d")),
        ("EACH FIXED 9 1m SLIDING 9 1m BAN 4294967295 5 6", ban(u32::MAX, b"5s", b"6s")),
        ("FIXED 9 1m ONCE BAN 5m BAN 2 5 6", ban(2, b"5s", b"6s")),
        ("FIXED 9 1m BAN 3 1m 1h MAX 1d", growing(b"1d")),
        ("FIXED 9 1m BAN 3 1m 1h max 3600", growing(b"1h")),
        ("FIXED 9 1m BAN 3 1m 1h MAX 3650d", growing(b"3650d")),
    ] {
        assert_eq!(composite(text).unwrap().ban, expected, "{text}");
    }
    let strikes = "ERR strikes must be a whole number from 1 to 4294967295, such as 10, not";
    for (text, error) in [
        ("BAN 1 1s 1s", "ERR syntax error, unexpected 'BAN', which must come after the last spec"),
        ("COST 1 ban 1 1s 1s", "ERR syntax error, unexpected 'ban', which must come after the last spec"),
        (
            "FIXED 9 1m BAN 1 1s 1s SLIDING 9 1m",
            "ERR syntax error, unexpected 'SLIDING', since nothing can come after BAN",
        ),
        ("FIXED 9 1m BAN 1 1s 1s COST 1", "ERR syntax error, unexpected 'COST', since nothing can come after BAN"),
        ("FIXED 9 1m BAN 1 1s 1s BAN 1 1s 1s", "ERR syntax error, unexpected 'BAN', since nothing can come after BAN"),
        ("FIXED 9 1m BAN 1 1s", "ERR block is missing: BAN strikes window block [MAX longest]"),
        ("FIXED 9 1m BAN", "ERR strikes is missing: BAN strikes window block [MAX longest]"),
        ("FIXED 9 1m BAN 0 1s 1s", &format!("{strikes} '0'")),
        ("FIXED 9 1m BAN 4294967296 1s 1s", &format!("{strikes} '4294967296'")),
        ("FIXED 9 1m BAN 1.5 1s 1s", &format!("{strikes} '1.5'")),
        (
            "FIXED 9 1m BAN 1m 10 1h",
            "ERR strikes must be a whole number such as 10, not '1m' (the order is strikes window block [MAX longest])",
        ),
        ("FIXED 9 1m BAN 1 0 1s", "ERR window must be a duration from 1us to 3650d, such as 60s, not '0'"),
        ("FIXED 9 1m BAN 1 1s x", "ERR block must be a duration such as 60s, not 'x' (units: us ms s m h d)"),
        ("FIXED 9 1m BAN 1 1s 2s MAX", "ERR longest is missing: BAN strikes window block [MAX longest]"),
        (
            "FIXED 9 1m BAN 1 1s 2s MAX 1999ms",
            "ERR longest must be a duration from block up to 3650d, such as 1d, not '1999ms'",
        ),
        (
            "FIXED 9 1m BAN 1 1s 2s MAX 3651d",
            "ERR longest must be a duration from block up to 3650d, such as 1d, not '3651d'",
        ),
        ("FIXED 9 1m BAN 1 1s 2s MAX 1w", "ERR longest must be a duration such as 1d, not '1w' (units: us ms s m h d)"),
        (
            "FIXED 9 1m BAN 1 1s 2s 1d",
            "ERR syntax error, unexpected '1d', before which MAX is missing: BAN strikes window block [MAX longest]",
        ),
        ("FIXED 9 1m BAN 1 1s 2s MAX 1d 2d", "ERR syntax error, unexpected '2d', since nothing can come after BAN"),
        (
            "FIXED 9 1m BAN 1 1s 2s MAX 1d MAX 2d",
            "ERR syntax error, unexpected 'MAX', since nothing can come after BAN",
        ),
    ] {
        assert_eq!(composite(text).unwrap_err().to_string(), error, "{text}");
    }
}

#[test]
fn prebuilt_request_of_a_policy_equals_the_parsed_one() {
    let policy = |text: &str, factor: u64| {
        let words: Vec<&[u8]> = std::iter::once("RL.POLICYSET").chain(text.split(' ')).map(str::as_bytes).collect();
        Policy::parse(&mut Args::new(&words)).unwrap().scaled(units(factor))
    };
    for (text, factor, is_prebuilt) in [
        ("FIXED 9 1h SLIDING 9 1h", 1, true),
        ("FIXED 9 1h SLIDING 9 1h", 2, true),
        ("FIXED 9 1h COST 3 SLIDING 9 1h SHADOW BAN 3 1m 1h", 1, true),
        ("TOKENBUCKET 9 9 1h FIXED 9 1h", 1, true),
        ("TOKENBUCKET 9 9 1h FIXED 9 1h", 2, false),
        ("FIXED 9 1h AS a SLIDING 9 1h", 1, false),
        ("FIXED 9 1h COST 3 AS a SLIDING 9 1h SHADOW BAN 3 1m 1h", 1, false),
    ] {
        let policy = policy(text, factor);
        let parsed = PolicyRequest::after_first_name(b"p", &mut Args::new(&[&b"RL.LIMIT"[..]]))
            .unwrap()
            .request(&policy)
            .map(|request| format!("{request:?}"));
        let composite = policy.composite().unwrap();
        assert_eq!(
            Ok(format!("{:?}", KeyRequest::Composite(Box::new(composite.clone().into_owned())))),
            parsed,
            "{text}"
        );
        assert_eq!(matches!(composite, Cow::Borrowed(_)), is_prebuilt, "{text}");
    }
    for leases in ["CONCURRENCY 9 1m", "FIXED 9 1h CONCURRENCY 9 1m"] {
        assert_eq!(policy(leases, 1).composite().map(Cow::into_owned).err(), Some(Error::NoHolder));
    }
}
