//! The keys that are denied most: a sketch of a fixed size, however many keys there are.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", ICDT 2005). A key that has an entry counts in it. Any other takes the entry of the key that was denied
//! least, and goes on from its count: by so much the new key's count may be too high, and that is kept beside it as its
//! error. So after N denials, with room for m keys:
//!
//! * every key that was denied more than N / m times has an entry;
//! * a key was denied at most as often as its entry says, and at least that less the error;
//! * a key without an entry was denied at most [`floor`](SpaceSaving::floor) times, which no entry's count is below.
//!
//! **When to use it:** to learn who is limited, without a counter for each key. **Known flaw:** where everybody is
//! denied alike, the entries are those denied last; their errors, nearly as high as their counts, say so.
//!
//! Beside its count, an entry has the denials of its key in each of the last 60 minutes
//! ([`heaviest_since`](SpaceSaving::heaviest_since)). A key that takes an entry over begins there at 0: what it was denied
//! before is not known. So these are never too high, and too low for keys that had lost their place.
//!
//! **Cost:** a denial of the key that was denied last takes a comparison of the name. One of another key that has an
//! entry takes a hash of the name and a look into a table besides. Both move the entry past those in a heap that now
//! have less, O(log m) at worst and mostly none. Another key does the same once more, and
//! writes its name over that of the key that goes. An entry takes some 380 bytes beside the name of the key and the item;
//! the name of the policy that denied it last is shared with the policy.
//!
//! A key that has a limit for each of its items counts by the item too: each pair of a key and an item has an entry.

mod denied_key;
mod key_hash;
pub(crate) mod minutes;

use crate::number::Timestamp;
use denied_key::DeniedKey;
use hashbrown::HashTable;
use key_hash::Hash;
use minutes::MinuteClock;
use std::cmp::Reverse;
use std::rc::Rc;

/// The bytes of a name, and of an item, that are kept and compared: a longer one counts by its beginning. So what an
/// entry takes is bounded, and the time too.
pub const MAX_PREFIX: usize = 512;

/// The most entries that a sketch may have.
pub const MAX_ENTRIES: usize = 65_536;

/// A key, as far as it is known how often it was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heavy<'t> {
    /// Its name, or the beginning of that.
    pub name: &'t [u8],
    /// How often it was denied, at most.
    pub denied: u64,
    /// By how much that may be too high.
    pub error: u64,
    /// The policy that denied it last, if any has.
    pub policy: Option<&'t [u8]>,
    /// Which of its items was denied, or the beginning of that, of a key that has a limit for each.
    pub item: Option<&'t [u8]>,
}

/// The keys that are denied most.
///
/// ```
/// use ratelimit_core::Timestamp;
/// use ratelimit_core::space_saving::SpaceSaving;
///
/// let (mut denials, now) = (SpaceSaving::new(2), Timestamp::from_clock(1_700_000_000_000_000));
/// for name in ["a", "b", "a", "c", "a"] {
///     denials.record(name.as_bytes(), None, now);
/// }
/// let [a, c] = denials.heaviest(10).try_into().unwrap();
/// assert_eq!((a.name, a.denied, a.error), (&b"a"[..], 3, 0));
/// // Denied once or twice: it has b's entry.
/// assert_eq!((c.name, c.denied, c.error), (&b"c"[..], 2, 1));
/// // In the running minute: once, as far as is known.
/// assert_eq!(denials.heaviest_since(10, 1, now)[1].denied, 1);
/// ```
#[derive(Clone, Debug)]
pub struct SpaceSaving {
    /// How many entries there may be.
    most: usize,
    hash: Hash,
    /// Places of the entries, by the hashes of their keys.
    places: HashTable<Place>,
    entries: Vec<DeniedKey>,
    /// A binary heap, the least at the root.
    counts: Vec<Count>,
    /// How often a key without an entry may have been denied.
    floor: u64,
    /// Which entry has the key that was denied last.
    latest: usize,
    clock: MinuteClock,
}

/// Where a denial is noted, until the next one.
#[derive(Clone, Copy, Debug)]
pub struct DenialPlace(usize);

#[derive(Clone, Copy, Debug)]
struct Count {
    denied: u64,
    entry: usize,
}

/// No place: there is nothing in it.
const NONE: usize = usize::MAX;

/// Place of an entry, with the hash of its key, so that a table that is moved looks no key up.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    entry: u32,
}

impl Place {
    fn new(hash: u32, entry: usize) -> Place {
        Place { hash, entry: u32::try_from(entry).unwrap_or(u32::MAX) }
    }

    fn entry(self) -> usize {
        usize::try_from(self.entry).unwrap_or(NONE)
    }

    /// Returns the hash as the table takes it, which goes by the lowest and the highest bits.
    fn spread(hash: u32) -> u64 {
        u64::from(hash) << 32 | u64::from(hash)
    }
}

impl SpaceSaving {
    /// With room for a number of keys. Before the first denial it takes no memory.
    #[must_use]
    pub fn new(most: usize) -> SpaceSaving {
        SpaceSaving::hashed_by(Hash::new(), most)
    }

    fn hashed_by(hash: Hash, most: usize) -> SpaceSaving {
        let most = most.min(MAX_ENTRIES);
        let clock = MinuteClock::default();
        let (places, entries, counts) = (HashTable::new(), Vec::new(), Vec::new());
        SpaceSaving { most, hash, places, entries, counts, floor: 0, latest: NONE, clock }
    }

    /// How many keys there is room for.
    #[must_use]
    #[inline]
    pub fn most(&self) -> usize {
        self.most
    }

    /// How often a key without an entry was denied, at most.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Records that a key, or an item of it, was denied at `now`. Where that is noted: `None` if there is room for
    /// nothing.
    #[inline(always)]
    pub fn record(&mut self, name: &[u8], item: Option<&[u8]>, now: Timestamp) -> Option<DenialPlace> {
        let minute = self.clock.minute(now);
        let name = name.get(..MAX_PREFIX).unwrap_or(name);
        let item = item.map(|item| item.get(..MAX_PREFIX).unwrap_or(item));
        // Denials of one key come one after another.
        if self.entries.get(self.latest).is_some_and(|entry| entry.is_of(name, item)) {
            return Some(self.count_at(self.latest, minute));
        }
        let place = self.find_or_add(name, item, minute)?;
        self.latest = place.0;
        Some(place)
    }

    /// Counts a denial of a key that was not denied last.
    #[inline(never)]
    fn find_or_add(&mut self, name: &[u8], item: Option<&[u8]>, minute: u64) -> Option<DenialPlace> {
        let hash = self.hash.of(name, item);
        let is_its = |place: &Place| {
            place.hash == hash && self.entries.get(place.entry()).is_some_and(|entry| entry.is_of(name, item))
        };
        if let Some(place) = self.places.find(Place::spread(hash), is_its).copied() {
            return Some(self.count_at(place.entry(), minute));
        }
        self.add(name, item, hash, minute)
    }

    /// Counts a denial of the key of an entry.
    #[inline(always)]
    fn count_at(&mut self, place: usize, minute: u64) -> DenialPlace {
        if let Some(entry) = self.entries.get_mut(place) {
            entry.minutes.count(minute);
            let count = entry.count;
            self.count(count);
        }
        DenialPlace(place)
    }

    /// Records which policy has denied a key, where that was noted; `place` is of the denial that was recorded last.
    #[inline]
    pub fn ruled(&mut self, DenialPlace(place): DenialPlace, policy: &Rc<[u8]>) {
        if let Some(entry) = self.entries.get_mut(place)
            && !entry.policy.as_ref().is_some_and(|known| Rc::ptr_eq(known, policy))
        {
            entry.policy = Some(Rc::clone(policy));
        }
    }

    /// Those that were denied most, in this order, up to a number of them.
    #[must_use]
    pub fn heaviest(&self, count: usize) -> Vec<Heavy<'_>> {
        let heavy = |count: &Count| {
            let entry = self.entries.get(count.entry)?;
            Some(entry.heavy(count.denied, entry.error))
        };
        first(self.counts.iter().filter_map(heavy).collect(), count)
    }

    /// Those that were denied most in the last minutes, as many as are asked for, of which one is that of `now`, as far
    /// as is known; never too high.
    #[must_use]
    pub fn heaviest_since(&mut self, count: usize, minutes: u64, now: Timestamp) -> Vec<Heavy<'_>> {
        let minute = self.clock.minute(now);
        let heavy = self.entries.iter().map(|entry| entry.heavy(entry.minutes.since(minute, minutes), 0));
        first(heavy.filter(|heavy| heavy.denied > 0).collect(), count)
    }

    /// Forgets all denials.
    pub fn clear(&mut self) {
        *self = SpaceSaving::hashed_by(self.hash.clone(), self.most);
    }

    /// Makes room for a number of keys. If there are more, those that were denied least go. What there was no room for
    /// before stays unknown: the floor stays, and a key that is new goes on from it.
    #[cold]
    pub fn resize(&mut self, most: usize) {
        let mut resized = SpaceSaving::hashed_by(self.hash.clone(), most);
        (resized.floor, resized.clock) = (self.floor, self.clock.clone());
        let rank = |count: &Count| {
            let entry = self.entries.get(count.entry);
            entry.map(|entry| entry.heavy(count.denied, entry.error).rank())
        };
        let mut counts = std::mem::take(&mut self.counts);
        counts.sort_unstable_by_key(rank);
        if let Some(dropped) = counts.get(resized.most) {
            resized.floor = dropped.denied;
        }
        counts.truncate(resized.most);
        for Count { denied, entry } in counts.into_iter().rev() {
            if let Some(entry) = self.entries.get_mut(entry) {
                resized.insert(std::mem::take(entry), denied);
            }
        }
        *self = resized;
    }

    /// A key that has no entry takes one.
    #[cold]
    fn add(&mut self, name: &[u8], item: Option<&[u8]>, hash: u32, minute: u64) -> Option<DenialPlace> {
        if self.counts.len() < self.most {
            let (name, item) = (name.to_vec(), item.map(<[u8]>::to_vec));
            let mut entry = DeniedKey { name, item, hash, error: self.floor, ..DeniedKey::default() };
            entry.minutes.count(minute);
            return Some(self.insert(entry, self.floor.saturating_add(1)));
        }
        let least = *self.counts.first()?;
        self.floor = least.denied;
        if let Some(entry) = self.entries.get_mut(least.entry) {
            let is_its = |place: &Place| place.entry() == least.entry;
            if let Ok(place) = self.places.find_entry(Place::spread(entry.hash), is_its) {
                place.remove();
            }
            entry.name.clear();
            entry.name.extend_from_slice(name);
            entry.put_item(item);
            entry.hash = hash;
            entry.error = least.denied;
            entry.policy = None;
            entry.minutes.clear();
            entry.minutes.count(minute);
        }
        self.place(least.entry, hash);
        self.count(0);
        Some(DenialPlace(least.entry))
    }

    /// Puts a key into an entry of its own.
    fn insert(&mut self, entry: DeniedKey, denied: u64) -> DenialPlace {
        if self.places.is_empty() {
            // Twice the room: the table is tidied in place where keys come and go, and never grows.
            let room = self.most.saturating_add(1).saturating_mul(2);
            self.places.reserve(room, |place| Place::spread(place.hash));
        }
        let (place, count, hash) = (self.entries.len(), self.counts.len(), entry.hash);
        self.entries.push(DeniedKey { count, ..entry });
        self.place(place, hash);
        let counted = Count { denied, entry: place };
        self.counts.push(counted);
        self.rise(count, counted);
        DenialPlace(place)
    }

    /// Notes where the entry of a key is.
    fn place(&mut self, entry: usize, hash: u32) {
        let place = Place::new(hash, entry);
        self.places.insert_unique(Place::spread(hash), place, |place| Place::spread(place.hash));
    }

    /// Counts one more, and puts the count where it now belongs: mostly where it is.
    #[inline]
    fn count(&mut self, mut place: usize) {
        let Some(count) = self.counts.get_mut(place) else { return };
        count.denied = count.denied.saturating_add(1);
        let count = *count;
        while let Some((below, least)) = self.least_below(place)
            && least.denied < count.denied
        {
            self.put(place, least);
            self.put(below, count);
            place = below;
        }
    }

    /// The lesser of the two behind a place, and where it is.
    #[inline]
    fn least_below(&self, place: usize) -> Option<(usize, Count)> {
        let left = place.wrapping_mul(2).wrapping_add(1);
        let right = left.wrapping_add(1);
        let of_left = *self.counts.get(left)?;
        match self.counts.get(right) {
            Some(&of_right) if of_right.denied < of_left.denied => Some((right, of_right)),
            _ => Some((left, of_left)),
        }
    }

    /// Puts a count where it belongs, at `place` or nearer to the root.
    fn rise(&mut self, mut place: usize, count: Count) {
        while let Some(above) = place.checked_sub(1).map(|place| place / 2)
            && let Some(&of_above) = self.counts.get(above)
            && count.denied < of_above.denied
        {
            self.put(place, of_above);
            place = above;
        }
        self.put(place, count);
    }

    fn put(&mut self, place: usize, count: Count) {
        if let (Some(room), Some(entry)) = (self.counts.get_mut(place), self.entries.get_mut(count.entry)) {
            *room = count;
            entry.count = place;
        }
    }
}

/// The first of them, as many as are asked for, in order.
fn first(mut all: Vec<Heavy<'_>>, count: usize) -> Vec<Heavy<'_>> {
    if count < all.len() {
        // There may be many, of which few are asked for.
        all.select_nth_unstable_by_key(count, Heavy::rank);
        all.truncate(count);
    }
    all.sort_unstable_by_key(Heavy::rank);
    all
}

impl<'t> Heavy<'t> {
    /// The heaviest first; of those denied as often, the one of which that is more certain; then by name and item.
    fn rank(&self) -> (Reverse<u64>, u64, &'t [u8], Option<&'t [u8]>) {
        (Reverse(self.denied), self.error, self.name, self.item)
    }
}

#[cfg(test)]
mod tests;
