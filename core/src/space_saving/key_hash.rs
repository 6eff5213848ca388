//! How the sketch finds a name.
//!
//! Names come from outside, and names that share one hash would make each denial walk through all of them. So the hash is
//! keyed by random numbers, as that of `record_table` is, but by a cheaper one: a denied call is the cheapest there is,
//! and the standard library's hash would be most of what is added to it. The one here adds up products of the name's
//! words, each with a random number of its own ("multilinear"; Lemire and Kaser, "Strongly Universal String Hashing is
//! Fast", 2014). Of any two names, whatever they are, it is proven that they share bits of their hashes by chance only;
//! an item adds a sum of its own, by other numbers. The numbers never show, and neither does a hash.

use super::MAX_PREFIX;
use std::array;
use std::hash::{BuildHasher, RandomState};

/// A hash of names and items, of 32 bits, that nobody outside can know.
#[derive(Clone, Debug)]
pub(super) struct Hash {
    /// What names are multiplied by.
    pub(super) of_names: Multipliers,
    /// What items are multiplied by.
    pub(super) of_items: Multipliers,
}

/// Random numbers, by which what is hashed is multiplied.
#[derive(Clone, Debug)]
pub(super) struct Multipliers {
    /// Added to every sum.
    pub(super) base: u64,
    /// What the length is multiplied by.
    pub(super) of_length: u64,
    /// What the last four bytes are multiplied by.
    pub(super) of_last: u64,
    /// What each word of a name is multiplied by.
    pub(super) of_words: [u64; MAX_PREFIX / 4],
}

impl Hash {
    /// One with random numbers.
    pub(super) fn new() -> Hash {
        Hash { of_names: Multipliers::random(), of_items: Multipliers::random() }
    }

    /// Of a name, and of an item if there is one: up to [`MAX_PREFIX`] bytes each.
    #[inline]
    pub(super) fn of(&self, name: &[u8], item: Option<&[u8]>) -> u32 {
        let sum = self.of_names.sum(name);
        let sum = item.map_or(sum, |item| sum.wrapping_add(self.of_items.sum(item)));
        u32::try_from(sum >> 32).unwrap_or(u32::MAX)
    }
}

impl Multipliers {
    fn random() -> Multipliers {
        let random = RandomState::new();
        let [base, of_length, of_last] = ["base", "length", "last"].map(|number| random.hash_one(number));
        Multipliers { base, of_length, of_last, of_words: array::from_fn(|word| random.hash_one(word)) }
    }

    /// Names differ in their whole words, their last bytes or their lengths.
    #[inline]
    fn sum(&self, name: &[u8]) -> u64 {
        let shorter = || name.iter().fold(0, |word, byte| (word << 8) | u64::from(*byte));
        let last = name.last_chunk().copied().map_or_else(shorter, word);
        let length = u64::try_from(name.len()).unwrap_or(u64::MAX);
        let mut sum = self.base.wrapping_add(self.of_length.wrapping_mul(length));
        sum = sum.wrapping_add(self.of_last.wrapping_mul(last));
        for (&chunk, number) in name.as_chunks().0.iter().zip(&self.of_words) {
            sum = sum.wrapping_add(number.wrapping_mul(word(chunk)));
        }
        sum
    }
}

/// Four bytes as a number.
fn word(bytes: [u8; 4]) -> u64 {
    u64::from(u32::from_le_bytes(bytes))
}
