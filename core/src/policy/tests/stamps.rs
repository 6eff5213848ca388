//! Stamps that are more than a day ahead, which must not prevent later changes.

use super::*;

const DAY: u64 = 86_400;

/// Returns a record with the given stamp for a policy named gold.
fn forged(at: u64) -> Vec<u8> {
    format!("rl-policy 1 4:gold {at} 9 {at} 9 1 1 11:FIXED 0 10d {at} 9 0 0").into_bytes()
}

fn stamp_of(table: &Table, name: &str) -> u64 {
    table.slots.get(name.as_bytes()).unwrap().entry.definition.stamp.at
}

#[test]
fn record_more_than_a_day_ahead_is_rejected() {
    let last_accepted = at(DAY).micros();
    for stamp in [last_accepted + 1, Timestamp::MAX.micros()] {
        let mut table = Table::of_node(1);
        assert_eq!(table.check(&forged(stamp), at(0)), Err(Error::StampAhead));
        assert_eq!(table.receive(&forged(stamp), at(0)), MergeOutcome::Rejected);
        assert_eq!((table.stamps_refused(), table.record_count()), (2, 0));
        table.must_set("gold", MINUTE_LIMIT, at(0));
        assert_eq!(table.receive(&forged(stamp), at(0)), MergeOutcome::Rejected);
        assert_eq!(table.policy("gold", at(0)), Ok(MINUTE_LIMIT.to_owned()));
        // The rejected stamp does not advance later ones.
        assert_eq!(stamp_of(&table, "gold"), at(0).micros());
        assert_eq!(table.must_set("other", MINUTE_LIMIT, at(0)), version_of(0) + 1);
    }
    let mut table = Table::of_node(1);
    assert_eq!(table.check(&forged(last_accepted), at(0)), Ok(()));
    assert_eq!(table.receive(&forged(last_accepted), at(0)), MergeOutcome::Changed);
    assert_eq!(table.stamps_refused(), 0);
    assert_eq!(table.must_set("gold", MINUTE_LIMIT, at(1)), last_accepted + 1);
    assert_eq!(table.policy("gold", at(1)), Ok(MINUTE_LIMIT.to_owned()), "the scale belonged to a former policy");
}

#[test]
fn register_within_the_horizon_is_merged_without_the_other() {
    let ahead = at(2 * DAY).micros();
    let mut table = Table::of_node(1);
    table.must_set("gold", MINUTE_LIMIT, at(0));
    let (set, scaled) = (at(1).micros(), at(2).micros());
    let record = |stamp, scale| {
        format!("rl-policy 1 4:gold {stamp} 9 {stamp} 9 1 1 11:FIXED 0 10d {scale} 9 500000 0").into_bytes()
    };
    for (stamp, scale) in [(ahead, scaled), (set, ahead)] {
        let mut table = Table::of_node(2);
        assert_eq!(table.check(&record(stamp, scale), at(3)), Err(Error::StampAhead));
        assert_eq!(table.successor().stamps_refused(), 1);
    }
    assert_eq!(table.receive(&record(ahead, scaled), at(3)), MergeOutcome::Changed);
    assert_eq!(table.policy("gold", at(3)), Ok("TOKENBUCKET 30 30 1m".to_owned()));
    assert_eq!(table.receive(&record(set, ahead), at(3)), MergeOutcome::Changed);
    assert_eq!(table.policy("gold", at(3)), Ok("FIXED 0 10d".to_owned()));
    assert_eq!(table.get(b"gold", at(3)).unwrap().scale, factor("0.5"));
    assert_eq!(table.stamps_refused(), 2);
    table.assert_consistent();
}

#[test]
fn policy_set_after_clock_step_back_is_not_older_than_its_creation() {
    let (first, second, stepped_back) = (at(10 * DAY), at(10 * DAY + DAY / 2), at(9 * DAY + 1));
    for delete in [false, true] {
        let mut table = Table::of_node(1);
        table.must_set("gold", MINUTE_LIMIT, first);
        table.must_set("gold", HOUR_LIMIT, second);
        // The first stamp is within the horizon after the step back, and the second is not.
        if delete {
            assert_eq!(table.delete(b"gold", stepped_back), Ok(true));
        } else {
            assert_eq!(table.must_set("gold", MINUTE_LIMIT, stepped_back), first.micros() + 1);
        }
        let record = table.record(b"gold", stepped_back).unwrap();
        let mut disk = Table::of_node(2);
        assert_eq!(disk.merge(&record, Origin::Disk, stepped_back), MergeOutcome::Changed);
        assert_eq!(disk.records(stepped_back).collect::<Vec<_>>(), [record]);
    }
}

/// Creates the table of a server with a clock that was ahead by `seconds` and has been corrected.
fn table_with_stamps_ahead(seconds: u64) -> Table {
    let mut table = Table::of_node(1);
    table.must_set("gold", MINUTE_LIMIT, at(0));
    table.must_set("gold", HOUR_LIMIT, at(seconds));
    table.must_scale("gold", "0.5", None, at(seconds));
    table.must_set("silver", HOUR_LIMIT, at(seconds));
    table.delete(b"silver", at(seconds)).unwrap();
    table
}

#[test]
fn server_with_corrected_clock_recovers() {
    let mut table = table_with_stamps_ahead(3650 * DAY);
    assert_eq!(table.policy("gold", at(10)), Ok("FIXED 500 1h".to_owned()));
    // Further changes apply, with stamps of the correct time.
    assert_eq!(table.must_set("gold", MINUTE_LIMIT, at(10)), version_of(10));
    assert_eq!(table.policy("gold", at(10)), Ok("TOKENBUCKET 30 30 1m".to_owned()), "the scale stays");
    table.must_scale("gold", "2", None, at(11));
    assert_eq!(table.policy("gold", at(11)), Ok("TOKENBUCKET 120 120 1m".to_owned()));
    assert_eq!(table.must_set("silver", MINUTE_LIMIT, at(12)), version_of(12));
    assert_eq!(table.policy("silver", at(12)), Ok(MINUTE_LIMIT.to_owned()));
    table.assert_consistent();
    // The server and its peers accept each other's records.
    let mut other = Table::of_node(2);
    for name in ["gold", "silver"] {
        assert_eq!(other.receive(&table.initial_record(name).unwrap(), at(13)), MergeOutcome::Changed);
        other.must_set(name, HOUR_LIMIT, at(14));
        assert_eq!(table.receive(&other.initial_record(name).unwrap(), at(15)), MergeOutcome::Changed);
    }
    assert_eq!((table.live_records(), table.digests()), (other.live_records(), other.digests()));
    assert_eq!((table.stamps_refused(), other.stamps_refused()), (0, 0));
}

#[test]
fn scale_stamped_ahead_can_be_replaced_and_deleted() {
    let ahead = 3650 * DAY;
    let mut table = table_with_stamps_ahead(ahead);
    // The definition is stamped ahead, and a new scale still counts as later.
    table.must_scale("gold", "2", None, at(1));
    assert_eq!(table.policy("gold", at(1)), Ok("FIXED 2000 1h".to_owned()));
    // A policy that was created with a stamp ahead can be scaled too.
    table.must_set("new", MINUTE_LIMIT, at(ahead));
    table.must_scale("new", "2", None, at(2));
    assert_eq!(table.policy("new", at(2)), Ok("TOKENBUCKET 120 120 1m".to_owned()));
    // A scale stamped ahead does not apply to a new policy of the same name.
    let mut table = table_with_stamps_ahead(ahead);
    assert!(table.delete(b"gold", at(1)).unwrap());
    table.must_set("gold", MINUTE_LIMIT, at(2));
    assert_eq!(table.policy("gold", at(2)), Ok(MINUTE_LIMIT.to_owned()));
    table.assert_consistent();
}

#[test]
fn scale_of_a_deleted_policy_stays_dropped_when_the_clock_is_corrected() {
    let (correct, ahead) = (at(0), at(2 * DAY));
    // The scale is written before or after the clock goes ahead.
    for (scaled_at, is_known_to_peers) in [(ahead, false), (correct, true)] {
        let (mut table, mut peer) = (Table::of_node(1), Table::of_node(2));
        table.must_set("pro", "FIXED 10 1m", scaled_at);
        table.must_scale("pro", "0", None, scaled_at);
        if is_known_to_peers {
            peer.receive(&table.record(b"pro", correct).unwrap(), correct);
            assert_eq!(peer.policy("pro", correct), Ok("FIXED 0 1m".to_owned()));
        }
        table.delete(b"pro", ahead).unwrap();
        table.must_set("pro", "FIXED 10 1m", ahead);
        assert_eq!(table.policy("pro", ahead), Ok("FIXED 10 1m".to_owned()));
        table.must_set("pro", "FIXED 20 1m", correct);
        assert_eq!(table.policy("pro", correct), Ok("FIXED 20 1m".to_owned()), "{is_known_to_peers}");
        peer.receive(&table.record(b"pro", correct).unwrap(), correct);
        assert_eq!(peer.policy("pro", correct), Ok("FIXED 20 1m".to_owned()));
        let mut disk = Table::of_node(1);
        assert_eq!(disk.merge(&table.record(b"pro", correct).unwrap(), Origin::Disk, correct), MergeOutcome::Changed);
        assert_eq!(disk.policy("pro", correct), Ok("FIXED 20 1m".to_owned()));
        // A scale of the current policy applies.
        table.must_scale("pro", "0.5", None, correct);
        assert_eq!(table.policy("pro", correct), Ok("FIXED 10 1m".to_owned()));
        assert_eq!(peer.receive(&table.record(b"pro", correct).unwrap(), correct), MergeOutcome::Changed);
        assert_eq!((peer.live_records(), peer.digests()), (table.live_records(), table.digests()));
    }
}

#[test]
fn server_with_corrected_clock_accepts_records_of_peers() {
    let mut corrected = table_with_stamps_ahead(3650 * DAY);
    let mut peer = Table::of_node(2);
    peer.must_set("gold", MINUTE_LIMIT, at(5));
    let records = [&corrected, &peer].map(|table| table.initial_record("gold").unwrap());
    assert_eq!(peer.receive(&records[0], at(10)), MergeOutcome::Rejected);
    assert_eq!(corrected.receive(&records[1], at(10)), MergeOutcome::Changed);
    assert_eq!(corrected.live_records(), peer.live_records());
    assert_eq!(corrected.policy("gold", at(10)), Ok(MINUTE_LIMIT.to_owned()));
}

#[test]
fn server_years_behind_accepts_records_after_its_clock_is_corrected() {
    let (mut ahead, mut behind) = (Table::of_node(1), Table::of_node(2));
    let now = 3650 * DAY;
    ahead.must_set("gold", MINUTE_LIMIT, at(now));
    let record = ahead.initial_record("gold").unwrap();
    assert_eq!(behind.receive(&record, at(0)), MergeOutcome::Rejected);
    // Changes on the server meanwhile apply only there.
    behind.must_set("gold", HOUR_LIMIT, at(1));
    assert_eq!(ahead.receive(&behind.initial_record("gold").unwrap(), at(now)), MergeOutcome::Unchanged);
    assert_eq!(behind.receive(&record, at(now)), MergeOutcome::Changed);
    assert_eq!(behind.policy("gold", at(now)), Ok(MINUTE_LIMIT.to_owned()));
    assert_eq!(ahead.digests(), behind.digests());
    // A loaded policy can be changed with any clock.
    let mut behind = Table::of_node(2);
    behind.merge(&record, Origin::Disk, at(0));
    assert_eq!(behind.must_set("gold", HOUR_LIMIT, at(1)), version_of(1));
    assert_eq!(behind.policy("gold", at(1)), Ok(HOUR_LIMIT.to_owned()));
}

#[test]
fn records_of_primary_and_disk_are_accepted_unconditionally() {
    let mut source = Table::of_node(1);
    let records: Vec<Vec<u8>> = [0, 3650 * DAY, 10, 5]
        .map(|second| {
            source.must_set("gold", &format!("FIXED {} 1h", second + 1), at(second));
            source.initial_record("gold").unwrap()
        })
        .into();
    for origin in [Origin::Primary, Origin::Disk] {
        for clock in [0, 20, 3650 * DAY] {
            let mut table = Table::of_node(2);
            for record in &records {
                assert_eq!(table.merge(record, origin, at(clock)), MergeOutcome::Changed);
                assert_eq!(&table.initial_record("gold").unwrap(), record);
                table.assert_consistent();
            }
            // Older records are accepted too.
            assert_eq!(table.merge(&records[0], origin, at(clock)), MergeOutcome::Changed);
            assert_eq!(table.initial_record("gold").unwrap(), records[0]);
            assert_eq!(table.merge(&records[0], origin, at(clock)), MergeOutcome::Unchanged);
            assert_eq!(table.stamps_refused(), 0);
        }
    }
}

#[test]
fn new_stamp_is_later_than_one_that_is_within_the_horizon_again() {
    let mut table = Table::of_node(1);
    table.must_set("gold", HOUR_LIMIT, at(2 * DAY));
    // The stamp is a day ahead less an hour, so that it is within the horizon.
    let version = table.must_set("gold", MINUTE_LIMIT, at(DAY + 3600));
    assert_eq!(version, version_of(2 * DAY) + 1);
    assert_eq!(table.policy("gold", at(DAY + 3600)), Ok(MINUTE_LIMIT.to_owned()));
}
