//! Idempotency records of a key with few calls, packed into one block of bytes, like small hashes of Redis in
//! listpacks.
//!
//! A block consists of the records of the calls (`record_table`), the settlements, the length of all settlements (2
//! bytes), and the number of calls (1 byte). Each settlement is preceded by the serial number of its component (1 byte)
//! and its length (2 bytes).

use super::settlement::Settlement;
use crate::record_table::{Record, RecordDecoder, records};
use crate::wire::codec::Encoder;
use crate::wire::varint;

/// Maximum number of calls in a block.
pub const MAX_PACKED_CALLS: usize = 16;

/// View of the parts of a block.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packed<'a> {
    /// Encoded records of the calls.
    pub record_bytes: &'a [u8],
    settlement_bytes: &'a [u8],
    /// Number of calls.
    pub call_count: usize,
}

impl<'a> Packed<'a> {
    /// Splits a block into its parts.
    pub fn of(block: &'a [u8]) -> Packed<'a> {
        let parts = || {
            let (count, rest) = block.split_last()?;
            let (rest, length) = rest.split_last_chunk()?;
            let records_end = rest.len().checked_sub(usize::from(u16::from_le_bytes(*length)))?;
            let (record_bytes, settlement_bytes) = rest.split_at_checked(records_end)?;
            Some(Packed { record_bytes, settlement_bytes, call_count: usize::from(*count) })
        };
        parts().unwrap_or_default()
    }

    /// Returns the records of the calls, in the order of expiry.
    pub fn calls(self) -> impl Iterator<Item = Record<'a>> {
        records(self.record_bytes).map(|(_, record)| record)
    }

    /// Returns the encoded settlements with the serial numbers of their components.
    fn encoded_settlements(self) -> impl Iterator<Item = (u8, &'a [u8])> {
        let mut rest = self.settlement_bytes;
        std::iter::from_fn(move || {
            let (serial, after_serial) = rest.split_first()?;
            let (length, after_length) = after_serial.split_first_chunk()?;
            let (settlement, next) = after_length.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            rest = next;
            Some((*serial, settlement))
        })
    }

    /// Returns `true` if a charge of the component can be settled.
    pub fn has_settlement(self, serial: u8) -> bool {
        self.encoded_settlements().any(|(stored, _)| stored == serial)
    }

    /// Returns the settlement of a component; a new one if no charge of the component can be settled.
    pub fn settlement(self, serial: u8) -> Settlement {
        let found = self.encoded_settlements().find(|(stored, _)| *stored == serial);
        found.and_then(|(_, encoded)| Settlement::unpack(&mut RecordDecoder(encoded))).unwrap_or_default()
    }

    /// Returns the settlements with the serial numbers of their components.
    pub fn settlements(self) -> impl Iterator<Item = (u8, Settlement)> {
        self.encoded_settlements()
            .filter_map(|(serial, encoded)| Some((serial, Settlement::unpack(&mut RecordDecoder(encoded))?)))
    }
}

/// Number of bytes reserved for the part of a block after the records, which is enough for most blocks.
const USUAL_TAIL: usize = 64;

/// Completes a block with the records of `call_count` calls: appends the settlements, their length and `call_count`.
pub fn pack(mut block: Vec<u8>, call_count: usize, settlements: &[(u8, Settlement)]) -> Box<[u8]> {
    let mut tail = Vec::with_capacity(USUAL_TAIL);
    for (serial, settlement) in settlements.iter().filter(|(_, settlement)| !settlement.is_idle()) {
        tail.push(*serial);
        let start = tail.len();
        tail.extend_from_slice(&[0; 2]);
        settlement.pack(&mut Tail(&mut tail));
        let length = tail.len().saturating_sub(start).saturating_sub(2);
        if let Some(head) = tail.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
            *head = length_bytes(length);
        }
    }
    tail.extend_from_slice(&length_bytes(tail.len()));
    tail.push(u8::try_from(call_count).unwrap_or(u8::MAX));
    // Resizes the block once.
    block.reserve_exact(tail.len());
    block.append(&mut tail);
    block.into()
}

fn length_bytes(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes()
}

/// Encoder that appends fields to a block.
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
