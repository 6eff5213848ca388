//! Entry of a denied key in the Space-Saving table, without its count.

use super::HeavyHitter;
use super::minutes::Minutes;
use crate::wire::short_bytes::are_equal;
use std::rc::Rc;

/// Entry of a key, or of an item of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct DeniedKey {
    /// Name of the key.
    pub(super) name: Vec<u8>,
    /// Item, if there is one.
    pub(super) item: Option<Vec<u8>>,
    /// Hash of the name and the item.
    pub(super) hash: u32,
    /// Maximum by which the count may be too high.
    pub(super) error: u64,
    /// Last policy that denied the key; `None` if no policy has denied it.
    pub(super) policy: Option<Rc<[u8]>>,
    /// Denials of the key in each of the last minutes.
    pub(super) minutes: Minutes,
    /// Index of the count in the heap.
    pub(super) count_position: usize,
}

impl DeniedKey {
    /// Returns `true` if this is the entry of the key `name`, or of its `item` if there is one.
    #[inline(always)]
    pub(super) fn is_of(&self, name: &[u8], item: Option<&[u8]>) -> bool {
        are_equal(&self.name, name)
            && match (&self.item, item) {
                (None, None) => true,
                (Some(known), Some(item)) => are_equal(known, item),
                _ => false,
            }
    }

    /// Returns the key with a number of denials and the error of that number.
    pub(super) fn heavy_hitter(&self, denied: u64, error: u64) -> HeavyHitter<'_> {
        HeavyHitter { name: &self.name, denied, error, policy: self.policy.as_deref(), item: self.item.as_deref() }
    }

    /// Replaces the item, reusing its memory.
    pub(super) fn set_item(&mut self, item: Option<&[u8]>) {
        let Some(item) = item else {
            self.item = None;
            return;
        };
        let stored = self.item.get_or_insert_default();
        stored.clear();
        stored.extend_from_slice(item);
    }
}
