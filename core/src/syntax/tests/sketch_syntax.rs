//! Sketches in calls and policies, with the options that they reject.

use super::*;
use crate::algorithm::count_min::SketchSize;

/// Returns the limit, item and request of a spec.
fn limit_item_request(spec: &Spec) -> (String, Vec<u8>, Request) {
    (spec.limit.to_string(), spec.holder_or_item.to_vec(), spec.request)
}

fn take(text: &str) -> Result<KeyRequest<'static>, Error> {
    KeyRequest::take(&mut Args::new(leaked(text)), None)
}

fn policy(text: &str) -> Result<Policy, Error> {
    Policy::parse(&mut Args::new(&words(text)))
}

/// Parses the options of RL.LIMIT, and returns the request on a policy.
fn by_policy<'p>(policy: &'p Policy, options: &str) -> Result<KeyRequest<'p>, Error> {
    let mut words = leaked(options).clone();
    words.retain(|word| !word.is_empty());
    PolicyRequest::after_first_name(b"addresses", &mut Args::new(Box::leak(Box::new(words))))?.request(policy)
}

#[test]
fn sketch_is_parsed_with_its_item() {
    let ten = Request::Take(units(10));
    for (text, limit, item, request) in [
        ("SKETCH 50 50 1m a", "SKETCH 50 50 1m", "a", Request::Take(units(1))),
        ("sketch 50 5.5 1m a COST 10", "SKETCH 50 5.5 1m", "a", ten),
        ("SKETCH 50 50 1m a UPTO COST 10", "SKETCH 50 50 1m", "a", Request::UpTo(units(10))),
        ("SKETCH 50 50 1m a FORCE COST 10 SIZE 64kb", "SKETCH 50 50 1m SIZE 64kb", "a", Request::Force(units(10))),
        ("COST 10 SKETCH 50 50 60s SIZE SIZE 2097183", "SKETCH 50 50 1m SIZE 2mb", "SIZE", ten),
        // A sketch ignores MAXWAIT, because it never delays.
        ("MAXWAIT 5s COST 10 SKETCH 50 50 1m a", "SKETCH 50 50 1m", "a", ten),
        // An empty item is valid.
        ("SKETCH 50 50 1m  COST 10", "SKETCH 50 50 1m", "", ten),
        ("SKETCH 50 50 1m a KEEP 20% COST 10", "SKETCH 40 50 1m", "a", ten),
    ] {
        let KeyRequest::One(spec) = take(text).unwrap() else { unreachable!("{text} is not plain") };
        assert_eq!(limit_item_request(&spec), (limit.to_owned(), item.as_bytes().to_vec(), request), "{text}");
        assert_eq!(CompositeRequest::of_one(spec).item(), Some(item.as_bytes()));
    }
    let KeyRequest::One(spec) = take("SKETCH 50 50 1m a KEEP 20%").unwrap() else { unreachable!("KEEP is plain") };
    assert_eq!((spec.limit.limit(), spec.keep), (units(40), units(10)));
    // RL.SKETCH takes the item first.
    let words = words("a 50 50 1m SIZE 1MB COST 10");
    let request = parse_one_algorithm(&mut Args::new(&words), Spec::sketch_of_item).unwrap();
    let KeyRequest::One(spec) = request else { unreachable!("RL.SKETCH is plain") };
    assert_eq!(limit_item_request(&spec), ("SKETCH 50 50 1m SIZE 1mb".to_owned(), b"a".to_vec(), ten));
}

#[test]
fn sketch_rejects_refunds_ids_names_bans_and_other_specs() {
    const MERGED: &str = "since a SKETCH cannot tell apart again what it has merged";
    const ALONE: &str = "which must be the only spec of its key";
    for (text, word, reason) in [
        ("SKETCH 5 5 1m a COST -1", "-1", MERGED),
        ("COST -1 SKETCH 5 5 1m a", "-1", MERGED),
        ("ONCE id 1m SKETCH 5 5 1m a", "ONCE", MERGED),
        ("SETTLE id 1 SKETCH 5 5 1m a", "SETTLE", MERGED),
        ("SKETCH 5 5 1m a ONCE id 1m", "ONCE", MERGED),
        ("SKETCH 5 5 1m a settle id 1m", "settle", MERGED),
        ("SKETCH 5 5 1m a AS name", "AS", MERGED),
        ("SKETCH 5 5 1m a BAN 3 1m 1h", "BAN", MERGED),
        ("SKETCH 5 5 1m a FIXED 9 1d", "SKETCH", ALONE),
        ("FIXED 9 1d SKETCH 5 5 1m a", "SKETCH", ALONE),
        ("SKETCH 5 5 1m a SKETCH 9 9 1d a", "SKETCH", ALONE),
    ] {
        let error = format!("ERR syntax error, unexpected '{word}', {reason}");
        assert_eq!(take(text).map(|_| ()).unwrap_err().to_string(), error, "{text}");
    }
    for (text, error) in [
        ("SKETCH 5 5 1m", "ERR item is missing: SKETCH capacity refill period item [SIZE size]"),
        ("SKETCH 5 5", "ERR period is missing: SKETCH capacity refill period item [SIZE size]"),
        ("SKETCH 5 0 1m a", "ERR refill must be a number from 0.000001 to 1000000000000, such as 100, not '0'"),
        ("SKETCH 5 5 1m a SIZE", "ERR size is missing: SIZE size"),
        ("SKETCH 5 5 1m a SIZE 1gb", "ERR size must be a size from 64kb to 256mb, such as 1mb, not '1gb'"),
        ("SKETCH 5 5 1m a SIZE 1mb SIZE 1mb", "ERR syntax error, unexpected 'SIZE', which is given twice"),
    ] {
        assert_eq!(take(text).map(|_| ()).unwrap_err().to_string(), error, "{text}");
    }
    for (text, word, reason) in [
        ("SKETCH 5 5 1m BAN 3 1m 1h", "BAN", MERGED),
        ("SKETCH 5 5 1m AS name", "AS", MERGED),
        ("SKETCH 5 5 1m COST -1", "-1", ""),
        ("SKETCH 5 5 1m FIXED 9 1d", "SKETCH", ALONE),
        ("FIXED 9 1d SKETCH 5 5 1m", "SKETCH", ALONE),
    ] {
        let error = policy(text).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains(reason), "{text}: {error}");
    }
    for parse_keys in [take_keys, peek_keys] {
        let parse = |text| parse_keys(&mut Args::new(leaked(text))).map(|_| ());
        assert_eq!(parse("2 a b SKETCH 5 5 1m x FIXED 9 1d"), Ok(()));
        assert!(parse("2 a b COST -1 SKETCH 5 5 1m x FIXED 9 1d").is_err());
        assert!(parse("2 a b FIXED 9 1d SKETCH 5 5 1m x COST -1").is_err());
    }
    assert!(take_keys(&mut Args::new(leaked("2 a b ONCE id 1m SKETCH 5 5 1m x FIXED 9 1d"))).is_err());
}

#[test]
fn call_names_the_item_of_a_policys_sketch() {
    let sketch = policy("SKETCH 50 50 1m SIZE 2mb").unwrap();
    assert_eq!(sketch.to_string(), "SKETCH 50 50 1m SIZE 2mb");
    assert!(sketch.plain().is_none() && sketch.prebuilt().is_none());
    assert_eq!(sketch.composite().map(|_| ()), Err(Error::NoItem));
    for (options, expected) in [("ITEM a", Request::Take(units(1))), ("COST 3 item a UPTO", Request::UpTo(units(3)))] {
        let KeyRequest::One(spec) = by_policy(&sketch, options).unwrap() else { unreachable!("{options} is plain") };
        assert_eq!(
            (limit_item_request(&spec).1, spec.request, spec.by_policy),
            (b"a".to_vec(), expected, true),
            "{options}"
        );
    }
    for options in ["", "COST 3"] {
        assert_eq!(by_policy(&sketch, options).map(|_| ()).unwrap_err(), Error::NoItem, "{options}");
    }
    for options in ["ITEM a ONCE id 1m", "ITEM a SETTLE id 1", "ITEM a COST -1"] {
        assert!(by_policy(&sketch, options).is_err(), "{options}");
    }
    assert_eq!(by_policy(&sketch, "ITEM").map(|_| ()).unwrap_err().to_string(), "ERR item is missing: ITEM item");
    // Composite requests carry the item too.
    for (text, options) in
        [("SKETCH 50 50 1m COST 2", "ITEM a"), ("SKETCH 50 50 1m SHADOW", "ITEM a"), ("SKETCH 50 50 1m", "ITEM a EACH")]
    {
        let policy = policy(text).unwrap();
        assert_eq!(policy.to_string(), text);
        assert_eq!(policy.composite().map(|_| ()), Err(Error::NoItem), "{text}");
        let KeyRequest::Composite(call) = by_policy(&policy, options).unwrap() else { unreachable!("{text}") };
        assert_eq!(call.specs.iter().map(|spec| spec.holder_or_item).collect::<Vec<_>>(), [b"a"], "{text}");
    }
    // A policy without a sketch ignores ITEM.
    let bucket = policy("TOKENBUCKET 5 5 1m").unwrap();
    assert!(matches!(by_policy(&bucket, "ITEM a"), Ok(KeyRequest::One(spec)) if spec.holder_or_item.is_empty()));
    // Scaling applies to the items' buckets. A faster refill is recorded with the unscaled limit.
    let scaled = sketch.scaled(units(2));
    let KeyRequest::Composite(call) = by_policy(&scaled, "ITEM a").unwrap() else {
        unreachable!("it has a slower limit")
    };
    assert_eq!(call.specs[0].limit.to_string(), "SKETCH 100 100 1m SIZE 2mb");
    assert_eq!(call.specs[0].slower_limit.map(ToString::to_string), Some("SKETCH 50 50 1m SIZE 2mb".to_owned()));
    let AnyLimit::Sketch(lowered) = call.specs[0].limit.lowered_by(units(60)) else { unreachable!("a sketch") };
    assert_eq!((lowered.limit(), SketchSize::parse(b"2mb").map(SketchSize::bytes)), (units(40), Some(2 << 20)));
}

#[test]
fn item_is_accepted_only_after_a_policy_name() {
    for text in ["ITEM a POLICY gold", "TOKENBUCKET 5 5 1m ITEM a", "ITEM a TOKENBUCKET 5 5 1m"] {
        assert!(take(text).is_err(), "{text}");
    }
    assert!(matches!(take("COST 2 POLICY gold ITEM a EACH"), Ok(KeyRequest::Policy(_))));
    let request = take_keys(&mut Args::new(leaked("2 a b POLICY gold ITEM x POLICY pro COST 2 ITEM y"))).unwrap();
    let sketch = policy("SKETCH 5 5 1m").unwrap();
    let items = request.keys.iter().map(|(_, of_key)| match of_key {
        KeyRequest::Policy(by) => match by.request(&sketch).unwrap() {
            KeyRequest::One(spec) => spec.holder_or_item.to_vec(),
            other => unreachable!("{other:?}"),
        },
        other => unreachable!("{other:?}"),
    });
    assert_eq!(items.collect::<Vec<_>>(), [b"x", b"y"]);
}
