//! Names that clients choose: holders of leases, ids of calls and names of policies.

use crate::wire::codec::Decoder;
use std::sync::Arc;

/// Maximum length of the name of a policy, the holder of a lease or an idempotency key, in bytes.
pub const MAX_NAME: usize = 256;

/// Shared name, owned by the maps of a table and by the change to propagate. Not an `Rc`, because the server frees a
/// large table on another thread, while copies of its names may be in use.
pub type SharedName = Arc<[u8]>;

/// Returns the name if it has 1 to [`MAX_NAME`] bytes.
#[inline(always)]
pub fn valid(name: &[u8]) -> Option<&[u8]> {
    (1..=MAX_NAME).contains(&name.len()).then_some(name)
}

/// Decodes a name of 1 to [`MAX_NAME`] bytes.
pub fn decode_boxed(from: &mut impl Decoder) -> Option<Box<[u8]>> {
    from.bytes(MAX_NAME).filter(|name| !name.is_empty())
}
