use super::*;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_767_225_600_000_000 + millis * 1000).unwrap()
}

fn limit(words: &str) -> SimulatedLimit {
    SimulatedLimit::parse(words).unwrap()
}

fn calls(limit: &mut SimulatedLimit, times: &[u64]) -> Vec<Value> {
    let lease_duration = Span::SECOND.times(2);
    times
        .iter()
        .enumerate()
        .map(|(serial, millis)| limit.take(serial as u64, Amount::ONE, lease_duration, at(*millis)))
        .collect()
}

#[test]
fn each_algorithm_decides_as_the_server_does() {
    let times = [0, 0, 0, 400, 1000];
    for (words, expected) in [
        ("TOKENBUCKET 2 1 1s", json!([0, 0, -1000, -600, 0])),
        ("LEAKYBUCKET 2 1 1s", json!([0, 1000, -1000, -600, 1000])),
        ("FIXED 2 1s", json!([0, 0, -1000, -600, 0])),
        ("FIXED 2 10s ALIGNED", json!([0, 0, -10_000, -9600, -9000])),
        ("SLIDING 2 1s", json!([0, 0, -1500, -1100, -500])),
        ("SLIDINGLOG 2 1s", json!([0, 0, -1000, -600, 0])),
        ("SKETCH 2 1 1s SIZE 64kb", json!([0, 0, -1000, -600, 0])),
        // Each call holds its lease for two seconds.
        ("CONCURRENCY 2 1m", json!([0, 0, -60_000, -59_600, -59_000])),
    ] {
        assert_eq!(json!(calls(&mut limit(words), &times)), expected, "{words}");
    }
    let mut never = limit("FIXED 2 1s");
    assert_eq!(never.take(0, Amount::saturating(3_000_000), Span::ZERO, at(0)), Value::Null);
}

#[test]
fn lease_is_released_when_its_call_ends() {
    let mut concurrency = limit("CONCURRENCY 1 1m");
    let lease_duration = Span::SECOND;
    let take = |limit: &mut SimulatedLimit, serial, millis| {
        limit.take(serial, Amount::ONE, lease_duration, at(millis)) == json!(0)
    };
    assert!(take(&mut concurrency, 1, 0));
    assert!(!take(&mut concurrency, 2, 999));
    assert_eq!(concurrency.state(Amount::ONE, at(0), at(999))["held"], 1);
    assert!(take(&mut concurrency, 3, 1000));
    assert_eq!(concurrency.state(Amount::ONE, at(0), at(2000))["left"], 1.0);
}

#[test]
fn changed_numbers_keep_the_usage_and_another_algorithm_starts_unused() {
    let mut changed = limit("FIXED 2 10s");
    calls(&mut changed, &[0, 0]);
    changed.change(limit("FIXED 3 10s"));
    assert_eq!(json!(calls(&mut changed, &[1, 1])), json!([0, -9999]));
    assert_eq!(changed.to_string(), "FIXED 3 10s");
    changed.change(limit("SLIDINGLOG 1 10s"));
    assert_eq!(calls(&mut changed, &[2]), [0]);
}

#[test]
fn sketch_of_another_size_starts_unused() {
    let mut changed = limit("SKETCH 2 1 1h SIZE 64kb");
    calls(&mut changed, &[0, 0]);
    changed.change(limit("SKETCH 3 1 1h SIZE 64kb"));
    assert!(calls(&mut changed, &[1])[0] == json!(0) && calls(&mut changed, &[1])[0] != json!(0));
    changed.change(limit("SKETCH 3 1 1h SIZE 128kb"));
    assert_eq!(changed.state(Amount::ONE, at(0), at(1))["left"], 3.0);
    assert_eq!(changed.to_string(), "SKETCH 3 1 1h SIZE 128kb");
}

#[test]
fn small_sketch_denies_other_callers_and_shows_how_full_its_cells_are() {
    let mut small = limit("SKETCH 2 1 1h SIZE 64kb");
    let mut large = limit("SKETCH 2 1 1h SIZE 1mb");
    let mut bucket = limit("TOKENBUCKET 2 1 1h");
    for other in 0..20_000 {
        for limit in [&mut small, &mut large, &mut bucket] {
            limit.take_by_other_caller(other, at(0));
        }
    }
    let (mut denied, mut unseen_denied) = (vec![], vec![]);
    for limit in [&mut small, &mut large] {
        let state = limit.state(Amount::ONE, at(0), at(0));
        let others = &state["others"];
        assert_eq!(others["passed"].as_u64().unwrap() + others["denied"].as_u64().unwrap(), 20_000);
        denied.push(others["denied"].as_u64().unwrap());
        let cells: Vec<f64> = state["cells"].as_array().unwrap().iter().map(|left| left.as_f64().unwrap()).collect();
        let largest = cells.iter().copied().fold(0.0, f64::max);
        assert_eq!((cells.len(), Some(largest)), (4, state["left"].as_f64()));
        unseen_denied.push(state["remembers"]["unseen_denied"].as_str().unwrap().parse::<f64>().unwrap());
    }
    // 20,000 units exceed 2,048 cells a row with 2 units each, and fit into the 32,768 cells of the large sketch.
    assert!(denied[0] > 10_000 && denied[1] < 100, "{denied:?}");
    assert!(unseen_denied[0] > 0.5 && unseen_denied[1] < 0.1, "{unseen_denied:?}");
    // A limit with a key for each caller is not charged for other callers.
    assert_eq!(bucket.state(Amount::ONE, at(0), at(0))["left"], 2.0);
}

#[test]
fn state_has_remaining_units_and_fields_of_the_usage() {
    let mut sliding = limit("SLIDING 4 10s");
    calls(&mut sliding, &[500, 500, 1000]);
    let state = sliding.state(Amount::ONE, at(0), at(5500));
    let remembers = json!({"used": 3.0, "previous": 0.0, "current": 3.0, "start": 500_000, "window": 10_000_000});
    assert_eq!(state["remembers"], remembers);
    assert_eq!((&state["limit"], &state["left"], &state["next"]), (&json!(4.0), &json!(1.0), &json!(0)));
}

#[test]
fn anything_but_an_algorithm_with_its_numbers_is_rejected() {
    for wrong in [
        "",
        "FIXED",
        "FIXED 10 10s COST 2",
        "FIXED 1 1s FIXED 2 2s",
        "SKETCH 1 1",
        "SKETCH 1 1 1s x",
        "SKETCH 1 1 1s SIZE 63kb",
        "SKETCH 1 1 1s SIZE 2mb",
        "POLICY x",
        "CONCURRENCY 1",
        "x",
    ] {
        assert!(SimulatedLimit::parse(wrong).is_err(), "{wrong}");
    }
}
