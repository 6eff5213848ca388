//! Amounts as integer counts of millionths.
//!
//! An argument ranges from 0 to 10^12 units. Stored usage may exceed a limit (a debt) and saturates at 2^63-1
//! millionths. The caller of a parsing function chooses the direction in which decimals below a millionth are rounded,
//! always against the client.

use crate::number::decimal::Scaled;
use crate::number::time::{Period, Span};
use crate::number::{decimal, ratio};
use std::fmt;
use std::num::NonZeroU64;

/// An amount in millionths of a unit.
///
/// ```
/// use ratelimit_core::Amount;
///
/// // Rounding is against the client: a limit is rounded down, a cost up.
/// let [down, up] = [Amount::parse_down(b"0.3333333"), Amount::parse_up(b"0.3333333")].map(Option::unwrap);
/// assert_eq!((down.millionths(), up.millionths()), (333_333, 333_334));
/// // Subtraction stops at zero.
/// assert_eq!(down.minus(up), Amount::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(u64);

const MILLIONTHS: u64 = 1_000_000;

impl Amount {
    /// Zero units.
    pub const ZERO: Amount = Amount(0);
    /// A single unit.
    pub const ONE: Amount = Amount(MILLIONTHS);
    /// Largest amount that an argument may have: 10^12 units.
    pub const MAX_ARGUMENT: Amount = Amount(1_000_000_000_000 * MILLIONTHS);
    /// Largest usage, at which sums saturate: 2^63-1 millionths.
    pub const MAX: Amount = Amount(u64::MAX >> 1);

    /// Creates a usage from a count of millionths. Returns `None` above [`Amount::MAX`].
    #[must_use]
    pub fn from_millionths(millionths: u64) -> Option<Amount> {
        (millionths <= Amount::MAX.0).then_some(Amount(millionths))
    }

    /// Creates an amount from a count of millionths, saturating at 2^63-1.
    #[must_use]
    pub const fn saturating(millionths: u64) -> Amount {
        if millionths < Amount::MAX.0 { Amount(millionths) } else { Amount::MAX }
    }

    /// Parses an argument and rounds digits past the sixth decimal down (for a limit, a refill, a refund).
    ///
    /// Returns `None` unless `text` is a decimal from 0 to 10^12.
    #[must_use]
    #[inline]
    pub fn parse_down(text: &[u8]) -> Option<Amount> {
        Amount::parse_short(text).or_else(|| parse(text).map(|scaled| Amount(scaled.floor)))
    }

    /// Parses an argument and rounds digits past the sixth decimal up (for a cost).
    ///
    /// Returns `None` unless `text` is a decimal from 0 to 10^12.
    #[must_use]
    #[inline]
    pub fn parse_up(text: &[u8]) -> Option<Amount> {
        Amount::parse_short(text).or_else(|| parse(text).map(|scaled| Amount(scaled.ceil())))
    }

    #[inline]
    fn parse_short(text: &[u8]) -> Option<Amount> {
        decimal::parse_short_integer(text).map(|units| Amount(units.saturating_mul(MILLIONTHS)))
    }

    /// Parses a percentage and returns that share of `self`, rounded up to a millionth.
    ///
    /// Returns `None` unless `text` is a decimal from 0 to 100 followed by a percent sign.
    #[must_use]
    pub fn percent_up(self, text: &[u8]) -> Option<Amount> {
        decimal::parse_percent(text, self.min(Amount::MAX_ARGUMENT).0).map(|scaled| Amount(scaled.ceil()))
    }

    /// Returns the amount in millionths.
    #[must_use]
    pub fn millionths(self) -> u64 {
        self.0
    }

    /// Returns the whole units, rounded down.
    #[must_use]
    pub fn whole_units(self) -> u64 {
        self.0 / MILLIONTHS
    }

    /// Rounds down to whole units.
    #[must_use]
    pub fn floor(self) -> Amount {
        Amount(self.0.saturating_sub(self.0 % MILLIONTHS))
    }

    /// Returns the sum, saturating at 2^63-1 millionths.
    #[must_use]
    pub fn plus(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0).min(Amount::MAX.0))
    }

    /// Returns the difference, or zero if `other` is larger.
    #[must_use]
    pub fn minus(self, other: Amount) -> Amount {
        Amount(self.0.saturating_sub(other.0))
    }

    /// Returns the difference, or `None` if `other` is larger.
    pub fn checked_minus(self, other: Amount) -> Option<Amount> {
        self.0.checked_sub(other.0).map(Amount)
    }

    /// Returns the amount by which `self` plus `cost` exceeds `limit`. Unlike in [`Amount::plus`], the sum does not
    /// saturate, because the sum of a usage and an argument fits 64 bits. So the result is exact even near the maximum.
    #[must_use]
    pub fn excess(self, cost: Amount, limit: Amount) -> Amount {
        Amount(self.0.saturating_add(cost.0).saturating_sub(limit.0))
    }

    /// Returns `self * factor`, where [`Amount::ONE`] is the factor 1. Rounds down to a millionth and caps the product
    /// at [`Amount::MAX_ARGUMENT`].
    #[must_use]
    pub fn times(self, factor: Amount) -> Amount {
        const DIVISOR: NonZeroU64 = match NonZeroU64::new(MILLIONTHS) {
            Some(millionths) => millionths,
            None => NonZeroU64::MIN,
        };
        Amount::saturating(ratio::floor(self.0, factor.0, DIVISOR)).min(Amount::MAX_ARGUMENT)
    }

    /// Returns `self * part / whole`, rounded down to a millionth.
    #[must_use]
    pub fn share_down(self, part: Span, whole: Period) -> Amount {
        Amount(ratio::floor(self.0, part.micros(), whole.micros()))
    }

    /// Returns `self * part / whole`, rounded up to a millionth.
    #[must_use]
    pub fn share_up(self, part: Span, whole: Period) -> Amount {
        Amount(ratio::ceil(self.0, part.micros(), whole.micros()))
    }
}

impl fmt::Display for Amount {
    /// Formats the amount like an argument: `1`, `0.5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, mut millionths) = (self.whole_units(), self.0 % MILLIONTHS);
        if millionths == 0 {
            return write!(f, "{units}");
        }
        let mut digits = 6_usize;
        while millionths.is_multiple_of(10) {
            millionths /= 10;
            digits = digits.saturating_sub(1);
        }
        write!(f, "{units}.{millionths:0digits$}")
    }
}

#[cold]
fn parse(text: &[u8]) -> Option<Scaled> {
    let scaled = decimal::parse_scaled(text, |rest| rest.is_empty().then_some(MILLIONTHS))?;
    (!scaled.exceeds(Amount::MAX_ARGUMENT.0)).then_some(scaled)
}

#[cfg(test)]
mod tests;
