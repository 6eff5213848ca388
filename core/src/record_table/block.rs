//! Block of bytes with records in sequence, ordered by timestamp and then by name.
//!
//! A record consists of the number of bytes that follow (2 bytes), its timestamp (8 bytes), the length of its name
//! minus one (1 byte), its name of 1 to 256 bytes, and its fields. The position of a record is that of its first byte
//! in the block.

use crate::number::lazy_shift::Mark;
use crate::wire::codec::{Decoder, Encoder};
use crate::wire::varint;
use arrayvec::ArrayVec;
use std::ops::Range;

/// Size of the length at the start of a record, in bytes.
const LENGTH_SIZE: usize = 2;

/// Maximum size of a record in bytes: that of a recorded call with an id of 256 bytes and eight charges.
const MAX_RECORD_SIZE: usize = 768;

/// Record in a block.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Timestamp, by which records are ordered.
    pub at: Mark,
    /// Name of 1 to 256 bytes.
    pub name: &'a [u8],
    /// Encoded fields after the name.
    pub fields: &'a [u8],
}

impl<'a> Record<'a> {
    /// Decodes the record at the start of `bytes`. Returns the record and its length in bytes.
    #[inline(always)]
    fn read(bytes: &'a [u8]) -> Option<(Record<'a>, usize)> {
        let (length, rest) = bytes.split_first_chunk()?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (at, rest) = rest.get(..length)?.split_first_chunk()?;
        let (name_length, rest) = rest.split_first()?;
        let (name, fields) = rest.split_at_checked(usize::from(*name_length).saturating_add(1))?;
        let at = Mark::from_bits(u64::from_le_bytes(*at));
        Some((Record { at, name, fields }, length.saturating_add(LENGTH_SIZE)))
    }

    /// Returns a copy of the bytes of the record.
    pub fn copy(&self) -> RecordBytes {
        let mut bytes = RecordBytes::new(self.at, self.name);
        bytes.push(self.fields);
        bytes
    }

    /// Returns the sort key: timestamp and name.
    #[inline(always)]
    fn key(&self) -> (Mark, &'a [u8]) {
        (self.at, self.name)
    }
}

/// Encoder of a record. Makes no allocation.
#[derive(Debug)]
pub struct RecordBytes(ArrayVec<u8, MAX_RECORD_SIZE>);

impl RecordBytes {
    /// Creates the bytes of a record without fields.
    pub fn new(at: Mark, name: &[u8]) -> RecordBytes {
        let mut bytes = RecordBytes(ArrayVec::new());
        bytes.push(&[0; LENGTH_SIZE]);
        bytes.push(&at.bits().to_le_bytes());
        bytes.push(&[u8::try_from(name.len().saturating_sub(1)).unwrap_or(u8::MAX)]);
        bytes.push(name);
        bytes
    }

    /// Appends bytes to the fields. The buffer has room for the longest record.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let written = self.0.try_extend_from_slice(bytes);
        debug_assert!(written.is_ok(), "a record is longer than {MAX_RECORD_SIZE} bytes");
    }

    /// Writes the length, and returns the bytes of the record.
    fn finish(&mut self) -> &[u8] {
        let length = u16::try_from(self.0.len().saturating_sub(LENGTH_SIZE)).unwrap_or(u16::MAX).to_le_bytes();
        if let Some(head) = self.0.get_mut(..LENGTH_SIZE) {
            head.copy_from_slice(&length);
        }
        &self.0
    }
}

impl Encoder for RecordBytes {
    // Not inlined: a call with an id then executes less code, because all fields share one function.
    #[inline(never)]
    fn integer(&mut self, value: u64) {
        varint::write(value, |byte| self.push(&[byte]));
    }

    fn bytes(&mut self, value: &[u8]) {
        self.integer(u64::try_from(value.len()).unwrap_or(0));
        self.push(value);
    }
}

/// Decoder of the fields of a record, or of a settlement.
#[derive(Clone, Copy, Debug)]
pub struct RecordDecoder<'a>(pub &'a [u8]);

impl Decoder for RecordDecoder<'_> {
    #[inline(never)]
    fn integer(&mut self) -> Option<u64> {
        varint::read(&mut self.0)
    }

    fn bytes(&mut self, max_length: usize) -> Option<Box<[u8]>> {
        let length = usize::try_from(self.integer()?).ok().filter(|length| *length <= max_length)?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes.into())
    }
}

/// Iterator over the ranges of bytes and the records of a block.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    /// Position of the next record.
    position: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = (Range<usize>, Record<'a>);

    #[inline]
    fn next(&mut self) -> Option<(Range<usize>, Record<'a>)> {
        let (record, length) = Record::read(self.bytes.get(self.position..)?)?;
        let end = self.position.saturating_add(length);
        let range = self.position..end;
        self.position = end;
        Some((range, record))
    }
}

/// Returns the ranges of bytes and the records in `bytes`.
pub fn records(bytes: &[u8]) -> Records<'_> {
    Records { bytes, position: 0 }
}

/// Records with distinct names, ordered by timestamp and then by name.
#[derive(Clone, Debug, Default)]
pub struct Block(Vec<u8>);

impl Block {
    /// Creates a block from the bytes of a block.
    pub fn of(bytes: Vec<u8>) -> Block {
        Block(bytes)
    }

    /// Returns the bytes of the block.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Returns the bytes of the block.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns the ranges of bytes and the records.
    #[inline]
    pub fn records(&self) -> Records<'_> {
        records(&self.0)
    }

    /// Returns the first record.
    #[inline]
    pub fn first(&self) -> Option<Record<'_>> {
        self.record_at(0)
    }

    /// Returns the timestamp of the last record.
    pub fn last_instant(&self) -> Option<Mark> {
        let (mut position, mut last) = (0, None);
        while let Some((at, end)) = self.instant_at(position) {
            (position, last) = (end, Some(at));
        }
        last
    }

    /// Returns the record at a position.
    #[inline]
    pub fn record_at(&self, position: usize) -> Option<Record<'_>> {
        self.records_from(position).next().map(|(_, record)| record)
    }

    /// Returns the records from a position on.
    #[inline]
    fn records_from(&self, position: usize) -> Records<'_> {
        Records { bytes: &self.0, position }
    }

    /// Returns the timestamp of the record at a position, and the position of the next record. A scan by this function
    /// is faster than an iteration over [`Records`].
    #[inline(always)]
    fn instant_at(&self, position: usize) -> Option<(Mark, usize)> {
        let (length, rest) = self.0.get(position..)?.split_first_chunk()?;
        let at = Mark::from_bits(u64::from_le_bytes(*rest.first_chunk()?));
        Some((at, position.saturating_add(LENGTH_SIZE).saturating_add(usize::from(u16::from_le_bytes(*length)))))
    }

    /// Returns the range of bytes of the record with a name, and the record.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<(Range<usize>, Record<'_>)> {
        self.records().find(|(_, record)| record.name == name)
    }

    /// Returns the range of bytes of the record with a timestamp and a name, and the record.
    pub fn find_at(&self, at: Mark, name: &[u8]) -> Option<(Range<usize>, Record<'_>)> {
        let mut records = self.records_from(self.position_of(at, name));
        records.next().filter(|(_, record)| record.key() == (at, name))
    }

    /// Returns the position of the record with a timestamp and a name, or the position at which to insert such a
    /// record.
    pub fn position_of(&self, at: Mark, name: &[u8]) -> usize {
        let mut position = 0;
        while let Some((_, end)) = self.instant_at(position).filter(|(before, _)| *before < at) {
            position = end;
        }
        let smaller = self.records_from(position).take_while(|(_, record)| record.key() < (at, name));
        smaller.last().map_or(position, |(range, _)| range.end)
    }

    /// Inserts a record at a position, which must be the one from [`position_of`](Block::position_of).
    pub fn insert(&mut self, position: usize, bytes: &mut RecordBytes) {
        let bytes = bytes.finish();
        self.make_room(bytes.len());
        self.0.splice(position..position, bytes.iter().copied());
    }

    /// Reserves memory for `added` bytes, rounded up to a size class of the allocator, with spare capacity for a large
    /// block.
    fn make_room(&mut self, added: usize) {
        const SMALL: usize = 256;
        let length = self.0.len().saturating_add(added);
        if length > self.0.capacity() {
            let room = length.next_multiple_of(if length <= SMALL { 16 } else { SMALL });
            self.0.reserve_exact(room.saturating_sub(self.0.len()));
        }
    }

    /// Removes the record in a range of bytes.
    pub fn remove(&mut self, range: Range<usize>) {
        const MAX_SPARE: usize = 512;
        self.0.drain(range);
        if self.0.capacity().saturating_sub(self.0.len()) >= MAX_SPARE {
            self.0.shrink_to(self.0.len().next_multiple_of(16));
        }
    }

    /// Removes the records up to and including the timestamp `at`.
    pub fn remove_until(&mut self, at: Mark) {
        let end = self.records().take_while(|(_, record)| record.at <= at).last().map_or(0, |(range, _)| range.end);
        if end > 0 {
            self.remove(0..end);
        }
    }

    /// Splits off the second half of the records and returns it.
    pub fn split(&mut self) -> Block {
        let half = self.0.len() / 2;
        let end = self.records().find(|(range, _)| range.end >= half).map_or(half, |(range, _)| range.end);
        let second = Block(self.0.split_off(end));
        self.0.shrink_to_fit();
        second
    }
}

/// Maximum length of a block in bytes. A block that would become longer is split.
pub const MAX_BLOCK_SIZE: usize = 2048;

impl Block {
    /// Returns `true` if there is room for a record.
    pub fn has_room_for(&self, bytes: &RecordBytes) -> bool {
        self.0.is_empty() || self.0.len().saturating_add(bytes.0.len()) <= MAX_BLOCK_SIZE
    }

    /// Appends a record after all others.
    pub fn push(&mut self, bytes: &mut RecordBytes) {
        let bytes = bytes.finish();
        self.make_room(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// Returns `true` if both blocks together take at most half of the maximum size of a block.
    pub fn fits_with(&self, next: &Block) -> bool {
        self.0.len().saturating_add(next.0.len()) <= MAX_BLOCK_SIZE / 2
    }

    /// Appends the records of the next block.
    pub fn absorb(&mut self, next: &Block) {
        self.make_room(next.0.len());
        self.0.extend_from_slice(&next.0);
    }
}
