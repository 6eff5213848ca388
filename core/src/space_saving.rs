//! Sketch of the keys that are denied most. Its size is fixed, however many keys there are.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", ICDT 2005). A denial of a key with an entry increments the entry's count. Any other key takes over the
//! entry of the key that was denied least and continues its count. The new key's count may be too high by the old
//! count, which is kept as its error. After N denials, with room for m keys:
//!
//! * every key that was denied more than N / m times has an entry;
//! * a key was denied at most as often as its count, and at least as often as its count minus its error;
//! * a key without an entry was denied at most [`floor`](SpaceSaving::floor) times, and no count is below that.
//!
//! **When to use it:** to find the keys that are limited, without a counter for each key. **Known flaw:** if all keys
//! are denied equally often, the entries are those of the keys denied last. Their errors are then nearly as high as
//! their counts.
//!
//! An entry also has the denials of its key in each of the last 60 minutes
//! ([`heaviest_since`](SpaceSaving::heaviest_since)). A key that takes over an entry starts at 0 there, because its
//! earlier denials are unknown. These numbers are never too high, but too low for keys that had lost their entries.
//!
//! **Cost:** a denial of the key that was denied last compares the name. A denial of another key with an entry also
//! hashes the name and looks it up in a table. Both move the count in a heap past the counts that are now lower, which
//! takes O(log m) steps at worst and usually none. A key without an entry also replaces an entry in the table and
//! overwrites its name. An entry takes about 380 bytes beside the names of the key and the item. The name of the policy
//! that denied the key last is shared with the policy.
//!
//! For a key that has a limit for each of its items, each pair of the key and an item has an entry.

mod denied_key;
mod key_hash;
pub(crate) mod minutes;

use crate::keyed_hash::spread;
use crate::number::Timestamp;
use denied_key::DeniedKey;
use hashbrown::HashTable;
use key_hash::Hash;
use minutes::MinuteClock;
use std::cmp::Reverse;
use std::rc::Rc;

/// Maximum number of bytes of a name, and of an item, that are kept and compared. Longer ones are truncated, which
/// bounds the memory of an entry and the time of a denial.
pub const MAX_PREFIX: usize = 512;

/// Maximum number of entries of a sketch.
pub const MAX_ENTRIES: usize = 65_536;

/// Denied key, or item of a key, with its estimated number of denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeavyHitter<'t> {
    /// Name of the key, truncated to [`MAX_PREFIX`] bytes.
    pub name: &'t [u8],
    /// Number of denials: an upper bound in [`SpaceSaving::heaviest`], a lower bound in
    /// [`SpaceSaving::heaviest_since`].
    pub denied: u64,
    /// Maximum by which `denied` may be too high.
    pub error: u64,
    /// Last policy that denied the key; `None` if no policy has denied it.
    pub policy: Option<&'t [u8]>,
    /// Denied item of a key with a limit for each item, truncated to [`MAX_PREFIX`] bytes.
    pub item: Option<&'t [u8]>,
}

/// Sketch of the keys that are denied most.
///
/// ```
/// use ratelimit_core::Timestamp;
/// use ratelimit_core::space_saving::SpaceSaving;
///
/// let (mut denials, now) = (SpaceSaving::new(2), Timestamp::from_clock(1_700_000_000_000_000));
/// for name in ["a", "b", "a", "c", "a"] {
///     denials.record(name.as_bytes(), None, None, now);
/// }
/// let [a, c] = denials.heaviest(10).try_into().unwrap();
/// assert_eq!((a.name, a.denied, a.error), (&b"a"[..], 3, 0));
/// // `c` took over the entry of `b`: it was denied once or twice.
/// assert_eq!((c.name, c.denied, c.error), (&b"c"[..], 2, 1));
/// // `c` was denied at least once in the current minute.
/// assert_eq!(denials.heaviest_since(10, 1, now)[1].denied, 1);
/// ```
#[derive(Clone, Debug)]
pub struct SpaceSaving {
    /// Maximum number of entries.
    max_entries: usize,
    hash: Hash,
    /// Indexes of the entries, by the hashes of their keys.
    table: HashTable<TableSlot>,
    entries: Vec<DeniedKey>,
    /// Binary heap with the lowest count at the root.
    counts: Vec<Count>,
    /// Upper bound of the denials of a key without an entry.
    floor: u64,
    /// Entry of the key that was denied last.
    latest: usize,
    clock: MinuteClock,
}

/// Count in the heap, with the index of its entry.
#[derive(Clone, Copy, Debug)]
struct Count {
    denied: u64,
    entry: usize,
}

/// Index that no entry has.
const NONE: usize = usize::MAX;

/// Slot of the hash table: the index of an entry, and the hash of its key, so that rehashing does not access the keys.
#[derive(Clone, Copy, Debug)]
struct TableSlot {
    hash: u32,
    entry: u32,
}

impl TableSlot {
    fn new(hash: u32, entry: usize) -> TableSlot {
        TableSlot { hash, entry: u32::try_from(entry).unwrap_or(u32::MAX) }
    }

    fn entry(self) -> usize {
        usize::try_from(self.entry).unwrap_or(NONE)
    }
}

impl SpaceSaving {
    /// Creates a sketch with room for `max_entries` entries. Allocates no memory before the first denial.
    #[must_use]
    pub fn new(max_entries: usize) -> SpaceSaving {
        SpaceSaving::hashed_by(Hash::new(), max_entries)
    }

    fn hashed_by(hash: Hash, max_entries: usize) -> SpaceSaving {
        let max_entries = max_entries.min(MAX_ENTRIES);
        let clock = MinuteClock::default();
        let (table, entries, counts) = (HashTable::new(), Vec::new(), Vec::new());
        SpaceSaving { max_entries, hash, table, entries, counts, floor: 0, latest: NONE, clock }
    }

    /// Returns the maximum number of entries.
    #[must_use]
    #[inline]
    pub fn max_entries(&self) -> usize {
        self.max_entries
    }

    /// Returns the upper bound of the denials of a key without an entry.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Records that a key, or an item of it, was denied at `now`, with the policy that denied it.
    #[inline(always)]
    pub fn record(&mut self, name: &[u8], item: Option<&[u8]>, policy: Option<&Rc<[u8]>>, now: Timestamp) {
        let minute = self.clock.minute(now);
        let name = name.get(..MAX_PREFIX).unwrap_or(name);
        let item = item.map(|item| item.get(..MAX_PREFIX).unwrap_or(item));
        // Successive denials are often of one key.
        if self.entries.get(self.latest).is_some_and(|entry| entry.is_of(name, item)) {
            self.count_at(self.latest, minute);
        } else if let Some(entry) = self.find_or_add(name, item, minute) {
            self.latest = entry;
        } else {
            return;
        }
        if let (Some(entry), Some(policy)) = (self.entries.get_mut(self.latest), policy)
            && !entry.policy.as_ref().is_some_and(|known| Rc::ptr_eq(known, policy))
        {
            entry.policy = Some(Rc::clone(policy));
        }
    }

    /// Counts a denial of a key that was not denied last. Returns the index of its entry; `None` if the sketch has no
    /// room for entries.
    #[inline(never)]
    fn find_or_add(&mut self, name: &[u8], item: Option<&[u8]>, minute: u64) -> Option<usize> {
        let hash = self.hash.of(name, item);
        let is_of_key = |slot: &TableSlot| {
            slot.hash == hash && self.entries.get(slot.entry()).is_some_and(|entry| entry.is_of(name, item))
        };
        if let Some(slot) = self.table.find(spread(hash), is_of_key).copied() {
            self.count_at(slot.entry(), minute);
            return Some(slot.entry());
        }
        self.add(name, item, hash, minute)
    }

    /// Counts a denial of the key of an entry.
    #[inline(always)]
    fn count_at(&mut self, entry: usize, minute: u64) {
        if let Some(entry) = self.entries.get_mut(entry) {
            entry.minutes.count(minute);
            let position = entry.count_position;
            self.increment(position);
        }
    }

    /// Returns the `count` keys that were denied most, in descending order.
    #[must_use]
    pub fn heaviest(&self, count: usize) -> Vec<HeavyHitter<'_>> {
        let heavy_hitter = |count: &Count| {
            let entry = self.entries.get(count.entry)?;
            Some(entry.heavy_hitter(count.denied, entry.error))
        };
        top_by_rank(self.counts.iter().filter_map(heavy_hitter).collect(), count)
    }

    /// Returns the `count` keys that were denied most in the last `minutes` minutes, including the current one. Their
    /// numbers of denials are lower bounds.
    #[must_use]
    pub fn heaviest_since(&mut self, count: usize, minutes: u64, now: Timestamp) -> Vec<HeavyHitter<'_>> {
        let minute = self.clock.minute(now);
        let heavy = self.entries.iter().map(|entry| entry.heavy_hitter(entry.minutes.since(minute, minutes), 0));
        top_by_rank(heavy.filter(|heavy| heavy.denied > 0).collect(), count)
    }

    /// Forgets all denials.
    pub fn clear(&mut self) {
        *self = SpaceSaving::hashed_by(self.hash.clone(), self.max_entries);
    }

    /// Changes the maximum number of entries. If there are more entries, drops those of the keys that were denied
    /// least. The floor never falls: keys that were dropped before stay unknown, and the count of a new key starts at
    /// the floor.
    #[cold]
    pub fn resize(&mut self, max_entries: usize) {
        let mut resized = SpaceSaving::hashed_by(self.hash.clone(), max_entries);
        (resized.floor, resized.clock) = (self.floor, self.clock.clone());
        let rank = |count: &Count| {
            let entry = self.entries.get(count.entry);
            entry.map(|entry| entry.heavy_hitter(count.denied, entry.error).rank())
        };
        let mut counts = std::mem::take(&mut self.counts);
        counts.sort_unstable_by_key(rank);
        if let Some(dropped) = counts.get(resized.max_entries) {
            resized.floor = dropped.denied;
        }
        counts.truncate(resized.max_entries);
        for Count { denied, entry } in counts.into_iter().rev() {
            if let Some(entry) = self.entries.get_mut(entry) {
                resized.insert(std::mem::take(entry), denied);
            }
        }
        *self = resized;
    }

    /// Gives a key an entry, and returns its index. In a full sketch, the key takes over the entry of the key that was
    /// denied least. Returns `None` if the sketch has no room for entries.
    #[cold]
    fn add(&mut self, name: &[u8], item: Option<&[u8]>, hash: u32, minute: u64) -> Option<usize> {
        if self.counts.len() < self.max_entries {
            let (name, item) = (name.to_vec(), item.map(<[u8]>::to_vec));
            let mut entry = DeniedKey { name, item, hash, error: self.floor, ..DeniedKey::default() };
            entry.minutes.count(minute);
            return Some(self.insert(entry, self.floor.saturating_add(1)));
        }
        let least = *self.counts.first()?;
        self.floor = least.denied;
        if let Some(entry) = self.entries.get_mut(least.entry) {
            let is_of_entry = |slot: &TableSlot| slot.entry() == least.entry;
            if let Ok(slot) = self.table.find_entry(spread(entry.hash), is_of_entry) {
                slot.remove();
            }
            entry.name.clear();
            entry.name.extend_from_slice(name);
            entry.set_item(item);
            entry.hash = hash;
            entry.error = least.denied;
            entry.policy = None;
            entry.minutes.clear();
            entry.minutes.count(minute);
        }
        self.add_to_table(least.entry, hash);
        self.increment(0);
        Some(least.entry)
    }

    /// Inserts a new entry and returns its index.
    fn insert(&mut self, entry: DeniedKey, denied: u64) -> usize {
        if self.table.is_empty() {
            // With twice the room, the table is rehashed in place when keys come and go, and never grows.
            let room = self.max_entries.saturating_add(1).saturating_mul(2);
            self.table.reserve(room, |slot| spread(slot.hash));
        }
        let (index, count_position, hash) = (self.entries.len(), self.counts.len(), entry.hash);
        self.entries.push(DeniedKey { count_position, ..entry });
        self.add_to_table(index, hash);
        let count = Count { denied, entry: index };
        self.counts.push(count);
        self.sift_up(count_position, count);
        index
    }

    /// Adds the index of an entry to the hash table.
    fn add_to_table(&mut self, entry: usize, hash: u32) {
        let slot = TableSlot::new(hash, entry);
        self.table.insert_unique(spread(hash), slot, |slot| spread(slot.hash));
    }

    /// Increments the count at a position of the heap, and moves it down if necessary, which is rare.
    #[inline]
    fn increment(&mut self, mut position: usize) {
        let Some(count) = self.counts.get_mut(position) else { return };
        count.denied = count.denied.saturating_add(1);
        let count = *count;
        while let Some((child, child_count)) = self.lowest_child(position)
            && child_count.denied < count.denied
        {
            self.set_count(position, child_count);
            self.set_count(child, count);
            position = child;
        }
    }

    /// Returns the child with the lower count below a position of the heap: the child's position and count.
    #[inline]
    fn lowest_child(&self, position: usize) -> Option<(usize, Count)> {
        let left = position.wrapping_mul(2).wrapping_add(1);
        let right = left.wrapping_add(1);
        let left_count = *self.counts.get(left)?;
        match self.counts.get(right) {
            Some(&right_count) if right_count.denied < left_count.denied => Some((right, right_count)),
            _ => Some((left, left_count)),
        }
    }

    /// Inserts a count into the heap, at `position` or nearer to the root.
    fn sift_up(&mut self, mut position: usize, count: Count) {
        while let Some(parent) = position.checked_sub(1).map(|before| before / 2)
            && let Some(&parent_count) = self.counts.get(parent)
            && count.denied < parent_count.denied
        {
            self.set_count(position, parent_count);
            position = parent;
        }
        self.set_count(position, count);
    }

    /// Stores a count at a position of the heap, and the position in the entry of the count.
    fn set_count(&mut self, position: usize, count: Count) {
        if let (Some(stored), Some(entry)) = (self.counts.get_mut(position), self.entries.get_mut(count.entry)) {
            *stored = count;
            entry.count_position = position;
        }
    }
}

/// Returns the `count` keys with the lowest ranks, in the order of their ranks.
fn top_by_rank(mut all: Vec<HeavyHitter<'_>>, count: usize) -> Vec<HeavyHitter<'_>> {
    if count < all.len() {
        // Usually few of many keys are requested, so only these are sorted.
        all.select_nth_unstable_by_key(count, HeavyHitter::rank);
        all.truncate(count);
    }
    all.sort_unstable_by_key(HeavyHitter::rank);
    all
}

impl<'t> HeavyHitter<'t> {
    /// Returns the sort key: most denials first, then smallest error, then by name and item.
    fn rank(&self) -> (Reverse<u64>, u64, &'t [u8], Option<&'t [u8]>) {
        (Reverse(self.denied), self.error, self.name, self.item)
    }
}

#[cfg(test)]
mod tests;
