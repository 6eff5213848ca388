//! The idempotency records of a key that has few, in one block of bytes, as Redis keeps small hashes in listpacks.
//!
//! The block: the records of the calls (`record_table`), the settlements, how long these are together (2 bytes), and how
//! many calls there are (1 byte). A settlement stands behind the serial number of its component (1 byte) and its length
//! (2 bytes).

use super::settlement::Settlement;
use crate::record_table::{Payload, Record, records};
use crate::wire::codec::Encoder;
use crate::wire::varint;

/// The most calls in a block.
pub const MOST_CALLS: usize = 16;

/// A block, to be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packed<'a> {
    /// The records of the calls.
    pub calls: &'a [u8],
    settlements: &'a [u8],
    len: usize,
}

impl<'a> Packed<'a> {
    /// Returns the parts of a block.
    pub fn of(block: &'a [u8]) -> Packed<'a> {
        let parts = || {
            let (count, rest) = block.split_last()?;
            let (rest, length) = rest.split_last_chunk()?;
            let calls = rest.len().checked_sub(usize::from(u16::from_le_bytes(*length)))?;
            let (calls, settlements) = rest.split_at_checked(calls)?;
            Some(Packed { calls, settlements, len: usize::from(*count) })
        };
        parts().unwrap_or_default()
    }

    /// Returns the number of calls.
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns the records of the calls, in the order in which they expire.
    pub fn calls(self) -> impl Iterator<Item = Record<'a>> {
        records(self.calls).map(|(_, record)| record)
    }

    /// Returns the settlements, by the serial numbers of their components.
    fn pieces(self) -> impl Iterator<Item = (u8, &'a [u8])> {
        let mut rest = self.settlements;
        std::iter::from_fn(move || {
            let (serial, behind) = rest.split_first()?;
            let (length, behind) = behind.split_first_chunk()?;
            let (piece, behind) = behind.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            rest = behind;
            Some((*serial, piece))
        })
    }

    /// Returns `true` if any charge of a component may be settled.
    pub fn has_settlement(self, serial: u8) -> bool {
        self.pieces().any(|(own, _)| own == serial)
    }

    /// Returns what settling the charges of a component takes; nothing where none may be settled.
    pub fn settlement(self, serial: u8) -> Settlement {
        let piece = self.pieces().find(|(own, _)| *own == serial);
        piece.and_then(|(_, piece)| Settlement::unpack(&mut Payload(piece))).unwrap_or_default()
    }

    /// Returns the settlements, by the serial numbers of their components.
    pub fn settlements(self) -> impl Iterator<Item = (u8, Settlement)> {
        self.pieces().filter_map(|(serial, piece)| Some((serial, Settlement::unpack(&mut Payload(piece))?)))
    }
}

/// Adds settlements to the records of `calls` calls, which makes a block of them.
pub fn pack(mut block: Vec<u8>, calls: usize, settlements: &[(u8, Settlement)]) -> Box<[u8]> {
    let end_of_calls = block.len();
    for (serial, settlement) in settlements.iter().filter(|(_, settlement)| !settlement.is_idle()) {
        block.push(*serial);
        let place = block.len();
        block.extend_from_slice(&[0; 2]);
        settlement.pack(&mut Tail(&mut block));
        let length = block.len().saturating_sub(place).saturating_sub(2);
        if let Some(head) = block.get_mut(place..).and_then(<[u8]>::first_chunk_mut) {
            *head = length_bytes(length);
        }
    }
    let length = block.len().saturating_sub(end_of_calls);
    block.extend_from_slice(&length_bytes(length));
    block.push(u8::try_from(calls).unwrap_or(u8::MAX));
    block.into()
}

fn length_bytes(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes()
}

/// Writes fields at the end of a block.
struct Tail<'a>(&'a mut Vec<u8>);

impl Encoder for Tail<'_> {
    fn integer(&mut self, value: u64) {
        varint::write(value, |byte| self.0.push(byte));
    }

    fn bytes(&mut self, value: &[u8]) {
        self.integer(u64::try_from(value.len()).unwrap_or(0));
        self.0.extend_from_slice(value);
    }
}
