//! Arguments of setting, scaling and deleting a policy.

use super::*;

#[test]
fn condition_before_the_specs_is_parsed() {
    let parse = |text| {
        let words = words(text);
        let mut args = Args::new(&words);
        Condition::parse(&mut args).map(|condition| (condition, args.peek().is_some()))
    };
    for (text, condition) in [
        ("FIXED 5 1m", (Condition::Always, true)),
        ("NX FIXED 5 1m", (Condition::IfMissing, true)),
        ("nx", (Condition::IfMissing, false)),
        ("VERSION 3 FIXED", (Condition::OverVersion(3), true)),
        ("version 18446744073709551615", (Condition::OverVersion(u64::MAX), false)),
    ] {
        assert_eq!(parse(text), Ok(condition), "{text}");
    }
    for word in ["0", "-1", "1.0", "18446744073709551616"] {
        let refused = parse(format!("VERSION {word}").leak()).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("ERR version must be a whole number above 0, such as 1700000000000000, not '{word}'")
        );
    }
    let message = |text| parse(text).unwrap_err().to_string();
    assert_eq!(message("VERSION x"), "ERR version must be a whole number such as 1700000000000000, not 'x'");
    assert_eq!(message("VERSION"), "ERR version is missing: VERSION version");
}

#[test]
fn deletion_takes_one_version_or_several_names() {
    let parse = |text: &'static str| {
        DeletionRequest::parse(&mut Args::new(Box::leak(Box::new(words(text))))).map_err(|error| error.to_string())
    };
    assert_eq!(parse("pro"), Ok(DeletionRequest::OfNames(vec![b"pro"])));
    assert_eq!(parse("pro free pro"), Ok(DeletionRequest::OfNames(vec![b"pro", b"free", b"pro"])));
    assert_eq!(parse("version"), Ok(DeletionRequest::OfNames(vec![b"version"])));
    assert_eq!(parse("version free"), Ok(DeletionRequest::OfNames(vec![b"version", b"free"])));
    assert_eq!(parse("pro version 3"), Ok(DeletionRequest::OfVersion(b"pro", 3)));
    assert_eq!(parse("VERSION VERSION 3"), Ok(DeletionRequest::OfVersion(b"VERSION", 3)));
    for invalid in ["pro VERSION", "pro VERSION 0", "pro VERSION x", "pro VERSION 3 free", "pro free version 3"] {
        assert!(parse(invalid).is_err(), "{invalid}");
    }
}

#[test]
fn factor_is_parsed_with_an_optional_duration() {
    let parse = |text| Scaling::parse(&mut Args::new(&words(text)));
    let minute = Period::parse(b"1m");
    for (text, factor, duration) in [
        ("0.5", "0.5", None),
        ("0", "0", None),
        ("1000", "1000", None),
        ("1e3 for 60", "1000", minute),
        ("0.3333339 FOR 1m", "0.333333", minute),
    ] {
        assert_eq!(parse(text), Ok(scaling_to(factor, duration)), "{text}");
    }
    for (text, error) in [
        ("1000.0000001", "ERR factor must be a number from 0 to 1000, such as 0.5, not '1000.0000001'"),
        ("1000.000001", "ERR factor must be a number from 0 to 1000, such as 0.5, not '1000.000001'"),
        ("-1", "ERR factor must be a number from 0 to 1000, such as 0.5, not '-1'"),
        ("50%", "ERR factor must be a number such as 0.5, not '50%' (numbers are written as 1000, 0.5 or 1e6)"),
        ("1 FOR 0", "ERR duration must be a duration from 1us to 3650d, such as 10m, not '0'"),
        ("1 FOR 1w", "ERR duration must be a duration such as 10m, not '1w' (units: us ms s m h d)"),
        ("1 FOR", "ERR duration is missing: FOR duration"),
        ("1 NX", "ERR syntax error, unexpected 'NX', where only FOR duration can follow"),
        ("1 FOR 1m FOR 1m", "ERR syntax error, unexpected 'FOR', which is given twice"),
        (
            "0.5 10m",
            "ERR syntax error, unexpected '10m', before which FOR is missing: RL.POLICYSCALE name factor [FOR duration]",
        ),
        ("0.5 FOR 10m 5", "ERR syntax error, unexpected '5', where only FOR duration can follow"),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), error, "{text}");
    }
    assert_eq!(Scaling::parse(&mut Args::new(&[&b"RL.POLICYSCALE"[..]])), Err(Error::WrongArity));
}
