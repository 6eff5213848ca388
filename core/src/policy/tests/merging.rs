//! Merging records in any order, and comparing tables by digests.

use super::*;

#[test]
fn merged_record_gives_the_same_policy() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    assert_eq!(here.initial_record("pro"), None);
    here.must_set("pro", MINUTE_LIMIT, at(0));
    here.must_scale("pro", "0.5", Some(60), at(1));
    let record = here.initial_record("pro").unwrap();
    assert_eq!(there.check(&record, at(9)), Ok(()));
    assert_eq!(there.receive(&record, at(9)), MergeOutcome::Changed);
    assert_eq!(there.receive(&record, at(9)), MergeOutcome::Unchanged);
    assert_eq!(there.initial_record("pro"), Some(record));
    let facts = |table: &Table| {
        let facts = table.get(b"pro", at(10)).unwrap();
        (facts.version, facts.set_at, facts.scale, facts.scale_left, facts.specs)
    };
    assert_eq!(facts(&here), facts(&there));
    assert_eq!((here.digests(), here.digest()), (there.digests(), there.digest()));
    // Deletions are merged too.
    there.delete(b"pro", at(20)).unwrap();
    assert_eq!(here.receive(&there.initial_record("pro").unwrap(), at(21)), MergeOutcome::Changed);
    assert_eq!((here.policy("pro", at(22)), here.len(), here.digest()), (Err("missing"), 0, 0));
}

#[test]
fn replaced_table_contains_only_the_loaded_records() {
    let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
    for name in ["kept", "changed", "gone", "deleted"] {
        here.must_set(name, MINUTE_LIMIT, at(100));
        let PolicyLookup::Found(policy) = here.find(name.as_bytes(), at(100)) else { unreachable!() };
        policy.counts.count(&ADMITTED_CALL);
    }
    // The records are older than those that they replace.
    there.receive(&here.initial_record("kept").unwrap(), at(0));
    there.must_set("changed", HOUR_LIMIT, at(1));
    there.must_scale("changed", "0.5", None, at(2));
    there.must_set("deleted", MINUTE_LIMIT, at(3));
    there.delete(b"deleted", at(4)).unwrap();
    there.must_set("new", MINUTE_LIMIT, at(5));
    let mut records: Vec<_> = there.records(at(0)).collect();
    here.replace(&records, Origin::Disk, at(200));
    here.assert_consistent();
    assert_eq!((here.live_records(), here.digests()), (there.live_records(), there.digests()));
    let calls = |table: &Table, name: &str| match table.find(name.as_bytes(), at(200)) {
        PolicyLookup::Found(policy) => {
            let counts = table.get(name.as_bytes(), at(200)).unwrap().counts.all();
            assert_eq!(counts, policy.counts.all());
            Some((policy.limits.to_string(), counts[0].1))
        }
        _ => None,
    };
    assert_eq!(calls(&here, "kept"), Some((MINUTE_LIMIT.to_owned(), 1)));
    assert_eq!(calls(&here, "changed"), Some(("FIXED 500 1h".to_owned(), 1)));
    assert_eq!(calls(&here, "new"), Some((MINUTE_LIMIT.to_owned(), 0)));
    assert_eq!((calls(&here, "gone"), here.initial_record("gone"), calls(&here, "deleted")), (None, None, None));
    // The deletion is stored for a day from the replacement, and its policy has no counters.
    here.drop_old_deletions(at(200 + 86_399));
    assert!(here.initial_record("deleted").is_some());
    here.drop_old_deletions(at(200 + 86_400));
    assert!(here.initial_record("deleted").is_none());
    // New stamps have the id of this server, and are later than all known ones.
    here.must_set("kept", HOUR_LIMIT, at(0));
    let stamp = here.slots.get(b"kept").unwrap().entry.definition.stamp;
    assert_eq!(stamp, Stamp { at: there.latest.max(at(100).micros() + 3) + 1, node: 1 });
    records.clear();
    here.replace(&records, Origin::Disk, at(200));
    assert_eq!((here.records(at(0)).count(), here.digest(), here.len()), (0, 0, 0));
}

#[test]
fn malformed_record_changes_nothing() {
    let mut table = Table::of_node(1);
    for record in [&b""[..], b"gold", b"rl-policy 1", b"rl-policy 1 4:gold 1 1 1 1 1 1 0: 0 0 1000000 0 "] {
        assert_eq!(table.check(record, at(0)), Err(Error::InvalidEffect));
        assert_eq!(table.receive(record, at(0)), MergeOutcome::Malformed);
    }
    assert_eq!(table.records(at(0)).count(), 0);
    assert_eq!(table.latest, 0);
}

#[test]
fn new_stamp_is_later_than_all_received_ones() {
    let (mut ahead, mut behind) = (Table::of_node(9), Table::of_node(1));
    ahead.must_set("pro", MINUTE_LIMIT, at(3600));
    behind.receive(&ahead.initial_record("pro").unwrap(), at(0));
    behind.must_set("pro", HOUR_LIMIT, at(0));
    assert_eq!(ahead.receive(&behind.initial_record("pro").unwrap(), at(3600)), MergeOutcome::Changed);
    assert_eq!(ahead.policy("pro", at(3600)), Ok(HOUR_LIMIT.to_owned()));
    // Received stamps of other names count too.
    behind.must_set("free", HOUR_LIMIT, at(0));
    assert!(
        behind.slots.get(b"free").unwrap().entry.definition.stamp
            > ahead.slots.get(b"pro").unwrap().entry.definition.stamp
    );
    assert_eq!(behind.get(b"free", at(0)).unwrap().set_at, 1_700_000_000_000, "set_at is the time by the clock");
}

#[test]
fn stamp_contains_the_node_id_of_the_writer() {
    let mut table = Table::default();
    table.must_set("a", MINUTE_LIMIT, at(0));
    table.set_node(7);
    table.must_set("b", MINUTE_LIMIT, at(0));
    let stamp = |name: &[u8]| table.slots.get(name).unwrap().entry.definition.stamp;
    let micros = at(0).micros();
    assert_eq!(stamp(b"a"), Stamp { at: micros, node: 0 });
    assert_eq!(stamp(b"b"), Stamp { at: micros + 1, node: 7 });
}

#[test]
fn records_with_equal_times_are_resolved_alike_on_all_servers() {
    let one = LATER_VERSION_RECORD.to_owned();
    let other = LATER_VERSION_RECORD.replace("12:QUOTA 60 PER", "10:FIXED 5 1m");
    let higher_node =
        LATER_VERSION_RECORD.replacen("000000 7", "000000 8", 1).replace("12:QUOTA 60 PER", "10:FIXED 6 1m");
    for (first, second, winner) in [
        (&one, &other, &one),
        (&other, &one, &one),
        (&one, &higher_node, &higher_node),
        (&higher_node, &one, &higher_node),
    ] {
        let mut table = Table::of_node(1);
        table.receive(first.as_bytes(), at(0));
        table.receive(second.as_bytes(), at(0));
        assert_eq!(table.initial_record("gold").unwrap(), winner.as_bytes());
        let readable = slot::parse_definition(&table.slots.get(b"gold").unwrap().entry.definition.text).is_some();
        assert_eq!(table.policy("gold", at(0)).is_ok(), readable);
        table.assert_consistent();
    }
}

#[test]
fn groups_partition_all_records() {
    let mut table = Table::of_node(1);
    for n in 0..200 {
        table.must_set(&format!("plan:{n}"), MINUTE_LIMIT, at(0));
    }
    for n in 0..50 {
        table.delete(format!("plan:{n}").as_bytes(), at(1)).unwrap();
    }
    let mut all: Vec<_> = table.records(at(0)).collect();
    let mut grouped: Vec<_> = (0..GROUPS).flat_map(|group| table.records_of_group(group, at(1))).collect();
    all.sort_unstable();
    grouped.sort_unstable();
    assert_eq!((all.len(), &all), (200, &grouped));
    table.assert_consistent();
    // The digest of a group depends only on the records in it.
    for group in 0..GROUPS {
        let mut part = Table::of_node(2);
        for record in table.records_of_group(group, at(1)) {
            assert_eq!(part.receive(&record, at(2)), MergeOutcome::Changed);
        }
        let digests: Vec<u64> =
            (0..GROUPS).map(|other| if other == group { table.digests()[group] } else { 0 }).collect();
        assert_eq!(part.digests()[..], digests);
        assert_eq!(part.digest(), table.digests()[group]);
    }
}

#[test]
fn digest_differs_after_each_change() {
    let mut table = Table::of_node(1);
    let mut digests = vec![table.digest()];
    let mut assert_new_digest = |table: &Table| {
        assert!(!digests.contains(&table.digest()));
        digests.push(table.digest());
    };
    table.must_set("pro", MINUTE_LIMIT, at(0));
    assert_new_digest(&table);
    table.must_set("pro", MINUTE_LIMIT, at(0));
    assert_new_digest(&table);
    table.must_scale("pro", "1", None, at(0));
    assert_new_digest(&table);
    table.must_set("free", MINUTE_LIMIT, at(0));
    assert_new_digest(&table);
    table.delete(b"pro", at(0)).unwrap();
    assert_new_digest(&table);
}

#[test]
fn walk_visits_all_unchanged_records_while_the_table_changes() {
    let mut table = Table::of_node(1);
    let name = |n: usize| format!("plan:{n}");
    for n in 0..300 {
        table.must_set(&name(n), MINUTE_LIMIT, at(0));
    }
    let (mut walk, mut copy, mut batches) = (Walk::ALL, Table::of_node(2), 0);
    while !walk.is_over() {
        let batch = table.next_batch(&mut walk, 10, usize::MAX, at(1));
        assert!(batch.len() <= 10);
        for record in batch {
            assert_ne!(copy.receive(&record, at(1)), MergeOutcome::Malformed);
        }
        // A policy is added and one is deleted, before or after the position of the walk.
        table.must_set(&name(300 + batches), MINUTE_LIMIT, at(2));
        table.delete(name(batches).as_bytes(), at(2)).unwrap();
        batches += 1;
    }
    assert!((30..45).contains(&batches), "{batches}");
    for n in batches..300 {
        assert!(copy.initial_record(&name(n)).is_some(), "{n}");
    }
    // A batch ends with the record that reaches the number of bytes.
    let (mut walk, bytes) = (Walk::ALL, table.initial_record(&name(299)).unwrap().len());
    assert_eq!([1, bytes / 2].map(|bytes| table.next_batch(&mut walk, usize::MAX, bytes, at(1)).len()), [1, 1]);
    assert_eq!(table.next_batch(&mut walk, usize::MAX, 2 * bytes, at(1)).len(), 3);
    assert_eq!(table.next_batch(&mut Walk::default(), 10, 1000, at(1)), Vec::<Vec<u8>>::new());
}

fn table_of<'a>(records: impl IntoIterator<Item = &'a Vec<u8>>) -> Table {
    let mut table = Table::of_node(1);
    for record in records {
        assert_ne!(table.receive(record, at(0)), MergeOutcome::Malformed);
        table.assert_consistent();
    }
    table
}

/// Returns the records and the results of lookups.
fn records_and_policies(table: &Table) -> [String; 3] {
    ["a", "b", "c"].map(|name| {
        let record = table.initial_record(name).map(|record| record.escape_ascii().to_string());
        format!("{record:?} {:?}", table.policy(name, at(0)))
    })
}

proptest! {
    #[test]
    fn merged_table_does_not_depend_on_the_order_of_records(
        (records, shuffled) in proptest::collection::vec(records(), 0..12)
            .prop_flat_map(|records| (Just(records.clone()), Just(records).prop_shuffle())),
        again in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
    ) {
        let one = table_of(&records);
        let repeated = again.iter().filter(|_| !records.is_empty()).map(|index| index.get(&records));
        let other = table_of(shuffled.iter().chain(repeated));
        prop_assert_eq!(records_and_policies(&one), records_and_policies(&other));
        prop_assert_eq!(one.digests(), other.digests());
        // Records that pass through another table give the same result.
        let indirect = table_of(&one.records(at(0)).collect::<Vec<_>>());
        prop_assert_eq!(records_and_policies(&one), records_and_policies(&indirect));
    }

    #[test]
    fn tables_with_equal_digests_have_the_same_policies(
        one in proptest::collection::vec(records(), 0..4),
        other in proptest::collection::vec(records(), 0..4),
    ) {
        let (one, other) = (table_of(&one), table_of(&other));
        prop_assert_eq!(one.digests() == other.digests(), one.live_records() == other.live_records());
    }
}

#[test]
fn queued_records_are_merged_once_per_name() {
    let mut peer = Table::of_node(2);
    peer.must_set("gold", MINUTE_LIMIT, at(0));
    let first = peer.initial_record("gold").unwrap();
    peer.must_scale("gold", "0.5", Some(60), at(1));
    let second = peer.record(b"gold", at(1)).unwrap();
    peer.must_set("silver", HOUR_LIMIT, at(1));
    let silver = peer.initial_record("silver").unwrap();
    assert_eq!(Table::name_in(&silver).as_deref(), Some(&b"silver"[..]));
    assert_eq!(Table::name_in(b"no record"), None);

    let mut table = Table::of_node(1);
    assert!(!table.buffer(b"no record", at(1)));
    for record in [&first, &second, &silver, &first] {
        assert!(table.buffer(record, at(1)));
    }
    assert_eq!((table.buffered(), table.record_count()), (2, 0));
    assert_eq!(table.merge_buffered(at(11)), Some((b"gold"[..].into(), MergeOutcome::Changed)));
    // The time left of the scale has decreased while the record was queued.
    assert_eq!(table.policy("gold", at(60)), Ok("TOKENBUCKET 30 30 1m".to_owned()));
    assert_eq!(table.policy("gold", at(61)), Ok(MINUTE_LIMIT.to_owned()));
    assert_eq!(table.buffered(), 1);
    table.clear_buffer();
    assert_eq!((table.merge_buffered(at(11)), table.buffered()), (None, 0));
    assert_eq!(table.version("silver"), None);
}

#[test]
fn queue_of_records_is_bounded_by_32_megabytes() {
    let (mut table, text) = (Table::of_node(1), "X".repeat(16_000));
    let stamp = at(0).micros();
    for number in 0..2_200 {
        let record = format!("rl-policy 1 4:{number:04} {stamp} 9 {stamp} 9 1 1 16000:{text} 0 0 0 0");
        assert!(table.buffer(record.as_bytes(), at(0)));
    }
    assert_eq!(table.buffered(), (32 << 20) / (16_000 + 2 * 4 + 256));
}

#[test]
fn replaced_table_is_freed_in_batches() {
    let mut table = Table::of_node(1);
    for name in ["a", "b", "c"] {
        table.must_set(name, MINUTE_LIMIT, at(0));
    }
    let mut walk = Walk::default();
    walk.include(u64::MAX);
    assert!(table.next_batch(&mut walk, usize::MAX, 0, at(0)).is_empty(), "a batch of 0 bytes has no records");
    let mut successor = table.successor();
    // The successor's stamps are later than those of the former table.
    assert!(successor.must_set("d", MINUTE_LIMIT, at(0)) > table.version("c").unwrap());
    let mut discarded = table.discard();
    assert_eq!([2, 1, 1].map(|count| discarded.free(count)), [true, false, false]);
}
