//! Records of policies from any bytes, one after another: refused, or written back as they came; and tables that have
//! heard the same have the same, in whatever order and however often they heard it.

use crate::laws::{assert_policy, assert_wire, read_policy};
use ratelimit_core::policy::{Condition, Found, GROUPS, Merged, Table};
use ratelimit_core::{Span, Timestamp};

/// As many as make every mix of stamps; more only take longer.
const MOST: usize = 16;

pub fn run(data: &[u8]) {
    let now = Timestamp::from_clock(1_700_000_000_000_000);
    let records: Vec<&[u8]> =
        data.split(|byte| *byte == b'\n').take(MOST).filter(|record| takes(record, now)).collect();
    let mut here = Table::of_node(1);
    for record in &records {
        here.merge(record, now);
        assert_eq!(here.merge(record, now), Merged::Unchanged, "it has been heard");
    }
    assert_sound(&here);

    let mut there = Table::of_node(2);
    records.iter().rev().for_each(|record| assert_ne!(there.merge(record, now), Merged::Invalid));
    assert_eq!(all(&there), all(&here));
    assert_eq!(there.digests(), here.digests());

    assert_agree_on_half_each(&records, &here, now);
    assert_replaced(&mut there, &here, now);
    assert_goes_on(&mut here, &mut there, now);

    // What was deleted is in no digest: to forget it changes none.
    let before = *here.digests();
    here.forget(now.plus(Span::SECOND.times(86_400)));
    assert_eq!((here.records().count(), *here.digests()), (here.len(), before));
    assert_sound(&here);
}

/// Whether a record is one; then a table that hears of nothing else writes the same.
fn takes(record: &[u8], now: Timestamp) -> bool {
    let mut alone = Table::of_node(3);
    let merged = alone.merge(record, now);
    assert_eq!(merged, if Table::check(record) { Merged::Changed } else { Merged::Invalid });
    assert_eq!(all(&alone).as_slice(), if merged == Merged::Changed { vec![record.to_vec()] } else { vec![] });
    if let [facts] = alone.list(None, now).as_slice() {
        assert_sound(&alone);
        if let Some(policy) = read_policy(&facts.specs) {
            assert_policy(&policy);
        }
    }
    merged == Merged::Changed
}

/// All that a table knows, deletions too.
fn all(table: &Table) -> Vec<Vec<u8>> {
    let mut records: Vec<Vec<u8>> = table.records().collect();
    records.sort_unstable();
    records
}

/// What a table says of itself goes together.
fn assert_sound(table: &Table) {
    assert_eq!(table.digest(), table.digests().iter().fold(0, |sum: u64, digest| sum.wrapping_add(*digest)));
    assert_eq!((0..GROUPS).map(|group| table.records_of_group(group).count()).sum::<usize>(), table.records().count());
    for now in [Timestamp::EPOCH, Timestamp::from_clock(1_700_000_000_000_000), Timestamp::MAX] {
        let facts = table.list(None, now);
        assert_eq!((facts.len(), facts.is_empty()), (table.len(), table.is_empty()));
        for facts in facts {
            let record = table.record(&facts.name).expect("what is listed is known");
            assert!(Table::check(&record));
            assert!(table.get(&facts.name, now).is_some_and(|got| got.specs == facts.specs));
            // A name is a pattern too; a plain one is its own.
            let plain = facts.name.iter().all(u8::is_ascii_alphanumeric);
            let listed = table.list(Some(&facts.name), now);
            assert!(!plain || matches!(listed.as_slice(), [only] if only.name == facts.name));
            match (table.find(&facts.name, now), read_policy(&facts.specs)) {
                (Found::Ruling(ruling), Some(policy)) => {
                    assert_eq!(ruling.name, facts.name);
                    assert_eq!(ruling.policy.to_string(), policy.scaled(facts.scale).to_string());
                }
                (Found::Unreadable, None) => {}
                (found, read) => panic!("{found:?} of {read:?}"),
            }
        }
    }
}

/// Two tables that have heard some each, and send each other what their digests say that they differ in, agree.
fn assert_agree_on_half_each(records: &[&[u8]], whole: &Table, now: Timestamp) {
    let mut halves = [Table::of_node(1), Table::of_node(2)];
    for (place, record) in records.iter().enumerate() {
        halves[place % 2].merge(record, now);
    }
    let differ: Vec<usize> =
        (0..GROUPS).filter(|group| halves[0].digests()[*group] != halves[1].digests()[*group]).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        let sent: Vec<Vec<u8>> = differ.iter().flat_map(|group| halves[from].records_of_group(*group)).collect();
        for record in sent {
            assert_ne!(halves[to].merge(&record, now), Merged::Invalid);
        }
    }
    for half in halves {
        assert_eq!(half.digests(), whole.digests());
    }
}

/// A table that takes all of another's over has that, and nothing of its own.
fn assert_replaced(there: &mut Table, here: &Table, now: Timestamp) {
    let policy = read_policy(b"FIXED 5 1m").expect("it is one");
    // Nobody can, if somebody has made up the last stamp that there is.
    let _ = there.set(b"its own", Condition::Always, &policy, now, usize::MAX);
    let records = all(here);
    there.replace(records.iter().map(Vec::as_slice), now);
    assert_eq!((all(there), there.digests()), (records, here.digests()));
}

/// What is set and deleted here, over anything, stands there too.
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
        let Some(record) = here.record(&name) else { continue };
        assert_ne!(there.merge(&record, now), Merged::Invalid, "what was written is read");
        assert_eq!((all(here), here.digests()), (all(there), there.digests()));
        assert_sound(here);
    }
}
