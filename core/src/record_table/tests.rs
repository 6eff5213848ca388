use super::block::MAX_BLOCK_SIZE;
use super::*;
use crate::number::Timestamp;
use crate::number::lazy_shift::Shift;
use crate::wire::codec::{Decoder, Encoder};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn mark(at: u64) -> Mark {
    Shift::NONE.mark(Timestamp::from_micros(at).unwrap())
}

/// Returns the timestamp and the bytes of a record with `padding` bytes after the value.
fn record(at: u64, name: &[u8], value: u64, padding: usize) -> (Mark, RecordBytes) {
    let mut bytes = RecordBytes::new(mark(at), name);
    bytes.integer(value);
    bytes.push(&vec![7; padding]);
    (mark(at), bytes)
}

fn insert(table: &mut RecordTable, at: u64, name: &[u8], value: u64, padding: usize) {
    let (at, bytes) = record(at, name, value, padding);
    let position = table.insert(at, name, bytes);
    let found = table.record_at(position).unwrap();
    assert_eq!((found.at, found.name, self::value(&found)), (at, name, value));
}

fn value(record: &Record) -> u64 {
    RecordDecoder(record.fields).integer().unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    /// Inserts a record with a name, a timestamp and padding, in place of the record with the same name.
    Put(u16, u64, usize),
    Remove(u16),
    /// Removes the first records.
    RemoveFirst(u8),
    /// Raises earlier timestamps to this one, so that several records have the same timestamp.
    RaiseTimestamps(u64),
    /// Adds a number to the values of all records.
    AddToValues(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0..300_u16, 0..200_u64, 0..300_usize).prop_map(|(name, at, padding)| Step::Put(name, at, padding)),
        4 => (0..300_u16).prop_map(Step::Remove),
        1 => any::<u8>().prop_map(Step::RemoveFirst),
        1 => (0..30_u64).prop_map(Step::RaiseTimestamps),
        1 => (0..1000_u64).prop_map(Step::AddToValues),
    ];
    vec(step, 1..400)
}

/// Returns the name with a number. The names have several lengths.
fn name_of(number: u16) -> Vec<u8> {
    format!("{number}").repeat(1 + usize::from(number % 5)).into_bytes()
}

proptest! {
    #[test]
    fn table_is_equivalent_to_a_map(steps in steps()) {
        let mut table = RecordTable::default();
        let mut by_name = BTreeMap::<Vec<u8>, (u64, u64)>::new();
        for (number, step) in (0_u64..).zip(&steps) {
            match step {
                Step::Put(name, at, padding) => {
                    let name = name_of(*name);
                    let before = by_name.insert(name.clone(), (*at, number));
                    prop_assert_eq!(table.take(&name, |found| (found.at.bits(), value(&found))), before);
                    insert(&mut table, *at, &name, number, *padding);
                }
                Step::Remove(name) => {
                    let name = name_of(*name);
                    let before = by_name.remove(&name);
                    prop_assert_eq!(table.take(&name, |found| (found.at.bits(), value(&found))), before);
                }
                Step::RemoveFirst(count) => for _ in 0..*count {
                    let first = by_name.iter().map(|(name, (at, _))| (*at, name.clone())).min();
                    first.map(|(_, name)| by_name.remove(&name));
                    table.remove_first();
                },
                Step::RaiseTimestamps(min) => {
                    for (at, _) in by_name.values_mut() {
                        *at = (*at).max(*min);
                    }
                    table.rewrite(|found| {
                        let at = found.at.bits().max(*min);
                        record(at, found.name, value(&found), 0)
                    });
                }
                Step::AddToValues(added) => {
                    for (_, value) in by_name.values_mut() {
                        *value += added;
                    }
                    table.rewrite(|found| record(found.at.bits(), found.name, value(&found) + added, 0));
                }
            }
            let mut expected: Vec<_> = by_name.iter().map(|(name, (at, value))| (*at, name.clone(), *value)).collect();
            expected.sort();
            let found = |record: Record| (record.at.bits(), record.name.to_vec(), value(&record));
            prop_assert_eq!(table.iter().map(found).collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(table.len(), expected.len());
            prop_assert_eq!(table.first().map(found), expected.first().cloned());
            prop_assert_eq!(table.latest().map(Mark::bits), expected.last().map(|(at, ..)| *at));
            prop_assert!(table.index.is_empty() || table.index.len() == table.len());
            prop_assert!(table.blocks.iter().all(|block| (1..=MAX_BLOCK_SIZE).contains(&block.bytes().len())));
        }
        for name in (0..300).map(name_of) {
            prop_assert_eq!(table.get(&name).map(|found| (found.at.bits(), value(&found))), by_name.get(&name).copied());
        }
        for at in [0, 1, 50, 100, 199, 200] {
            let expected: Vec<_> = table.iter().filter(|record| record.at >= mark(at)).map(|found| value(&found)).collect();
            prop_assert_eq!(table.iter_from(mark(at)).map(|found| value(&found)).collect::<Vec<_>>(), expected);
        }
    }
}

#[test]
fn record_is_appended_unless_its_name_exists() {
    let mut table = RecordTable::default();
    for number in 0..1000_u64 {
        let name = format!("{number}");
        let (at, bytes) = record(number, name.as_bytes(), number, 30);
        assert!(table.append_if_new(at, name.as_bytes(), bytes));
        let (at, bytes) = record(number, name.as_bytes(), number, 30);
        assert!(!table.append_if_new(at, name.as_bytes(), bytes));
    }
    assert_eq!((table.len(), table.iter().count()), (1000, 1000));
    let full = table.blocks.iter().filter(|block| block.bytes().len() > MAX_BLOCK_SIZE - 64).count();
    assert_eq!(full, table.blocks.len() - 1, "all blocks but the last are full");
    assert!(table.get(b"999").is_some() && table.get(b"1000").is_none());
}

#[test]
fn memory_overhead_of_a_record_is_bounded() {
    // In order of the timestamps, and out of order.
    for (step, max_overhead) in [(1, 32), (7919, 60)] {
        let mut table = RecordTable::default();
        for number in 0..20_000_u64 {
            let name = format!("{number:010}");
            insert(&mut table, number * step % 20_000, name.as_bytes(), 1, 0);
        }
        // The bytes of the length, the timestamp, the name with its length, and the value.
        let overhead = table.heap_size() / 20_000 - (2 + 8 + 11 + 1);
        assert!(overhead < max_overhead, "{overhead} bytes more than the record, in steps of {step}");
    }
}

#[test]
fn block_and_table_convert_into_each_other() {
    let mut table = RecordTable::default();
    for number in 0..10_u64 {
        insert(&mut table, number, &[65 + number.to_le_bytes()[0]], number, 300);
    }
    assert!(table.blocks.len() > 1 && !table.is_indexed());
    let block = table.take_block();
    assert_eq!((table.len(), table.heap_size()), (0, 0));
    let table = RecordTable::of(block);
    assert_eq!(table.iter().map(|found| value(&found)).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert_eq!((table.len(), table.is_indexed()), (10, false));
}

#[test]
fn memory_of_removed_records_is_freed() {
    let mut table = RecordTable::default();
    for number in 0..10_000_u64 {
        insert(&mut table, number, &number.to_be_bytes(), 0, 0);
    }
    let full_size = table.heap_size();
    (0..9_900).for_each(|_| table.remove_first());
    assert!(table.heap_size() < full_size / 10, "{} of {full_size} bytes", table.heap_size());
}
