use super::*;

fn asked(limits: &[&str], traffic: Traffic) -> SceneRequest {
    let limits = limits.iter().map(|words| (*words).to_owned()).collect();
    SceneRequest { limits, traffic, hold: 500, others: 0, speed: 100, seed: 1 }
}

/// How many calls each limit has admitted within so many seconds.
fn admitted(scene: &mut Scene, seconds: u64) -> Vec<usize> {
    let mut admitted = vec![0; scene.limits().len()];
    for _ in 0..seconds * 20 {
        let told = scene.step(Span::MILLISECOND.times(50)).unwrap();
        for call in told["calls"].as_array().unwrap() {
            for (count, answer) in admitted.iter_mut().zip(call[1].as_array().unwrap()) {
                *count += usize::from(answer.as_i64().is_some_and(|answer| answer >= 0));
            }
        }
    }
    admitted
}

#[test]
fn two_bursts_across_a_boundary_pass_a_fixed_window_and_no_strict_one() {
    let traffic = Traffic { bursts: vec![(0, 1), (9500, 9), (10_500, 10)], ..Traffic::default() };
    let limits =
        ["FIXED 10 10s", "SLIDING 10 10s", "SLIDING 10 10s STRICT", "SLIDINGLOG 10 10s", "TOKENBUCKET 10 10 10s"];
    let mut scene = Scene::new(asked(&limits, traffic)).unwrap();
    // 19 calls within a second, of a limit of 10 in 10 seconds. By then the first call is older than that, and as much
    // has come back of the bucket since it was empty.
    assert_eq!(admitted(&mut scene, 11), [20, 10, 11, 11, 12]);
}

/// Of the sketch that is the last limit: how many calls of others passed, and how many did not.
fn others(told: &Value) -> (u64, u64) {
    let lanes = told["lanes"].as_array().unwrap();
    let others = &lanes[lanes.len() - 1]["others"];
    (others["passed"].as_u64().unwrap(), others["denied"].as_u64().unwrap())
}

#[test]
fn others_call_at_their_rate_however_the_time_is_cut_and_at_most_so_many_in_a_step() {
    let mut scene = Scene::new(asked(&["SKETCH 5 5 1s SIZE 1mb"], Traffic::default())).unwrap();
    scene.change(Changed { others: Some(7000), ..Changed::default() }).unwrap();
    let count = |told: &Value| others(told).0 + others(told).1;
    let told = (0..100).map(|_| scene.step(Span::MILLISECOND.times(3)).unwrap()).last().unwrap();
    assert_eq!(count(&told), 2100);
    // Told again, they go on as they were.
    scene.change(Changed { others: Some(7000), ..Changed::default() }).unwrap();
    assert_eq!(count(&scene.step(Span::MILLISECOND.times(100)).unwrap()), 2800);
    assert_eq!(count(&scene.step(Span::SECOND.times(60)).unwrap()), 12_800);
    assert_eq!(count(&scene.step(Span::SECOND).unwrap()), 19_800);
    scene.change(Changed { others: Some(0), ..Changed::default() }).unwrap();
    assert_eq!(count(&scene.step(Span::SECOND).unwrap()), 19_800);
}

#[test]
fn a_sketch_lets_no_more_pass_than_a_bucket_would_and_denies_an_honest_caller_if_it_is_too_small() {
    let traffic = || Traffic { rate: 250, ..Traffic::default() };
    let run = |size: &str, others| {
        let sketch = format!("SKETCH 10 10 20s SIZE {size}");
        let mut scene = Scene::new(asked(&["TOKENBUCKET 10 10 20s", &sketch], traffic())).unwrap();
        scene.change(Changed { others: Some(others), ..Changed::default() }).unwrap();
        let passed = admitted(&mut scene, 60);
        (passed, self::others(&scene.step(Span::MILLISECOND).unwrap()).1)
    };
    // A call each four seconds, of ten in twenty.
    assert_eq!(run("64kb", 0), (vec![15, 15], 0));
    assert_eq!(run("512kb", 5000), (vec![15, 15], 0));
    let (passed, denied) = run("64kb", 5000);
    assert_eq!(passed[0], 15);
    assert!(passed[1] < 15 && denied > 1000, "{passed:?} and {denied}");
}

#[test]
fn a_scene_goes_as_fast_as_it_is_told_and_stands_when_it_is_told_to() {
    let mut scene = Scene::new(asked(&["FIXED 10 10s"], Traffic::default())).unwrap();
    let now = |told: Option<Value>| told.unwrap()["now"].as_u64().unwrap();
    assert_eq!(now(scene.step(Span::MILLISECOND.times(50))), 50_000);
    scene.change(Changed { speed: Some(1000), ..Changed::default() }).unwrap();
    assert_eq!(now(scene.step(Span::MILLISECOND.times(50))), 550_000);
    scene.change(Changed { speed: Some(0), ..Changed::default() }).unwrap();
    // What has changed is told once, and a click is always answered.
    assert_eq!(now(scene.step(Span::MILLISECOND.times(50))), 550_000);
    assert!(scene.step(Span::MILLISECOND.times(50)).is_none());
    scene.change(Changed { calls: 3, ..Changed::default() }).unwrap();
    let told = scene.step(Span::MILLISECOND.times(50)).unwrap();
    assert_eq!(told["calls"], json!([[550_000, [0]], [550_000, [0]], [550_000, [0]]]));
    assert_eq!(told["lanes"][0]["left"], 7.0);
}

#[test]
fn a_change_that_is_wrong_changes_nothing() {
    let mut scene = Scene::new(asked(&["FIXED 10 10s"], Traffic::default())).unwrap();
    let limits = |limits: &[&str]| Some(limits.iter().map(|words| (*words).to_owned()).collect());
    for wrong in [
        Changed { limits: limits(&["FIXED 20 10s", "FIXED x 10s"]), ..Changed::default() },
        Changed { limits: limits(&[]), ..Changed::default() },
        Changed { limits: limits(&["FIXED 1 1s"; 9]), ..Changed::default() },
        Changed { limits: limits(&["FIXED 20 10s"]), speed: Some(2001), ..Changed::default() },
        Changed { limits: limits(&["FIXED 20 10s"]), hold: Some(u32::MAX), ..Changed::default() },
        Changed { limits: limits(&["FIXED 20 10s"]), others: Some(10_001), ..Changed::default() },
        Changed { limits: limits(&["SKETCH 5 5 1s", "SKETCH 5 5 1s"]), ..Changed::default() },
        Changed { limits: limits(&["SKETCH 5 5 1s SIZE 256mb"]), ..Changed::default() },
        Changed {
            limits: limits(&["FIXED 20 10s"]),
            traffic: Some(Traffic { cost: 0, ..Traffic::default() }),
            ..Changed::default()
        },
    ] {
        assert!(scene.change(wrong).is_err());
        assert_eq!(scene.limits(), ["FIXED 10 10s"]);
    }
    scene.change(Changed { limits: limits(&["fixed 20 10s", "sliding 5 1m strict"]), ..Changed::default() }).unwrap();
    assert_eq!(scene.limits(), ["FIXED 20 10s", "SLIDING 5 1m STRICT"]);
}
