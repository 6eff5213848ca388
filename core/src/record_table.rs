//! Records by name and by instant: leases, which are known by their holders, and calls, by their ids.
//!
//! The records lie in blocks of bytes of some 2 KB, in order, so that many take little memory and are copied and freed
//! block by block. Where there are more than a few, an index tells the instant of each name by the name's hash; with
//! both, the record is found among the blocks. Cost: a search through the blocks' first records, and a walk through one
//! block.

mod block;

pub use block::{Block, Payload, Record, RecordBytes, records};

use crate::number::lazy_shift::Mark;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// The most records that are found without an index.
pub const UNINDEXED: usize = 16;

/// Records, no two of which have one name.
#[derive(Clone, Debug, Default)]
pub struct RecordTable {
    blocks: VecDeque<Block>,
    /// The instants of all records by the hashes of their names; empty while there have been few.
    index: HashTable<IndexEntry>,
    len: usize,
}

/// A part of the hash of a name, and the bits of the record's instant: in halves, so that an entry takes 12 bytes.
#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    hash: u32,
    at: [u32; 2],
}

const _: () = assert!(size_of::<IndexEntry>() == 12, "there is one for each lease and each id");

impl IndexEntry {
    fn new(hash: u32, at: Mark) -> IndexEntry {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
        IndexEntry { hash, at: [half(at.bits()), half(at.bits() >> 32)] }
    }

    fn at(self) -> Mark {
        let [low, high] = self.at;
        Mark::from_bits(u64::from(high) << 32 | u64::from(low))
    }
}

/// Returns the hash of a name, others of which cannot be guessed from outside.
fn hash_of(name: &[u8]) -> u32 {
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let [a, b, c, d, ..] = HASHER.hash_one(name).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Returns a hash as the index takes it, which goes by the lowest and the highest bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Returns the number of the block in which a record with that instant and name stands, if there is one.
fn block_of(blocks: &VecDeque<Block>, at: Mark, name: &[u8]) -> usize {
    let is_before = |block: &Block| block.first().is_some_and(|first| (first.at, first.name) <= (at, name));
    // Most records come in their order.
    if blocks.back().is_some_and(is_before) {
        return blocks.len().saturating_sub(1);
    }
    blocks.partition_point(is_before).saturating_sub(1)
}

impl RecordTable {
    /// Returns the table with the records of one block.
    pub fn of(block: Block) -> RecordTable {
        let len = block.records().count();
        let mut table = RecordTable { blocks: VecDeque::from([block]), index: HashTable::new(), len };
        if len > UNINDEXED {
            table.make_index();
        }
        table
    }

    /// Returns the records as one block, if there is an index over none.
    pub fn take_block(&mut self) -> Block {
        let taken = std::mem::take(self);
        let mut blocks = taken.blocks.into_iter();
        let first = blocks.next().unwrap_or_default();
        let rest = blocks.flat_map(Block::into_bytes);
        let mut bytes = first.into_bytes();
        bytes.extend(rest);
        Block::of(bytes)
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there have been more than a few records since there was none.
    pub fn is_indexed(&self) -> bool {
        !self.index.is_empty()
    }

    /// Returns the records in order.
    pub fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        self.blocks.iter().flat_map(Block::records).map(|(_, record)| record)
    }

    /// Returns the records from an instant on, in order.
    pub fn from(&self, at: Mark) -> impl Iterator<Item = Record<'_>> {
        let first = self.blocks.partition_point(|block| block.first().is_some_and(|first| first.at < at));
        let blocks = self.blocks.range(first.saturating_sub(1)..);
        blocks.flat_map(Block::records).map(|(_, record)| record).skip_while(move |record| record.at < at)
    }

    /// Returns the first record.
    #[inline]
    pub fn first(&self) -> Option<Record<'_>> {
        self.blocks.front()?.first()
    }

    /// Returns the last record.
    pub fn last(&self) -> Option<Record<'_>> {
        self.blocks.back()?.last()
    }

    /// Returns the record with a name.
    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<Record<'_>> {
        if !self.is_indexed() {
            return self.blocks.iter().find_map(|block| block.find(name)).map(|(_, record)| record);
        }
        let (hash, mut found) = (hash_of(name), None);
        self.index.find(spread(hash), |entry| {
            if entry.hash == hash {
                let block = self.blocks.get(block_of(&self.blocks, entry.at(), name));
                found = block.and_then(|block| block.find_at(entry.at(), name)).map(|(_, record)| record);
            }
            found.is_some()
        });
        found
    }

    /// Adds a record, whose name no other has.
    pub fn insert(&mut self, at: Mark, name: &[u8], mut bytes: RecordBytes) {
        let place = block_of(&self.blocks, at, name);
        let last = place.saturating_add(1) >= self.blocks.len();
        if self.blocks.is_empty() {
            self.blocks.push_back(Block::default());
        }
        let split = self.blocks.get_mut(place).and_then(|block| block.insert_or_split(at, name, &mut bytes, last));
        if let Some(split) = split {
            self.blocks.insert(place.saturating_add(1), split);
        }
        self.len = self.len.saturating_add(1);
        if self.is_indexed() {
            let hash = hash_of(name);
            self.index.insert_unique(spread(hash), IndexEntry::new(hash, at), |entry| spread(entry.hash));
        } else if self.len > UNINDEXED {
            self.make_index();
        }
    }

    /// Adds a record behind all others; `false` if there is one with its name.
    pub fn append(&mut self, at: Mark, name: &[u8], mut bytes: RecordBytes) -> bool {
        if !self.is_indexed() {
            let is_new = self.get(name).is_none();
            if is_new {
                self.insert(at, name, bytes);
            }
            return is_new;
        }
        let hash = hash_of(name);
        let blocks = &self.blocks;
        let is_named = |entry: &IndexEntry| {
            let block = || blocks.get(block_of(blocks, entry.at(), name));
            entry.hash == hash && block().is_some_and(|block| block.find_at(entry.at(), name).is_some())
        };
        let Entry::Vacant(entry) = self.index.entry(spread(hash), is_named, |entry| spread(entry.hash)) else {
            return false;
        };
        entry.insert(IndexEntry::new(hash, at));
        if let Some(next) = self.blocks.back_mut().and_then(|last| last.append(&mut bytes)) {
            self.blocks.push_back(next);
        }
        self.len = self.len.saturating_add(1);
        true
    }

    /// Makes the index anew.
    #[cold]
    pub fn make_index(&mut self) {
        let mut index = HashTable::with_capacity(self.len);
        for record in self.iter() {
            let hash = hash_of(record.name);
            index.insert_unique(spread(hash), IndexEntry::new(hash, record.at), |entry| spread(entry.hash));
        }
        self.index = index;
    }

    /// Removes the record with a name, and returns what `read` returns of it.
    pub fn take<T>(&mut self, name: &[u8], read: impl FnOnce(Record<'_>) -> T) -> Option<T> {
        let mut found = None;
        if self.is_indexed() {
            let (hash, blocks) = (hash_of(name), &self.blocks);
            let is_its = |entry: &IndexEntry| {
                if entry.hash == hash {
                    let place = block_of(blocks, entry.at(), name);
                    let record = blocks.get(place).and_then(|block| block.find_at(entry.at(), name));
                    found = record.map(|(range, record)| (place, range, record));
                }
                found.is_some()
            };
            self.index.find_entry(spread(hash), is_its).ok()?.remove();
        } else {
            let mut blocks = self.blocks.iter().enumerate();
            found = blocks.find_map(|(place, block)| {
                let (range, record) = block.find(name)?;
                Some((place, range, record))
            });
        }
        let (place, range, record) = found?;
        let read = read(record);
        self.remove_from_block(place, |_| Some(range));
        Some(read)
    }

    /// Removes the first record.
    pub fn remove_first(&mut self) {
        let Some(first) = self.first() else { return };
        let (at, hash) = (first.at, if self.is_indexed() { hash_of(first.name) } else { 0 });
        if let Ok(entry) = self.index.find_entry(spread(hash), |entry| entry.hash == hash && entry.at() == at) {
            entry.remove();
        }
        self.remove_from_block(0, |block| block.records().next().map(|(range, _)| range));
    }

    fn remove_from_block(&mut self, place: usize, find: impl FnOnce(&Block) -> Option<std::ops::Range<usize>>) {
        let Some(block) = self.blocks.get_mut(place) else { return };
        let Some(range) = find(block) else { return };
        block.remove(range);
        self.len = self.len.saturating_sub(1);
        let next = place.saturating_add(1);
        if block.bytes().is_empty() {
            self.blocks.remove(place);
        } else if let (Some(block), Some(after)) = (self.blocks.get(place), self.blocks.get(next))
            && block.fits_with(after)
            && let Some(after) = self.blocks.remove(next)
            && let Some(block) = self.blocks.get_mut(place)
        {
            block.absorb(&after);
        }
        self.give_room_back();
    }

    /// Gives back the room of a crowd that is gone. What it once needed is kept until 32 times as much as is left: less
    /// often would waste more, and more often would move more at once.
    fn give_room_back(&mut self) {
        if self.index.len() < self.index.capacity() / 32 {
            self.index.shrink_to(self.index.len().saturating_mul(2), |entry| spread(entry.hash));
        }
        if self.blocks.len() < self.blocks.capacity() / 32 {
            self.blocks.shrink_to(self.blocks.len().saturating_mul(2));
        }
    }

    /// Makes every record anew: with the instant that `change` returns, and the payload that it adds.
    pub fn rewrite(&mut self, mut change: impl FnMut(Record<'_>) -> (Mark, RecordBytes)) {
        let before = std::mem::take(self);
        for record in before.iter() {
            let (at, bytes) = change(record);
            self.insert(at, record.name, bytes);
        }
    }

    /// Makes all payloads anew, in records of the same instants and names.
    pub fn change_payloads(&mut self, mut change: impl FnMut(Record<'_>) -> RecordBytes) {
        self.blocks.iter_mut().for_each(|block| block.change_payloads(&mut change));
    }

    /// Returns the number of bytes that it takes beside itself.
    pub fn heap_size(&self) -> usize {
        let blocks = self.blocks.iter().map(Block::capacity).fold(0, usize::saturating_add);
        let places = self.blocks.capacity().saturating_mul(size_of::<Block>());
        blocks.saturating_add(places).saturating_add(self.index.allocation_size())
    }

    /// Returns the number of allocations that it takes to free it.
    pub fn free_effort(&self) -> usize {
        self.blocks.len()
    }
}

#[cfg(test)]
mod tests;
