use super::*;
use ratelimit_core::syntax::{ByPolicy, KeyRequest, Policy};
use ratelimit_core::wire::args::Args;

/// A call as RL.LIMIT would read it.
fn of_the_syntax(limits: &str, cost: &str) -> String {
    let said: Vec<&[u8]> = ["RL.POLICYSET"].into_iter().chain(limits.split(' ')).map(str::as_bytes).collect();
    let policy = Policy::read(&mut Args::new(&said)).unwrap();
    let words: [&[u8]; 3] = [b"RL.LIMIT", b"COST", cost.as_bytes()];
    match ByPolicy::after_first_name(b"name", &mut Args::new(&words)).unwrap().request(&policy).unwrap() {
        KeyRequest::Composite(call) => format!("{call:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_at_a_cost_is_the_one_that_the_syntax_makes_of_it() {
    for text in [
        "FIXED 10 1s FIXED 100 1h",
        "FIXED 10 1s COST 2 TOKENBUCKET 5 5 1s AS t",
        "SLIDING 3 1m SHADOW FIXED 5 1m BAN 3 1m 1h",
        "FIXED 3 1m AS name",
    ] {
        let limits = Limits::read(text).unwrap();
        let mut judge = Trial::new(&limits, usize::MAX).unwrap();
        let TrialRequest::Several(call) = &mut judge.asked else { panic!("{text}") };
        for cost in ["1", "2.5", "0", "3", "1"] {
            at_cost(call, &judge.own, Amount::parse_up(cost.as_bytes()).unwrap());
            assert_eq!(format!("{call:?}"), of_the_syntax(text, cost), "{text} at {cost}");
        }
    }
}

#[test]
fn what_has_recovered_is_forgotten_when_memory_is_short_and_more_is_not_remembered() {
    let limits = Limits::read("SLIDINGLOG 10 1s").unwrap();
    let mut judge = Trial::new(&limits, 10_000).unwrap();
    let at = |micros: u64| Timestamp::from_micros(1_700_000_000_000_000 + micros).unwrap();
    let full = (0..10_000).find(|key| judge.decide(*key, at(0), Amount::ONE) == TrialOutcome::Overfull).unwrap();
    assert!((10..1000).contains(&full), "{full}");
    // A key that is followed goes on being denied, a second later there is room again.
    for _ in 0..9 {
        judge.decide(0, at(0), Amount::ONE);
    }
    assert_eq!(judge.decide(full, at(1_000_000), Amount::ONE), TrialOutcome::Admitted);
}

#[test]
fn a_key_that_remembers_more_than_a_server_lets_it_is_told() {
    for text in ["SLIDINGLOG 200000 1h", "SLIDINGLOG 200000 1h FIXED 1000000 1d"] {
        let limits = Limits::read(text).unwrap();
        let mut judge = Trial::new(&limits, usize::MAX).unwrap();
        let at = |micros: u64| Timestamp::from_micros(1_700_000_000_000_000 + micros).unwrap();
        let outcomes: Vec<TrialOutcome> = (0..100_002).map(|call| judge.decide(0, at(call), Amount::ONE)).collect();
        assert!(outcomes.iter().take(100_000).all(|outcome| *outcome == TrialOutcome::Admitted), "{text}");
        assert_eq!(outcomes[100_000..], [TrialOutcome::Overfull; 2], "{text}");
    }
}
