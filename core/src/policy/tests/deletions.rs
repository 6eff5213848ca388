//! Deletions: how long they are remembered, and how they are forgotten.

use super::*;

// Deletions

#[test]
fn a_deletion_is_remembered_for_a_day_and_in_no_digest() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    here.must_set("pro", MINUTE, at(0));
    let before = here.told("pro").unwrap();
    here.delete(b"pro", at(10)).unwrap();
    assert_eq!((here.digest(), here.records(at(0)).count()), (0, 1));
    // An older set comes late.
    assert_eq!(here.hear(&before, at(20)), Merged::Unchanged);
    // It is a day from when it was learned: there that was later.
    there.hear(&here.told("pro").unwrap(), at(5000));
    for (second, [here_remembers, there_remembers]) in [
        (10 + 86_399, [true, true]),
        (10 + 86_400, [false, true]),
        (5000 + 86_399, [false, true]),
        (5000 + 86_400, [false; 2]),
    ] {
        for (table, remembers) in [(&mut here, here_remembers), (&mut there, there_remembers)] {
            table.forget(at(second));
            assert_eq!(table.told("pro").is_some(), remembers, "{second}");
            assert_eq!(table.slots.deletions.len(), usize::from(remembers));
        }
    }
    assert_eq!(here.hear(&before, at(100_000)), Merged::Changed, "nobody knows any more");
}

#[test]
fn a_name_that_was_set_again_is_not_forgotten() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE, at(0));
    table.delete(b"pro", at(1)).unwrap();
    table.must_set("pro", MINUTE, at(2));
    table.forget(at(1 + 86_400));
    assert_eq!(table.version("pro"), Some(version_of(2)));
    // Nor is a deletion forgotten for an older one's sake.
    table.delete(b"pro", at(90_000)).unwrap();
    table.must_set("pro", MINUTE, at(90_001));
    table.delete(b"pro", at(90_002)).unwrap();
    table.forget(at(90_001 + 86_400));
    assert!(table.told("pro").is_some());
    table.forget(at(90_002 + 86_400));
    assert!(table.told("pro").is_none());
    assert!(table.slots.deletions.is_empty());
}

#[test]
fn a_clock_gone_back_keeps_a_deletion_for_no_longer_than_a_day() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE, at(0));
    table.delete(b"pro", at(1_000_000)).unwrap();
    table.forget(at(1000));
    table.forget(at(1000 + 86_399));
    assert!(table.told("pro").is_some());
    table.forget(at(1000 + 86_400));
    assert!(table.told("pro").is_none());
}

#[test]
fn a_deletion_with_the_stamp_of_an_earlier_one_is_remembered_for_a_day() {
    let mut table = Table::of_node(1);
    table.must_set("pro", MINUTE, at(0));
    table.delete(b"pro", at(1)).unwrap();
    let earlier = table.told("pro").unwrap();
    table.must_set("pro", MINUTE, at(1 + 2 * 86_400));
    // The clock is put back by two days: stamps of that day are forgotten, and made again.
    table.must_set("pro", HOUR, at(0));
    table.delete(b"pro", at(1)).unwrap();
    let stamp = |record: &[u8]| Record::read(record).unwrap().entry.definition.stamp;
    // Else no replica hears of it.
    let later = table.told("pro").unwrap();
    assert_eq!(stamp(&later), stamp(&earlier));
    table.assert_consistent();
    table.forget(at(86_400));
    assert!(table.told("pro").is_some());
    table.forget(at(1 + 86_400));
    assert!(table.told("pro").is_none());
}

#[test]
fn thousands_of_deletions_are_forgotten_in_pieces() {
    let mut table = Table::of_node(1);
    for n in 0..1000 {
        table.must_set(&format!("plan:{n}"), MINUTE, at(0));
        table.delete(format!("plan:{n}").as_bytes(), at(0)).unwrap();
    }
    let left: Vec<usize> = (0..5)
        .map(|_| {
            table.forget(at(90_000));
            table.known()
        })
        .collect();
    assert_eq!(left, [744, 488, 232, 0, 0]);
    table.assert_consistent();
}

#[test]
fn so_many_deletions_are_remembered_and_no_more() {
    let mut table = Table::of_node(1);
    let name = |n: usize| format!("{n:05}");
    for n in 0..=MOST_DELETIONS {
        let record = format!("rl-policy 1 5:{} 1 0 1 0 1 1 0: 0 0 1000000 0", name(n));
        assert_eq!(table.hear(record.as_bytes(), at(0)), Merged::Changed);
    }
    assert_eq!(table.records(at(0)).count(), MOST_DELETIONS);
    assert!(table.told(&name(0)).is_none() && table.told(&name(1)).is_some());
}
