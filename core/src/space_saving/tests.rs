mod denying_policies;
mod last_minutes;

use super::*;
use crate::keyed_hash::Multipliers;
use crate::testing::calls::us;
use proptest::collection::vec;
use proptest::prelude::*;
use std::array;
use std::collections::BTreeMap;

/// Returns a hash with the same multipliers in every run.
fn fixed_hash() -> Hash {
    let number = |place: usize| {
        u64::try_from(place).unwrap().wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) | 1
    };
    let multipliers = |first: usize| Multipliers {
        base: number(first),
        of_length: number(first + 1),
        of_last: number(first + 2),
        of_words: array::from_fn(|place| number(first + 3 + place)),
    };
    Hash { of_names: multipliers(0), of_items: multipliers(1000) }
}

/// Returns a hash that all names share.
fn one_for_all() -> Hash {
    let none = Multipliers { base: 0, of_length: 0, of_last: 0, of_words: [0; MAX_PREFIX / 4] };
    Hash { of_names: none.clone(), of_items: none }
}

/// Count and error of each key, by name.
type Identity = BTreeMap<Vec<u8>, (u64, u64)>;

fn known(top: &SpaceSaving) -> Identity {
    let heavy = top.heaviest(usize::MAX);
    let known: Identity = heavy.iter().map(|heavy| (heavy.name.to_vec(), (heavy.denied, heavy.error))).collect();
    assert_eq!(known.len(), heavy.len(), "no key has two entries");
    known
}

fn names(top: &SpaceSaving, count: usize) -> Vec<String> {
    top.heaviest(count).iter().map(|heavy| String::from_utf8_lossy(heavy.name).into_owned()).collect()
}

/// Returns a sketch after these denials, each of a key with a name of one letter.
fn after(max_entries: usize, denials: &str) -> SpaceSaving {
    let mut top = SpaceSaving::new(max_entries);
    record(&mut top, denials);
    top
}

fn deny(top: &mut SpaceSaving, name: &[u8]) {
    top.record(name, None, None, Timestamp::EPOCH);
}

fn record(top: &mut SpaceSaving, denials: &str) {
    denials.bytes().for_each(|name| deny(top, &[name]));
}

fn of(top: &SpaceSaving, name: &str) -> Option<(u64, u64)> {
    known(top).get(name.as_bytes()).copied()
}

#[test]
fn counts_are_exact_below_the_maximum() {
    let top = after(3, "abcabaa");
    assert_eq!(known(&top), Identity::from([(b"a".into(), (4, 0)), (b"b".into(), (2, 0)), (b"c".into(), (1, 0))]));
    assert_eq!(top.floor(), 0);
}

#[test]
fn new_key_replaces_the_least_denied_one_and_continues_from_its_count() {
    let mut top = after(2, "aaabb");
    record(&mut top, "c");
    assert_eq!(known(&top), Identity::from([(b"a".into(), (3, 0)), (b"c".into(), (3, 2))]));
    assert_eq!(top.floor(), 2);
    record(&mut top, "cb");
    assert_eq!(known(&top), Identity::from([(b"c".into(), (4, 2)), (b"b".into(), (4, 3))]));
}

#[test]
fn heaviest_keys_come_first_and_of_equal_ones_the_more_certain() {
    let top = after(3, "abbccc");
    assert_eq!(names(&top, 10), ["c", "b", "a"]);
    assert_eq!(
        (names(&top, 2), names(&top, 1), names(&top, 0)),
        (vec!["c".into(), "b".into()], vec!["c".into()], vec![])
    );
    assert_eq!(names(&after(3, "cba"), 3), ["a", "b", "c"]);
    let top = after(2, "abbc");
    assert_eq!((of(&top, "b"), of(&top, "c")), (Some((2, 0)), Some((2, 1))));
    assert_eq!(names(&top, 2), ["b", "c"]);
    assert_eq!(names(&after(2, "zbbc"), 1), ["b"], "of all that are there");
}

#[test]
fn sketch_of_size_zero_counts_nothing() {
    let mut top = after(0, "aab");
    assert_eq!((top.max_entries(), top.heaviest(10), top.floor()), (0, vec![], 0));
    top.resize(1);
    record(&mut top, "a");
    assert_eq!(of(&top, "a"), Some((1, 0)));
}

#[test]
fn cleared_sketch_equals_a_new_one() {
    let mut top = after(2, "aabbc");
    top.clear();
    assert_eq!((top.heaviest(10), top.floor(), top.max_entries()), (vec![], 0, 2));
    record(&mut top, "cba");
    assert_eq!(top.floor(), 1);
    assert_eq!(known(&top).len(), 2);
}

#[test]
fn names_are_any_bytes_and_long_ones_are_truncated() {
    let mut top = SpaceSaving::new(10);
    let longest = vec![7; MAX_PREFIX];
    let longer = [&longest[..], b"more"].concat();
    for name in [b"", &b"\0"[..], b"\0\0", &longest, &longer, &longest[1..], b"\xFF\0\n"] {
        deny(&mut top, name);
    }
    let counts = |name: &[u8]| known(&top).get(name).copied();
    for name in [b"", &b"\0"[..], b"\0\0", &longest[1..], b"\xFF\0\n"] {
        assert_eq!(counts(name), Some((1, 0)), "{name:?}");
    }
    assert_eq!((counts(&longest), counts(&longer)), (Some((2, 0)), None));
}

#[test]
fn smaller_sketch_keeps_the_heaviest_and_larger_one_keeps_all() {
    let mut top = after(4, "aaaabbbccd");
    top.resize(2);
    assert_eq!(known(&top), Identity::from([(b"a".into(), (4, 0)), (b"b".into(), (3, 0))]));
    assert_eq!((top.max_entries(), top.floor()), (2, 2));
    record(&mut top, "c");
    assert_eq!(of(&top, "c"), Some((4, 3)), "it was denied three times, and the sketch knows no better");
    top.resize(3);
    assert_eq!((of(&top, "a"), of(&top, "c")), (Some((4, 0)), Some((4, 3))));
    record(&mut top, "d");
    assert_eq!(of(&top, "d"), Some((4, 3)), "it may have been denied as often as any that went");
    assert_eq!(of(&top, "b"), None);
    top.resize(0);
    assert_eq!((top.heaviest(10), top.floor()), (vec![], 4));
}

#[test]
fn smaller_sketch_keeps_the_more_certain_of_equal_keys() {
    let mut top = after(2, "abbc");
    top.resize(1);
    assert_eq!((known(&top), top.floor()), (Identity::from([(b"b".into(), (2, 0))]), 2));
}

#[test]
fn number_of_entries_is_bounded() {
    assert_eq!(SpaceSaving::new(usize::MAX).max_entries(), MAX_ENTRIES);
    let mut top = SpaceSaving::new(1);
    top.resize(MAX_ENTRIES + 1);
    assert_eq!(top.max_entries(), MAX_ENTRIES);
}

#[test]
fn count_saturates() {
    let mut top = after(1, "a");
    top.counts[0].denied = u64::MAX;
    record(&mut top, "a");
    assert_eq!(of(&top, "a"), Some((u64::MAX, 0)));
    record(&mut top, "b");
    assert_eq!(of(&top, "b"), Some((u64::MAX, u64::MAX)));
}

#[test]
fn unused_sketch_takes_no_memory() {
    let top = SpaceSaving::new(MAX_ENTRIES);
    assert_eq!((top.table.capacity(), top.entries.capacity(), top.counts.capacity()), (0, 0, 0));
}

#[test]
fn replaced_entry_reuses_the_memory_of_its_name() {
    let mut top = after(1, "a");
    deny(&mut top, &[b'x'; 40]);
    let room = top.entries[0].name.as_ptr();
    for name in [b"b".to_vec(), vec![b'y'; 40], vec![b'z'; 20]] {
        deny(&mut top, &name);
        assert_eq!(top.entries[0].name.as_ptr(), room);
    }
}

#[test]
fn hash_depends_on_every_byte_and_on_the_length() {
    let hash = fixed_hash();
    let name = [0x5A; MAX_PREFIX];
    for length in 0..=MAX_PREFIX {
        let of_name = hash.of(&name[..length], None);
        for byte in 0..length {
            let mut other = name;
            other[byte] ^= 0x80;
            assert_ne!(hash.of(&other[..length], None), of_name, "byte {byte} of {length}");
        }
        // A name that ends with zeros is not the same as one without them.
        let zeros = [0; MAX_PREFIX];
        assert_eq!(hash.of(&zeros[..length], None) == hash.of(&[], None), length == 0, "{length} zeros");
        let of_items = [&zeros[..length], &[]].map(|item| hash.of(b"a", Some(item)));
        assert_eq!(of_items[0] == of_items[1], length == 0, "{length} zeros as an item");
        assert_ne!(of_items[0], hash.of(b"a", None));
    }
}

#[test]
fn each_sketch_has_its_own_hash() {
    let (one, other) = (Hash::new(), Hash::new());
    let names: Vec<_> = (0..4_u8).map(|name| vec![name; 9]).collect();
    assert!(names.iter().any(|name| one.of(name, None) != other.of(name, None)));
    let drawn = |of: &Multipliers<_>| [&[of.base, of.of_length, of.of_last][..], &of.of_words].concat();
    let numbers = [drawn(&one.of_names), drawn(&one.of_items)].concat();
    assert_eq!(numbers.iter().collect::<std::collections::BTreeSet<_>>().len(), numbers.len(), "all are drawn");
}

#[test]
fn hashes_of_numbered_names_differ_in_the_lowest_bits() {
    let hash = fixed_hash();
    let hashes = (0..1024).map(|number| hash.of(format!("user:{number}").as_bytes(), None) % 1024);
    // By chance 63 of a hundred differ.
    assert!(hashes.collect::<std::collections::BTreeSet<_>>().len() > 550);
}

#[test]
fn table_of_places_never_grows() {
    let mut top = SpaceSaving::hashed_by(fixed_hash(), 1000);
    deny(&mut top, b"first");
    let room = top.table.allocation_size();
    for number in 0..100_000 {
        deny(&mut top, format!("user:{number}").as_bytes());
    }
    assert_eq!((top.table.len(), top.table.allocation_size()), (1000, room));
}

#[test]
fn item_is_counted_separately_and_removed_with_its_key() {
    let mut top = SpaceSaving::new(3);
    let sent = |top: &SpaceSaving| {
        let sent = top
            .heaviest(9)
            .into_iter()
            .map(|heavy| (heavy.name.to_vec(), heavy.item.map(<[u8]>::to_vec), heavy.denied));
        sent.collect::<Vec<_>>()
    };
    let long = [b'x'; MAX_PREFIX + 1];
    for item in [Some(&b"b"[..]), None, Some(b""), Some(b"b"), None, Some(b"b")] {
        top.record(b"a", item, None, Timestamp::EPOCH);
    }
    let (key, b) = (b"a".to_vec(), Some(b"b".to_vec()));
    assert_eq!(sent(&top), [(key.clone(), b.clone(), 3), (key.clone(), None, 2), (key.clone(), Some(vec![]), 1)]);
    // The beginning stands for a longer one.
    for item in [&long[..], &long[1..]] {
        top.record(b"a", Some(item), None, Timestamp::EPOCH);
    }
    let cut = (key.clone(), Some(long[1..].to_vec()), 3);
    assert_eq!(sent(&top), [(key.clone(), b, 3), cut, (key, None, 2)]);
    top.resize(1);
    assert_eq!(top.heaviest(9)[0].item, Some(&b"b"[..]));
    // A key without items takes its entry.
    top.record(b"c", None, None, Timestamp::EPOCH);
    assert_eq!(sent(&top), [(b"c".to_vec(), None, 4)]);
}

fn hash() -> impl Strategy<Value = Hash> {
    prop_oneof![Just(fixed_hash()), Just(one_for_all())]
}
