//! Fields of a usage packed into blocks of bytes. A snapshot saves each block as one string, because a server takes 20
//! times as long to save each field separately.
//!
//! A field begins with its tag, in the two lowest bits of the first byte. The other bits contain a number: five bits of
//! the first byte and seven of each following one, the lowest first. The highest bit of a byte is set if another byte
//! follows. The tag says what the number is:
//!
//! * 0: an integer below 2^40;
//! * 1: an integer of at least 2^40, as its distance from the previous such integer (from 0 for the first), with the
//!   sign in the lowest bit. Most of these integers are timestamps, which are close to each other;
//! * 2: the length of the string of bytes that follows.
//!
//! A block ends with the field that makes it [`BLOCK`] bytes long or longer. Each field has only one encoding.

use super::codec::{Decoder, Encoder};
use super::varint::{self, low_byte};

/// Length in bytes from which a block is full.
pub const BLOCK: usize = 32 * 1024;

const INTEGER: u64 = 0;
const DISTANCE: u64 = 1;
const BYTES: u64 = 2;

/// Number of bits of the tag.
const TAG_BITS: u32 = 2;
/// Number of bits of the number in the first byte.
const FIRST_BITS: u32 = 5;

/// Smallest integer that is encoded as a distance.
const MIN_TIMESTAMP: u64 = 1 << 40;

/// Encoder that packs fields into blocks and saves each full block.
pub struct FieldPacker<S: FnMut(&[u8])> {
    block: Vec<u8>,
    /// Last integer of at least [`MIN_TIMESTAMP`], or 0.
    last_timestamp: u64,
    save: S,
}

impl<S: FnMut(&[u8])> FieldPacker<S> {
    /// Creates a packer that passes each full block to `save`.
    pub fn new(save: S) -> FieldPacker<S> {
        FieldPacker { block: Vec::new(), last_timestamp: 0, save }
    }

    #[inline]
    fn write_field(&mut self, tag: u64, number: u64) {
        let first = tag | (number & 0x1f) << TAG_BITS;
        let mut rest = number >> FIRST_BITS;
        let mut byte = first;
        while rest != 0 {
            self.block.push(low_byte(byte | 0x80));
            (byte, rest) = (rest & 0x7f, rest >> 7);
        }
        self.block.push(low_byte(byte));
    }

    #[inline]
    fn end_field(&mut self) {
        if self.block.len() >= BLOCK {
            self.save_block();
        }
    }

    #[cold]
    fn save_block(&mut self) {
        (self.save)(&self.block);
        self.block.clear();
    }

    /// Saves the last block.
    pub fn end(mut self) {
        if !self.block.is_empty() {
            self.save_block();
        }
    }
}

impl<S: FnMut(&[u8])> Encoder for FieldPacker<S> {
    #[inline]
    fn integer(&mut self, value: u64) {
        if value < MIN_TIMESTAMP {
            self.write_field(INTEGER, value);
        } else {
            let distance = varint::distance(value, self.last_timestamp);
            self.last_timestamp = value;
            self.write_field(DISTANCE, distance);
        }
        self.end_field();
    }

    #[inline]
    fn bytes(&mut self, value: &[u8]) {
        self.write_field(BYTES, u64::try_from(value.len()).unwrap_or(0));
        self.block.extend_from_slice(value);
        self.end_field();
    }
}

/// Decoder that unpacks fields from blocks, and loads the next block at the end of each.
pub struct FieldUnpacker<L: FnMut() -> Option<Box<[u8]>>> {
    block: Box<[u8]>,
    position: usize,
    /// Last integer of at least [`MIN_TIMESTAMP`], or 0.
    last_timestamp: u64,
    load: L,
}

impl<L: FnMut() -> Option<Box<[u8]>>> FieldUnpacker<L> {
    /// Creates an unpacker of the blocks that `load` returns until it returns `None`.
    pub fn new(load: L) -> FieldUnpacker<L> {
        FieldUnpacker { block: Box::default(), position: 0, last_timestamp: 0, load }
    }

    /// Returns `true` if the current block has been read. This is the end of the usage, because the next block is
    /// loaded only when another field is read.
    pub fn is_at_end(&self) -> bool {
        self.position == self.block.len()
    }

    /// Loads the next block. Returns `None` if there is none. A block that is not full must be the last.
    #[cold]
    fn next_block(&mut self) -> Option<()> {
        if !self.block.is_empty() && self.block.len() < BLOCK {
            return None;
        }
        (self.block, self.position) = ((self.load)()?, 0);
        (!self.block.is_empty()).then_some(())
    }

    /// Reads the tag and the number of a field.
    #[inline]
    fn read_field(&mut self) -> Option<(u64, u64)> {
        // No field begins after the first `BLOCK` bytes of a block.
        if self.position >= self.block.len().min(BLOCK) {
            self.is_at_end().then(|| self.next_block())??;
        }
        let mut bytes = self.block.get(self.position..)?.iter();
        let first = u64::from(*bytes.next()?);
        let mut number = first >> TAG_BITS & 0x1f;
        let mut byte = first;
        let mut shift = FIRST_BITS;
        while byte & 0x80 != 0 {
            byte = u64::from(*bytes.next()?);
            let bits = byte & 0x7f;
            let shifted = bits.checked_shl(shift)?;
            // Rejects bits beyond the 64th, and a final byte of zero, which adds nothing to the number.
            if shifted >> shift != bits || byte == 0 {
                return None;
            }
            number |= shifted;
            shift = shift.saturating_add(7);
        }
        self.position = self.block.len().saturating_sub(bytes.len());
        Some((first & 3, number))
    }
}

impl<L: FnMut() -> Option<Box<[u8]>>> Decoder for FieldUnpacker<L> {
    #[inline]
    fn integer(&mut self) -> Option<u64> {
        let (tag, number) = self.read_field()?;
        match tag {
            INTEGER => Some(number).filter(|value| *value < MIN_TIMESTAMP),
            DISTANCE => {
                self.last_timestamp = varint::at_distance(number, self.last_timestamp);
                Some(self.last_timestamp).filter(|value| *value >= MIN_TIMESTAMP)
            }
            _ => None,
        }
    }

    #[inline]
    fn bytes(&mut self, max: usize) -> Option<Box<[u8]>> {
        let (tag, length) = self.read_field()?;
        let length = usize::try_from(length).ok().filter(|length| tag == BYTES && *length <= max)?;
        let end = self.position.checked_add(length)?;
        let bytes = self.block.get(self.position..end)?;
        self.position = end;
        Some(bytes.into())
    }
}

#[cfg(test)]
mod tests;
