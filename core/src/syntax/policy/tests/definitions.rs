//! Definitions of policies: parsing, displaying, rejecting and scaling.

use super::*;
use crate::syntax::MAX_SPECS;

const ALGORITHMS: &str = "TOKENBUCKET, LEAKYBUCKET, FIXED, SLIDING, SLIDINGLOG, CONCURRENCY or SKETCH";

#[test]
fn displayed_policy_is_its_definition() {
    for (text, shown) in [
        ("tokenbucket 60.50 60 60s", "TOKENBUCKET 60.5 60 1m"),
        ("LEAKYBUCKET 5 1 1s", "LEAKYBUCKET 5 1 1s"),
        ("fixed 5 1m aligned", "FIXED 5 1m ALIGNED"),
        ("FIXED 5 1mo ANCHOR 15 ALIGNED OFFSET +09:00", "FIXED 5 1mo ALIGNED OFFSET +09:00 ANCHOR 15"),
        ("SLIDING 5 1m", "SLIDING 5 1m"),
        ("SLIDING 5 1m STRICT", "SLIDING 5 1m STRICT"),
        ("SLIDINGLOG 5 1m", "SLIDINGLOG 5 1m"),
        ("CONCURRENCY 5 1m", "CONCURRENCY 5 1m"),
        ("CONCURRENCY 5 1m shadow as a cost 2", "CONCURRENCY 5 1m COST 2 AS a SHADOW"),
        ("FIXED 5 1m SHADOW ALIGNED COST 0.0000001 AS a", "FIXED 5 1m ALIGNED COST 0.000001 AS a SHADOW"),
        ("fixed 5 1m force aligned as a cost 2", "FIXED 5 1m ALIGNED COST 2 AS a FORCE"),
        ("FIXED 5 1m FORCE SLIDING 9 1h SHADOW", "FIXED 5 1m FORCE SLIDING 9 1h SHADOW"),
        ("FIXED 5 1m COST 0", "FIXED 5 1m COST 0"),
        ("FIXED 5 1m COST -0", "FIXED 5 1m COST 0"),
        ("SLIDING 5 1m COST 2 STRICT", "SLIDING 5 1m STRICT COST 2"),
        ("FIXED 5 1m ban 3 60 1h", "FIXED 5 1m BAN 3 1m 1h"),
        ("FIXED 5 1m SHADOW FIXED 5 1h BAN 3 1m 1h", "FIXED 5 1m SHADOW FIXED 5 1h BAN 3 1m 1h"),
        ("FIXED 5 1m BAN 3 1m 1h max 86400", "FIXED 5 1m BAN 3 1m 1h MAX 1d"),
    ] {
        assert_eq!(policy(text).to_string(), shown, "{text}");
        assert_eq!(policy(shown).to_string(), shown);
    }
}

fn policies() -> impl Strategy<Value = String> {
    let specs = (0..MAX_SPECS).map(spec_at).collect::<Vec<_>>();
    let leases = select(vec![None, Some("CONCURRENCY 9 1m"), Some("CONCURRENCY 0.5 1us COST 0.5 AS x SHADOW")]);
    let ban = select(vec!["", " BAN 1 1us 3650d", " BAN 4294967295 90s 1h", " BAN 2 1m 1us MAX 3650d"]);
    (specs, 1..=MAX_SPECS, leases, ban).prop_map(|(mut specs, count, leases, ban)| {
        specs.truncate(count);
        if let Some(leases) = leases {
            specs[count - 1] = leases.to_owned();
        }
        format!("{}{ban}", specs.join(" "))
    })
}

proptest! {
    #[test]
    fn displayed_policy_is_parsed_back_to_the_same(text in policies()) {
        // Two limits may have the same identity: two windows of one quarter or one month with the same offset.
        if let Ok(policy) = parse_policy(&text) {
            prop_assert_eq!(policy.to_string(), text);
        } else {
            prop_assert!(text.matches("mo ALIGNED").count() > 1, "{}", text);
        }
    }

    #[test]
    fn any_accepted_policy_is_parsed_back_from_its_display(
        words in proptest::collection::vec(
            select(vec![
                "TOKENBUCKET", "FIXED", "SLIDING", "CONCURRENCY", "5", "0.5", "-1", "1m", "1mo", "COST", "AS", "a", "SHADOW",
                "FORCE", "ALIGNED", "STRICT", "OFFSET", "+01:00", "BAN", "NX", "KEEP", "UPTO", "ONCE",
            ]),
            0..14,
        ),
    ) {
        if let Ok(policy) = parse_policy(&words.join(" ")) {
            let shown = policy.to_string();
            prop_assert_eq!(parse_policy(&shown).unwrap().to_string(), shown);
        }
    }
}

#[test]
fn error_of_a_policy_names_the_word_or_the_argument() {
    let first = format!("where an algorithm is needed: {ALGORITHMS}");
    let next = |options: &str| {
        format!("where an option of the spec before, BAN or an algorithm is needed: {options}; {ALGORITHMS}")
    };
    let after_fixed = || next("COST, FORCE, AS, ALIGNED, OFFSET, ANCHOR or SHADOW");
    let (after_bucket, after_sliding) = (next("COST, FORCE, AS or SHADOW"), next("COST, FORCE, AS, STRICT or SHADOW"));
    let after_leases = next("COST, AS or SHADOW");
    let eight_limits = [1, 2, 3, 4, 5, 6, 7, 8].map(|n| format!("FIXED 1 {n}s ")).concat();
    for (text, error) in [
        ("NOSUCH 1 1s", format!("ERR syntax error, unexpected 'NOSUCH', {first}")),
        ("BAN 3 1m 1h", format!("ERR syntax error, unexpected 'BAN', {first}")),
        ("SHADOW FIXED 5 1m", format!("ERR syntax error, unexpected 'SHADOW', {first}")),
        ("COST 5 FIXED 5 1m", format!("ERR syntax error, unexpected 'COST', {first}")),
        ("EACH FIXED 5 1m", format!("ERR syntax error, unexpected 'EACH', {first}")),
        (
            "POLICY gold",
            "ERR syntax error, unexpected 'POLICY', which must be the only spec of its key and cannot be in a policy"
                .to_owned(),
        ),
        (
            "FIXED 5 1m POLICY gold",
            "ERR syntax error, unexpected 'POLICY', which must be the only spec of its key and cannot be in a policy"
                .to_owned(),
        ),
        // Options that only a call may have.
        ("TOKENBUCKET 5 5 1m MAXWAIT 1s", format!("ERR syntax error, unexpected 'MAXWAIT', {after_bucket}")),
        ("LEAKYBUCKET 5 5 1m UPTO", format!("ERR syntax error, unexpected 'UPTO', {after_bucket}")),
        ("SLIDINGLOG 5 1m KEEP 5", format!("ERR syntax error, unexpected 'KEEP', {after_bucket}")),
        ("FIXED 5 1m ONCE a 1m", format!("ERR syntax error, unexpected 'ONCE', {}", after_fixed())),
        ("FIXED 5 1m SETTLE a 1", format!("ERR syntax error, unexpected 'SETTLE', {}", after_fixed())),
        ("FIXED 5 1m EACH", format!("ERR syntax error, unexpected 'EACH', {}", after_fixed())),
        ("SLIDING 5 1m ALIGNED", format!("ERR syntax error, unexpected 'ALIGNED', {after_sliding}")),
        ("CONCURRENCY 5 1m worker-7", format!("ERR syntax error, unexpected 'worker-7', {after_leases}")),
        ("CONCURRENCY 5 1m NX", format!("ERR syntax error, unexpected 'NX', {after_leases}")),
        ("FIXED 5 1m SHADOW SHADOW", "ERR syntax error, unexpected 'SHADOW', which is given twice".to_owned()),
        ("FIXED 5 1m COST 1 COST 2", "ERR syntax error, unexpected 'COST', which is given twice".to_owned()),
        (
            "FIXED 5 1m COST -1",
            "ERR cost must be a number from 0 to 1000000000000 in a policy, such as 1, not '-1'".to_owned(),
        ),
        ("FIXED 5 1m COST x", "ERR cost must be a number such as 1, not 'x'".to_owned()),
        (
            "CONCURRENCY 5 1m COST 0",
            "ERR cost must be a number above 0, up to 1000000000000, such as 1, not '0'".to_owned(),
        ),
        (
            "FIXED 5 1m AS a:b",
            "ERR name must be 1 to 32 of the letters A-Z and a-z, digits, _ and -, such as requests, not 'a:b'"
                .to_owned(),
        ),
        (
            "FIXED x 1m",
            "ERR limit must be a number such as 100, not 'x' (FIXED limit window, with no key between)".to_owned(),
        ),
        (
            "FIXED 5 1m FIXED 6 1m",
            "ERR specs of one kind must have different windows or different names, such as \
             FIXED 10 1m AS burst, not FIXED 5 1m and FIXED 6 1m"
                .to_owned(),
        ),
        (
            "TOKENBUCKET 5 5 1m AS a SHADOW LEAKYBUCKET 5 5 1h AS a",
            "ERR names must be different from each other for limits of one kind, such as AS requests, not 'a' twice"
                .to_owned(),
        ),
        (
            "CONCURRENCY 5 1m AS a CONCURRENCY 6 1m AS b",
            "ERR syntax error, unexpected 'CONCURRENCY', since a key can have only one".to_owned(),
        ),
        (
            &format!("{eight_limits}FIXED 1 9s"),
            "ERR syntax error, unexpected 'FIXED', since a policy has 8 specs at most".to_owned(),
        ),
        (
            "FIXED 5 1m BAN 0 1m 1h",
            "ERR strikes must be a whole number from 1 to 4294967295, such as 10, not '0'".to_owned(),
        ),
        ("FIXED 5 1m BAN 3 0 1h", "ERR window must be a duration from 1us to 3650d, such as 60s, not '0'".to_owned()),
        ("FIXED 5 1m BAN 3 1m", "ERR block is missing: BAN strikes window block [MAX longest]".to_owned()),
        (
            "FIXED 5 1m BAN 3 1m 1h SHADOW",
            "ERR syntax error, unexpected 'SHADOW', since nothing can come after BAN".to_owned(),
        ),
        (
            "FIXED 5 1m BAN 3 1m 1h FIXED 6 1h",
            "ERR syntax error, unexpected 'FIXED', since nothing can come after BAN".to_owned(),
        ),
        ("FIXED 5", "ERR window is missing: FIXED limit window".to_owned()),
        ("CONCURRENCY 5", "ERR ttl is missing: CONCURRENCY limit ttl".to_owned()),
        ("FIXED 5 1m AS", "ERR name is missing: AS name".to_owned()),
        ("FIXED 5 1m OFFSET +01:00", "ERR syntax error, unexpected 'OFFSET', which needs ALIGNED before it".to_owned()),
    ] {
        assert_eq!(parse_policy(text).map(|policy| policy.to_string()).unwrap_err().to_string(), error, "{text}");
    }
    let no_spec: [&[u8]; 1] = [b"RL"];
    let missing = "ERR a spec is missing: RL.POLICYSET name [NX | VERSION version] spec [spec ...]";
    assert_eq!(Policy::parse(&mut Args::new(&no_spec)).unwrap_err().to_string(), missing);
    // Eight limits with a ban are accepted.
    let largest = format!("{eight_limits}BAN 3 1m 1h");
    assert_eq!((policy(&largest).limit_count(), policy(&largest).to_string()), (8, largest));
}

#[test]
fn policy_of_one_limit_without_options_is_plain() {
    for (text, is_plain) in [
        ("TOKENBUCKET 5 5 1m", true),
        ("LEAKYBUCKET 5 5 1m", true),
        ("FIXED 5 1m ALIGNED", true),
        ("SLIDING 5 1m STRICT", true),
        ("FIXED 5 1m COST 1", false),
        ("FIXED 5 1m AS a", false),
        ("FIXED 5 1m SHADOW", false),
        ("FIXED 5 1m BAN 3 1m 1h", false),
        ("FIXED 5 1m FIXED 5 1h", false),
        ("CONCURRENCY 5 1m", false),
    ] {
        let policy = policy(text);
        let spec = policy.plain();
        assert_eq!(spec.is_some(), is_plain, "{text}");
        if let Some(spec) = spec {
            assert_eq!(
                (spec.request, spec.by_policy, spec.limit.to_string()),
                (Request::Take(Amount::ONE), true, text.to_owned())
            );
        }
    }
    // FORCE changes the request, but a plain key can still serve it.
    let forced = policy("TOKENBUCKET 5 5 1m FORCE");
    assert_eq!(forced.plain().map(|spec| spec.request), Some(Request::Force(Amount::ONE)));
    assert!(forced.prebuilt().is_none());
    let several = policy("FIXED 5 1m FIXED 5 1h");
    assert_eq!(several.prebuilt().map(|request| request.specs.len()), Some(2));
    // A faster refill needs a composite key, which stores the rate of recovery.
    assert!(policy("TOKENBUCKET 5 5 1m").scaled(units(2)).plain().is_none());
    assert!(policy("TOKENBUCKET 5 5 1m").scaled(Amount::saturating(500_000)).plain().is_some());
    assert!(policy("FIXED 5 1m").scaled(units(2)).plain().is_some());
}

#[test]
fn scale_multiplies_every_limit_and_refill() {
    const ALL: &str = "TOKENBUCKET 60 30 1m LEAKYBUCKET 9 6 1h COST 3 AS a FIXED 5 1m SLIDING 7 1m SLIDING 8 1h STRICT \
                       FORCE SLIDINGLOG 9 1m SHADOW CONCURRENCY 10 1m COST 2 BAN 3 1m 1h";
    for (factor, scaled) in [
        (units(1), ALL),
        (
            units(2),
            "TOKENBUCKET 120 60 1m LEAKYBUCKET 18 12 1h COST 3 AS a FIXED 10 1m SLIDING 14 1m SLIDING 16 1h STRICT \
             FORCE SLIDINGLOG 18 1m SHADOW CONCURRENCY 20 1m COST 2 BAN 3 1m 1h",
        ),
        (
            millionths(500_000),
            "TOKENBUCKET 30 15 1m LEAKYBUCKET 4.5 3 1h COST 3 AS a FIXED 2.5 1m SLIDING 3.5 1m SLIDING 4 1h STRICT \
             FORCE SLIDINGLOG 4.5 1m SHADOW CONCURRENCY 5 1m COST 2 BAN 3 1m 1h",
        ),
        (
            units(1000),
            "TOKENBUCKET 60000 30000 1m LEAKYBUCKET 9000 6000 1h COST 3 AS a FIXED 5000 1m SLIDING 7000 1m \
             SLIDING 8000 1h STRICT FORCE SLIDINGLOG 9000 1m SHADOW CONCURRENCY 10000 1m COST 2 BAN 3 1m 1h",
        ),
        // A factor of zero denies everything and leaves refills unchanged.
        (
            Amount::ZERO,
            "TOKENBUCKET 0 30 1m LEAKYBUCKET 0 6 1h COST 3 AS a FIXED 0 1m SLIDING 0 1m SLIDING 0 1h STRICT \
             FORCE SLIDINGLOG 0 1m SHADOW CONCURRENCY 0 1m COST 2 BAN 3 1m 1h",
        ),
    ] {
        assert_eq!(policy(ALL).scaled(factor).to_string(), scaled, "{factor}");
    }
}

#[test]
fn scaled_number_is_rounded_down_to_a_millionth() {
    for (text, factor, scaled) in [
        ("FIXED 10 1m", 333_333, "FIXED 3.33333 1m"),
        ("FIXED 0.1 1m", 333_333, "FIXED 0.033333 1m"),
        ("FIXED 0.000001 1m", 999_999, "FIXED 0 1m"),
        ("FIXED 0.000001 1m", 1_000_000_000, "FIXED 0.001 1m"),
        ("FIXED 1000000000000 1m", 1_000_001, "FIXED 1000000000000 1m"),
        ("FIXED 999999999999 1m", 1_000_000, "FIXED 999999999999 1m"),
        ("TOKENBUCKET 10 0.00001 10s", 150_000, "TOKENBUCKET 1.5 0.000001 10s"),
        ("TOKENBUCKET 0 0.000001 10s", 1, "TOKENBUCKET 0 0.000001 10s"),
        ("TOKENBUCKET 1000000000000 1000000000000 1m", 2_000_000, "TOKENBUCKET 1000000000000 1000000000000 1m"),
    ] {
        assert_eq!(policy(text).scaled(millionths(factor)).to_string(), scaled, "{text} times {factor}");
    }
}

#[test]
fn scaled_bucket_refills_within_36500_days() {
    // At the bound of 36500 days, which the rounded-down refill would exceed.
    let slowest = policy("TOKENBUCKET 36500 1 1d");
    for factor in [1, 999, 10_000, 333_333, 999_999, 1_500_000, 999_999_999, 1_000_000_000].map(millionths) {
        let AnyLimit::Bucket(bucket) = slowest.scaled(factor).limits[0].limit else { unreachable!() };
        let words = bucket.to_string();
        assert!(parse_policy(&words).is_ok(), "{words} is a valid spec");
        let numbers: Vec<&str> = words.split(' ').collect();
        let [capacity, refill] = [numbers[1], numbers[2]].map(|text| Amount::parse_down(text.as_bytes()).unwrap());
        assert_eq!(capacity, units(36500).times(factor));
        // The slowest valid refill: a millionth less is rejected, unless the refill is exactly the scaled one.
        let less = refill.minus(millionths(1));
        let day = Period::parse(b"1d").unwrap();
        assert!(refill == Amount::ONE.times(factor) || Bucket::new(capacity, less, day, Discipline::Burst).is_err());
    }
}

#[test]
fn scaled_up_bucket_keeps_the_unscaled_limit() {
    let slower_limit = |text: &str, factor: u64| {
        let scaled = policy(text).scaled(millionths(factor));
        let slower_limit = scaled.limits[0].slower_limit.map(|limit| limit.to_string());
        if let KeyRequest::Composite(call) = request("", &scaled).unwrap() {
            assert_eq!(call.specs[0].slower_limit.map(ToString::to_string), slower_limit);
        } else {
            assert_eq!(slower_limit, None);
        }
        slower_limit
    };
    let bucket = "TOKENBUCKET 60 30 1m";
    for factor in [0, 500_000, 1_000_000] {
        assert_eq!(slower_limit(bucket, factor), None);
    }
    assert_eq!(slower_limit(bucket, 1_000_001), Some(bucket.to_owned()));
    assert_eq!(slower_limit("LEAKYBUCKET 60 30 1m", 2_000_000), Some("LEAKYBUCKET 60 30 1m".to_owned()));
    // The end of a window does not depend on its limit.
    assert_eq!(slower_limit("SLIDING 60 1m", 2_000_000), None);
}

#[test]
fn factor_of_zero_denies_every_positive_cost() {
    for text in ["TOKENBUCKET 60 30 1m", "LEAKYBUCKET 60 30 1m", "FIXED 60 1m", "SLIDING 9 1m", "SLIDINGLOG 9 1m"] {
        let scaled = policy(text).scaled(Amount::ZERO);
        let now = crate::number::Timestamp::from_clock(1_700_000_000_000_000);
        for (cost, verdict) in [(1, Verdict::Never), (0, Verdict::Allowed(Span::ZERO))] {
            let limit = scaled.limits[0].limit;
            crate::algorithm::any::with_limit!(Spec::of(limit, Request::Take(millionths(cost))), limit => {
                let evaluation = evaluate(limit, &unused(limit), now, Request::Take(millionths(cost)));
                assert_eq!(evaluation.verdict, verdict, "{text}");
            });
        }
    }
}

fn unused<L: Limit>(_: &L) -> L::Usage {
    L::Usage::default()
}
