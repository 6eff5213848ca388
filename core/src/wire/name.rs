//! Names that tables look up: holders of leases and ids of calls.

use crate::wire::codec::Decoder;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

/// Maximum length of the name of a policy, the holder of a lease or an idempotency key, in bytes.
pub const MAX_NAME: usize = 256;

/// Shared name, owned by the maps of a table and by the change to propagate. Not an `Rc`, because the server frees a
/// large table on a thread of its own while a copy of a name may be in use.
pub type Kept = Arc<[u8]>;

/// Name with its hash, which is computed once per call, because hashing costs as much as the lookup.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    /// Bytes of the name.
    pub text: &'a [u8],
    /// Hash with a random key, so that clients cannot construct collisions.
    pub hash: u64,
}

impl fmt::Debug for Name<'_> {
    /// Omits the hash, which differs between processes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl<'a> Name<'a> {
    /// Computes the hash of a name.
    pub fn of(text: &'a [u8]) -> Name<'a> {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Name { text, hash: HASHER.hash_one(text) }
    }
}

/// Decodes a name of 1 to [`MAX_NAME`] bytes as a shared name.
pub fn decode(from: &mut impl Decoder) -> Option<Kept> {
    decode_boxed(from).map(Arc::from)
}

/// Decodes a name of 1 to [`MAX_NAME`] bytes as an owned name.
pub fn decode_boxed(from: &mut impl Decoder) -> Option<Box<[u8]>> {
    from.bytes(MAX_NAME).filter(|name| !name.is_empty())
}

/// Returns the memory of a shared name in bytes: its block contains two reference counts.
pub fn size_of_kept(name: &[u8]) -> usize {
    const COUNTS: usize = 16;
    size_of_block(name).saturating_add(COUNTS)
}

/// Returns the memory of an owned name in bytes.
pub fn size_of_block(name: &[u8]) -> usize {
    name.len().next_multiple_of(16)
}

#[cfg(test)]
mod tests;
