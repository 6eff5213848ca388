use super::*;

fn request(limits: &[&str], traffic: Traffic) -> SimulationRequest {
    let limits = limits.iter().map(|words| (*words).to_owned()).collect();
    SimulationRequest { limits, traffic, hold: 500, others: 0, speed: 100, seed: 1 }
}

/// Runs a simulation for some seconds and returns the number of calls that each limit has admitted.
fn admitted(simulation: &mut Simulation, seconds: u64) -> Vec<usize> {
    let mut admitted = vec![0; simulation.limits().len()];
    for _ in 0..seconds * 20 {
        let step = simulation.step(Span::MILLISECOND.times(50)).unwrap();
        for call in step["calls"].as_array().unwrap() {
            for (count, answer) in admitted.iter_mut().zip(call[1].as_array().unwrap()) {
                *count += usize::from(answer.as_i64().is_some_and(|answer| answer >= 0));
            }
        }
    }
    admitted
}

#[test]
fn two_bursts_across_a_boundary_pass_only_a_fixed_window() {
    let traffic = Traffic { bursts: vec![(0, 1), (9500, 9), (10_500, 10)], ..Traffic::default() };
    let limits =
        ["FIXED 10 10s", "SLIDING 10 10s", "SLIDING 10 10s STRICT", "SLIDINGLOG 10 10s", "TOKENBUCKET 10 10 10s"];
    let mut simulation = Simulation::new(request(&limits, traffic)).unwrap();
    // 19 calls within a second, under limits of 10 in 10 seconds. At the second burst, the first call has left the
    // window, and the bucket has two units.
    assert_eq!(admitted(&mut simulation, 11), [20, 10, 11, 11, 12]);
}

/// Returns the numbers of calls of other callers that the last limit, a sketch, has passed and denied.
fn calls_of_others(step: &Value) -> (u64, u64) {
    let lanes = step["lanes"].as_array().unwrap();
    let others = &lanes[lanes.len() - 1]["others"];
    (others["passed"].as_u64().unwrap(), others["denied"].as_u64().unwrap())
}

#[test]
fn other_callers_keep_their_rate_and_are_bounded_in_each_step() {
    let mut simulation = Simulation::new(request(&["SKETCH 5 5 1s SIZE 1mb"], Traffic::default())).unwrap();
    simulation.change(SimulationChange { others: Some(7000), ..SimulationChange::default() }).unwrap();
    let count = |step: &Value| calls_of_others(step).0 + calls_of_others(step).1;
    let step = (0..100).map(|_| simulation.step(Span::MILLISECOND.times(3)).unwrap()).last().unwrap();
    assert_eq!(count(&step), 2100);
    // Setting the same rate again changes nothing.
    simulation.change(SimulationChange { others: Some(7000), ..SimulationChange::default() }).unwrap();
    assert_eq!(count(&simulation.step(Span::MILLISECOND.times(100)).unwrap()), 2800);
    assert_eq!(count(&simulation.step(Span::SECOND.times(60)).unwrap()), 12_800);
    assert_eq!(count(&simulation.step(Span::SECOND).unwrap()), 19_800);
    simulation.change(SimulationChange { others: Some(0), ..SimulationChange::default() }).unwrap();
    assert_eq!(count(&simulation.step(Span::SECOND).unwrap()), 19_800);
}

#[test]
fn sketch_never_passes_more_than_a_bucket_and_denies_too_early_if_it_is_too_small() {
    let traffic = || Traffic { rate: 250, ..Traffic::default() };
    let run = |size: &str, others| {
        let sketch = format!("SKETCH 10 10 20s SIZE {size}");
        let mut simulation = Simulation::new(request(&["TOKENBUCKET 10 10 20s", &sketch], traffic())).unwrap();
        simulation.change(SimulationChange { others: Some(others), ..SimulationChange::default() }).unwrap();
        let passed = admitted(&mut simulation, 60);
        (passed, calls_of_others(&simulation.step(Span::MILLISECOND).unwrap()).1)
    };
    // One call every four seconds, under ten in twenty.
    assert_eq!(run("64kb", 0), (vec![15, 15], 0));
    assert_eq!(run("512kb", 5000), (vec![15, 15], 0));
    let (passed, denied) = run("64kb", 5000);
    assert_eq!(passed[0], 15);
    assert!(passed[1] < 15 && denied > 1000, "{passed:?} and {denied}");
}

#[test]
fn clock_follows_the_speed_and_pauses_at_zero() {
    let mut simulation = Simulation::new(request(&["FIXED 10 10s"], Traffic::default())).unwrap();
    let now = |step: Option<Value>| step.unwrap()["now"].as_u64().unwrap();
    assert_eq!(now(simulation.step(Span::MILLISECOND.times(50))), 50_000);
    simulation.change(SimulationChange { speed: Some(1000), ..SimulationChange::default() }).unwrap();
    assert_eq!(now(simulation.step(Span::MILLISECOND.times(50))), 550_000);
    simulation.change(SimulationChange { speed: Some(0), ..SimulationChange::default() }).unwrap();
    // A change is reported once, and a click always.
    assert_eq!(now(simulation.step(Span::MILLISECOND.times(50))), 550_000);
    assert!(simulation.step(Span::MILLISECOND.times(50)).is_none());
    simulation.change(SimulationChange { calls: 3, ..SimulationChange::default() }).unwrap();
    let step = simulation.step(Span::MILLISECOND.times(50)).unwrap();
    assert_eq!(step["calls"], json!([[550_000, [0]], [550_000, [0]], [550_000, [0]]]));
    assert_eq!(step["lanes"][0]["left"], 7.0);
}

#[test]
fn invalid_change_changes_nothing() {
    let mut simulation = Simulation::new(request(&["FIXED 10 10s"], Traffic::default())).unwrap();
    let limits = |limits: &[&str]| Some(limits.iter().map(|words| (*words).to_owned()).collect());
    for wrong in [
        SimulationChange { limits: limits(&["FIXED 20 10s", "FIXED x 10s"]), ..SimulationChange::default() },
        SimulationChange { limits: limits(&[]), ..SimulationChange::default() },
        SimulationChange { limits: limits(&["FIXED 1 1s"; 9]), ..SimulationChange::default() },
        SimulationChange { limits: limits(&["FIXED 20 10s"]), speed: Some(2001), ..SimulationChange::default() },
        SimulationChange { limits: limits(&["FIXED 20 10s"]), hold: Some(u32::MAX), ..SimulationChange::default() },
        SimulationChange { limits: limits(&["FIXED 20 10s"]), others: Some(10_001), ..SimulationChange::default() },
        SimulationChange { limits: limits(&["SKETCH 5 5 1s", "SKETCH 5 5 1s"]), ..SimulationChange::default() },
        SimulationChange { limits: limits(&["SKETCH 5 5 1s SIZE 256mb"]), ..SimulationChange::default() },
        SimulationChange {
            limits: limits(&["FIXED 20 10s"]),
            traffic: Some(Traffic { cost: 0, ..Traffic::default() }),
            ..SimulationChange::default()
        },
    ] {
        assert!(simulation.change(wrong).is_err());
        assert_eq!(simulation.limits(), ["FIXED 10 10s"]);
    }
    simulation
        .change(SimulationChange {
            limits: limits(&["fixed 20 10s", "sliding 5 1m strict"]),
            ..SimulationChange::default()
        })
        .unwrap();
    assert_eq!(simulation.limits(), ["FIXED 20 10s", "SLIDING 5 1m STRICT"]);
}
