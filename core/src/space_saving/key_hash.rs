//! Keyed hash of the names and items of denied keys.
//!
//! Clients choose the names. If many names had one hash, each denial would compare all of them. The hash is therefore
//! keyed by random numbers, like that of `record_table`. A cheaper function is used here, because a denied call is the
//! cheapest call, and the standard library's hash would be most of the added cost. The function adds up the products of
//! the name's words with a random number each ("multilinear"; Lemire and Kaser, "Strongly Universal String Hashing is
//! Fast", 2014). It is proven that any two names share bits of their hashes by chance only. An item adds a sum of its
//! own, with other random numbers. Neither the numbers nor the hashes are ever shown.

use super::MAX_PREFIX;
use std::array;
use std::hash::{BuildHasher, RandomState};

/// Keyed 32-bit hash of names and items, which clients cannot predict.
#[derive(Clone, Debug)]
pub(super) struct Hash {
    /// Multipliers of the name.
    pub(super) of_names: Multipliers,
    /// Multipliers of the item.
    pub(super) of_items: Multipliers,
}

/// Random multipliers of a name or an item.
#[derive(Clone, Debug)]
pub(super) struct Multipliers {
    /// Constant term of every sum.
    pub(super) base: u64,
    /// Multiplier of the length.
    pub(super) of_length: u64,
    /// Multiplier of the last four bytes.
    pub(super) of_last: u64,
    /// Multiplier of each word of four bytes.
    pub(super) of_words: [u64; MAX_PREFIX / 4],
}

impl Hash {
    /// Creates a hash with random multipliers.
    pub(super) fn new() -> Hash {
        Hash { of_names: Multipliers::random(), of_items: Multipliers::random() }
    }

    /// Returns the hash of a name, and of an item if there is one. Each has up to [`MAX_PREFIX`] bytes.
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

    /// Returns the sum for a name or an item. Two of them differ in their whole words, last bytes or lengths.
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

/// Converts four bytes to a number.
fn word(bytes: [u8; 4]) -> u64 {
    u64::from(u32::from_le_bytes(bytes))
}
