mod definitions;
mod force;

use super::*;
use crate::algorithm::bucket::Bucket;
use crate::evaluate::evaluate;
use crate::limit::{Limit, Verdict};
use crate::number::{Period, Span};
use crate::syntax::name_of_policy;
use crate::testing::calls::take_keys;
use crate::testing::calls::{millionths, units};
use proptest::prelude::*;
use proptest::sample::select;

/// Splits the words of a call, and leaks them.
fn words(text: &str) -> &'static Vec<&'static [u8]> {
    let text: &'static str = format!("RL {text}").leak();
    Box::leak(Box::new(text.split(' ').map(str::as_bytes).collect()))
}

fn parse_policy(text: &str) -> Result<Policy, Error> {
    Policy::parse(&mut Args::new(words(text)))
}

fn policy(text: &str) -> Policy {
    parse_policy(text).unwrap_or_else(|error| unreachable!("{text}: {error}"))
}

/// Generates a spec in its displayed form. Specs with different indexes have different windows.
fn spec_at(index: usize) -> impl Strategy<Value = String> {
    let minutes = index * 7 + 1;
    let amount = || select(vec!["0", "0.000001", "1", "7.5", "999999999999.999999", "1000000000000"]);
    let numbers =
        (amount(), select(vec!["1", "1000000", "1000000000000"])).prop_map(move |(limit, rate)| (limit, rate));
    let limit = prop_oneof![
        (numbers, select(vec!["TOKENBUCKET", "LEAKYBUCKET"]))
            .prop_map(move |((limit, rate), word)| format!("{word} {limit} {rate} {minutes}us")),
        (amount(), select(vec!["", " ALIGNED", " ALIGNED OFFSET -03:30"]))
            .prop_map(move |(limit, words)| format!("FIXED {limit} {minutes}m{words}")),
        (amount(), select(vec!["", " OFFSET +14:00", " ANCHOR 31", " OFFSET +00:15 ANCHOR 2"]))
            .prop_map(move |(limit, words)| format!("FIXED {limit} {}mo ALIGNED{words}", [1, 3][index % 2])),
        (amount(), select(vec!["SLIDING", "SLIDINGLOG"]))
            .prop_map(move |(limit, word)| format!("{word} {limit} {minutes}s")),
        amount().prop_map(move |limit| format!("SLIDING {limit} {minutes}h STRICT")),
    ];
    let cost = select(vec!["", " COST 0", " COST 0.5", " COST 1000000000000"]);
    let name = select(vec![String::new(), format!(" AS n-{index}_"), format!(" AS {}", "x".repeat(32 - index))]);
    (limit, cost, name, select(vec!["", " SHADOW", " FORCE"]))
        .prop_map(|(limit, cost, name, flag)| format!("{limit}{cost}{name}{flag}"))
}

/// Parses the words after a policy's name in RL.LIMIT.
fn parse_options(text: &str) -> Result<PolicyRequest<'static>, Error> {
    let no_options: &'static [&'static [u8]; 1] = &[b"RL"];
    let mut args = if text.is_empty() { Args::new(no_options) } else { Args::new(words(text)) };
    PolicyRequest::after_first_name(b"gold", &mut args)
}

fn request<'p>(text: &str, policy: &'p Policy) -> Result<KeyRequest<'p>, Error> {
    parse_options(text)?.request(policy)
}

fn names(request: &PolicyRequest) -> Vec<String> {
    request.names().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

#[test]
fn policy_names_keep_their_order() {
    for (text, expected) in [
        ("", &["gold"][..]),
        ("COST 2", &["gold"]),
        ("OR plan:pro or default COST 2", &["gold", "plan:pro", "default"]),
        // A name may be an option word.
        ("OR OR OR COST", &["gold", "OR", "COST"]),
    ] {
        assert_eq!(names(&parse_options(text).unwrap()), expected, "{text}");
    }
    assert_eq!(
        parse_options("OR pro OR a\n").unwrap().no_such_policy().to_string(),
        r"NOPOLICY no policy 'gold', 'pro' or 'a\n'"
    );
    assert_eq!(parse_options("").unwrap().no_such_policy().to_string(), "NOPOLICY no policy 'gold'");
    let long = "x".repeat(256);
    assert_eq!(
        parse_options(&format!("OR {long}")).unwrap().no_such_policy().to_string(),
        format!("NOPOLICY no policy 'gold' or '{long}'")
    );
}

#[test]
fn policy_name_of_1_to_256_bytes_is_accepted() {
    let name_length = |name: &[u8]| {
        let words: Vec<&[u8]> = vec![b"RL", name];
        name_of_policy(&mut Args::new(&words)).map(<[u8]>::len)
    };
    for length in [1, 32, 256] {
        assert_eq!(name_length(&vec![0xff; length]), Ok(length));
    }
    for length in [0, 257] {
        let refused = name_length(&vec![b'a'; length]).unwrap_err();
        let shown = if length == 0 { String::new() } else { format!("{}...", "a".repeat(32)) };
        let expected = format!("ERR name must be a name of 1 to 256 bytes, such as plan:pro, not '{shown}'");
        assert_eq!(refused.to_string(), expected);
    }
    let no_name: [&[u8]; 1] = [b"RL"];
    assert_eq!(name_of_policy(&mut Args::new(&no_name)), Err(Error::WrongArity));
}

#[test]
fn error_of_a_call_by_policy_names_the_word_or_the_argument() {
    let options = "COST, UPTO, FORCE, MAXWAIT, KEEP, ONCE, SETTLE, EACH or ITEM";
    for (text, error) in [
        ("NOSUCH", format!("ERR syntax error, unexpected 'NOSUCH', where OR or an option is needed: {options}")),
        ("COST 2 OR pro", format!("ERR syntax error, unexpected 'OR', where OR or an option is needed: {options}")),
        ("AS a", format!("ERR syntax error, unexpected 'AS', where OR or an option is needed: {options}")),
        ("FIXED 5 1m", format!("ERR syntax error, unexpected 'FIXED', where OR or an option is needed: {options}")),
        ("OR", "ERR name is missing: OR name".to_owned()),
        ("OR pro OR", "ERR name is missing: OR name".to_owned()),
        ("OR ", "ERR name must be a name of 1 to 256 bytes, such as plan:pro, not ''".to_owned()),
        ("COST x", "ERR cost must be a number such as 1, not 'x'".to_owned()),
        ("COST 1 COST 2", "ERR syntax error, unexpected 'COST', which is given twice".to_owned()),
        ("UPTO FORCE", "ERR syntax error, unexpected 'FORCE', which cannot be combined with UPTO".to_owned()),
        ("SETTLE a 1 COST 2", "ERR syntax error, unexpected 'COST', since SETTLE sets the cost".to_owned()),
        (
            "KEEP 5 FORCE",
            "ERR syntax error, unexpected 'KEEP', which cannot be combined with FORCE, SETTLE or a negative cost"
                .to_owned(),
        ),
        (
            "ONCE a 1m COST -1",
            "ERR cost must be a number from 0 to 1000000000000 with ONCE, such as 1, not '-1'".to_owned(),
        ),
    ] {
        let words = words(text);
        let refused =
            PolicyRequest::after_first_name(b"gold", &mut Args::new(words)).map(|request| names(&request)).unwrap_err();
        assert_eq!(refused.to_string(), error, "{text}");
    }
}

fn requests(request: &KeyRequest) -> Vec<Request> {
    match request {
        KeyRequest::One(spec) => vec![spec.request],
        KeyRequest::Composite(call) => call.specs.iter().map(|spec| spec.request).collect(),
        KeyRequest::Policy(unresolved) => unreachable!("{unresolved:?}"),
    }
}

fn take(cost: u64) -> Request {
    Request::Take(units(cost))
}

#[test]
fn options_of_a_policy_override_those_of_the_call() {
    let pair = policy("TOKENBUCKET 60 60 1m COST 1 AS requests FIXED 9000 1d AS tokens");
    let max_wait = Span::SECOND.times(5);
    for (text, expected, purpose) in [
        ("", [take(1), take(1)], Purpose::Charge),
        ("COST 4000", [take(1), take(4000)], Purpose::Charge),
        ("COST 0", [take(0), take(0)], Purpose::Peek),
        ("COST -7", [take(0), Request::Refund(units(7))], Purpose::Refund),
        ("COST 7 FORCE", [take(1), Request::Force(units(7))], Purpose::Charge),
        ("COST 7 UPTO", [take(1), Request::UpTo(units(7))], Purpose::Charge),
        // MAXWAIT applies to token buckets only, and not to one with its own cost.
        ("COST 7 MAXWAIT 5s", [take(1), take(7)], Purpose::Charge),
        ("SETTLE a 7", [take(0), take(0)], Purpose::Settle),
    ] {
        let request = request(text, &pair).unwrap();
        assert_eq!(requests(&request), expected, "{text}");
        let KeyRequest::Composite(call) = request else { unreachable!() };
        assert_eq!(call.purpose, purpose, "{text}");
        assert_eq!(
            call.specs.iter().map(|spec| spec.name).collect::<Vec<_>>(),
            [Some(&b"requests"[..]), Some(b"tokens")]
        );
        assert!(call.specs.iter().all(|spec| spec.by_policy && !spec.shadow));
        assert_eq!(call.specs.iter().map(|spec| spec.has_own_cost).collect::<Vec<_>>(), [true, false]);
    }
    let buckets = policy("TOKENBUCKET 60 60 1m LEAKYBUCKET 60 60 1h FIXED 9 1m");
    let expected = [Request::Within(units(2), max_wait), take(2), take(2)];
    assert_eq!(requests(&request("MAXWAIT 5s COST 2", &buckets).unwrap()), expected);
    let windows = policy("FIXED 10 1m SLIDING 8 1m");
    let KeyRequest::Composite(call) = request("KEEP 50%", &windows).unwrap() else { unreachable!() };
    assert_eq!(call.specs.iter().map(|spec| spec.keep).collect::<Vec<_>>(), [units(5), units(4)]);
}

#[test]
fn policy_of_one_plain_limit_is_a_plain_request() {
    let one = policy("FIXED 10 1m");
    for (text, plain_request) in [
        ("", Some(take(1))),
        ("COST 3", Some(take(3))),
        ("COST 3 UPTO", Some(Request::UpTo(units(3)))),
        ("COST -3", Some(Request::Refund(units(3)))),
        ("COST 0", Some(take(0))),
        ("KEEP 4", Some(take(1))),
        ("EACH", None),
        ("ONCE a 1m", None),
        ("SETTLE a 1", None),
    ] {
        match (request(text, &one).unwrap(), plain_request) {
            (KeyRequest::One(spec), Some(request)) => {
                assert_eq!((spec.request, spec.by_policy), (request, true), "{text}");
            }
            (KeyRequest::Composite(call), None) => assert_eq!(call.specs.len(), 1, "{text}"),
            (other, _) => unreachable!("{text}: {other:?}"),
        }
    }
    for text in ["FIXED 10 1m COST 1", "FIXED 10 1m AS a", "FIXED 10 1m SHADOW", "FIXED 10 1m BAN 3 1m 1h"] {
        let policy = policy(text);
        let KeyRequest::Composite(call) = request("", &policy).unwrap() else { unreachable!("{text}") };
        assert_eq!((call.ban.is_some(), call.specs[0].shadow), (text.contains("BAN"), text.contains("SHADOW")));
    }
}

#[test]
fn id_of_the_call_is_the_holder_of_a_policys_lease() {
    let policy = policy("CONCURRENCY 5 1m COST 2 FIXED 10 1m");
    let holder_and_requests = |text: &str| {
        let request = request(text, &policy)?;
        let KeyRequest::Composite(call) = request else { unreachable!() };
        assert_eq!(call.specs[1].holder_or_item, b"");
        Ok((
            String::from_utf8_lossy(call.specs[0].holder_or_item).into_owned(),
            call.specs[0].request,
            call.specs[1].request,
        ))
    };
    assert_eq!(holder_and_requests("ONCE req-1 5m COST 7"), Ok(("req-1".to_owned(), take(2), take(7))));
    assert_eq!(holder_and_requests("SETTLE req-1 7"), Ok(("req-1".to_owned(), take(0), take(0))));
    assert_eq!(holder_and_requests("COST 0"), Ok((String::new(), take(0), take(0))));
    assert_eq!(holder_and_requests("COST -1"), Ok((String::new(), take(0), Request::Refund(units(1)))));
    let refused: Result<(String, Request, Request), Error> = holder_and_requests("COST 7");
    assert_eq!(
        refused.unwrap_err().to_string(),
        "ERR the policy has a CONCURRENCY limit: the call needs ONCE id ttl, and the id is the holder"
    );
    // A peek needs no holder.
    let peeked = KeyRequest::peek(&mut Args::new(words("POLICY gold")), None).unwrap();
    let KeyRequest::Policy(request) = peeked else { unreachable!() };
    assert!(request.request(&policy).is_ok());
}

#[test]
fn delay_rejects_options_that_need_a_longer_reply() {
    let rejection = |text: &str, policy: &Policy| {
        parse_options(text).unwrap().reject_longer_reply(policy).map_err(|e| e.to_string())
    };
    let error =
        |why: &str| Err(format!("ERR RL.DELAY replies one integer, which is not enough for {why}: use RL.LIMIT"));
    let (bucket, queue) = (policy("TOKENBUCKET 5 5 1m FIXED 5 1m"), policy("FIXED 5 1m LEAKYBUCKET 5 5 1m"));
    for text in ["", "COST 5", "FORCE", "KEEP 3", "ONCE a 1m", "SETTLE a 1", "OR pro COST -1"] {
        assert_eq!(rejection(text, &bucket), Ok(()), "{text}");
        assert_eq!(rejection(text, &queue), error("a LEAKYBUCKET"), "{text}");
    }
    for (text, why) in [("MAXWAIT 1s", "MAXWAIT"), ("UPTO", "UPTO"), ("COST 2 EACH", "EACH")] {
        assert_eq!(rejection(text, &bucket), error(why));
    }
    assert!(bucket.reject_longer_reply().is_ok() && queue.reject_longer_reply().is_err());
    assert!(queue.scaled(units(2)).reject_longer_reply().is_err());
}

#[test]
fn policy_is_accepted_in_place_of_specs() {
    for parse in [KeyRequest::take, KeyRequest::peek] {
        for (text, expected, expected_requests) in [
            ("POLICY gold", &["gold"][..], [take(1)]),
            ("policy gold or pro COST 2", &["gold", "pro"], [take(2)]),
            ("COST 2 POLICY gold", &["gold"], [take(2)]),
            ("COST 2 POLICY gold COST 3", &["gold"], [take(3)]),
            ("FORCE POLICY gold OR pro", &["gold", "pro"], [Request::Force(units(1))]),
            // FORCE belongs to the call's cost.
            ("FORCE POLICY gold OR pro COST 3", &["gold", "pro"], [take(3)]),
            // If the call charges nothing, the policy is evaluated with a cost of 0.
            ("COST 0 POLICY gold COST 3", &["gold"], [take(0)]),
        ] {
            let KeyRequest::Policy(request) = parse(&mut Args::new(words(text)), None).unwrap() else {
                unreachable!("{text}")
            };
            assert_eq!(names(&request), expected, "{text}");
            assert_eq!(requests(&request.request(&policy("FIXED 10 1m")).unwrap()), expected_requests, "{text}");
        }
    }
    let lists_each = |text: &str| {
        let KeyRequest::Policy(request) = KeyRequest::take(&mut Args::new(words(text)), None).unwrap() else {
            unreachable!("{text}")
        };
        request.each()
    };
    assert!(lists_each("EACH POLICY gold") && lists_each("POLICY gold EACH") && !lists_each("POLICY gold"));
}

#[test]
fn policy_with_another_spec_is_rejected() {
    for (text, error) in [
        (
            "POLICY gold FIXED 5 1m",
            "ERR syntax error, unexpected 'FIXED', since POLICY must be the only spec of its key",
        ),
        (
            "POLICY gold POLICY pro",
            "ERR syntax error, unexpected 'POLICY', since POLICY must be the only spec of its key",
        ),
        (
            "POLICY gold BAN 3 1m 1h",
            "ERR syntax error, unexpected 'BAN', since POLICY must be the only spec of its key",
        ),
        ("POLICY gold AS a", "ERR syntax error, unexpected 'AS', since POLICY must be the only spec of its key"),
        (
            "FIXED 5 1m POLICY gold",
            "ERR syntax error, unexpected 'POLICY', which must be the only spec of its key and cannot be in a policy",
        ),
        ("POLICY", "ERR name is missing: POLICY name [OR name ...]"),
        ("POLICY gold OR", "ERR name is missing: OR name"),
        ("ONCE a 1m POLICY gold ONCE b 1m", "ERR syntax error, unexpected 'ONCE', since the call has an id already"),
    ] {
        for parse in [KeyRequest::take, KeyRequest::peek] {
            assert_eq!(parse(&mut Args::new(words(text)), None).map(|_| ()).unwrap_err().to_string(), error, "{text}");
        }
    }
    let peeked = KeyRequest::peek(&mut Args::new(words("POLICY gold SETTLE a 1")), None).unwrap();
    let KeyRequest::Policy(request) = peeked else { unreachable!() };
    assert_eq!(
        request.request(&policy("FIXED 5 1m")).unwrap_err().to_string(),
        "ERR syntax error, unexpected 'SETTLE', since a peek cannot settle a charge"
    );
    // A peek ignores ONCE.
    let KeyRequest::Policy(request) = KeyRequest::peek(&mut Args::new(words("POLICY gold ONCE a 1m")), None).unwrap()
    else {
        unreachable!()
    };
    assert!(matches!(request.request(&policy("FIXED 5 1m")), Ok(KeyRequest::One(_))));
}

#[test]
fn policies_are_accepted_for_several_keys() {
    let parse = |text: &str| {
        let call = take_keys(&mut Args::new(words(text)))?;
        let shown = call.keys.iter().map(|(_, of_key)| match of_key {
            KeyRequest::One(spec) => format!("{} {:?}", spec.limit, spec.request),
            KeyRequest::Policy(request) => {
                format!(
                    "{} {:?}",
                    names(request).join("|"),
                    requests(&request.request(&policy("FIXED 10 1m")).unwrap())
                )
            }
            KeyRequest::Composite(call) => unreachable!("{call:?}"),
        });
        Ok::<_, Error>(shown.collect::<Vec<_>>())
    };
    let (cost_1, cost_2) = (format!("{:?}", [take(1)]), format!("{:?}", [take(2)]));
    for (text, expected) in [
        ("1 a POLICY gold", vec![format!("gold {cost_1}")]),
        (
            "2 a b POLICY gold OR pro FIXED 5 1m",
            vec![format!("gold|pro {cost_1}"), format!("FIXED 5 1m {:?}", take(1))],
        ),
        ("2 a b FIXED 5 1m POLICY gold COST 2", vec![format!("FIXED 5 1m {:?}", take(1)), format!("gold {cost_2}")]),
        ("2 a b COST 2 POLICY gold policy pro", vec![format!("gold {cost_2}"), format!("pro {cost_2}")]),
        ("2 a b COST 3 POLICY gold COST 2 POLICY pro COST 1", vec![format!("gold {cost_2}"), format!("pro {cost_1}")]),
    ] {
        assert_eq!(parse(text), Ok(expected), "{text}");
    }
    for (text, error) in [
        (
            "2 a b POLICY gold",
            "ERR numkeys must be the number of keys and of specs, such as 2 for two of each (there are specs for 1 of 2 keys)",
        ),
        (
            "1 a POLICY gold FIXED 5 1m",
            "ERR syntax error, unexpected 'FIXED' after the last spec; numkeys must be the number of keys and of specs",
        ),
        (
            "1 a POLICY gold ONCE b 1m",
            "ERR syntax error, unexpected 'ONCE', which is for all specs and must come before the first",
        ),
        (
            "1 a POLICY gold SETTLE b 1",
            "ERR syntax error, unexpected 'SETTLE', which is for all specs and must come before the first",
        ),
        ("1 a POLICY", "ERR name is missing: POLICY name [OR name ...]"),
        ("1 a POLICY ", "ERR name must be a name of 1 to 256 bytes, such as plan:pro, not ''"),
        (
            "2 a a POLICY gold POLICY pro",
            "ERR keys must be different from each other, such as {alice}:minute {alice}:day, not 'a' twice",
        ),
        (
            "2 a b POLICY gold EACH POLICY pro",
            "ERR syntax error, unexpected 'EACH', where an option of the spec before, POLICY or an algorithm is needed: \
             COST, FORCE, MAXWAIT, KEEP, ONCE, SETTLE or ITEM; TOKENBUCKET, LEAKYBUCKET, FIXED, SLIDING, SLIDINGLOG, \
             CONCURRENCY or SKETCH",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), error, "{text}");
    }
}
