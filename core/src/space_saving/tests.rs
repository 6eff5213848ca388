mod denying_policies;
mod last_minutes;

use super::*;
use crate::keyed_hash::Multipliers;
use crate::testing::calls::us;
use proptest::collection::vec;
use proptest::prelude::*;
use std::array;
use std::collections::BTreeMap;

/// Returns a hash function with the same multipliers in every run.
fn fixed_hash() -> Hash {
    let number = |index: usize| {
        u64::try_from(index).unwrap().wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) | 1
    };
    let multipliers = |first: usize| Multipliers {
        base: number(first),
        of_length: number(first + 1),
        of_last: number(first + 2),
        of_words: array::from_fn(|word| number(first + 3 + word)),
    };
    Hash { of_names: multipliers(0), of_items: multipliers(1000) }
}

/// Returns a hash function that gives all names the same hash.
fn constant_hash() -> Hash {
    let none = Multipliers { base: 0, of_length: 0, of_last: 0, of_words: [0; MAX_PREFIX / 4] };
    Hash { of_names: none.clone(), of_items: none }
}

/// Count and error of each key, by name.
type CountsByName = BTreeMap<Vec<u8>, (u64, u64)>;

fn counts_by_name(sketch: &SpaceSaving) -> CountsByName {
    let heavy = sketch.heaviest(usize::MAX);
    let counts: CountsByName = heavy.iter().map(|heavy| (heavy.name.to_vec(), (heavy.denied, heavy.error))).collect();
    assert_eq!(counts.len(), heavy.len(), "no key has two entries");
    counts
}

fn names(sketch: &SpaceSaving, count: usize) -> Vec<String> {
    sketch.heaviest(count).iter().map(|heavy| String::from_utf8_lossy(heavy.name).into_owned()).collect()
}

/// Returns a sketch after these denials, each of a key with a name of one letter.
fn sketch_after(max_entries: usize, denials: &str) -> SpaceSaving {
    let mut sketch = SpaceSaving::new(max_entries);
    record(&mut sketch, denials);
    sketch
}

fn deny(sketch: &mut SpaceSaving, name: &[u8]) {
    sketch.record(name, None, None, Timestamp::EPOCH);
}

fn record(sketch: &mut SpaceSaving, denials: &str) {
    denials.bytes().for_each(|name| deny(sketch, &[name]));
}

fn count_and_error(sketch: &SpaceSaving, name: &str) -> Option<(u64, u64)> {
    counts_by_name(sketch).get(name.as_bytes()).copied()
}

#[test]
fn counts_are_exact_below_the_maximum() {
    let sketch = sketch_after(3, "abcabaa");
    assert_eq!(
        counts_by_name(&sketch),
        CountsByName::from([(b"a".into(), (4, 0)), (b"b".into(), (2, 0)), (b"c".into(), (1, 0))])
    );
    assert_eq!(sketch.floor(), 0);
}

#[test]
fn new_key_replaces_the_least_denied_one_and_continues_from_its_count() {
    let mut sketch = sketch_after(2, "aaabb");
    record(&mut sketch, "c");
    assert_eq!(counts_by_name(&sketch), CountsByName::from([(b"a".into(), (3, 0)), (b"c".into(), (3, 2))]));
    assert_eq!(sketch.floor(), 2);
    record(&mut sketch, "cb");
    assert_eq!(counts_by_name(&sketch), CountsByName::from([(b"c".into(), (4, 2)), (b"b".into(), (4, 3))]));
}

#[test]
fn keys_are_ordered_by_count_then_by_error_then_by_name() {
    let sketch = sketch_after(3, "abbccc");
    assert_eq!(names(&sketch, 10), ["c", "b", "a"]);
    assert_eq!(
        (names(&sketch, 2), names(&sketch, 1), names(&sketch, 0)),
        (vec!["c".into(), "b".into()], vec!["c".into()], vec![])
    );
    assert_eq!(names(&sketch_after(3, "cba"), 3), ["a", "b", "c"]);
    let sketch = sketch_after(2, "abbc");
    assert_eq!((count_and_error(&sketch, "b"), count_and_error(&sketch, "c")), (Some((2, 0)), Some((2, 1))));
    assert_eq!(names(&sketch, 2), ["b", "c"]);
    assert_eq!(names(&sketch_after(2, "zbbc"), 1), ["b"], "the key with the smaller error");
}

#[test]
fn sketch_of_size_zero_counts_nothing() {
    let mut sketch = sketch_after(0, "aab");
    assert_eq!((sketch.max_entries(), sketch.heaviest(10), sketch.floor()), (0, vec![], 0));
    sketch.resize(1);
    record(&mut sketch, "a");
    assert_eq!(count_and_error(&sketch, "a"), Some((1, 0)));
}

#[test]
fn cleared_sketch_equals_a_new_one() {
    let mut sketch = sketch_after(2, "aabbc");
    sketch.clear();
    assert_eq!((sketch.heaviest(10), sketch.floor(), sketch.max_entries()), (vec![], 0, 2));
    record(&mut sketch, "cba");
    assert_eq!(sketch.floor(), 1);
    assert_eq!(counts_by_name(&sketch).len(), 2);
}

#[test]
fn names_are_any_bytes_and_long_ones_are_truncated() {
    let mut sketch = SpaceSaving::new(10);
    let longest = vec![7; MAX_PREFIX];
    let longer = [&longest[..], b"more"].concat();
    for name in [b"", &b"\0"[..], b"\0\0", &longest, &longer, &longest[1..], b"\xFF\0\n"] {
        deny(&mut sketch, name);
    }
    let counts = |name: &[u8]| counts_by_name(&sketch).get(name).copied();
    for name in [b"", &b"\0"[..], b"\0\0", &longest[1..], b"\xFF\0\n"] {
        assert_eq!(counts(name), Some((1, 0)), "{name:?}");
    }
    assert_eq!((counts(&longest), counts(&longer)), (Some((2, 0)), None));
}

#[test]
fn smaller_sketch_keeps_the_heaviest_and_larger_one_keeps_all() {
    let mut sketch = sketch_after(4, "aaaabbbccd");
    sketch.resize(2);
    assert_eq!(counts_by_name(&sketch), CountsByName::from([(b"a".into(), (4, 0)), (b"b".into(), (3, 0))]));
    assert_eq!((sketch.max_entries(), sketch.floor()), (2, 2));
    record(&mut sketch, "c");
    assert_eq!(
        count_and_error(&sketch, "c"),
        Some((4, 3)),
        "the count continues from that of `b`, although `c` was denied three times"
    );
    sketch.resize(3);
    assert_eq!((count_and_error(&sketch, "a"), count_and_error(&sketch, "c")), (Some((4, 0)), Some((4, 3))));
    record(&mut sketch, "d");
    assert_eq!(count_and_error(&sketch, "d"), Some((4, 3)), "the count of a new key starts at the floor");
    assert_eq!(count_and_error(&sketch, "b"), None);
    sketch.resize(0);
    assert_eq!((sketch.heaviest(10), sketch.floor()), (vec![], 4));
}

#[test]
fn smaller_sketch_keeps_the_key_with_the_smaller_error() {
    let mut sketch = sketch_after(2, "abbc");
    sketch.resize(1);
    assert_eq!((counts_by_name(&sketch), sketch.floor()), (CountsByName::from([(b"b".into(), (2, 0))]), 2));
}

#[test]
fn number_of_entries_is_bounded() {
    assert_eq!(SpaceSaving::new(usize::MAX).max_entries(), MAX_ENTRIES);
    let mut sketch = SpaceSaving::new(1);
    sketch.resize(MAX_ENTRIES + 1);
    assert_eq!(sketch.max_entries(), MAX_ENTRIES);
}

#[test]
fn count_saturates() {
    let mut sketch = sketch_after(1, "a");
    sketch.counts[0].denied = u64::MAX;
    record(&mut sketch, "a");
    assert_eq!(count_and_error(&sketch, "a"), Some((u64::MAX, 0)));
    record(&mut sketch, "b");
    assert_eq!(count_and_error(&sketch, "b"), Some((u64::MAX, u64::MAX)));
}

#[test]
fn unused_sketch_takes_no_memory() {
    let sketch = SpaceSaving::new(MAX_ENTRIES);
    assert_eq!((sketch.table.capacity(), sketch.entries.capacity(), sketch.counts.capacity()), (0, 0, 0));
}

#[test]
fn replaced_entry_reuses_the_memory_of_its_name() {
    let mut sketch = sketch_after(1, "a");
    deny(&mut sketch, &[b'x'; 40]);
    let address = sketch.entries[0].name.as_ptr();
    for name in [b"b".to_vec(), vec![b'y'; 40], vec![b'z'; 20]] {
        deny(&mut sketch, &name);
        assert_eq!(sketch.entries[0].name.as_ptr(), address);
    }
}

#[test]
fn hash_depends_on_every_byte_and_on_the_length() {
    let hash = fixed_hash();
    let name = [0x5A; MAX_PREFIX];
    for length in 0..=MAX_PREFIX {
        let name_hash = hash.of(&name[..length], None);
        for byte in 0..length {
            let mut other = name;
            other[byte] ^= 0x80;
            assert_ne!(hash.of(&other[..length], None), name_hash, "byte {byte} of {length}");
        }
        // Trailing zeros change the hash.
        let zeros = [0; MAX_PREFIX];
        assert_eq!(hash.of(&zeros[..length], None) == hash.of(&[], None), length == 0, "{length} zeros");
        let [zeros_hash, empty_hash] = [&zeros[..length], &[]].map(|item| hash.of(b"a", Some(item)));
        assert_eq!(zeros_hash == empty_hash, length == 0, "{length} zeros as an item");
        assert_ne!(zeros_hash, hash.of(b"a", None));
    }
}

#[test]
fn each_sketch_has_its_own_hash() {
    let (hash, other_hash) = (Hash::new(), Hash::new());
    let names: Vec<_> = (0..4_u8).map(|name| vec![name; 9]).collect();
    assert!(names.iter().any(|name| hash.of(name, None) != other_hash.of(name, None)));
    let numbers_in = |multipliers: &Multipliers<_>| {
        let Multipliers { base, of_length, of_last, of_words } = multipliers;
        [&[*base, *of_length, *of_last][..], of_words].concat()
    };
    let numbers = [numbers_in(&hash.of_names), numbers_in(&hash.of_items)].concat();
    assert_eq!(numbers.iter().collect::<std::collections::BTreeSet<_>>().len(), numbers.len(), "all numbers differ");
}

#[test]
fn hashes_of_numbered_names_differ_in_the_lowest_bits() {
    let hash = fixed_hash();
    let hashes = (0..1024).map(|number| hash.of(format!("user:{number}").as_bytes(), None) % 1024);
    // 1024 random numbers below 1024 have about 647 different values.
    assert!(hashes.collect::<std::collections::BTreeSet<_>>().len() > 550);
}

#[test]
fn hash_table_never_grows() {
    let mut sketch = SpaceSaving::hashed_by(fixed_hash(), 1000);
    deny(&mut sketch, b"first");
    let table_size = sketch.table.allocation_size();
    for number in 0..100_000 {
        deny(&mut sketch, format!("user:{number}").as_bytes());
    }
    assert_eq!((sketch.table.len(), sketch.table.allocation_size()), (1000, table_size));
}

#[test]
fn item_is_counted_separately_and_truncated() {
    let mut sketch = SpaceSaving::new(3);
    let rows = |sketch: &SpaceSaving| {
        let rows = sketch
            .heaviest(9)
            .into_iter()
            .map(|heavy| (heavy.name.to_vec(), heavy.item.map(<[u8]>::to_vec), heavy.denied));
        rows.collect::<Vec<_>>()
    };
    let long = [b'x'; MAX_PREFIX + 1];
    for item in [Some(&b"b"[..]), None, Some(b""), Some(b"b"), None, Some(b"b")] {
        sketch.record(b"a", item, None, Timestamp::EPOCH);
    }
    let (key, b) = (b"a".to_vec(), Some(b"b".to_vec()));
    assert_eq!(rows(&sketch), [(key.clone(), b.clone(), 3), (key.clone(), None, 2), (key.clone(), Some(vec![]), 1)]);
    // The items have the same first `MAX_PREFIX` bytes.
    for item in [&long[..], &long[1..]] {
        sketch.record(b"a", Some(item), None, Timestamp::EPOCH);
    }
    let truncated = (key.clone(), Some(long[1..].to_vec()), 3);
    assert_eq!(rows(&sketch), [(key.clone(), b, 3), truncated, (key, None, 2)]);
    sketch.resize(1);
    assert_eq!(sketch.heaviest(9)[0].item, Some(&b"b"[..]));
    // A key without an item takes over the entry of an item.
    sketch.record(b"c", None, None, Timestamp::EPOCH);
    assert_eq!(rows(&sketch), [(b"c".to_vec(), None, 4)]);
}

fn hash() -> impl Strategy<Value = Hash> {
    prop_oneof![Just(fixed_hash()), Just(constant_hash())]
}
