//! Lifetime and number of stored deletions.

use super::*;

#[test]
fn deletion_is_stored_for_a_day_and_not_in_the_digest() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    here.must_set("pro", MINUTE_LIMIT, at(0));
    let before = here.initial_record("pro").unwrap();
    here.delete(b"pro", at(10)).unwrap();
    assert_eq!((here.digest(), here.records(at(0)).count()), (0, 1));
    // An older definition arrives late.
    assert_eq!(here.receive(&before, at(20)), MergeOutcome::Unchanged);
    // The day begins when the deletion arrives at the server.
    there.receive(&here.initial_record("pro").unwrap(), at(5000));
    for (second, [stored_here, stored_there]) in [
        (10 + 86_399, [true, true]),
        (10 + 86_400, [false, true]),
        (5000 + 86_399, [false, true]),
        (5000 + 86_400, [false; 2]),
    ] {
        for (table, is_stored) in [(&mut here, stored_here), (&mut there, stored_there)] {
            table.drop_old_deletions(at(second));
            assert_eq!(table.initial_record("pro").is_some(), is_stored, "{second}");
            assert_eq!(table.slots.deletions.len(), usize::from(is_stored));
        }
    }
    assert_eq!(here.receive(&before, at(100_000)), MergeOutcome::Changed, "the deletion has been dropped");
}

#[test]
fn expired_deletion_of_a_recreated_policy_is_ignored() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE_LIMIT, at(0));
    table.delete(b"pro", at(1)).unwrap();
    table.must_set("pro", MINUTE_LIMIT, at(2));
    table.drop_old_deletions(at(1 + 86_400));
    assert_eq!(table.version("pro"), Some(version_of(2)));
    // A second deletion is stored for its own day.
    table.delete(b"pro", at(90_000)).unwrap();
    table.must_set("pro", MINUTE_LIMIT, at(90_001));
    table.delete(b"pro", at(90_002)).unwrap();
    table.drop_old_deletions(at(90_001 + 86_400));
    assert!(table.initial_record("pro").is_some());
    table.drop_old_deletions(at(90_002 + 86_400));
    assert!(table.initial_record("pro").is_none());
    assert!(table.slots.deletions.is_empty());
}

#[test]
fn clock_step_back_does_not_extend_a_deletion() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE_LIMIT, at(0));
    table.delete(b"pro", at(1_000_000)).unwrap();
    table.drop_old_deletions(at(1000));
    table.drop_old_deletions(at(1000 + 86_399));
    assert!(table.initial_record("pro").is_some());
    table.drop_old_deletions(at(1000 + 86_400));
    assert!(table.initial_record("pro").is_none());
}

#[test]
fn deletion_with_a_repeated_stamp_is_stored_for_a_day() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE_LIMIT, at(0));
    table.delete(b"pro", at(1)).unwrap();
    let earlier = table.initial_record("pro").unwrap();
    table.must_set("pro", MINUTE_LIMIT, at(1 + 2 * 86_400));
    // The clock is set back by two days, so that stamps of that day are beyond the horizon and are used again.
    table.must_set("pro", HOUR_LIMIT, at(0));
    table.delete(b"pro", at(1)).unwrap();
    let stamp = |record: &[u8]| Record::read(record).unwrap().entry.definition.stamp;
    // With an earlier stamp, replicas would ignore the deletion.
    let later = table.initial_record("pro").unwrap();
    assert_eq!(stamp(&later), stamp(&earlier));
    table.assert_consistent();
    table.drop_old_deletions(at(86_400));
    assert!(table.initial_record("pro").is_some());
    table.drop_old_deletions(at(1 + 86_400));
    assert!(table.initial_record("pro").is_none());
}

#[test]
fn expired_deletions_are_dropped_in_batches() {
    let mut table = Table::of_node(1);
    for n in 0..1000 {
        table.must_set(&format!("plan:{n}"), MINUTE_LIMIT, at(0));
        table.delete(format!("plan:{n}").as_bytes(), at(0)).unwrap();
    }
    let record_counts: Vec<usize> = (0..5)
        .map(|_| {
            table.drop_old_deletions(at(90_000));
            table.record_count()
        })
        .collect();
    assert_eq!(record_counts, [744, 488, 232, 0, 0]);
    table.assert_consistent();
}

#[test]
fn number_of_stored_deletions_is_bounded() {
    let mut table = Table::of_node(1);
    let name = |n: usize| format!("{n:05}");
    for n in 0..=MAX_DELETIONS {
        let record = format!("rl-policy 1 5:{} 1 0 1 0 1 1 0: 0 0 1000000 0", name(n));
        assert_eq!(table.receive(record.as_bytes(), at(0)), MergeOutcome::Changed);
    }
    assert_eq!(table.records(at(0)).count(), MAX_DELETIONS);
    assert!(table.initial_record(&name(0)).is_none() && table.initial_record(&name(1)).is_some());
}
