//! The idempotency records of a key that has few, in one block of bytes, as Redis keeps small hashes in listpacks.
//!
//! The block: how many calls there are (1 byte), how long the settlements are together (2 bytes), the settlements, and
//! the calls in the order in which they expire. Each settlement and each call stands behind its own length (2 bytes).
//! A call begins with the instant at which it expires (8 bytes) and the length of its id less one (1 byte), so that a
//! walk over the calls reads no more than these. All other integers are written seven bits a byte (LEB128).

use super::RecordedCall;
use super::recorded_call::decode_charges;
use super::settlement::{Charge, FewSettlement};
use crate::number::{Amount, Timestamp};
use crate::wire::codec::{Decoder, Encoder};
use arrayvec::ArrayVec;
use std::ops::Range;

/// How long the head of the block is.
const HEAD: usize = 3;

/// How long the length of a settlement or a call is.
const LENGTH: usize = 2;

/// The longest piece: a call with an id of 256 bytes and eight charges, of up to five integers of ten bytes each.
const MOST_LENGTH: usize = 768;

/// A block, to be read.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a>(pub &'a [u8]);

/// A call in a block.
#[derive(Clone, Copy, Debug)]
pub struct PackedCall<'a> {
    /// Where it begins, and where the next one does.
    place: (usize, usize),
    /// When it expires.
    pub expires_at: Timestamp,
    rest: &'a [u8],
}

impl<'a> Packed<'a> {
    /// How many calls there are.
    pub fn len(self) -> usize {
        self.0.first().map_or(0, |calls| usize::from(*calls))
    }

    fn settlements_end(self) -> usize {
        let length = self.0.get(1..HEAD).and_then(<[u8]>::first_chunk);
        length.map_or(0, |length| usize::from(u16::from_le_bytes(*length))).saturating_add(HEAD)
    }

    /// The pieces between two places, each behind its length.
    fn pieces(self, from: usize, to: usize) -> impl Iterator<Item = ((usize, usize), &'a [u8])> {
        let mut at = from;
        std::iter::from_fn(move || {
            let start = at.checked_add(LENGTH).filter(|start| *start <= to)?;
            let length = self.0.get(at..start)?.first_chunk()?;
            let end = start.saturating_add(usize::from(u16::from_le_bytes(*length)));
            let place = (at, end);
            at = end;
            Some((place, self.0.get(start..end)?))
        })
    }

    /// The calls, in the order in which they expire.
    pub fn calls(self) -> impl Iterator<Item = PackedCall<'a>> {
        self.pieces(self.settlements_end(), self.0.len()).filter_map(|(place, piece)| {
            let (expires_at, rest) = piece.split_first_chunk()?;
            Some(PackedCall { place, expires_at: Timestamp::from_micros(u64::from_le_bytes(*expires_at))?, rest })
        })
    }

    /// The call of an id.
    pub fn find(self, id: &[u8]) -> Option<PackedCall<'a>> {
        self.calls().find(|call| call.is_of(id))
    }

    /// Writes out the calls, field by field.
    pub fn encode_calls(self, to: &mut impl Encoder) {
        to.integer(u64::try_from(self.len()).unwrap_or(0));
        for call in self.calls() {
            let Some(recorded) = call.with_charges() else { continue };
            to.bytes(call.id());
            recorded.encode(to);
            to.integer(u64::try_from(recorded.charges.len()).unwrap_or(0));
            recorded.charges.iter().for_each(|charge| charge.encode(to));
        }
    }

    fn settlement_piece(self, serial: u8) -> Option<((usize, usize), &'a [u8])> {
        let mut pieces = self.pieces(HEAD, self.settlements_end());
        pieces.find_map(|(place, piece)| {
            let (own, fields) = piece.split_first()?;
            (*own == serial).then_some((place, fields))
        })
    }

    /// Whether any charge of a component may be settled.
    pub fn has_settlement(self, serial: u8) -> bool {
        self.settlement_piece(serial).is_some()
    }

    /// What settling the charges of a component takes; nothing where none may be settled.
    pub fn settlement(self, serial: u8) -> FewSettlement {
        let mut settlement = FewSettlement::default();
        self.read_settlement(serial, &mut settlement);
        settlement
    }

    /// Reads what settling the charges of a component takes into an unused one: it is large to copy.
    pub fn read_settlement(self, serial: u8, settlement: &mut FewSettlement) {
        if let Some((_, fields)) = self.settlement_piece(serial) {
            let read = settlement.unpack(&mut Unpacker(fields));
            debug_assert!(read.is_some(), "{self:?} cannot be read");
        }
    }

    /// The serial numbers of the components of which charges may be settled.
    pub fn settled_components(self) -> impl Iterator<Item = u8> {
        self.pieces(HEAD, self.settlements_end()).filter_map(|(_, piece)| piece.first().copied())
    }
}

impl<'a> PackedCall<'a> {
    #[inline(always)]
    fn is_of(&self, id: &[u8]) -> bool {
        let Some((length, rest)) = self.rest.split_first() else { return false };
        usize::from(*length).saturating_add(1) == id.len() && rest.starts_with(id)
    }

    /// Its id, and the fields behind it.
    fn split(&self) -> Option<(&'a [u8], Unpacker<'a>)> {
        let (length, rest) = self.rest.split_first()?;
        let (id, fields) = rest.split_at_checked(usize::from(*length).saturating_add(1))?;
        Some((id, Unpacker(fields)))
    }

    /// Its id.
    pub fn id(&self) -> &'a [u8] {
        self.split().map_or(&[], |(id, _)| id)
    }

    /// What is remembered of it, but for its charges.
    pub fn recorded(&self) -> Option<RecordedCall<()>> {
        RecordedCall::decode_behind_expiry(self.expires_at, &mut self.split()?.1, ())
    }

    /// What is remembered of it.
    pub fn with_charges(&self) -> Option<RecordedCall> {
        let mut fields = self.split()?.1;
        let call = RecordedCall::decode_behind_expiry(self.expires_at, &mut fields, ())?;
        Some(call.with(decode_charges(&mut fields, Charge::decode, |charge| charge.component)?))
    }
}

/// Makes the block of calls and settlements.
#[derive(Clone, Debug, Default)]
pub struct PackedBlock(pub Vec<u8>);

impl PackedBlock {
    /// The block, to be read.
    pub fn view(&self) -> Packed<'_> {
        Packed(&self.0)
    }

    /// Keeps what settling the charges of a component takes; nothing where none may be settled any more.
    pub fn keep_settlement(&mut self, serial: u8, settlement: &FewSettlement) {
        let end = self.view().settlements_end();
        let found = self.view().settlement_piece(serial).map(|(place, _)| place);
        if settlement.is_idle() {
            if let Some(place) = found {
                self.replace_settlement(place, &[]);
            }
            return;
        }
        let mut piece = Packer::piece();
        piece.raw(&[serial]);
        settlement.pack(&mut piece);
        self.replace_settlement(found.unwrap_or((end, end)), piece.behind_length());
    }

    fn replace_settlement(&mut self, place: (usize, usize), piece: &[u8]) {
        self.make_head();
        let (from, to) = place;
        let settlements = self.view().settlements_end().saturating_sub(HEAD);
        let length = settlements.saturating_sub(to.saturating_sub(from)).saturating_add(piece.len());
        self.replace(from..to, piece);
        let length = u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes();
        if let Some(head) = self.0.get_mut(1..HEAD) {
            head.copy_from_slice(&length);
        }
    }

    fn make_head(&mut self) {
        if self.0.is_empty() {
            self.0.extend_from_slice(&[0; HEAD]);
        }
    }

    fn replace(&mut self, range: Range<usize>, piece: &[u8]) {
        match self.0.get_mut(range.clone()) {
            Some(same) if same.len() == piece.len() => same.copy_from_slice(piece),
            _ => {
                // What comes after it in the same call is to find room.
                self.0.reserve_exact(piece.len().saturating_sub(range.len()).saturating_add(128));
                self.0.splice(range, piece.iter().copied());
            }
        }
    }

    /// Adds a call, which has no other of its id; how many calls are before it.
    pub fn add(&mut self, id: &[u8], call: &RecordedCall) -> usize {
        self.make_head();
        let mut piece = Packer::piece();
        piece.raw(&call.expires_at.micros().to_le_bytes());
        piece.raw(&[u8::try_from(id.len().saturating_sub(1)).unwrap_or(u8::MAX)]);
        piece.raw(id);
        call.encode_behind_expiry(&mut piece);
        piece.integer(u64::try_from(call.charges.len()).unwrap_or(0));
        call.charges.iter().for_each(|charge| charge.encode(&mut piece));
        let after = |other: &PackedCall| {
            other.expires_at > call.expires_at || other.expires_at == call.expires_at && other.id() > id
        };
        let calls = self.view().len();
        let next = self.view().calls().enumerate().find(|(_, call)| after(call));
        let (before, at) = next.map_or((calls, self.0.len()), |(before, next)| (before, next.place.0));
        self.replace(at..at, piece.behind_length());
        self.count(calls.saturating_add(1));
        before
    }

    /// Removes the call of an id; what was remembered of it.
    pub fn remove(&mut self, id: &[u8]) -> Option<RecordedCall> {
        let call = self.view().find(id)?;
        let (recorded, (from, to)) = (call.with_charges(), call.place);
        self.replace(from..to, &[]);
        self.count(self.view().len().saturating_sub(1));
        recorded
    }

    fn count(&mut self, calls: usize) {
        if let Some(head) = self.0.first_mut() {
            *head = u8::try_from(calls).unwrap_or(u8::MAX);
        }
    }
}

impl FewSettlement {
    fn pack(&self, to: &mut impl Encoder) {
        to.integer(self.given_back.millionths());
        self.low_water_marks.pack(to);
    }

    fn unpack(&mut self, from: &mut impl Decoder) -> Option<()> {
        self.given_back = Amount::from_millionths(from.integer()?)?;
        self.low_water_marks.unpack(from)
    }
}

/// Writes a piece of a block, without asking for memory.
struct Packer(ArrayVec<u8, MOST_LENGTH>);

impl Packer {
    /// A piece, to be filled.
    fn piece() -> Packer {
        let mut piece = Packer(ArrayVec::new());
        piece.raw(&[0; LENGTH]);
        piece
    }

    /// Bytes as they are. There is room for all that a piece can have.
    fn raw(&mut self, bytes: &[u8]) {
        let written = self.0.try_extend_from_slice(bytes);
        debug_assert!(written.is_ok(), "a piece is longer than {MOST_LENGTH} bytes");
    }

    /// The piece behind its length.
    fn behind_length(&mut self) -> &[u8] {
        let length = u16::try_from(self.0.len().saturating_sub(LENGTH)).unwrap_or(u16::MAX).to_le_bytes();
        if let Some(head) = self.0.get_mut(..LENGTH) {
            head.copy_from_slice(&length);
        }
        &self.0
    }
}

impl Encoder for Packer {
    #[inline]
    fn integer(&mut self, mut value: u64) {
        while value >= 0x80 {
            let [low, ..] = value.to_le_bytes();
            self.raw(&[low | 0x80]);
            value >>= 7;
        }
        let [low, ..] = value.to_le_bytes();
        self.raw(&[low]);
    }

    fn bytes(&mut self, value: &[u8]) {
        self.integer(u64::try_from(value.len()).unwrap_or(0));
        self.raw(value);
    }
}

/// Reads fields of a block.
#[derive(Clone, Copy, Debug)]
struct Unpacker<'a>(&'a [u8]);

impl Decoder for Unpacker<'_> {
    fn integer(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self, most: usize) -> Option<Box<[u8]>> {
        let length = usize::try_from(self.integer()?).ok().filter(|length| *length <= most)?;
        let (slice, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(slice.into())
    }
}
