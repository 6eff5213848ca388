//! Lease of a holder with its encoding, and sums of leases.

use crate::limit::Token;
use crate::number::lazy_shift::{Mark, Shift};
use crate::number::{Amount, Span, Timestamp};
use crate::record_table::{Record, RecordBytes, RecordDecoder};
use crate::wire::codec::{Decoder, Encoder};

/// Lease of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    /// Time of expiry.
    pub(super) expires_at: Timestamp,
    /// Leased units.
    pub(super) units: Amount,
    /// Fencing token, if the holder requested one: larger than the tokens of all earlier leases. The holder sends the
    /// token with each write to a resource, and the resource rejects a token smaller than the largest that it has
    /// received. So a holder that has lost its lease without noticing cannot overwrite the data of its successor.
    pub(super) token: Option<Token>,
}

impl Lease {
    /// Encodes a holder's lease as a record of a table with this shift. Returns the mark of the expiry and the bytes.
    /// The lowest bit of the units is set if a token follows.
    pub(super) fn to_record(self, holder: &[u8], shift: Shift) -> (Mark, RecordBytes) {
        let at = shift.mark(self.expires_at);
        let mut bytes = RecordBytes::new(at, holder);
        bytes.integer(self.units.millionths() << 1 | u64::from(self.token.is_some()));
        self.token.iter().for_each(|token| bytes.integer(token.get()));
        (at, bytes)
    }

    /// Decodes a record encoded by [`to_record`](Lease::to_record).
    #[inline]
    pub(super) fn from_record(record: &Record, shift: Shift) -> Option<Lease> {
        let mut fields = RecordDecoder(record.fields);
        let flagged_units = fields.integer()?;
        let units = Amount::from_millionths(flagged_units >> 1)?;
        let token = if flagged_units & 1 == 0 { None } else { Token::new(fields.integer()?) };
        Some(Lease { expires_at: shift.timestamp(record.at), units, token })
    }

    /// Returns `true` if a call can have stored the lease in a table that was last changed at `changed_at` and in which
    /// other holders have leased `other_units`: a call stores no expired lease and does not exceed the limit.
    pub(super) fn is_sound(self, changed_at: Timestamp, other_units: Amount) -> bool {
        let Lease { expires_at, units, .. } = self;
        let is_live = expires_at > changed_at || expires_at == Timestamp::MAX;
        is_live
            && expires_at.since(changed_at) <= Span::MAX_ARGUMENT
            && units != Amount::ZERO
            && other_units.excess(units, Amount::MAX_ARGUMENT) == Amount::ZERO
    }
}

/// Sum of leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseSum {
    /// Sum of the leased units.
    pub(super) units: Amount,
    /// Number of leases.
    pub(super) leases: usize,
}

impl LeaseSum {
    /// Returns the sum of a single lease of `units`.
    pub(super) fn single(units: Amount) -> LeaseSum {
        LeaseSum { units, leases: 1 }
    }

    /// Returns this sum plus the leases of `other`.
    pub(super) fn plus(self, other: LeaseSum) -> LeaseSum {
        LeaseSum { units: self.units.plus(other.units), leases: self.leases.saturating_add(other.leases) }
    }

    /// Returns this sum without the leases of `other`, which must be part of the sum.
    pub(super) fn minus(self, other: LeaseSum) -> LeaseSum {
        LeaseSum { units: self.units.minus(other.units), leases: self.leases.saturating_sub(other.leases) }
    }
}
