use super::*;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_767_225_600_000_000 + millis * 1000).unwrap()
}

fn lane(words: &str) -> Lane {
    Lane::read(words).unwrap()
}

fn calls(lane: &mut Lane, times: &[u64]) -> Vec<Value> {
    let holds = Span::SECOND.times(2);
    times.iter().enumerate().map(|(serial, millis)| lane.take(serial as u64, Amount::ONE, holds, at(*millis))).collect()
}

#[test]
fn each_algorithm_says_what_the_server_would() {
    let times = [0, 0, 0, 400, 1000];
    for (words, expected) in [
        ("TOKENBUCKET 2 1 1s", json!([0, 0, -1000, -600, 0])),
        ("LEAKYBUCKET 2 1 1s", json!([0, 1000, -1000, -600, 1000])),
        ("FIXED 2 1s", json!([0, 0, -1000, -600, 0])),
        ("FIXED 2 10s ALIGNED", json!([0, 0, -10_000, -9600, -9000])),
        ("SLIDING 2 1s", json!([0, 0, -1500, -1100, -500])),
        ("SLIDINGLOG 2 1s", json!([0, 0, -1000, -600, 0])),
        ("SKETCH 2 1 1s SIZE 64kb", json!([0, 0, -1000, -600, 0])),
        // A call takes two seconds here.
        ("CONCURRENCY 2 1m", json!([0, 0, -60_000, -59_600, -59_000])),
    ] {
        assert_eq!(json!(calls(&mut lane(words), &times)), expected, "{words}");
    }
    let mut never = lane("FIXED 2 1s");
    assert_eq!(never.take(0, Amount::saturating(3_000_000), Span::ZERO, at(0)), Value::Null);
}

#[test]
fn a_lease_is_given_back_when_its_call_ends_and_not_before() {
    let mut lane = lane("CONCURRENCY 1 1m");
    let hold = Span::SECOND;
    let take = |lane: &mut Lane, serial, millis| lane.take(serial, Amount::ONE, hold, at(millis)) == json!(0);
    assert!(take(&mut lane, 1, 0));
    assert!(!take(&mut lane, 2, 999));
    assert_eq!(lane.state(Amount::ONE, at(0), at(999))["held"], 1);
    assert!(take(&mut lane, 3, 1000));
    assert_eq!(lane.state(Amount::ONE, at(0), at(2000))["left"], 1.0);
}

#[test]
fn changed_numbers_keep_what_was_used_and_another_algorithm_starts_empty() {
    let mut changed = lane("FIXED 2 10s");
    calls(&mut changed, &[0, 0]);
    changed.change(lane("FIXED 3 10s"));
    assert_eq!(json!(calls(&mut changed, &[1, 1])), json!([0, -9999]));
    assert_eq!(changed.to_string(), "FIXED 3 10s");
    changed.change(lane("SLIDINGLOG 1 10s"));
    assert_eq!(calls(&mut changed, &[2]), [0]);
}

#[test]
fn a_sketch_of_another_size_starts_empty_as_another_key_does() {
    let mut changed = lane("SKETCH 2 1 1h SIZE 64kb");
    calls(&mut changed, &[0, 0]);
    changed.change(lane("SKETCH 3 1 1h SIZE 64kb"));
    assert!(calls(&mut changed, &[1])[0] == json!(0) && calls(&mut changed, &[1])[0] != json!(0));
    changed.change(lane("SKETCH 3 1 1h SIZE 128kb"));
    assert_eq!(changed.state(Amount::ONE, at(0), at(1))["left"], 3.0);
    assert_eq!(changed.to_string(), "SKETCH 3 1 1h SIZE 128kb");
}

#[test]
fn a_sketch_that_is_too_small_denies_others_and_tells_how_full_the_callers_cells_are() {
    let mut small = lane("SKETCH 2 1 1h SIZE 64kb");
    let mut large = lane("SKETCH 2 1 1h SIZE 1mb");
    let mut bucket = lane("TOKENBUCKET 2 1 1h");
    for other in 0..20_000 {
        for lane in [&mut small, &mut large, &mut bucket] {
            lane.take_of_other(other, at(0));
        }
    }
    let (mut denied, mut left) = (vec![], vec![]);
    for lane in [&mut small, &mut large] {
        let state = lane.state(Amount::ONE, at(0), at(0));
        let others = &state["others"];
        assert_eq!(others["passed"].as_u64().unwrap() + others["denied"].as_u64().unwrap(), 20_000);
        denied.push(others["denied"].as_u64().unwrap());
        let cells: Vec<f64> = state["cells"].as_array().unwrap().iter().map(|left| left.as_f64().unwrap()).collect();
        let most = cells.iter().copied().fold(0.0, f64::max);
        assert_eq!((cells.len(), Some(most)), (4, state["left"].as_f64()));
        left.push(state["remembers"]["unseen_denied"].as_str().unwrap().parse::<f64>().unwrap());
    }
    // 20,000 units are more than 2,048 cells of each row have room for, and fewer than 32,768 have.
    assert!(denied[0] > 10_000 && denied[1] < 100, "{denied:?}");
    assert!(left[0] > 0.5 && left[1] < 0.1, "{left:?}");
    // A limit that gives each caller a key of its own hears of none of them.
    assert_eq!(bucket.state(Amount::ONE, at(0), at(0))["left"], 2.0);
}

#[test]
fn a_state_tells_what_is_left_and_what_is_remembered() {
    let mut lane = lane("SLIDING 4 10s");
    calls(&mut lane, &[500, 500, 1000]);
    let state = lane.state(Amount::ONE, at(0), at(5500));
    let remembers = json!({"used": 3.0, "previous": 0.0, "current": 3.0, "start": 500_000, "window": 10_000_000});
    assert_eq!(state["remembers"], remembers);
    assert_eq!((&state["limit"], &state["left"], &state["next"]), (&json!(4.0), &json!(1.0), &json!(0)));
}

#[test]
fn anything_but_an_algorithm_and_its_numbers_is_refused() {
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
        assert!(Lane::read(wrong).is_err(), "{wrong}");
    }
}
