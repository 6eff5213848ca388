//! Record of a call with an id, and its encoding.

use super::settlement::Charge;
use crate::number::lazy_shift::{Mark, Shift};
use crate::number::{Amount, Span, Timestamp};
use crate::record_table::{Record, RecordBytes, RecordDecoder};
use crate::wire::codec::{Decoder, Encoder};
use crate::wire::varint;

/// Maximum number of components that a call charges.
pub const MAX_CHARGES: usize = 8;

/// Record of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedCall<Charges = Box<[Charge]>> {
    /// Time of expiry.
    pub expires_at: Timestamp,
    /// End of the hold: the caller waits until then before it acts.
    pub hold_until: Timestamp,
    /// `true` if the call was settled.
    pub settled: bool,
    /// `true` if the call was a FORCE.
    pub forced: bool,
    /// Amount that an UPTO was granted, in whole units.
    pub granted: Option<Amount>,
    /// Charges that can be settled; empty after the settlement.
    pub charges: Charges,
}

impl<Charges> RecordedCall<Charges> {
    /// Returns the record with other charges.
    pub fn with<Others>(self, charges: Others) -> RecordedCall<Others> {
        let RecordedCall { expires_at, hold_until, settled, forced, granted, .. } = self;
        RecordedCall { expires_at, hold_until, settled, forced, granted, charges }
    }

    /// Encodes all fields except the charges.
    pub(super) fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.expires_at.micros());
        to.integer(self.hold_until.micros());
        self.encode_flags(to);
    }

    /// Encodes the flags, and the amount that an UPTO was granted.
    fn encode_flags(&self, to: &mut impl Encoder) {
        let flags = [(SETTLED, self.settled), (FORCED, self.forced), (GRANTED, self.granted.is_some())];
        to.integer(flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).sum());
        if let Some(granted) = self.granted {
            to.integer(granted.millionths());
        }
    }

    /// Returns `true` if a key that was last changed at `written` can have this record. Checked when a call is recorded
    /// and when a record is decoded, so that every record can be decoded. A forced call may also have a granted
    /// amount, because a call with UPTO may have a limit with FORCE.
    pub(crate) fn is_sound(&self, written: Timestamp) -> bool {
        let units = Amount::ONE..=Amount::MAX_ARGUMENT;
        self.expires_at.since(written) <= Span::MAX_ARGUMENT
            && self.granted.is_none_or(|granted| units.contains(&granted) && granted == granted.floor())
    }
}

impl RecordedCall<()> {
    /// Decodes all fields except the charges. Returns `None` if no call at `written` or before can have made the
    /// record.
    pub(super) fn decode(from: &mut impl Decoder, written: Timestamp) -> Option<RecordedCall<()>> {
        let expires_at = Timestamp::from_micros(from.integer()?)?;
        let hold_until = Timestamp::from_micros(from.integer()?)?;
        let call = RecordedCall { expires_at, hold_until, ..RecordedCall::decode_flags(from)? };
        Some(call).filter(|call| call.is_sound(written))
    }

    /// Decodes the fields encoded by [`encode_flags`](RecordedCall::encode_flags).
    fn decode_flags(from: &mut impl Decoder) -> Option<RecordedCall<()>> {
        let flags = from.integer().filter(|flags| *flags <= ALL_FLAGS)?;
        let granted = if flags & GRANTED == 0 { None } else { Some(Amount::from_millionths(from.integer()?)?) };
        let (settled, forced) = (flags & SETTLED != 0, flags & FORCED != 0);
        let (expires_at, hold_until) = Default::default();
        Some(RecordedCall { expires_at, hold_until, settled, forced, granted, charges: () })
    }

    /// Decodes the record of a call.
    #[inline]
    pub(super) fn read<'a>(record: &Record<'a>, shift: Shift) -> Option<RecordedCall<Charges<'a>>> {
        let mut fields = RecordDecoder(record.fields);
        let hold_until = Mark::from_bits(varint::at_distance(fields.integer()?, record.at.bits()));
        let (expires_at, hold_until) = (shift.timestamp(record.at), shift.timestamp(hold_until));
        let call = RecordedCall::decode_flags(&mut fields)?;
        let charges = Charges { remaining: usize::try_from(fields.integer()?).ok()?, fields };
        Some(RecordedCall { expires_at, hold_until, ..call }.with(charges))
    }
}

/// Charges in the record of a call.
#[derive(Clone, Debug)]
pub(super) struct Charges<'a> {
    remaining: usize,
    fields: RecordDecoder<'a>,
}

impl Iterator for Charges<'_> {
    type Item = Charge;

    fn next(&mut self) -> Option<Charge> {
        self.remaining = self.remaining.checked_sub(1)?;
        Charge::decode(&mut self.fields)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl ExactSizeIterator for Charges<'_> {}

impl RecordedCall<Charges<'_>> {
    /// Returns the record with its charges copied to the heap.
    pub(super) fn boxed(self) -> RecordedCall {
        let charges = self.charges.clone().collect();
        self.with(charges)
    }
}

impl<C: AsRef<[Charge]>> RecordedCall<C> {
    /// Encodes the record of a call for a [`RecordTable`](crate::record_table::RecordTable) whose timestamps have this
    /// shift. Returns the expiry and the bytes.
    pub(super) fn record(&self, id: &[u8], shift: Shift) -> (Mark, RecordBytes) {
        let (at, hold_until) = (shift.mark(self.expires_at), shift.mark(self.hold_until));
        let mut bytes = RecordBytes::new(at, id);
        bytes.integer(varint::distance(hold_until.bits(), at.bits()));
        self.encode_flags(&mut bytes);
        encode_charges(self.charges.as_ref().iter().copied(), &mut bytes);
        (at, bytes)
    }
}

/// Encodes the number of charges and each charge.
pub(super) fn encode_charges(charges: impl ExactSizeIterator<Item = Charge>, to: &mut impl Encoder) {
    to.integer(u64::try_from(charges.len()).unwrap_or(0));
    charges.for_each(|charge| charge.encode(to));
}

/// Flag of a settled call.
pub(super) const SETTLED: u64 = 1;
/// Flag of a FORCE.
pub(super) const FORCED: u64 = 2;
/// Flag of an UPTO that was granted units, whose number follows the flags.
pub(super) const GRANTED: u64 = 4;
const ALL_FLAGS: u64 = 7;

/// Decodes charges. Returns `None` if they are malformed or if two charge the same component.
pub(super) fn decode_charges<T, D: Decoder>(
    from: &mut D,
    decode: fn(&mut D) -> Option<T>,
    component: fn(&T) -> u8,
) -> Option<Box<[T]>> {
    let count = usize::try_from(from.integer()?).ok().filter(|count| *count <= MAX_CHARGES)?;
    let mut charges: Vec<T> = Vec::with_capacity(count);
    for _ in 0..count {
        let charge = decode(from)?;
        if charges.iter().any(|other| component(other) == component(&charge)) {
            return None;
        }
        charges.push(charge);
    }
    Some(charges.into())
}
