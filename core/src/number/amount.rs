//! How much: an integer count of millionths.
//!
//! An argument goes from 0 to 10^12 units; what a key remembers may go past a limit (a debt), and saturates at
//! 2^63-1 millionths. Decimals below a millionth are rounded by whoever parses, always against the caller.

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
/// // Against the caller: a limit is rounded down, a cost up.
/// let [down, up] = [Amount::parse_down(b"0.3333333"), Amount::parse_up(b"0.3333333")].map(Option::unwrap);
/// assert_eq!((down.millionths(), up.millionths()), (333_333, 333_334));
/// // What would be below nothing is nothing.
/// assert_eq!(down.minus(up), Amount::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(u64);

const MILLIONTHS: u64 = 1_000_000;

impl Amount {
    /// Nothing.
    pub const ZERO: Amount = Amount(0);
    /// One unit.
    pub const ONE: Amount = Amount(MILLIONTHS);
    /// The most that an argument may say: 10^12 units.
    pub const MAX_ARGUMENT: Amount = Amount(1_000_000_000_000 * MILLIONTHS);
    /// Where usage saturates: 2^63-1 millionths.
    pub const MAX: Amount = Amount(u64::MAX >> 1);

    /// A usage from a count of millionths; `None` above `MAX`.
    #[must_use]
    pub fn from_millionths(millionths: u64) -> Option<Amount> {
        (millionths <= Amount::MAX.0).then_some(Amount(millionths))
    }

    /// A count of millionths, saturating at 2^63-1.
    #[must_use]
    pub const fn saturating(millionths: u64) -> Amount {
        if millionths < Amount::MAX.0 { Amount(millionths) } else { Amount::MAX }
    }

    /// An argument, digits past the sixth decimal rounded down (a limit, a refill, a give-back).
    /// `None` if it is not a decimal from 0 to 10^12.
    #[must_use]
    #[inline]
    pub fn parse_down(text: &[u8]) -> Option<Amount> {
        Amount::everyday(text).or_else(|| parse(text).map(|scaled| Amount(scaled.floor)))
    }

    /// An argument, digits past the sixth decimal rounded up (a cost).
    /// `None` if it is not a decimal from 0 to 10^12.
    #[must_use]
    #[inline]
    pub fn parse_up(text: &[u8]) -> Option<Amount> {
        Amount::everyday(text).or_else(|| parse(text).map(|scaled| Amount(scaled.ceil())))
    }

    #[inline]
    fn everyday(text: &[u8]) -> Option<Amount> {
        decimal::everyday_whole(text).map(|units| Amount(units.saturating_mul(MILLIONTHS)))
    }

    /// `n%` of it, rounded up. `None` if `text` does not say a decimal from 0 to 100 and a percent sign.
    #[must_use]
    pub fn percent_up(self, text: &[u8]) -> Option<Amount> {
        decimal::percent(text, self.min(Amount::MAX_ARGUMENT).0).map(|scaled| Amount(scaled.ceil()))
    }

    /// Millionths.
    #[must_use]
    pub fn millionths(self) -> u64 {
        self.0
    }

    /// Whole units, rounded down.
    #[must_use]
    pub fn whole_units(self) -> u64 {
        self.0 / MILLIONTHS
    }

    /// Only the whole units of it.
    #[must_use]
    pub fn floor(self) -> Amount {
        Amount(self.0.saturating_sub(self.0 % MILLIONTHS))
    }

    /// The sum, saturating at 2^63-1 millionths.
    #[must_use]
    pub fn plus(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0).min(Amount::MAX.0))
    }

    /// The difference, never below 0.
    #[must_use]
    pub fn minus(self, other: Amount) -> Amount {
        Amount(self.0.saturating_sub(other.0))
    }

    /// The difference; `None` below 0.
    pub fn checked_minus(self, other: Amount) -> Option<Amount> {
        self.0.checked_sub(other.0).map(Amount)
    }

    /// By how much `self` and `cost` together go past `limit`. A usage and an argument fit 64 bits together, so
    /// unlike `plus` this does not saturate, and a comparison at the far end is exact.
    #[must_use]
    pub fn excess(self, cost: Amount, limit: Amount) -> Amount {
        Amount(self.0.saturating_add(cost.0).saturating_sub(limit.0))
    }

    /// `self * factor`, rounded down to a millionth, and at most what an argument can say.
    #[must_use]
    pub fn times(self, factor: Amount) -> Amount {
        const ONE: NonZeroU64 = match NonZeroU64::new(MILLIONTHS) {
            Some(millionths) => millionths,
            None => NonZeroU64::MIN,
        };
        Amount::saturating(ratio::floor(self.0, factor.0, ONE)).min(Amount::MAX_ARGUMENT)
    }

    /// `self * part / whole`, rounded down.
    #[must_use]
    pub fn share_down(self, part: Span, whole: Period) -> Amount {
        Amount(ratio::floor(self.0, part.micros(), whole.micros()))
    }

    /// `self * part / whole`, rounded up.
    #[must_use]
    pub fn share_up(self, part: Span, whole: Period) -> Amount {
        Amount(ratio::ceil(self.0, part.micros(), whole.micros()))
    }
}

impl fmt::Display for Amount {
    /// As an argument says it: `1`, `0.5`.
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
    let scaled = decimal::scaled(text, |rest| rest.is_empty().then_some(MILLIONTHS))?;
    (!scaled.exceeds(Amount::MAX_ARGUMENT.0)).then_some(scaled)
}

#[cfg(test)]
mod tests;
