//! Records of policies from any bytes: rejected, or written back unchanged. Tables that have merged the same records
//! are equal, whatever the order and the number of repetitions.

use crate::laws::{assert_policy, assert_wire, read_policy};
use ratelimit_core::policy::{Condition, GROUPS, MergeOutcome, Origin, Pattern, PolicyLookup, Table, Walk};
use ratelimit_core::{Span, Timestamp};

/// Maximum number of records. It allows every mix of stamps; more records only take longer.
const MAX_RECORDS: usize = 16;

pub fn run(data: &[u8]) {
    let now = Timestamp::from_clock(1_700_000_000_000_000);
    let records: Vec<&[u8]> =
        data.split(|byte| *byte == b'\n').take(MAX_RECORDS).filter(|record| takes(record, now)).collect();
    let mut here = Table::of_node(1);
    for record in &records {
        here.merge(record, Origin::Peer, now);
        assert_eq!(here.merge(record, Origin::Peer, now), MergeOutcome::Unchanged, "it has been heard");
    }
    assert_sound(&here);

    let mut there = Table::of_node(2);
    for record in records.iter().rev() {
        assert_ne!(there.merge(record, Origin::Peer, now), MergeOutcome::Malformed);
    }
    assert_eq!(all(&there), all(&here));
    assert_eq!(there.digests(), here.digests());

    assert_agree_on_half_each(&records, &here, now);
    assert_replaced(&mut there, &here, now);
    assert_goes_on(&mut here, &mut there, now);

    // Deletions are in no digest, so forgetting them changes none.
    let before = *here.digests();
    here.drop_old_deletions(now.plus(Span::SECOND.times(86_400)));
    assert_eq!((here.record_count(), *here.digests()), (here.len(), before));
    assert_sound(&here);
}

/// Returns `true` if a record is well-formed and accepted from a peer. Asserts that a table with no other record writes
/// it back unchanged. A record with a stamp too far ahead is rejected by peers, but accepted by a replica.
fn takes(record: &[u8], now: Timestamp) -> bool {
    let (mut alone, mut replica) = (Table::of_node(3), Table::of_node(3));
    let is_record = Table::name_in(record).is_some();
    let within_horizon = alone.check(record, now).is_ok();
    assert_eq!(alone.stamps_refused(), u64::from(is_record && !within_horizon));
    let outcome = replica.merge(record, Origin::Primary, now);
    assert_eq!(outcome, if is_record { MergeOutcome::Changed } else { MergeOutcome::Malformed });
    let written: Vec<Vec<u8>> = replica.records(now).collect();
    assert_eq!(written.as_slice(), if is_record { vec![record.to_vec()] } else { vec![] });
    assert_sound_at(&replica, &[now, Timestamp::EPOCH, now, Timestamp::MAX]);
    let merged = alone.merge(record, Origin::Peer, now);
    if !within_horizon {
        assert_eq!(merged == MergeOutcome::Malformed, !is_record);
        assert_sound(&alone);
        return false;
    }
    assert_eq!(merged, MergeOutcome::Changed);
    assert_eq!(alone.records(now).collect::<Vec<_>>(), written);
    if let [facts] = alone.list(None, now).as_slice() {
        assert_sound(&alone);
        if let Some(policy) = read_policy(&facts.specs) {
            assert_policy(&policy);
        }
    }
    true
}

/// Returns all records of a table, including deletions, without the words that depend on the server's clock: the time
/// left of a scale, which is the last word of a record of the second form, and the age of its change, which is among
/// the last three words of the third form.
fn all(table: &Table) -> Vec<Vec<u8>> {
    let now = Timestamp::from_clock(1_700_000_000_000_000);
    let mut records: Vec<Vec<u8>> = table.records(now).collect();
    for record in &mut records {
        let own = [(b"rl-policy 2", 1), (b"rl-policy 3", 3)].into_iter().find(|(form, _)| record.starts_with(*form));
        for _ in 0..own.map_or(0, |(_, words)| words) {
            let last = record.iter().rposition(|byte| *byte == b' ').expect("it has words");
            record.truncate(last);
        }
    }
    records.sort_unstable();
    records
}

/// Returns the records of a table in these groups of names, collected in pieces.
fn in_groups(table: &Table, groups: u64, now: Timestamp) -> Vec<Vec<u8>> {
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

/// Asserts that a table is consistent at each of these times. Must not be used with other times than the present on a
/// table whose deletions are to be kept.
fn assert_sound_at(table: &Table, times: &[Timestamp]) {
    assert_eq!(table.digest(), table.digests().iter().fold(0, |sum: u64, digest| sum.wrapping_add(*digest)));
    let begin = times.first().copied().unwrap_or_default();
    let of_groups = (0..GROUPS).map(|group| in_groups(table, 1 << group, begin).len());
    assert_eq!((of_groups.sum::<usize>(), table.records(begin).count()), (table.record_count(), table.record_count()));
    for now in times.iter().copied() {
        let facts = table.list(None, now);
        assert_eq!((facts.len(), facts.is_empty()), (table.len(), table.is_empty()));
        for facts in facts {
            let record = table.record(&facts.name, now).expect("what is listed is known");
            assert_eq!(Table::name_in(&record).as_ref(), Some(&facts.name));
            assert!(table.get(&facts.name, now).is_some_and(|got| got.specs == facts.specs));
            // A name is also a pattern; an alphanumeric one matches only itself.
            let plain = facts.name.iter().all(u8::is_ascii_alphanumeric);
            let pattern = Pattern::compile(&facts.name).expect("a name is shorter than the longest pattern");
            let listed = table.list(Some(&pattern), now);
            assert!(!plain || matches!(listed.as_slice(), [only] if only.name == facts.name));
            match (table.find(&facts.name, now), read_policy(&facts.specs)) {
                (PolicyLookup::Found(effective), Some(policy)) => {
                    assert_eq!(*effective.name, *facts.name);
                    assert_eq!(effective.limits.to_string(), policy.scaled(facts.scale).to_string());
                }
                (PolicyLookup::Unreadable, None) => {}
                (found, read) => panic!("{found:?} of {read:?}"),
            }
        }
    }
}

/// Asserts that two tables with half of the records each agree after they exchange the groups in which their digests
/// differ.
fn assert_agree_on_half_each(records: &[&[u8]], whole: &Table, now: Timestamp) {
    let mut halves = [Table::of_node(1), Table::of_node(2)];
    for (place, record) in records.iter().enumerate() {
        halves[place % 2].merge(record, Origin::Peer, now);
    }
    let differs = |group: &usize| halves[0].digests()[*group] != halves[1].digests()[*group];
    let differ = (0..GROUPS).filter(differs).fold(0, |groups, group| groups | 1 << group);
    for (from, to) in [(0, 1), (1, 0)] {
        // Merges half of them at once; the other half is kept for later, as a server does.
        for (place, record) in in_groups(&halves[from], differ, now).iter().enumerate() {
            if place % 2 == 0 {
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

/// Asserts that a successor table that receives all records of another table has these, and none of its predecessor's.
fn assert_replaced(there: &mut Table, here: &Table, now: Timestamp) {
    let policy = read_policy(b"FIXED 5 1m").expect("it is one");
    // Fails if a record has the last possible stamp.
    let _ = there.set(b"its own", Condition::Always, &policy, now, usize::MAX);
    let mut successor = there.successor();
    for record in here.records(now) {
        assert_eq!(successor.load_record(there, &record, Origin::Primary, now), MergeOutcome::Changed);
    }
    *there = successor;
    assert_eq!((all(there), there.digests()), (all(here), here.digests()));
}

/// Asserts that a policy that is set and deleted in one table, whatever it replaces, is so in another one too.
fn assert_goes_on(here: &mut Table, there: &mut Table, now: Timestamp) {
    let policy = read_policy(b"CONCURRENCY 3 1m SHADOW FIXED 5 1m").expect("it is one");
    let name = here.list(None, now).first().map_or(Box::from(&b"p"[..]), |facts| facts.name.clone());
    match here.set(&name, Condition::Always, &policy, now, usize::MAX) {
        Err(error) => assert_wire(&error),
        Ok(set) => assert!(set.changed && set.version > 0),
    }
    for deletes in [false, true] {
        if deletes && let Err(error) = here.delete(&name, now) {
            assert_wire(&error);
        }
        let Some(record) = here.record(&name, now) else { continue };
        assert_ne!(there.merge(&record, Origin::Peer, now), MergeOutcome::Malformed, "what was written is read");
        assert_eq!((all(here), here.digests()), (all(there), there.digests()));
        assert_sound(here);
    }
}
