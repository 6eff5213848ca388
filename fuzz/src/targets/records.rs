//! Records of policies from any bytes: rejected, or written back unchanged. Tables that have merged the same records,
//! in any order and any number of times, are equal.

use crate::laws::{assert_error_text, assert_policy, parse_policy};
use ratelimit_core::policy::{Condition, GROUPS, MergeOutcome, Origin, Pattern, PolicyLookup, Table, Walk};
use ratelimit_core::{Span, Timestamp};

/// Maximum number of records. More records would only take longer.
const MAX_RECORDS: usize = 16;

pub fn run(data: &[u8]) {
    let now = Timestamp::from_clock(1_700_000_000_000_000);
    let records: Vec<&[u8]> =
        data.split(|byte| *byte == b'\n').take(MAX_RECORDS).filter(|record| is_accepted(record, now)).collect();
    let mut here = Table::of_node(1);
    for record in &records {
        here.merge(record, Origin::Peer, now);
        assert_eq!(
            here.merge(record, Origin::Peer, now),
            MergeOutcome::Unchanged,
            "the record has already been merged"
        );
    }
    assert_sound(&here);

    let mut there = Table::of_node(2);
    for record in records.iter().rev() {
        assert_ne!(there.merge(record, Origin::Peer, now), MergeOutcome::Malformed);
    }
    assert_eq!(shared_records(&there), shared_records(&here));
    assert_eq!(there.digests(), here.digests());

    assert_halves_converge(&records, &here, now);
    assert_replaced(&mut there, &here, now);
    assert_changes_are_merged(&mut here, &mut there, now);

    // Dropping deletions does not change the digests.
    let before = *here.digests();
    here.drop_old_deletions(now.plus(Span::SECOND.times(86_400)));
    assert_eq!((here.record_count(), *here.digests()), (here.len(), before));
    assert_sound(&here);
}

/// Returns `true` if a record is well-formed and accepted from a peer. Asserts that an empty table writes it back
/// unchanged. A record with a stamp too far ahead is rejected from a peer, but accepted from the primary.
fn is_accepted(record: &[u8], now: Timestamp) -> bool {
    let (mut peer, mut replica) = (Table::of_node(3), Table::of_node(3));
    let is_record = Table::name_in(record).is_some();
    let is_within_horizon = peer.check(record, now).is_ok();
    assert_eq!(peer.stamps_refused(), u64::from(is_record && !is_within_horizon));
    let outcome = replica.merge(record, Origin::Primary, now);
    assert_eq!(outcome, if is_record { MergeOutcome::Changed } else { MergeOutcome::Malformed });
    let written: Vec<Vec<u8>> = replica.records(now).collect();
    assert_eq!(written.as_slice(), if is_record { vec![record.to_vec()] } else { vec![] });
    assert_sound_at(&replica, &[now, Timestamp::EPOCH, now, Timestamp::MAX]);
    let merged = peer.merge(record, Origin::Peer, now);
    if !is_within_horizon {
        assert_eq!(merged == MergeOutcome::Malformed, !is_record);
        assert_sound(&peer);
        return false;
    }
    assert_eq!(merged, MergeOutcome::Changed);
    assert_eq!(peer.records(now).collect::<Vec<_>>(), written);
    if let [facts] = peer.list(None, now).as_slice() {
        assert_sound(&peer);
        if let Some(policy) = parse_policy(&facts.specs) {
            assert_policy(&policy);
        }
    }
    true
}

/// Returns all records of a table, including deletions, without the words that depend on the server's clock. These are
/// the last word of the second form (the time left of the scale), and the last three words of the third form (also the
/// times since its changes).
fn shared_records(table: &Table) -> Vec<Vec<u8>> {
    let now = Timestamp::from_clock(1_700_000_000_000_000);
    let mut records: Vec<Vec<u8>> = table.records(now).collect();
    for record in &mut records {
        let form = [(b"rl-policy 2", 1), (b"rl-policy 3", 3)].into_iter().find(|(form, _)| record.starts_with(*form));
        for _ in 0..form.map_or(0, |(_, words)| words) {
            let last_space = record.iter().rposition(|byte| *byte == b' ').expect("a record has several words");
            record.truncate(last_space);
        }
    }
    records.sort_unstable();
    records
}

/// Returns the records of a table in these groups of names, collected in batches of two.
fn records_in_groups(table: &Table, groups: u64, now: Timestamp) -> Vec<Vec<u8>> {
    let (mut walk, mut records) = (Walk::default(), Vec::new());
    walk.include(groups);
    while !walk.is_over() {
        records.extend(table.next_batch(&mut walk, 2, usize::MAX, now));
    }
    records
}

/// Asserts that the records, facts and digests of a table are consistent.
fn assert_sound(table: &Table) {
    assert_sound_at(table, &[Timestamp::from_clock(1_700_000_000_000_000)]);
}

/// Asserts that a table is consistent at each of these times. Other times than the present advance the steady time of
/// the table, so that its deletions may expire.
fn assert_sound_at(table: &Table, times: &[Timestamp]) {
    assert_eq!(table.digest(), table.digests().iter().fold(0, |sum: u64, digest| sum.wrapping_add(*digest)));
    let start = times.first().copied().unwrap_or_default();
    let group_sizes = (0..GROUPS).map(|group| records_in_groups(table, 1 << group, start).len());
    assert_eq!(
        (group_sizes.sum::<usize>(), table.records(start).count()),
        (table.record_count(), table.record_count())
    );
    for now in times.iter().copied() {
        let facts = table.list(None, now);
        assert_eq!((facts.len(), facts.is_empty()), (table.len(), table.is_empty()));
        for facts in facts {
            let record = table.record(&facts.name, now).expect("a listed policy has a record");
            assert_eq!(Table::name_in(&record).as_ref(), Some(&facts.name));
            assert!(table.get(&facts.name, now).is_some_and(|found| found.specs == facts.specs));
            // An alphanumeric name is a pattern that matches only itself.
            let is_literal = facts.name.iter().all(u8::is_ascii_alphanumeric);
            let pattern = Pattern::compile(&facts.name).expect("a name is shorter than the longest pattern");
            let listed = table.list(Some(&pattern), now);
            assert!(!is_literal || matches!(listed.as_slice(), [only] if only.name == facts.name));
            match (table.find(&facts.name, now), parse_policy(&facts.specs)) {
                (PolicyLookup::Found(effective), Some(policy)) => {
                    assert_eq!(*effective.name, *facts.name);
                    assert_eq!(effective.limits.to_string(), policy.scaled(facts.scale).to_string());
                }
                (PolicyLookup::Unreadable, None) => {}
                (found, parsed) => panic!("{found:?}, but the specs are parsed to {parsed:?}"),
            }
        }
    }
}

/// Asserts that two tables with half of the records each are equal after they exchange the groups in which their
/// digests differ.
fn assert_halves_converge(records: &[&[u8]], whole: &Table, now: Timestamp) {
    let mut halves = [Table::of_node(1), Table::of_node(2)];
    for (index, record) in records.iter().enumerate() {
        halves[index % 2].merge(record, Origin::Peer, now);
    }
    let differs = |group: &usize| halves[0].digests()[*group] != halves[1].digests()[*group];
    let differing_groups = (0..GROUPS).filter(differs).fold(0, |groups, group| groups | 1 << group);
    for (from, to) in [(0, 1), (1, 0)] {
        // Merges every second record at once. The others are queued first, as on a server.
        for (index, record) in records_in_groups(&halves[from], differing_groups, now).iter().enumerate() {
            if index % 2 == 0 {
                assert_ne!(halves[to].merge(record, Origin::Peer, now), MergeOutcome::Malformed);
            } else {
                assert!(halves[to].buffer(record, now));
            }
        }
        while let Some((_, merged)) = halves[to].merge_buffered(now) {
            assert_ne!(merged, MergeOutcome::Malformed);
        }
        assert_eq!(halves[to].buffered(), 0);
    }
    for half in halves {
        assert_eq!(half.digests(), whole.digests());
    }
}

/// Asserts that a successor table with all records of `here` has no records of its predecessor `there`.
fn assert_replaced(there: &mut Table, here: &Table, now: Timestamp) {
    let policy = parse_policy(b"FIXED 5 1m").expect("the policy is valid");
    // Fails if a record has the last possible stamp.
    let _ = there.set(b"local", Condition::Always, &policy, now, usize::MAX);
    let mut successor = there.successor();
    for record in here.records(now) {
        assert_eq!(successor.load_record(there, &record, Origin::Primary, now), MergeOutcome::Changed);
    }
    *there = successor;
    assert_eq!((shared_records(there), there.digests()), (shared_records(here), here.digests()));
}

/// Asserts that another table merges a policy that is set and deleted in this one.
fn assert_changes_are_merged(here: &mut Table, there: &mut Table, now: Timestamp) {
    let policy = parse_policy(b"CONCURRENCY 3 1m SHADOW FIXED 5 1m").expect("the policy is valid");
    let name = here.list(None, now).first().map_or(Box::from(&b"p"[..]), |facts| facts.name.clone());
    match here.set(&name, Condition::Always, &policy, now, usize::MAX) {
        Err(error) => assert_error_text(&error),
        Ok(set) => assert!(set.changed && set.version > 0),
    }
    for is_deleted in [false, true] {
        if is_deleted && let Err(error) = here.delete(&name, now) {
            assert_error_text(&error);
        }
        let Some(record) = here.record(&name, now) else { continue };
        assert_ne!(there.merge(&record, Origin::Peer, now), MergeOutcome::Malformed, "an encoded record can be parsed");
        assert_eq!((shared_records(here), here.digests()), (shared_records(there), there.digests()));
        assert_sound(here);
    }
}
