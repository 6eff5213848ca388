//! A scale that is for a time ends after that time on every server, whatever its clock.

use super::*;

const DAY: u64 = 86_400;
const HALF: &str = "TOKENBUCKET 30 30 1m";

/// A policy that is scaled for a minute from then on.
fn scaled(when: u64) -> Table {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE, at(when));
    table.must_scale("pro", "0.5", Some(60), at(when));
    table
}

fn left(table: &Table, now: Timestamp) -> Option<u64> {
    let facts = table.get(b"pro", now).unwrap();
    let scaled = table.ruling("pro", now).unwrap();
    assert_eq!(scaled == HALF, facts.scale != Amount::ONE);
    facts.scale_left.map(|left| left.micros() / 1_000_000)
}

#[test]
fn a_clock_that_is_set_back_moves_the_end_along() {
    for notice in [true, false] {
        let table = scaled(DAY);
        assert_eq!(left(&table, at(DAY + 20)), Some(40));
        // A call, or the second's tick, notices.
        if notice {
            table.notice(at(100));
        } else {
            assert_eq!(table.ruling("pro", at(100)), Ok(HALF.to_owned()));
        }
        assert_eq!(left(&table, at(100)), Some(40));
        assert_eq!(left(&table, at(139)), Some(1));
        assert_eq!(left(&table, at(140)), None);
        assert_eq!(table.ruling("pro", at(140)), Ok(MINUTE.to_owned()));
        // Back once more: it is over.
        assert_eq!(left(&table, at(0)), None);
    }
}

#[test]
fn time_counts_from_where_the_clock_was_noticed() {
    let table = scaled(DAY);
    assert_eq!(left(&table, at(DAY + 20)), Some(40));
    // The clock goes a day back and forth again, and a day counts as passed.
    table.notice(at(100));
    assert_eq!(left(&table, at(DAY + 20)), None);
}

#[test]
fn a_receiver_counts_on_by_its_own_clock_from_what_the_sender_has_left() {
    for clock in [0, DAY - 3600, DAY, DAY + 10, 2 * DAY] {
        for origin in [Origin::Peer, Origin::Primary] {
            let sender = scaled(DAY);
            let record = sender.record(b"pro", at(DAY + 20)).unwrap();
            let mut receiver = Table::of_node(2);
            if Horizon::of(at(clock)).covers(Stamp { at: at(DAY).micros() + 1, node: 1 }) || origin == Origin::Primary {
                assert_eq!(receiver.merge(&record, origin, at(clock)), Merged::Changed);
                assert_eq!(left(&receiver, at(clock)), Some(40), "{clock} {origin:?}");
                assert_eq!(left(&receiver, at(clock + 39)), Some(1));
                assert_eq!(left(&receiver, at(clock + 40)), None);
                assert_eq!(sender.digests(), receiver.digests());
            }
        }
    }
}

#[test]
fn what_is_left_goes_from_server_to_server_and_never_grows() {
    let sender = scaled(0);
    let mut receiver = Table::of_node(2);
    receiver.hear(&sender.record(b"pro", at(20)).unwrap(), at(20));
    // An older message comes late: what it says is known already.
    assert_eq!(receiver.hear(&sender.record(b"pro", at(20)).unwrap(), at(50)), Merged::Unchanged);
    assert_eq!(left(&receiver, at(50)), Some(10));
    let mut last = Table::of_node(3);
    last.hear(&receiver.record(b"pro", at(50)).unwrap(), at(3600));
    assert_eq!(left(&last, at(3600)), Some(10));
    // Once it is over it stays over, for who hears of it then too.
    let record = receiver.record(b"pro", at(70)).unwrap();
    let mut late = Table::of_node(4);
    late.hear(&record, at(0));
    assert_eq!(left(&late, at(0)), None);
    assert_eq!(late.digests(), sender.digests());
}

#[test]
fn a_replica_follows_its_primary_whenever_that_says_more_of_the_policy() {
    let mut primary = scaled(0);
    let mut replica = Table::of_node(2);
    replica.merge(&primary.record(b"pro", at(0)).unwrap(), Origin::Primary, at(500));
    assert_eq!(left(&replica, at(510)), Some(50));
    replica.merge(&primary.record(b"pro", at(20)).unwrap(), Origin::Primary, at(505));
    assert_eq!([505, 544, 545].map(|now| left(&replica, at(now))), [Some(40), Some(1), None]);
    primary.must_set("pro", MINUTE, at(30));
    replica.merge(&primary.record(b"pro", at(30)).unwrap(), Origin::Primary, at(510));
    assert_eq!(left(&replica, at(510)), Some(30));
}

#[test]
fn from_disk_it_is_what_is_left_until_the_end_and_never_more_than_the_duration() {
    // Written when there were 40 seconds left.
    let record = scaled(DAY).record(b"pro", at(DAY + 20)).unwrap();
    let loaded = |clock| {
        let mut table = Table::of_node(1);
        table.merge(&record, Origin::Disk, at(clock));
        left(&table, at(clock))
    };
    assert_eq!([DAY + 20, DAY + 50, DAY + 59].map(loaded), [Some(40), Some(10), Some(1)]);
    assert_eq!([DAY + 60, DAY + 3600].map(loaded), [None, None]);
    // A clock that was put back meanwhile shows an earlier time, and there are no more than 40 left.
    assert_eq!([DAY, DAY - 3600, 0].map(loaded), [Some(40); 3]);
}

#[test]
fn a_scale_that_has_ended_does_not_act_again_after_a_restart_with_a_clock_put_back() {
    let record = scaled(DAY).record(b"pro", at(DAY + 60)).unwrap();
    let mut table = Table::of_node(1);
    table.merge(&record, Origin::Disk, at(0));
    assert_eq!(left(&table, at(0)), None);
}

/// Without a scale that ends, it is as the first version of the module wrote it.
#[test]
fn a_scale_of_the_first_version_ends_when_it_says_and_lasts_no_longer_than_it_can_have_been() {
    let (set, until) = (at(DAY).micros(), at(DAY + 60).micros());
    let record = format!("rl-policy 1 3:pro {set} 7 {set} 7 1 1 20:{MINUTE} {} 7 500000 {until}", set + 1);
    for origin in [Origin::Peer, Origin::Primary, Origin::Disk] {
        let heard = |clock| {
            let mut table = Table::of_node(1);
            assert_eq!(table.merge(record.as_bytes(), origin, at(clock)), Merged::Changed);
            assert_eq!(table.record(b"pro", at(clock)).unwrap(), record.as_bytes(), "it is passed on as it was");
            left(&table, at(clock))
        };
        assert_eq!([DAY + 20, DAY + 60, DAY + 90].map(heard), [Some(40), None, None]);
        assert_eq!([DAY, 3600].map(heard), [Some(59); 2]);
    }
    let written = |table: &Table| table.slots.get(b"pro").unwrap().entry.identity().as_bytes().to_vec();
    // A set keeps it, and another scale takes its place.
    let mut table = Table::of_node(1);
    table.hear(record.as_bytes(), at(DAY));
    table.must_set("pro", MINUTE, at(DAY + 10));
    assert!(written(&table).starts_with(b"rl-policy 1 "));
    assert_eq!(left(&table, at(DAY + 10)), Some(49));
    table.must_scale("pro", "0.5", Some(90), at(DAY + 10));
    assert!(written(&table).starts_with(b"rl-policy 2 "));
    table.must_scale("pro", "0.5", None, at(DAY + 20));
    assert!(written(&table).starts_with(b"rl-policy 1 "));
    assert_eq!(left(&table, at(100 * DAY)), None);
}
