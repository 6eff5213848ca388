//! Names that a table is asked for: holders of leases, ids of calls.

use crate::wire::codec::Decoder;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

/// The longest name of a policy, holder of a lease or idempotency key, in bytes.
pub const MAX_NAME: usize = 256;

/// A name that is kept, which the maps of a table and the change that is propagated have in common. Not an `Rc`: the
/// server frees a large table in a thread of its own, while a copy of it may be in use.
pub type Kept = Arc<[u8]>;

/// A name with its hash, which is taken once a call: it costs as much as finding what is known by the name.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    /// Its bytes.
    pub text: &'a [u8],
    /// Others of the same hash cannot be guessed from outside.
    pub hash: u64,
}

impl fmt::Debug for Name<'_> {
    /// The hash is another one in each process.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl<'a> Name<'a> {
    /// Takes the hash.
    pub fn of(text: &'a [u8]) -> Name<'a> {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Name { text, hash: HASHER.hash_one(text) }
    }
}

/// Reads a name of 1 to [`MAX_NAME`] bytes.
pub fn decode(from: &mut impl Decoder) -> Option<Kept> {
    decode_boxed(from).map(Arc::from)
}

/// Reads a name of 1 to [`MAX_NAME`] bytes, to be kept in one place.
pub fn decode_boxed(from: &mut impl Decoder) -> Option<Box<[u8]>> {
    from.bytes(MAX_NAME).filter(|name| !name.is_empty())
}

/// How many bytes a name takes that is kept: it is in a block of its own, behind two counts.
pub fn size_of_kept(name: &[u8]) -> usize {
    const COUNTS: usize = 16;
    size_of_block(name).saturating_add(COUNTS)
}

/// How many bytes the block of a name takes.
pub fn size_of_block(name: &[u8]) -> usize {
    name.len().next_multiple_of(16)
}

#[cfg(test)]
mod tests;
