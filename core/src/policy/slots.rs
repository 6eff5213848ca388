//! All entries of the table by name, with data derived from them: the number of policies, the digests of their records,
//! and the deletions that are still stored.

use super::counts::Counts;
use super::entry::PolicyEntry;
use super::record_hash;
use super::scale_timing::ScaleInstants;
use super::slot::Slot;
use super::walk::{self, GROUPS, Walk};
use crate::number::{Span, Timestamp};
use crate::wire::short_bytes::are_equal;
use hashbrown::{HashTable, hash_table};
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// All entries of the policy table, by name: policies and stored deletions.
#[derive(Debug)]
pub(super) struct Slots {
    /// Slots with the hashes of their names. Boxed, so that growing the table moves and reads little memory.
    pub(super) by_hash: HashTable<(u64, Box<Slot>)>,
    /// Hashes of all names, in order.
    pub(super) hashes: BTreeSet<u64>,
    /// Number of policies, without deleted ones.
    pub(super) live_count: usize,
    /// Sum of the hashes of the live records in each group of names.
    pub(super) digests: [u64; GROUPS],
    /// Stored deletions in the order of arrival. May contain names that have been set again.
    pub(super) deletions: VecDeque<Deletion>,
    /// Sequence number of the last deletion.
    last_deletion: u64,
}

/// Time for which a deletion is stored.
const DELETION_LIFETIME: Span = Span::SECOND.times(86_400);
/// Maximum number of stored deletions.
pub(super) const MAX_DELETIONS: usize = 65_536;
/// Maximum number of deletions that one call drops.
const MAX_DROPPED_AT_ONCE: usize = 256;

/// Stored deletion.
#[derive(Debug)]
pub(super) struct Deletion {
    /// Steady time at which the deletion arrived.
    arrived_at: Timestamp,
    /// Deleted name.
    pub(super) name: Box<[u8]>,
    /// Sequence number, which identifies the deletion. The stamp does not: two deletions of a name may have the same
    /// stamp if the clock was set back.
    pub(super) number: u64,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots {
            by_hash: HashTable::new(),
            hashes: BTreeSet::new(),
            live_count: 0,
            digests: [0; GROUPS],
            deletions: VecDeque::new(),
            last_deletion: 0,
        }
    }
}

impl Slots {
    /// Returns the slot of a name.
    #[inline(always)]
    pub(super) fn get(&self, name: &[u8]) -> Option<&Slot> {
        self.by_hash.find(record_hash::of(name), |(_, slot)| are_equal(&slot.entry.name, name)).map(|(_, slot)| &**slot)
    }

    /// Returns the slot of a name, unless its policy is deleted.
    pub(super) fn get_live(&self, name: &[u8]) -> Option<&Slot> {
        self.get(name).filter(|slot| !slot.entry.is_deleted())
    }

    /// Iterates over all slots, including deleted ones.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.by_hash.iter().map(|(_, slot)| &**slot)
    }

    /// Iterates over all policies, without deleted ones.
    pub(super) fn iter_live(&self) -> impl Iterator<Item = &Slot> {
        self.iter().filter(|slot| !slot.entry.is_deleted())
    }

    /// Returns the `max` policies with the most calls, in no particular order.
    pub(super) fn busiest(&self, max: usize) -> Vec<&Slot> {
        let live = self.by_hash.iter().filter(|(_, slot)| !slot.entry.is_deleted());
        // Ties are broken by the hash, so that the result is deterministic.
        let mut busiest: Vec<(u64, u64, &Slot)> =
            live.map(|(hash, slot)| (slot.counts.calls(), *hash, &**slot)).collect();
        if busiest.len() > max {
            busiest.select_nth_unstable_by_key(max, |(calls, hash, _)| Reverse((*calls, *hash)));
            busiest.truncate(max);
        }
        busiest.into_iter().map(|(_, _, slot)| slot).collect()
    }

    /// Advances the walk by one hash, and returns its slots, since several names may have the same hash. Returns `None`
    /// at the end.
    pub(super) fn step(&self, walk: &mut Walk) -> Option<impl Iterator<Item = &Slot>> {
        let hash = walk.step(&self.hashes)?;
        Some(self.by_hash.iter_hash(hash).filter(move |(slot_hash, _)| *slot_hash == hash).map(|(_, slot)| &**slot))
    }

    /// Stores an entry with the instants of its scale. Returns `true` if it differs from the stored one. A new slot
    /// uses `counts`. A deletion is stored for a day from `now`. All instants are in steady time.
    pub(super) fn put(
        &mut self,
        entry: PolicyEntry,
        scale_instants: ScaleInstants,
        counts: Option<Rc<Counts>>,
        now: Timestamp,
    ) -> bool {
        let hash = record_hash::of(&entry.name);
        let (was_live, old_digest);
        let slot = if let Some((_, slot)) = self.by_hash.find_mut(hash, |(_, slot)| slot.entry.name == entry.name) {
            if slot.entry == entry {
                slot.set_scale_instants(scale_instants);
                return false;
            }
            (was_live, old_digest) = (!slot.entry.is_deleted(), slot.digest);
            slot.set_entry(entry, scale_instants);
            slot
        } else {
            (was_live, old_digest) = (false, 0);
            self.hashes.insert(hash);
            let slot = Box::new(Slot::of(entry, scale_instants, counts.unwrap_or_default()));
            &mut self.by_hash.insert_unique(hash, (hash, slot), |(hash, _)| *hash).into_mut().1
        };
        let (new_digest, is_live) = (slot.digest, !slot.entry.is_deleted());
        let deletion = (!is_live).then(|| {
            self.last_deletion = self.last_deletion.wrapping_add(1);
            slot.deletion_number = self.last_deletion;
            Deletion { arrived_at: now, name: slot.entry.name.clone(), number: slot.deletion_number }
        });
        if let Some(digest) = self.digests.get_mut(walk::group_of(hash)) {
            *digest = digest.wrapping_sub(old_digest).wrapping_add(new_digest);
        }
        self.live_count = self.live_count.saturating_add(usize::from(is_live)).saturating_sub(usize::from(was_live));
        if let Some(deletion) = deletion {
            self.deletions.push_back(deletion);
            self.drop_old_deletions(now);
        }
        true
    }

    /// Drops deletions that arrived a day ago or exceed the maximum number, but only so many that no call takes long.
    /// `now` is in steady time.
    pub(super) fn drop_old_deletions(&mut self, now: Timestamp) {
        for _ in 0..MAX_DROPPED_AT_ONCE {
            let Some(deletion) = self.deletions.front() else { break };
            let is_kept = now.since(deletion.arrived_at) < DELETION_LIFETIME && self.deletions.len() <= MAX_DELETIONS;
            if is_kept {
                break;
            }
            let Some(Deletion { name, number, .. }) = self.deletions.pop_front() else { break };
            let hash = record_hash::of(&name);
            let is_match =
                |slot: &Slot| slot.entry.is_deleted() && slot.deletion_number == number && slot.entry.name == name;
            if let Ok(occupied) = self.by_hash.find_entry(hash, |(_, slot)| is_match(slot)) {
                occupied.remove();
                if !self.by_hash.iter_hash(hash).any(|(slot_hash, _)| *slot_hash == hash) {
                    self.hashes.remove(&hash);
                }
            }
        }
    }

    /// Returns all slots, to be freed in batches.
    pub(super) fn discard(self) -> Discarded {
        Discarded { slots: self.by_hash.into_iter() }
    }
}

/// Remaining slots of a table that was replaced, to be freed in batches.
pub struct Discarded {
    slots: hash_table::IntoIter<(u64, Box<Slot>)>,
}

impl Discarded {
    /// Frees up to `count` slots. Returns `true` if any are left.
    pub fn free(&mut self, count: usize) -> bool {
        self.slots.by_ref().take(count).for_each(drop);
        self.slots.len() > 0
    }
}
