//! Leases, and sums of them.

use crate::limit::Token;
use crate::number::lazy_shift::{Mark, Shift};
use crate::number::{Amount, Span, Timestamp};
use crate::record_table::{Payload, Record, RecordBytes};
use crate::wire::codec::{Decoder, Encoder};

/// Lease of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    /// Instant of expiry.
    pub(super) expires_at: Timestamp,
    /// Units that are held.
    pub(super) units: Amount,
    /// Fencing token, if the holder asked for one. A token is larger than those of all leases before it. The holder of the lease sends it along
    /// with each write, and the place that is written to refuses a token that is smaller than one that it has seen. So
    /// a holder that has lost its lease without noticing cannot write over what its successor wrote.
    pub(super) token: Option<Token>,
}

impl Lease {
    /// Writes the record of a holder's lease, and returns it with its instant. The units stand before a bit that says
    /// that a token follows.
    pub(super) fn record(self, holder: &[u8], shift: Shift) -> (Mark, RecordBytes) {
        let at = shift.mark(self.expires_at);
        let mut bytes = RecordBytes::new(at, holder);
        bytes.integer(self.units.millionths() << 1 | u64::from(self.token.is_some()));
        self.token.iter().for_each(|token| bytes.integer(token.get()));
        (at, bytes)
    }

    /// Reads what [`record`](Lease::record) wrote.
    #[inline]
    pub(super) fn read(record: &Record, shift: Shift) -> Option<Lease> {
        let mut payload = Payload(record.payload);
        let flagged = payload.integer()?;
        let units = Amount::from_millionths(flagged >> 1)?;
        let token = if flagged & 1 == 0 { None } else { Token::new(payload.integer()?) };
        Some(Lease { expires_at: shift.instant(record.at), units, token })
    }

    /// Returns `true` if a call can have taken the lease, or still see it, in a table written at `written` in which others hold
    /// `others`: a call that took it saw to a limit, and wrote what had not expired by then.
    pub(super) fn is_sound(self, written: Timestamp, others: Amount) -> bool {
        let Lease { expires_at, units, .. } = self;
        let lives = expires_at > written || expires_at == Timestamp::MAX;
        lives
            && expires_at.since(written) <= Span::MAX_ARGUMENT
            && units != Amount::ZERO
            && others.excess(units, Amount::MAX_ARGUMENT) == Amount::ZERO
    }
}

/// Sum of leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseSum {
    /// Units that they hold.
    pub(super) units: Amount,
    /// Number of leases.
    pub(super) leases: usize,
}

impl LeaseSum {
    /// Returns the sum of one lease of this many units.
    pub(super) fn of(units: Amount) -> LeaseSum {
        LeaseSum { units, leases: 1 }
    }

    /// Returns both together.
    pub(super) fn plus(self, other: LeaseSum) -> LeaseSum {
        LeaseSum { units: self.units.plus(other.units), leases: self.leases.saturating_add(other.leases) }
    }

    /// Returns the sum without some of its leases.
    pub(super) fn minus(self, other: LeaseSum) -> LeaseSum {
        LeaseSum { units: self.units.minus(other.units), leases: self.leases.saturating_sub(other.leases) }
    }
}
