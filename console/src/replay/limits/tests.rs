use super::*;

fn scaled(text: &str, steps: u64) -> String {
    Limits::parse(text).unwrap().scale().unwrap().at(steps).unwrap().to_string()
}

#[test]
fn only_numbers_of_limits_are_scaled_by_the_largest() {
    assert_eq!(scaled("FIXED 100 1m", 43), "FIXED 43 1m");
    assert_eq!(scaled("tokenbucket 200 100 60s", 67), "TOKENBUCKET 67 33.5 1m");
    assert_eq!(scaled("TOKENBUCKET 3 1 1s", 1), "TOKENBUCKET 1 0.333334 1s");
    assert_eq!(scaled("FIXED 0.5 1s", 3), "FIXED 0.3 1s");
    assert_eq!(
        scaled("FIXED 10 1s AS fixed COST 5 SLIDING 100 1h STRICT BAN 10 1h 1d", 43),
        "FIXED 5 1s COST 5 AS fixed SLIDING 43 1h STRICT BAN 10 1h 1d"
    );
    assert_eq!(
        scaled("FIXED 10 1mo ALIGNED OFFSET +09:00 ANCHOR 3", 20),
        "FIXED 20 1mo ALIGNED OFFSET +09:00 ANCHOR 3"
    );
}

#[test]
fn limit_in_shadow_mode_is_not_scaled_and_others_can_be_scaled_alone() {
    let limits = Limits::parse("TOKENBUCKET 8 4 1s SLIDING 100 1h SHADOW FIXED 10 1d").unwrap();
    let together = limits.scale().unwrap();
    assert_eq!(together.steps, 10);
    assert_eq!(together.at(5).unwrap().to_string(), "TOKENBUCKET 4 2 1s SLIDING 100 1h SHADOW FIXED 5 1d");
    assert_eq!(limits.count(), 3);
    let alone = |limit: usize| limits.scale_of_limit(limit).map(|scale| scale.at(2).unwrap().to_string());
    assert_eq!(alone(0).unwrap(), "TOKENBUCKET 2 1 1s SLIDING 100 1h SHADOW FIXED 10 1d");
    assert_eq!(alone(1), None);
    assert_eq!(alone(2).unwrap(), "TOKENBUCKET 8 4 1s SLIDING 100 1h SHADOW FIXED 2 1d");
}

#[test]
fn step_is_the_last_decimal_of_the_largest_number() {
    let steps = |text: &str| Limits::parse(text).unwrap().scale().map(|scale| scale.steps);
    assert_eq!(steps("FIXED 100 1m"), Some(100));
    assert_eq!(steps("FIXED 2.50 1m"), Some(25));
    assert_eq!(steps("TOKENBUCKET 0.25 1 1m"), Some(25));
    assert_eq!(steps("FIXED 0 1m"), None);
    let scale = Limits::parse("FIXED 2.5 1m").unwrap().scale().unwrap();
    assert!(scale.at(u64::MAX).is_none());
}

#[test]
fn limits_that_cannot_be_replayed_are_rejected() {
    let error = |text: &str| Limits::parse(text).and_then(|limits| limits.request().map(|_| ())).unwrap_err();
    assert!(error("FIXED 10 1m CONCURRENCY 3 1m").starts_with("CONCURRENCY cannot be replayed"));
    let sketch = error("sketch 10 5 1m SIZE 2mb");
    assert!(sketch.starts_with("SKETCH cannot be replayed") && sketch.contains("TOKENBUCKET 10 5 1m,"), "{sketch}");
    assert!(error("FIXED ten 1m").contains("limit must be"), "{}", error("FIXED ten 1m"));
    assert!(!error("").is_empty());
}
