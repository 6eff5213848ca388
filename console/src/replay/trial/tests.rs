use super::*;
use ratelimit_core::syntax::{KeyRequest, Policy, PolicyRequest};
use ratelimit_core::wire::args::Args;

/// Returns the request that the parser of `RL.LIMIT` makes of a call.
fn parsed_request(limits: &str, cost: &str) -> String {
    let arguments: Vec<&[u8]> = ["RL.POLICYSET"].into_iter().chain(limits.split(' ')).map(str::as_bytes).collect();
    let policy = Policy::parse(&mut Args::new(&arguments)).unwrap();
    let words: [&[u8]; 3] = [b"RL.LIMIT", b"COST", cost.as_bytes()];
    match PolicyRequest::after_first_name(b"name", &mut Args::new(&words)).unwrap().request(&policy).unwrap() {
        KeyRequest::Composite(call) => format!("{call:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn call_with_a_cost_equals_the_parsed_request() {
    for text in [
        "FIXED 10 1s FIXED 100 1h",
        "FIXED 10 1s COST 2 TOKENBUCKET 5 5 1s AS t",
        "SLIDING 3 1m SHADOW FIXED 5 1m BAN 3 1m 1h",
        "FIXED 3 1m AS name",
    ] {
        let limits = Limits::parse(text).unwrap();
        let mut trial = Trial::new(&limits, usize::MAX).unwrap();
        let TrialRequest::Several(call) = &mut trial.request else { panic!("{text}") };
        for cost in ["1", "2.5", "0", "3", "1"] {
            set_cost(call, &trial.unit_requests, Amount::parse_up(cost.as_bytes()).unwrap());
            assert_eq!(format!("{call:?}"), parsed_request(text, cost), "{text} at {cost}");
        }
    }
}

#[test]
fn recovered_usages_are_dropped_when_memory_is_full() {
    let limits = Limits::parse("SLIDINGLOG 10 1s").unwrap();
    let mut trial = Trial::new(&limits, 10_000).unwrap();
    let at = |micros: u64| Timestamp::from_micros(1_700_000_000_000_000 + micros).unwrap();
    let full = (0..10_000).find(|key| trial.decide(*key, at(0), Amount::ONE) == TrialOutcome::Overfull).unwrap();
    assert!((10..1000).contains(&full), "{full}");
    // A second later the other usages have recovered, and there is memory for the key.
    for _ in 0..9 {
        trial.decide(0, at(0), Amount::ONE);
    }
    assert_eq!(trial.decide(full, at(1_000_000), Amount::ONE), TrialOutcome::Admitted);
}

#[test]
fn key_with_too_many_entries_is_overfull() {
    for text in ["SLIDINGLOG 200000 1h", "SLIDINGLOG 200000 1h FIXED 1000000 1d"] {
        let limits = Limits::parse(text).unwrap();
        let mut trial = Trial::new(&limits, usize::MAX).unwrap();
        let at = |micros: u64| Timestamp::from_micros(1_700_000_000_000_000 + micros).unwrap();
        let outcomes: Vec<TrialOutcome> = (0..100_002).map(|call| trial.decide(0, at(call), Amount::ONE)).collect();
        assert!(outcomes.iter().take(100_000).all(|outcome| *outcome == TrialOutcome::Admitted), "{text}");
        assert_eq!(outcomes[100_000..], [TrialOutcome::Overfull; 2], "{text}");
    }
}
