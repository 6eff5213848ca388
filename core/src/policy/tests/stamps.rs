//! Stamps that are further ahead than a day: none of them keeps anybody from changing what it marks.

use super::*;

const DAY: u64 = 86_400;

/// The last stamp that a record may have, on a policy named gold that has no other.
fn forged(at: u64) -> Vec<u8> {
    format!("rl-policy 1 4:gold {at} 9 {at} 9 1 1 11:FIXED 0 10d {at} 9 0 0").into_bytes()
}

fn stamp_of(table: &Table, name: &str) -> u64 {
    table.slots.get(name.as_bytes()).unwrap().entry.definition.stamp.at
}

#[test]
fn no_peer_is_believed_that_is_further_ahead_than_a_day() {
    let last_believed = at(DAY).micros();
    for stamp in [last_believed + 1, Timestamp::MAX.micros()] {
        let mut table = Table::of_node(1);
        assert_eq!(table.check(&forged(stamp), at(0)), Err(Error::StampAhead));
        assert_eq!(table.hear(&forged(stamp), at(0)), Merged::Refused);
        assert_eq!((table.stamps_refused(), table.known()), (2, 0));
        table.must_set("gold", MINUTE, at(0));
        assert_eq!(table.hear(&forged(stamp), at(0)), Merged::Refused);
        assert_eq!(table.ruling("gold", at(0)), Ok(MINUTE.to_owned()));
        // Nor does it make later stamps than there were.
        assert_eq!(stamp_of(&table, "gold"), at(0).micros());
        assert_eq!(table.must_set("other", MINUTE, at(0)), version_of(0) + 1);
    }
    let mut table = Table::of_node(1);
    assert_eq!(table.check(&forged(last_believed), at(0)), Ok(()));
    assert_eq!(table.hear(&forged(last_believed), at(0)), Merged::Changed);
    assert_eq!(table.stamps_refused(), 0);
    assert_eq!(table.must_set("gold", MINUTE, at(1)), last_believed + 1);
    assert_eq!(table.ruling("gold", at(1)), Ok(MINUTE.to_owned()), "the scale was of another policy");
}

#[test]
fn of_a_record_the_register_that_is_believed_is_taken() {
    let ahead = at(2 * DAY).micros();
    let mut table = Table::of_node(1);
    table.must_set("gold", MINUTE, at(0));
    let (set, scaled) = (at(1).micros(), at(2).micros());
    let record = |stamp, scale| {
        format!("rl-policy 1 4:gold {stamp} 9 {stamp} 9 1 1 11:FIXED 0 10d {scale} 9 500000 0").into_bytes()
    };
    for (stamp, scale) in [(ahead, scaled), (set, ahead)] {
        let mut table = Table::of_node(2);
        assert_eq!(table.check(&record(stamp, scale), at(3)), Err(Error::StampAhead));
        assert_eq!(table.successor().stamps_refused(), 1);
    }
    assert_eq!(table.hear(&record(ahead, scaled), at(3)), Merged::Changed);
    assert_eq!(table.ruling("gold", at(3)), Ok("TOKENBUCKET 30 30 1m".to_owned()));
    assert_eq!(table.hear(&record(set, ahead), at(3)), Merged::Changed);
    assert_eq!(table.ruling("gold", at(3)), Ok("FIXED 0 10d".to_owned()));
    assert_eq!(table.get(b"gold", at(3)).unwrap().scale, factor("0.5"));
    assert_eq!(table.stamps_refused(), 2);
    table.assert_consistent();
}

#[test]
fn a_policy_that_is_set_again_after_the_clock_went_back_is_no_older_than_itself() {
    let (first, second, back) = (at(10 * DAY), at(10 * DAY + DAY / 2), at(9 * DAY + 1));
    for delete in [false, true] {
        let mut table = Table::of_node(1);
        table.must_set("gold", MINUTE, first);
        table.must_set("gold", HOUR, second);
        // What was set first is still believed, what was set after it is not.
        if delete {
            assert_eq!(table.delete(b"gold", back), Ok(true));
        } else {
            assert_eq!(table.must_set("gold", MINUTE, back), first.micros() + 1);
        }
        let record = table.record(b"gold", back).unwrap();
        let mut disk = Table::of_node(2);
        assert_eq!(disk.merge(&record, Origin::Disk, back), Merged::Changed);
        assert_eq!(disk.records(back).collect::<Vec<_>>(), [record]);
    }
}

/// A table of a server whose clock was ten years ahead, and is right again.
fn whose_clock_was_ahead(when: u64) -> Table {
    let mut table = Table::of_node(1);
    table.must_set("gold", MINUTE, at(0));
    table.must_set("gold", HOUR, at(when));
    table.must_scale("gold", "0.5", None, at(when));
    table.must_set("silver", HOUR, at(when));
    table.delete(b"silver", at(when)).unwrap();
    table
}

#[test]
fn a_server_whose_clock_was_ahead_recovers() {
    let mut table = whose_clock_was_ahead(3650 * DAY);
    assert_eq!(table.ruling("gold", at(10)), Ok("FIXED 500 1h".to_owned()));
    // What it is told from now on stands, with stamps of now.
    assert_eq!(table.must_set("gold", MINUTE, at(10)), version_of(10));
    assert_eq!(table.ruling("gold", at(10)), Ok("TOKENBUCKET 30 30 1m".to_owned()), "the scale stays");
    table.must_scale("gold", "2", None, at(11));
    assert_eq!(table.ruling("gold", at(11)), Ok("TOKENBUCKET 120 120 1m".to_owned()));
    assert_eq!(table.must_set("silver", MINUTE, at(12)), version_of(12));
    assert_eq!(table.ruling("silver", at(12)), Ok(MINUTE.to_owned()));
    table.assert_consistent();
    // Others believe it, and it others.
    let mut other = Table::of_node(2);
    for name in ["gold", "silver"] {
        assert_eq!(other.hear(&table.told(name).unwrap(), at(13)), Merged::Changed);
        other.must_set(name, HOUR, at(14));
        assert_eq!(table.hear(&other.told(name).unwrap(), at(15)), Merged::Changed);
    }
    assert_eq!((table.live_records(), table.digests()), (other.live_records(), other.digests()));
    assert_eq!((table.stamps_refused(), other.stamps_refused()), (0, 0));
}

#[test]
fn what_was_scaled_by_a_clock_that_was_ahead_is_scaled_deleted_and_made_anew() {
    let ahead = 3650 * DAY;
    let mut table = whose_clock_was_ahead(ahead);
    // The policy itself is stamped ahead: a scale of now is the later one, and counts.
    table.must_scale("gold", "2", None, at(1));
    assert_eq!(table.ruling("gold", at(1)), Ok("FIXED 2000 1h".to_owned()));
    // So it does on a policy that has never been set by another clock.
    table.must_set("new", MINUTE, at(ahead));
    table.must_scale("new", "2", None, at(2));
    assert_eq!(table.ruling("new", at(2)), Ok("TOKENBUCKET 120 120 1m".to_owned()));
    // One that is stamped ahead does not come back with another policy.
    let mut table = whose_clock_was_ahead(ahead);
    assert!(table.delete(b"gold", at(1)).unwrap());
    table.must_set("gold", MINUTE, at(2));
    assert_eq!(table.ruling("gold", at(2)), Ok(MINUTE.to_owned()));
    table.assert_consistent();
}

#[test]
fn the_scale_of_a_deleted_policy_does_not_act_again_when_a_clock_that_was_ahead_is_put_right() {
    let (right, ahead) = (at(0), at(2 * DAY));
    // The scale is written before the clock goes ahead, or after that.
    for (scaled, is_known_to_peers) in [(ahead, false), (right, true)] {
        let (mut table, mut peer) = (Table::of_node(1), Table::of_node(2));
        table.must_set("pro", "FIXED 10 1m", scaled);
        table.must_scale("pro", "0", None, scaled);
        if is_known_to_peers {
            peer.hear(&table.record(b"pro", right).unwrap(), right);
            assert_eq!(peer.ruling("pro", right), Ok("FIXED 0 1m".to_owned()));
        }
        table.delete(b"pro", ahead).unwrap();
        table.must_set("pro", "FIXED 10 1m", ahead);
        assert_eq!(table.ruling("pro", ahead), Ok("FIXED 10 1m".to_owned()));
        table.must_set("pro", "FIXED 20 1m", right);
        assert_eq!(table.ruling("pro", right), Ok("FIXED 20 1m".to_owned()), "{is_known_to_peers}");
        peer.hear(&table.record(b"pro", right).unwrap(), right);
        assert_eq!(peer.ruling("pro", right), Ok("FIXED 20 1m".to_owned()));
        let mut disk = Table::of_node(1);
        assert_eq!(disk.merge(&table.record(b"pro", right).unwrap(), Origin::Disk, right), Merged::Changed);
        assert_eq!(disk.ruling("pro", right), Ok("FIXED 20 1m".to_owned()));
        // A scale of the policy that stands acts.
        table.must_scale("pro", "0.5", None, right);
        assert_eq!(table.ruling("pro", right), Ok("FIXED 10 1m".to_owned()));
        assert_eq!(peer.hear(&table.record(b"pro", right).unwrap(), right), Merged::Changed);
        assert_eq!((peer.live_records(), peer.digests()), (table.live_records(), table.digests()));
    }
}

#[test]
fn peers_give_a_server_whose_clock_was_ahead_what_they_have() {
    let mut wrong = whose_clock_was_ahead(3650 * DAY);
    let mut others = Table::of_node(2);
    others.must_set("gold", MINUTE, at(5));
    let (mine, theirs) = (wrong.told("gold").unwrap(), others.told("gold").unwrap());
    assert_eq!(others.hear(&mine, at(10)), Merged::Refused);
    assert_eq!(wrong.hear(&theirs, at(10)), Merged::Changed);
    assert_eq!(wrong.live_records(), others.live_records());
    assert_eq!(wrong.ruling("gold", at(10)), Ok(MINUTE.to_owned()));
}

#[test]
fn a_server_whose_clock_is_years_behind_learns_when_that_is_mended() {
    let (mut right, mut behind) = (Table::of_node(1), Table::of_node(2));
    let now = 3650 * DAY;
    right.must_set("gold", MINUTE, at(now));
    let record = right.told("gold").unwrap();
    assert_eq!(behind.hear(&record, at(0)), Merged::Refused);
    // What it is told meanwhile holds there, and nowhere else.
    behind.must_set("gold", HOUR, at(1));
    assert_eq!(right.hear(&behind.told("gold").unwrap(), at(now)), Merged::Unchanged);
    assert_eq!(behind.hear(&record, at(now)), Merged::Changed);
    assert_eq!(behind.ruling("gold", at(now)), Ok(MINUTE.to_owned()));
    assert_eq!(right.digests(), behind.digests());
    // What the disk has brought, it can change with any clock.
    let mut behind = Table::of_node(2);
    behind.merge(&record, Origin::Disk, at(0));
    assert_eq!(behind.must_set("gold", HOUR, at(1)), version_of(1));
    assert_eq!(behind.ruling("gold", at(1)), Ok(HOUR.to_owned()));
}

#[test]
fn a_replica_takes_what_its_primary_says_and_a_load_what_the_disk_says() {
    let mut told = Table::of_node(1);
    let records: Vec<Vec<u8>> = [0, 3650 * DAY, 10, 5]
        .map(|second| {
            told.must_set("gold", &format!("FIXED {} 1h", second + 1), at(second));
            told.told("gold").unwrap()
        })
        .into();
    for origin in [Origin::Primary, Origin::Disk] {
        for clock in [0, 20, 3650 * DAY] {
            let mut table = Table::of_node(2);
            for record in &records {
                assert_eq!(table.merge(record, origin, at(clock)), Merged::Changed);
                assert_eq!(&table.told("gold").unwrap(), record);
                table.assert_consistent();
            }
            // An older one too.
            assert_eq!(table.merge(&records[0], origin, at(clock)), Merged::Changed);
            assert_eq!(table.told("gold").unwrap(), records[0]);
            assert_eq!(table.merge(&records[0], origin, at(clock)), Merged::Unchanged);
            assert_eq!(table.stamps_refused(), 0);
        }
    }
}

#[test]
fn a_stamp_that_was_ahead_and_is_no_more_is_followed_by_a_later_one() {
    let mut table = Table::of_node(1);
    table.must_set("gold", HOUR, at(2 * DAY));
    // A day and an hour later it is believed again, and what is set then is later still.
    let version = table.must_set("gold", MINUTE, at(DAY + 3600));
    assert_eq!(version, version_of(2 * DAY) + 1);
    assert_eq!(table.ruling("gold", at(DAY + 3600)), Ok(MINUTE.to_owned()));
}
