//! All that is known by names, with what is counted and summed of it along the way: how many policies there are, the
//! digests of their records, and the deletions that are still remembered.

use super::counts::Counts;
use super::entry::PolicyEntry;
use super::record_hash;
use super::scale_timing::ScaleInstants;
use super::slot::Slot;
use super::walk::{self, GROUPS, Walk};
use crate::number::{Span, Timestamp};
use crate::wire::short_bytes::are_same;
use hashbrown::{HashTable, hash_table};
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// What is known by each name.
#[derive(Debug)]
pub(super) struct Slots {
    /// Each behind the hash of its name, and in a box, so that little is moved and read when the table grows.
    pub(super) by_hash: HashTable<(u64, Box<Slot>)>,
    /// The hashes of all names, in order.
    pub(super) hashes: BTreeSet<u64>,
    /// How many policies there are, the deleted ones not among them.
    live: usize,
    /// Of each group of names the sum of the hashes of its live records.
    digests: [u64; GROUPS],
    /// The deletions that are remembered, as they were learned. Those of names that were set again may be among them.
    pub(super) deletions: VecDeque<Deletion>,
    /// Number of the last deletion.
    last_deletion: u64,
}

/// For how long a deletion is remembered.
const REMEMBERED: Span = Span::SECOND.times(86_400);
/// And how many of them at most.
pub(super) const MOST_DELETIONS: usize = 65_536;
/// How many deletions are forgotten in one go, at most.
const FORGOTTEN_AT_ONCE: usize = 256;

/// A deletion that is remembered.
#[derive(Debug)]
pub(super) struct Deletion {
    /// By the steady clock.
    learned: Timestamp,
    /// The name that was deleted.
    pub(super) name: Box<[u8]>,
    /// Number of the deletion: a name that was set again and deleted has another. Its stamp may be the same, by a clock
    /// that was set back.
    pub(super) number: u64,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots {
            by_hash: HashTable::new(),
            hashes: BTreeSet::new(),
            live: 0,
            digests: [0; GROUPS],
            deletions: VecDeque::new(),
            last_deletion: 0,
        }
    }
}

impl Slots {
    /// What is known by a name.
    #[inline(always)]
    pub(super) fn get(&self, name: &[u8]) -> Option<&Slot> {
        self.by_hash.find(record_hash::of(name), |(_, slot)| are_same(&slot.entry.name, name)).map(|(_, slot)| &**slot)
    }

    /// What is known by a name, unless its policy was deleted.
    pub(super) fn get_live(&self, name: &[u8]) -> Option<&Slot> {
        self.get(name).filter(|slot| !slot.entry.is_deleted())
    }

    /// All that is known, deletions too.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.by_hash.iter().map(|(_, slot)| &**slot)
    }

    /// All policies, the deleted ones not among them.
    pub(super) fn iter_live(&self) -> impl Iterator<Item = &Slot> {
        self.iter().filter(|slot| !slot.entry.is_deleted())
    }

    /// The policies with the most calls, `most` of them, in no order.
    pub(super) fn busiest(&self, most: usize) -> Vec<&Slot> {
        let live = self.by_hash.iter().filter(|(_, slot)| !slot.entry.is_deleted());
        // Of those with as many calls whichever it is, but always the same.
        let mut busiest: Vec<(u64, u64, &Slot)> =
            live.map(|(hash, slot)| (slot.counts.calls(), *hash, &**slot)).collect();
        if busiest.len() > most {
            busiest.select_nth_unstable_by_key(most, |(calls, hash, _)| Reverse((*calls, *hash)));
            busiest.truncate(most);
        }
        busiest.into_iter().map(|(_, _, slot)| slot).collect()
    }

    /// What a walk meets next: two names may have one hash. `None` if it is over.
    pub(super) fn step(&self, walk: &mut Walk) -> Option<impl Iterator<Item = &Slot>> {
        let hash = walk.step(&self.hashes)?;
        Some(self.by_hash.iter_hash(hash).filter(move |(of, _)| *of == hash).map(|(_, slot)| &**slot))
    }

    /// How many names there are, deleted ones among them.
    pub(super) fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// How many policies there are.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Of each group of names the sum of the hashes of its live records.
    pub(super) fn digests(&self) -> &[u64; GROUPS] {
        &self.digests
    }

    /// Has an entry stand, whose scale has these instants; whether it is another than before. Calls on one that is new
    /// are counted in `counts`. A deletion is learned at `now`. All instants are by the steady clock.
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
            slot.become_entry(entry, scale_instants);
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
            slot.deletion = self.last_deletion;
            Deletion { learned: now, name: slot.entry.name.clone(), number: slot.deletion }
        });
        if let Some(digest) = self.digests.get_mut(walk::group_of(hash)) {
            *digest = digest.wrapping_sub(old_digest).wrapping_add(new_digest);
        }
        self.live = self.live.saturating_add(usize::from(is_live)).saturating_sub(usize::from(was_live));
        if let Some(deletion) = deletion {
            self.deletions.push_back(deletion);
            self.forget(now);
        }
        true
    }

    /// Forgets deletions that were learned a day ago, or that are too many: some of them, so that nothing takes long.
    /// `now` is by the steady clock.
    pub(super) fn forget(&mut self, now: Timestamp) {
        for _ in 0..FORGOTTEN_AT_ONCE {
            let Some(deletion) = self.deletions.front() else { break };
            let remembered = now.since(deletion.learned) < REMEMBERED && self.deletions.len() <= MOST_DELETIONS;
            if remembered {
                break;
            }
            let Some(Deletion { name, number, .. }) = self.deletions.pop_front() else { break };
            let hash = record_hash::of(&name);
            let found = |slot: &Slot| slot.entry.is_deleted() && slot.deletion == number && slot.entry.name == name;
            if let Ok(found) = self.by_hash.find_entry(hash, |(_, slot)| found(slot)) {
                found.remove();
                if !self.by_hash.iter_hash(hash).any(|(of, _)| *of == hash) {
                    self.hashes.remove(&hash);
                }
            }
        }
    }

    /// All that is known, to be freed in pieces.
    pub(super) fn discard(self) -> Discarded {
        Discarded { slots: self.by_hash.into_iter() }
    }
}

/// What is left of a table that another has taken the place of, to be freed in pieces.
pub struct Discarded {
    slots: hash_table::IntoIter<(u64, Box<Slot>)>,
}

impl Discarded {
    /// Frees up to that number of policies; whether any are left.
    pub fn free(&mut self, count: usize) -> bool {
        self.slots.by_ref().take(count).for_each(drop);
        self.slots.len() > 0
    }
}
