//! What the sketch knows of one key, beside its count.

use super::Heavy;
use super::minutes::Minutes;
use crate::wire::short_bytes::are_same;
use std::rc::Rc;

/// What is known of a key, or of an item of it.
#[derive(Clone, Debug, Default)]
pub(super) struct DeniedKey {
    /// The name of the key.
    pub(super) name: Vec<u8>,
    /// The item, if there is one.
    pub(super) item: Option<Vec<u8>>,
    /// The hash of both.
    pub(super) hash: u32,
    /// By how much the count may be too high.
    pub(super) error: u64,
    /// The policy that denied it last, if any has.
    pub(super) policy: Option<Rc<[u8]>>,
    /// Its denials by the minute.
    pub(super) minutes: Minutes,
    /// Where its count is.
    pub(super) count: usize,
}

impl DeniedKey {
    /// Whether it is that of a key, or of an item of it.
    #[inline(always)]
    pub(super) fn is_of(&self, name: &[u8], item: Option<&[u8]>) -> bool {
        are_same(&self.name, name)
            && match (&self.item, item) {
                (None, None) => true,
                (Some(known), Some(item)) => are_same(known, item),
                _ => false,
            }
    }

    /// The key, as far as it is known how often it was denied.
    pub(super) fn heavy(&self, denied: u64, error: u64) -> Heavy<'_> {
        Heavy { name: &self.name, denied, error, policy: self.policy.as_deref(), item: self.item.as_deref() }
    }

    /// Writes an item over the one that goes, in the same memory.
    pub(super) fn put_item(&mut self, item: Option<&[u8]>) {
        let Some(item) = item else {
            self.item = None;
            return;
        };
        let room = self.item.get_or_insert_default();
        room.clear();
        room.extend_from_slice(item);
    }
}
