//! One lease, and the sum of several.

use crate::number::{Amount, Span, Timestamp};

/// What a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    /// When it expires.
    pub(super) expires_at: Timestamp,
    /// How much it holds.
    pub(super) units: Amount,
}

impl Lease {
    /// Whether a call can have taken the lease, or still see it, in a table written at `written` in which others hold
    /// `others`: a call that took it saw to a limit, and wrote what had not expired by then.
    pub(super) fn is_sound(self, written: Timestamp, others: Amount) -> bool {
        let Lease { expires_at, units } = self;
        let lives = expires_at > written || expires_at == Timestamp::MAX;
        lives
            && expires_at.since(written) <= Span::MAX_ARGUMENT
            && units != Amount::ZERO
            && others.excess(units, Amount::MAX_ARGUMENT) == Amount::ZERO
    }
}

/// Some leases, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseSum {
    /// How much they hold.
    pub(super) units: Amount,
    /// How many there are.
    pub(super) leases: usize,
}

impl LeaseSum {
    /// One lease of this many units.
    pub(super) fn of(units: Amount) -> LeaseSum {
        LeaseSum { units, leases: 1 }
    }

    /// Both together.
    pub(super) fn plus(self, other: LeaseSum) -> LeaseSum {
        LeaseSum { units: self.units.plus(other.units), leases: self.leases.saturating_add(other.leases) }
    }

    /// Without some of them.
    pub(super) fn minus(self, other: LeaseSum) -> LeaseSum {
        LeaseSum { units: self.units.minus(other.units), leases: self.leases.saturating_sub(other.leases) }
    }
}
