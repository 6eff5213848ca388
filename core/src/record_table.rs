//! Table of records, ordered by timestamp (the expiry) and found by name: leases by their holders, and recorded calls
//! by their ids. A timestamp is stored as a [`Mark`], so that all timestamps can be moved back at once.
//!
//! Records are stored in order, in blocks of about 2 KB. Even a large table therefore takes little memory, and is
//! copied and freed block by block. A table with more than a few records has an index from the hash of a name to the
//! record's timestamp, by which the block is found. **Cost:** a binary search in the first records of all blocks, and a
//! scan of one block.

mod block;

pub use block::{Block, Record, RecordBytes, RecordDecoder, records};

use crate::keyed_hash::{self, Multipliers, spread};
use crate::number::lazy_shift::Mark;
use hashbrown::HashTable;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::LazyLock;

/// Maximum number of records without an index.
pub const MAX_UNINDEXED: usize = 16;

/// Table of records with distinct names.
#[derive(Clone, Debug, Default)]
pub struct RecordTable {
    blocks: VecDeque<Block>,
    /// Timestamps of all records by the hashes of their names. Empty until the table has more than [`MAX_UNINDEXED`]
    /// records; then kept until the table is empty.
    index: HashTable<IndexEntry>,
    len: usize,
    /// Latest timestamp of all records.
    latest: Mark,
}

/// Position of a record. Invalid after the next change of the table.
#[derive(Clone, Copy, Debug)]
pub struct RecordPosition {
    block: usize,
    byte: usize,
}

/// Hash of a name, and the bits of the record's timestamp. The bits are in two halves, so that an entry takes 12 bytes,
/// not 16.
#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    hash: u32,
    at: [u32; 2],
}

const _: () = assert!(size_of::<IndexEntry>() == 12, "each lease and each id in a large table has an entry");

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

/// Number of words of four bytes in the longest name.
const WORDS: usize = 64;

/// Returns the keyed hash of a name. Clients cannot compute names with equal hashes.
#[inline(never)]
fn hash_of(name: &[u8]) -> u32 {
    static MULTIPLIERS: LazyLock<Multipliers<WORDS>> = LazyLock::new(Multipliers::random);
    keyed_hash::hash(MULTIPLIERS.sum(name))
}

/// Returns the index of the block that contains the record with a timestamp and a name, or into which such a record
/// would be inserted.
fn block_of(blocks: &VecDeque<Block>, at: Mark, name: &[u8]) -> usize {
    let is_before = |block: &Block| block.first().is_some_and(|first| (first.at, first.name) <= (at, name));
    // Most records are added in order.
    if blocks.back().is_some_and(is_before) {
        return blocks.len().saturating_sub(1);
    }
    blocks.partition_point(is_before).saturating_sub(1)
}

impl RecordTable {
    /// Creates a table with the records of one block.
    pub fn of(block: Block) -> RecordTable {
        let (len, latest) = (block.records().count(), block.last_instant().unwrap_or_default());
        let mut table = RecordTable { blocks: VecDeque::from([block]), index: HashTable::new(), len, latest };
        if len > MAX_UNINDEXED {
            table.make_index();
        }
        table
    }

    /// Moves the records out into one block.
    pub fn take_block(&mut self) -> Block {
        let mut blocks = std::mem::take(self).blocks.into_iter();
        let mut bytes = blocks.next().unwrap_or_default().into_bytes();
        bytes.extend(blocks.flat_map(Block::into_bytes));
        Block::of(bytes)
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the table has an index: it has had more than [`MAX_UNINDEXED`] records since it was last
    /// empty.
    pub fn is_indexed(&self) -> bool {
        !self.index.is_empty()
    }

    /// Returns the records in order.
    pub fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        self.blocks.iter().flat_map(Block::records).map(|(_, record)| record)
    }

    /// Returns the records from the timestamp `at` on, in order.
    pub fn iter_from(&self, at: Mark) -> impl Iterator<Item = Record<'_>> {
        let first = self.blocks.partition_point(|block| block.first().is_some_and(|first| first.at < at));
        let blocks = self.blocks.range(first.saturating_sub(1)..);
        blocks.flat_map(Block::records).map(|(_, record)| record).skip_while(move |record| record.at < at)
    }

    /// Returns the first record.
    #[inline]
    pub fn first(&self) -> Option<Record<'_>> {
        self.blocks.front()?.first()
    }

    /// Returns the latest timestamp of all records.
    #[inline]
    pub fn latest(&self) -> Option<Mark> {
        (self.len > 0).then_some(self.latest)
    }

    /// Returns the record at a position.
    pub fn record_at(&self, position: RecordPosition) -> Option<Record<'_>> {
        self.blocks.get(position.block)?.record_at(position.byte)
    }

    /// Returns the record with a name.
    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<Record<'_>> {
        self.find(name).map(|(_, _, record)| record)
    }

    /// Returns the index of the block that contains the record with a name, the range of bytes of the record in the
    /// block, and the record.
    fn find(&self, name: &[u8]) -> Option<(usize, Range<usize>, Record<'_>)> {
        let mut found = None;
        if self.is_indexed() {
            let hash = hash_of(name);
            self.index.find(spread(hash), |entry| {
                if entry.hash == hash {
                    let index = block_of(&self.blocks, entry.at(), name);
                    found = self.blocks.get(index).and_then(|block| block.find_at(entry.at(), name)).zip(Some(index));
                }
                found.is_some()
            });
        } else {
            found = self.blocks.iter().zip(0..).find_map(|(block, index)| Some((block.find(name)?, index)));
        }
        found.map(|((range, record), block_index)| (block_index, range, record))
    }

    /// Inserts a record with a new name, and returns its position.
    pub fn insert(&mut self, at: Mark, name: &[u8], mut bytes: RecordBytes) -> RecordPosition {
        // Most records are added in order.
        if at > self.latest {
            return self.push(at, name, bytes);
        }
        let block_index = block_of(&self.blocks, at, name);
        let is_last = block_index.saturating_add(1) >= self.blocks.len();
        let Some(block) = self.blocks.get_mut(block_index) else { return self.push(at, name, bytes) };
        let mut position = RecordPosition { block: block_index, byte: block.position_of(at, name) };
        if is_last && position.byte == block.bytes().len() {
            return self.push(at, name, bytes);
        }
        if block.has_room_for(&bytes) {
            block.insert(position.byte, &mut bytes);
        } else {
            let mut second_half = block.split();
            match position.byte.checked_sub(block.bytes().len()) {
                Some(byte) if byte > 0 => {
                    second_half.insert(byte, &mut bytes);
                    position = RecordPosition { block: block_index.saturating_add(1), byte };
                }
                _ => block.insert(position.byte, &mut bytes),
            }
            self.blocks.insert(block_index.saturating_add(1), second_half);
        }
        self.register(at, name);
        position
    }

    /// Appends a record after all others if its name is new. Returns `true` if the name is new.
    pub fn append_if_new(&mut self, at: Mark, name: &[u8], bytes: RecordBytes) -> bool {
        let is_new = self.get(name).is_none();
        if is_new {
            self.push(at, name, bytes);
        }
        is_new
    }

    /// Appends a record after all others, and returns its position. Starts a new block instead of splitting the last
    /// one, so that blocks filled in order stay full.
    fn push(&mut self, at: Mark, name: &[u8], mut bytes: RecordBytes) -> RecordPosition {
        if !self.blocks.back().is_some_and(|last| last.has_room_for(&bytes)) {
            self.blocks.push_back(Block::default());
        }
        let mut position = RecordPosition { block: self.blocks.len().saturating_sub(1), byte: 0 };
        if let Some(last) = self.blocks.back_mut() {
            position.byte = last.bytes().len();
            last.push(&mut bytes);
        }
        self.latest = at;
        self.register(at, name);
        position
    }

    /// Counts an added record, and adds it to the index.
    fn register(&mut self, at: Mark, name: &[u8]) {
        self.len = self.len.saturating_add(1);
        if self.is_indexed() {
            let hash = hash_of(name);
            self.index.insert_unique(spread(hash), IndexEntry::new(hash, at), |entry| spread(entry.hash));
        } else if self.len > MAX_UNINDEXED {
            self.make_index();
        }
    }

    /// Rebuilds the index.
    #[cold]
    pub fn make_index(&mut self) {
        let mut index = HashTable::with_capacity(self.len);
        for record in self.iter() {
            let hash = hash_of(record.name);
            index.insert_unique(spread(hash), IndexEntry::new(hash, record.at), |entry| spread(entry.hash));
        }
        self.index = index;
    }

    /// Removes the record with a name, and returns the result of `read` for it.
    pub fn take<T>(&mut self, name: &[u8], read: impl FnOnce(Record<'_>) -> T) -> Option<T> {
        let (block_index, range, record) = self.find(name)?;
        let result = read(record);
        self.remove(block_index, range);
        Some(result)
    }

    /// Removes the first record.
    pub fn remove_first(&mut self) {
        if let Some((range, _)) = self.blocks.front().and_then(|first| first.records().next()) {
            self.remove(0, range);
        }
    }

    /// Removes a record from a block.
    fn remove(&mut self, block_index: usize, range: Range<usize>) {
        let Some(block) = self.blocks.get_mut(block_index) else { return };
        let Some(at) = block.record_at(range.start).map(|record| {
            if !self.index.is_empty() {
                let hash = hash_of(record.name);
                let is_of_record = |entry: &IndexEntry| entry.hash == hash && entry.at() == record.at;
                if let Ok(entry) = self.index.find_entry(spread(hash), is_of_record) {
                    entry.remove();
                }
            }
            record.at
        }) else {
            return;
        };
        block.remove(range);
        self.len = self.len.saturating_sub(1);
        let next = block_index.saturating_add(1);
        if block.bytes().is_empty() {
            self.blocks.remove(block_index);
        } else if let (Some(block), Some(after)) = (self.blocks.get(block_index), self.blocks.get(next))
            && block.fits_with(after)
            && let Some(after) = self.blocks.remove(next)
            && let Some(block) = self.blocks.get_mut(block_index)
        {
            block.absorb(&after);
        }
        if at >= self.latest {
            self.latest = self.blocks.back().and_then(Block::last_instant).unwrap_or_default();
        }
        self.shrink();
    }

    /// Frees memory after many records have been removed. Index and list of blocks are shrunk when their capacity
    /// exceeds 32 times their length. A higher factor would waste more memory; a lower one would move more entries at a
    /// time.
    fn shrink(&mut self) {
        if self.index.len() < self.index.capacity() / 32 {
            self.index.shrink_to(self.index.len().saturating_mul(2), |entry| spread(entry.hash));
        }
        if self.blocks.len() < self.blocks.capacity() / 32 {
            self.blocks.shrink_to(self.blocks.len().saturating_mul(2));
        }
    }

    /// Replaces the timestamp and the bytes of every record by those that `change` returns for it.
    pub fn rewrite(&mut self, mut change: impl FnMut(Record<'_>) -> (Mark, RecordBytes)) {
        for record in std::mem::take(self).iter() {
            let (at, bytes) = change(record);
            self.insert(at, record.name, bytes);
        }
    }

    /// Returns the heap memory in bytes.
    pub fn heap_size(&self) -> usize {
        let blocks = self.blocks.iter().map(Block::capacity).fold(0, usize::saturating_add);
        let block_list = self.blocks.capacity().saturating_mul(size_of::<Block>());
        blocks.saturating_add(block_list).saturating_add(self.index.allocation_size())
    }

    /// Returns the approximate number of allocations to free.
    pub fn free_effort(&self) -> usize {
        self.blocks.len()
    }
}

#[cfg(test)]
mod tests;
