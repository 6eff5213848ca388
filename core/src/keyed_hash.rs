//! Keyed hash of names that clients choose.
//!
//! If many names had the same hash, each lookup would compare all of them. The hash is therefore keyed by random
//! numbers: it is the sum of the name's words, each multiplied by its own random number ("multilinear"; Lemire and
//! Kaser, "Strongly Universal String Hashing is Fast", 2014). It is proven that any two names share bits of their
//! hashes by chance only. Clients never see the random numbers or the hashes.
//!
//! **When to use it:** for hash tables of names in which a call looks up a name. **Cost:** a multiplication for each
//! four bytes; for a short name, a fifth of the standard library's `SipHash`.

use std::array;
use std::hash::{BuildHasher, RandomState};

/// Random multipliers for names of up to `WORDS` words. A word is four bytes.
#[derive(Clone, Debug)]
pub(crate) struct Multipliers<const WORDS: usize> {
    /// Constant term of every sum.
    pub(crate) base: u64,
    /// Multiplier of the length.
    pub(crate) of_length: u64,
    /// Multiplier of the last four bytes.
    pub(crate) of_last: u64,
    /// Multiplier of each whole word.
    pub(crate) of_words: [u64; WORDS],
}

impl<const WORDS: usize> Multipliers<WORDS> {
    /// Draws multipliers.
    pub(crate) fn random() -> Multipliers<WORDS> {
        let random = RandomState::new();
        let [base, of_length, of_last] = ["base", "length", "last"].map(|label| random.hash_one(label));
        Multipliers { base, of_length, of_last, of_words: array::from_fn(|word| random.hash_one(word)) }
    }

    /// Returns the sum of a name's length, last four bytes and whole words, each multiplied by its multiplier. Two
    /// names differ in at least one of these terms.
    #[inline]
    pub(crate) fn sum(&self, name: &[u8]) -> u64 {
        let shorter_than_a_word = || name.iter().fold(0, |word, byte| (word << 8) | u64::from(*byte));
        let last = name.last_chunk().copied().map_or_else(shorter_than_a_word, word);
        let length = u64::try_from(name.len()).unwrap_or(u64::MAX);
        let mut sum = self.base.wrapping_add(self.of_length.wrapping_mul(length));
        sum = sum.wrapping_add(self.of_last.wrapping_mul(last));
        for (&chunk, multiplier) in name.as_chunks().0.iter().zip(&self.of_words) {
            sum = sum.wrapping_add(multiplier.wrapping_mul(word(chunk)));
        }
        sum
    }
}

/// Returns the hash of a sum: its highest bits, on which all bits of the name have an influence.
#[inline]
pub(crate) fn hash(sum: u64) -> u32 {
    u32::try_from(sum >> 32).unwrap_or(u32::MAX)
}

/// Returns a hash as 64 bits for a table of hashbrown, which uses the lowest and the highest bits.
#[inline]
pub(crate) fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Converts four bytes to a number.
fn word(bytes: [u8; 4]) -> u64 {
    u64::from(u32::from_le_bytes(bytes))
}
