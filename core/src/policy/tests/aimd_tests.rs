//! Relative changes of a policy's factor by MUL and ADD.

use super::*;

fn multiply(multiplier: &str) -> Scaling {
    let step = ScaleStep::Multiply { multiplier: factor(multiplier), min: factor("0.01") };
    Scaling { step, every: None, duration: None }
}

fn add(step: &str) -> Scaling {
    Scaling { step: ScaleStep::Add { step: factor(step), max: Amount::ONE }, every: None, duration: None }
}

fn seconds(seconds: u64) -> Option<Period> {
    Period::new(Span::SECOND.times(seconds))
}

/// Creates a table with a policy that has never been scaled.
fn unscaled() -> Table {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE_LIMIT, at(0));
    table
}

/// Applies a change at `now`. Returns the factor, the seconds left, and `true` if the scale changed.
fn step(table: &mut Table, scaling: Scaling, now: u64) -> (String, Option<u64>, bool) {
    let ScaleOutcome { facts, changed } = table.scale(b"pro", scaling, at(now)).unwrap();
    (facts.scale.to_string(), facts.scale_left.map(|time_left| time_left.micros() / 1_000_000), changed)
}

fn factor_after(table: &mut Table, scaling: Scaling, now: u64) -> String {
    let (factor, _, changed) = step(table, scaling, now);
    assert!(changed);
    factor
}

#[test]
fn mul_and_add_change_the_current_factor() {
    let mut table = unscaled();
    assert_eq!(factor_after(&mut table, multiply("0.5"), 1), "0.5");
    assert_eq!(factor_after(&mut table, multiply("0.7"), 1), "0.35");
    assert_eq!(factor_after(&mut table, add("0.1"), 2), "0.45");
    assert_eq!(table.policy("pro", at(2)).unwrap(), "TOKENBUCKET 27 27 1m");
    // Rounding is down to a millionth.
    assert_eq!(factor_after(&mut table, multiply("0.333333"), 3), "0.149999");
    assert_eq!(factor_after(&mut table, multiply("1"), 3), "0.149999");
}

#[test]
fn mul_and_add_stop_at_their_bounds_and_leave_a_factor_beyond() {
    let mut table = unscaled();
    assert_eq!(factor_after(&mut table, add("0.5"), 1), "1");
    assert_eq!(factor_after(&mut table, multiply("0"), 2), "0.01");
    assert_eq!(factor_after(&mut table, multiply("0"), 2), "0.01");
    let to_zero =
        Scaling { step: ScaleStep::Multiply { multiplier: Amount::ZERO, min: Amount::ZERO }, ..multiply("0") };
    assert_eq!(factor_after(&mut table, to_zero, 3), "0");
    assert_eq!(factor_after(&mut table, multiply("0.5"), 3), "0", "already below the bound");
    assert_eq!(factor_after(&mut table, add("5"), 4), "1");
    let up_to_three = Scaling { step: ScaleStep::Add { step: factor("5"), max: factor("3") }, ..add("5") };
    assert_eq!(factor_after(&mut table, up_to_three, 4), "3");
    assert_eq!(factor_after(&mut table, add("5"), 5), "3", "already above the bound");
    assert_eq!(factor_after(&mut table, multiply("0.5"), 5), "1.5");
}

#[test]
fn changes_within_every_are_ignored() {
    let mut table = unscaled();
    let brake = Scaling { every: seconds(10), ..multiply("0.5") };
    assert_eq!(factor_after(&mut table, brake, 1), "0.5");
    let entry = |table: &Table| table.slots.get(b"pro").unwrap().entry.clone();
    let before = entry(&table);
    for second in (0..99).map(|worker| 1 + worker / 10) {
        assert_eq!(step(&mut table, brake, second), ("0.5".to_owned(), None, false));
    }
    assert_eq!(entry(&table), before, "nothing is written");
    assert_eq!(factor_after(&mut table, brake, 11), "0.25");
    // Each word has an interval of its own, and a call without EVERY is never ignored.
    let push = Scaling { every: seconds(10), ..add("0.05") };
    assert_eq!(factor_after(&mut table, push, 11), "0.3");
    assert!(!step(&mut table, push, 20).2);
    assert_eq!(factor_after(&mut table, add("0.05"), 20), "0.35");
    assert!(!step(&mut table, push, 29).2, "the call without EVERY restarts the interval");
    assert_eq!(factor_after(&mut table, push, 30), "0.4");
}

#[test]
fn change_at_the_bound_starts_the_interval() {
    let mut table = unscaled();
    let push = Scaling { every: seconds(10), ..add("0.5") };
    assert_eq!(factor_after(&mut table, push, 1), "1");
    assert_eq!(factor_after(&mut table, multiply("0.5"), 2), "0.5");
    assert!(!step(&mut table, push, 10).2);
    assert_eq!(factor_after(&mut table, push, 11), "1");
}

#[test]
fn change_without_for_keeps_the_end_of_the_scale() {
    let mut table = unscaled();
    table.must_scale("pro", "0.5", Some(60), at(0));
    assert_eq!(step(&mut table, multiply("0.5"), 10), ("0.25".to_owned(), Some(50), true));
    assert_eq!(
        step(&mut table, Scaling { duration: seconds(90), ..add("0.1") }, 20),
        ("0.35".to_owned(), Some(90), true)
    );
    let ignored = Scaling { every: seconds(60), duration: seconds(500), ..add("0.1") };
    assert_eq!(
        step(&mut table, ignored, 30),
        ("0.35".to_owned(), Some(80), false),
        "FOR of an ignored change has no effect"
    );
    assert_eq!(table.policy("pro", at(110)).unwrap(), MINUTE_LIMIT);
    // A scale without an end stays without one.
    assert_eq!(step(&mut table, multiply("0.5"), 110), ("0.5".to_owned(), None, true));
}

#[test]
fn end_of_scale_and_plain_factor_reset_the_interval() {
    let mut table = unscaled();
    let brake = Scaling { every: seconds(3600), duration: seconds(60), ..multiply("0.5") };
    assert_eq!(step(&mut table, brake, 0), ("0.5".to_owned(), Some(60), true));
    assert_eq!(step(&mut table, brake, 59), ("0.5".to_owned(), Some(1), false));
    assert_eq!(step(&mut table, brake, 60), ("0.5".to_owned(), Some(60), true), "applied to the factor 1");
    table.must_scale("pro", "0.8", None, at(61));
    let record = String::from_utf8(table.record(b"pro", at(61)).unwrap()).unwrap();
    assert!(record.starts_with("rl-policy 1 "), "the record has the first form");
    assert_eq!(step(&mut table, brake, 61), ("0.4".to_owned(), Some(60), true));
    // A scale of a former policy of the same name does not count.
    assert!(table.delete(b"pro", at(62)).unwrap());
    table.must_set("pro", MINUTE_LIMIT, at(63));
    assert_eq!(step(&mut table, brake, 63), ("0.5".to_owned(), Some(60), true));
}

#[test]
fn replicated_change_starts_the_interval_for_any_clock() {
    let brake = Scaling { every: seconds(10), ..multiply("0.5") };
    for receiver in [100, 109, 91, 110, 18_100, 1] {
        let mut here = Table::of_node(1);
        here.must_set("pro", MINUTE_LIMIT, at(50));
        assert_eq!(factor_after(&mut here, brake, 100), "0.5");
        let mut there = Table::of_node(2);
        there.receive(&here.record(b"pro", at(100)).unwrap(), at(receiver));
        let (factor, _, changed) = step(&mut there, brake, receiver);
        assert_eq!((factor.as_str(), changed), ("0.5", false), "{receiver}");
        // The ignored change is not replicated.
        here.receive(&there.record(b"pro", at(receiver)).unwrap(), at(100));
        assert_eq!(here.digests(), there.digests());
    }
}

#[test]
fn setting_the_policy_keeps_the_interval() {
    let mut table = unscaled();
    let brake = Scaling { every: seconds(10), ..multiply("0.5") };
    assert_eq!(factor_after(&mut table, brake, 1), "0.5");
    table.must_set("pro", HOUR_LIMIT, at(2));
    assert_eq!(step(&mut table, brake, 3), ("0.5".to_owned(), None, false));
    // The interval survives a restart.
    let mut loaded = Table::of_node(1);
    loaded.merge(&table.record(b"pro", at(3)).unwrap(), Origin::Disk, at(4));
    assert_eq!(step(&mut loaded, brake, 4), ("0.5".to_owned(), None, false));
    assert_eq!(factor_after(&mut loaded, brake, 11), "0.25");
}

#[test]
fn mul_and_add_are_parsed() {
    let parse = |text: &str| {
        let words: Vec<&[u8]> = std::iter::once("RL.POLICYSCALE").chain(text.split(' ')).map(str::as_bytes).collect();
        Scaling::parse(&mut Args::new(&words))
    };
    let minute = Period::parse(b"1m");
    let mul = |multiplier: &str, min: &str| ScaleStep::Multiply { multiplier: factor(multiplier), min: factor(min) };
    let add = |step: &str, max: &str| ScaleStep::Add { step: factor(step), max: factor(max) };
    for (text, expected) in [
        ("MUL 0.5", Scaling { step: mul("0.5", "0.01"), every: None, duration: None }),
        ("mul 1 min 0", Scaling { step: mul("1", "0"), every: None, duration: None }),
        ("MUL 0 MIN 1000", Scaling { step: mul("0", "1000"), every: None, duration: None }),
        ("MUL 0.7 EVERY 1m", Scaling { step: mul("0.7", "0.01"), every: minute, duration: None }),
        ("MUL 0.7 FOR 1m EVERY 60 MIN 0.1", Scaling { step: mul("0.7", "0.1"), every: minute, duration: minute }),
        ("ADD 0.000001", Scaling { step: add("0.000001", "1"), every: None, duration: None }),
        ("ADD 1000 MAX 1000", Scaling { step: add("1000", "1000"), every: None, duration: None }),
        ("ADD 0.1 FOR 1m MAX 2 EVERY 1m", Scaling { step: add("0.1", "2"), every: minute, duration: minute }),
    ] {
        assert_eq!(parse(text), Ok(expected), "{text}");
    }
    let usage = "[EVERY duration] [FOR duration]";
    for (text, error) in [
        ("MUL", format!("ERR factor is missing: MUL factor [MIN least] {usage}")),
        ("ADD", format!("ERR step is missing: ADD step [MAX most] {usage}")),
        ("MUL 1.1", "ERR factor must be a number from 0 to 1, such as 0.7, not '1.1'".to_owned()),
        ("MUL 1.0000001", "ERR factor must be a number from 0 to 1, such as 0.7, not '1.0000001'".to_owned()),
        ("MUL EVERY 1s", "ERR factor must be a number such as 0.7, not 'EVERY'".to_owned()),
        ("MUL 0.5 MIN", format!("ERR least is missing: MUL factor [MIN least] {usage}")),
        ("MUL 0.5 MIN -1", "ERR least must be a number from 0 to 1000, such as 0.05, not '-1'".to_owned()),
        ("ADD 0", "ERR step must be a number from 0.000001 to 1000, such as 0.05, not '0'".to_owned()),
        ("ADD 0.0000001", "ERR step must be a number from 0.000001 to 1000, such as 0.05, not '0.0000001'".to_owned()),
        ("ADD 1001", "ERR step must be a number from 0.000001 to 1000, such as 0.05, not '1001'".to_owned()),
        ("ADD 1 MAX 1001", "ERR most must be a number from 0 to 1000, such as 1, not '1001'".to_owned()),
        ("ADD 1 EVERY 0", "ERR duration must be a duration from 1us to 3650d, such as 1s, not '0'".to_owned()),
        ("ADD 1 EVERY", "ERR duration is missing: EVERY duration".to_owned()),
        ("ADD 1 FOR 1w", "ERR duration must be a duration such as 10m, not '1w' (units: us ms s m h d)".to_owned()),
        ("ADD 1 EVERY 1s EVERY 1s", "ERR syntax error, unexpected 'EVERY', which is given twice".to_owned()),
        ("ADD 1 FOR 1s FOR 1s", "ERR syntax error, unexpected 'FOR', which is given twice".to_owned()),
        ("ADD 1 MAX 1 MAX 1", "ERR syntax error, unexpected 'MAX', which is given twice".to_owned()),
        ("ADD 1 MIN 1", "ERR syntax error, unexpected 'MIN', where an option is needed: MAX, EVERY or FOR".to_owned()),
        (
            "MUL 1 EVRY 1s",
            "ERR syntax error, unexpected 'EVRY', where an option is needed: MIN, EVERY or FOR; did you mean EVERY?"
                .to_owned(),
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), error, "{text}");
    }
}

const HOUR_SECONDS: u64 = 3600;

#[test]
fn promoted_replica_with_corrected_clock_respects_every() {
    let brake = Scaling { every: seconds(HOUR_SECONDS), ..multiply("0.5") };
    for origin in [Origin::Primary, Origin::Peer] {
        let (mut primary, mut replica) = (unscaled(), Table::of_node(2));
        assert_eq!(factor_after(&mut primary, brake, 60), "0.5");
        replica.merge(&primary.record(b"pro", at(60)).unwrap(), origin, at(60 + 5 * HOUR_SECONDS));
        replica.read_clock(at(120 + 5 * HOUR_SECONDS));
        // The clock of the replica is corrected.
        assert_eq!(step(&mut replica, brake, 120), ("0.5".to_owned(), None, false));
        assert_eq!(step(&mut replica, brake, 60 + HOUR_SECONDS - 1), ("0.5".to_owned(), None, false));
        assert_eq!(factor_after(&mut replica, brake, 60 + HOUR_SECONDS), "0.25");
    }
}

#[test]
fn record_contains_the_steady_time_since_a_change() {
    let brake = Scaling { every: seconds(HOUR_SECONDS), ..multiply("0.5") };
    let (mut primary, mut replica) = (unscaled(), Table::of_node(2));
    assert_eq!(factor_after(&mut primary, brake, 60), "0.5");
    // The replica receives the record after half of the interval, and its clock shows another day.
    let record = primary.record(b"pro", at(60 + HOUR_SECONDS / 2)).unwrap();
    replica.merge(&record, Origin::Primary, at(86_400));
    assert!(!step(&mut replica, brake, 86_400 + HOUR_SECONDS / 2 - 1).2);
    assert_eq!(factor_after(&mut replica, brake, 86_400 + HOUR_SECONDS / 2), "0.25");
    // A loaded record uses the longer of the stored time and the time by the clock.
    for (loaded, now) in [(0, HOUR_SECONDS / 2), (60 + HOUR_SECONDS - 1, 60 + HOUR_SECONDS)] {
        let mut disk = Table::of_node(1);
        disk.merge(&record, Origin::Disk, at(loaded));
        assert!(!step(&mut disk, brake, now - 1).2, "{loaded}");
        assert_eq!(factor_after(&mut disk, brake, now), "0.25");
    }
}

#[test]
fn change_by_one_word_keeps_the_interval_of_the_other() {
    let brake = Scaling { every: seconds(HOUR_SECONDS), ..multiply("0.5") };
    let mut table = unscaled();
    assert_eq!(factor_after(&mut table, brake, 5 * HOUR_SECONDS), "0.5");
    // The clock is set back by four hours. Pushes half an hour and an hour later do not restart the interval of MUL.
    assert_eq!(factor_after(&mut table, add("0.1"), HOUR_SECONDS), "0.6");
    assert_eq!(factor_after(&mut table, add("0.1"), HOUR_SECONDS + HOUR_SECONDS / 2), "0.7");
    assert!(!step(&mut table, brake, 2 * HOUR_SECONDS - 1).2);
    assert_eq!(factor_after(&mut table, brake, 2 * HOUR_SECONDS), "0.35");
}
