//! Hash of the names and items of denied keys. The sum of an item, with multipliers of its own, is added to that of the
//! name.

use super::MAX_PREFIX;
use crate::keyed_hash::{self, Multipliers};

/// Number of words of four bytes in the longest name or item.
const WORDS: usize = MAX_PREFIX / 4;

/// Keyed 32-bit hash function of names and items. Clients cannot predict the hashes.
#[derive(Clone, Debug)]
pub(super) struct Hash {
    /// Multipliers of the name.
    pub(super) of_names: Multipliers<WORDS>,
    /// Multipliers of the item.
    pub(super) of_items: Multipliers<WORDS>,
}

impl Hash {
    /// Creates a hash function with random multipliers.
    pub(super) fn new() -> Hash {
        Hash { of_names: Multipliers::random(), of_items: Multipliers::random() }
    }

    /// Returns the hash of a name, and of an item if there is one. Each has up to [`MAX_PREFIX`] bytes.
    #[inline]
    pub(super) fn of(&self, name: &[u8], item: Option<&[u8]>) -> u32 {
        let sum = self.of_names.sum(name);
        keyed_hash::hash(item.map_or(sum, |item| sum.wrapping_add(self.of_items.sum(item))))
    }
}
