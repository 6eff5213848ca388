//! Scales with a duration, which end after that time on every server, even if its clock is wrong.

use super::*;

const DAY: u64 = 86_400;
/// Limit of a minute, scaled by 0.5.
const HALF_LIMIT: &str = "TOKENBUCKET 30 30 1m";

/// Creates a table with a policy that is scaled by 0.5 for a minute, `seconds` after the start.
fn scaled_at(seconds: u64) -> Table {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE_LIMIT, at(seconds));
    table.must_scale("pro", "0.5", Some(60), at(seconds));
    table
}

/// Returns the seconds until the scale ends. Checks that calls use the scaled limit until then.
fn seconds_left(table: &Table, now: Timestamp) -> Option<u64> {
    let facts = table.get(b"pro", now).unwrap();
    let scaled = table.policy("pro", now).unwrap();
    assert_eq!(scaled == HALF_LIMIT, facts.scale != Amount::ONE);
    facts.scale_left.map(|time_left| time_left.micros() / 1_000_000)
}

#[test]
fn clock_step_back_does_not_extend_a_scale() {
    for is_read_by_tick in [true, false] {
        let table = scaled_at(DAY);
        assert_eq!(seconds_left(&table, at(DAY + 20)), Some(40));
        // The periodic tick or a call notices the step.
        if is_read_by_tick {
            table.read_clock(at(100));
        } else {
            assert_eq!(table.policy("pro", at(100)), Ok(HALF_LIMIT.to_owned()));
        }
        assert_eq!(seconds_left(&table, at(100)), Some(40));
        assert_eq!(seconds_left(&table, at(139)), Some(1));
        assert_eq!(seconds_left(&table, at(140)), None);
        assert_eq!(table.policy("pro", at(140)), Ok(MINUTE_LIMIT.to_owned()));
        // Setting the clock back once more does not restore the scale.
        assert_eq!(seconds_left(&table, at(0)), None);
    }
}

#[test]
fn time_continues_from_the_last_clock_reading() {
    let table = scaled_at(DAY);
    assert_eq!(seconds_left(&table, at(DAY + 20)), Some(40));
    // The clock goes back and forth by a day, so that a day has passed in steady time.
    table.read_clock(at(100));
    assert_eq!(seconds_left(&table, at(DAY + 20)), None);
}

#[test]
fn receiver_continues_from_the_time_left_at_the_sender() {
    for clock in [0, DAY - 3600, DAY, DAY + 10, 2 * DAY] {
        for origin in [Origin::Peer, Origin::Primary] {
            let sender = scaled_at(DAY);
            let record = sender.record(b"pro", at(DAY + 20)).unwrap();
            let mut receiver = Table::of_node(2);
            if Horizon::of(at(clock)).covers(Stamp { at: at(DAY).micros() + 1, node: 1 }) || origin == Origin::Primary {
                assert_eq!(receiver.merge(&record, origin, at(clock)), MergeOutcome::Changed);
                assert_eq!(seconds_left(&receiver, at(clock)), Some(40), "{clock} {origin:?}");
                assert_eq!(seconds_left(&receiver, at(clock + 39)), Some(1));
                assert_eq!(seconds_left(&receiver, at(clock + 40)), None);
                assert_eq!(sender.digests(), receiver.digests());
            }
        }
    }
}

#[test]
fn time_left_never_grows_when_it_is_forwarded() {
    let sender = scaled_at(0);
    let mut receiver = Table::of_node(2);
    receiver.receive(&sender.record(b"pro", at(20)).unwrap(), at(20));
    // A delayed record changes nothing, because its content is known.
    assert_eq!(receiver.receive(&sender.record(b"pro", at(20)).unwrap(), at(50)), MergeOutcome::Unchanged);
    assert_eq!(seconds_left(&receiver, at(50)), Some(10));
    let mut last = Table::of_node(3);
    last.receive(&receiver.record(b"pro", at(50)).unwrap(), at(3600));
    assert_eq!(seconds_left(&last, at(3600)), Some(10));
    // A scale that has ended at the sender has also ended at the receiver.
    let record = receiver.record(b"pro", at(70)).unwrap();
    let mut late = Table::of_node(4);
    late.receive(&record, at(0));
    assert_eq!(seconds_left(&late, at(0)), None);
    assert_eq!(late.digests(), sender.digests());
}

#[test]
fn replica_adopts_the_time_left_of_each_record_from_its_primary() {
    let mut primary = scaled_at(0);
    let mut replica = Table::of_node(2);
    replica.merge(&primary.record(b"pro", at(0)).unwrap(), Origin::Primary, at(500));
    assert_eq!(seconds_left(&replica, at(510)), Some(50));
    replica.merge(&primary.record(b"pro", at(20)).unwrap(), Origin::Primary, at(505));
    assert_eq!([505, 544, 545].map(|now| seconds_left(&replica, at(now))), [Some(40), Some(1), None]);
    primary.must_set("pro", MINUTE_LIMIT, at(30));
    replica.merge(&primary.record(b"pro", at(30)).unwrap(), Origin::Primary, at(510));
    assert_eq!(seconds_left(&replica, at(510)), Some(30));
}

#[test]
fn loaded_scale_ends_by_the_clock_after_at_most_the_time_left() {
    // The record is stored with 40 seconds left.
    let record = scaled_at(DAY).record(b"pro", at(DAY + 20)).unwrap();
    let loaded = |clock| {
        let mut table = Table::of_node(1);
        table.merge(&record, Origin::Disk, at(clock));
        seconds_left(&table, at(clock))
    };
    assert_eq!([DAY + 20, DAY + 50, DAY + 59].map(loaded), [Some(40), Some(10), Some(1)]);
    assert_eq!([DAY + 60, DAY + 3600].map(loaded), [None, None]);
    // After the clock was set back, at most the stored 40 seconds are left.
    assert_eq!([DAY, DAY - 3600, 0].map(loaded), [Some(40); 3]);
}

#[test]
fn ended_scale_stays_ended_after_restart_with_clock_set_back() {
    let record = scaled_at(DAY).record(b"pro", at(DAY + 60)).unwrap();
    let mut table = Table::of_node(1);
    table.merge(&record, Origin::Disk, at(0));
    assert_eq!(seconds_left(&table, at(0)), None);
}

#[test]
fn record_without_a_scale_that_ends_has_the_first_form() {
    let identity = |table: &Table| table.slots.get(b"pro").unwrap().entry.identity().as_bytes().to_vec();
    // Setting the policy keeps the scale, and another scale replaces it.
    let mut table = scaled_at(DAY);
    table.must_set("pro", MINUTE_LIMIT, at(DAY + 10));
    assert!(identity(&table).starts_with(b"rl-policy 2 "));
    table.must_scale("pro", "0.5", None, at(DAY + 20));
    assert!(identity(&table).starts_with(b"rl-policy 1 "));
    assert_eq!(seconds_left(&table, at(100 * DAY)), None);
}
