use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

/// Members of a cluster with different versions of the module compare digests.
#[test]
fn hash_is_stable_across_versions() {
    for (text, hash) in [
        (&b""[..], 0),
        (b"a", 0x4629_970a_9b7f_e156),
        (b"abc", 0x57da_a79c_6dc7_5c9a),
        (b"gold", 0x026f_46a8_f09a_24fd),
        (b"default", 0x09ab_bd88_911c_6c9d),
        (b"plan:pro", 0xd78c_18b9_b003_2a16),
        (b"user:1234567", 0xc2b0_d765_37c9_5e8d),
        (&[0xff; 256], 0x1130_a88c_776c_1074),
    ] {
        assert_eq!(of(text), hash, "{:?}: {:#x}", text.escape_ascii().to_string(), of(text));
    }
}

#[test]
fn names_that_differ_in_one_byte_or_length_have_different_hashes() {
    for length in 1..=40 {
        let name = vec![b'a'; length];
        let mut hashes = HashSet::from([of(&name), of(&name[1..])]);
        for index in 0..length {
            let mut other = name.clone();
            other[index] = b'b';
            assert!(hashes.insert(of(&other)), "{length}, {index}");
        }
    }
}

/// The table uses the lowest bits of a hash and seven of the highest, and a group the six highest.
#[test]
fn numbered_names_are_distributed_like_random_ones() {
    for prefix in ["", "user:", "plan:enterprise:"] {
        let (mut groups, mut slots) = ([0_u32; 64], vec![0_u32; 4096]);
        for n in 0..4096_u16 {
            let hash = of(format!("{prefix}{n}").as_bytes());
            groups[usize::try_from(hash >> 58).unwrap()] += 1;
            slots[usize::try_from(hash % 4096).unwrap()] += 1;
        }
        // The mean is 64 in a group and 1 in a slot. The bounds are six standard deviations, and the maximum of ten
        // thousand random trials.
        assert!(groups.iter().all(|count| (16..=112).contains(count)), "{prefix}: {groups:?}");
        assert!(slots.iter().all(|count| *count <= 9), "{prefix}");
    }
}

proptest! {
    #[test]
    fn hash_does_not_depend_on_alignment(text in proptest::collection::vec(any::<u8>(), 0..64), shift in 0_usize..8) {
        let mut moved = vec![0; shift];
        moved.extend_from_slice(&text);
        prop_assert_eq!(of(&text), of(&moved[shift..]));
    }
}
