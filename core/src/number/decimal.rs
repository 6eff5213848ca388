//! Numbers as clients print them: `1`, `0.5`, `1.6667`, `1e-06`, `0.30000000000000004`.
//!
//! The grammar is `digits[.digits][e[+-]digits]`, in a word of at most 64 characters. A value is never held as a float:
//! its digits are scaled to whole units (millionths, microseconds) at once, and whatever lies below one unit is
//! reported, so that the caller decides which way to round.

/// Longest word that is read as a number, in characters. Longer ones cost the server more than their sender.
pub const MAX_NUMBER: usize = 64;

/// Reads `text`, a number and perhaps a unit, in whole units of which `unit` says how many there are in what follows
/// the number. `None` if it is not a number, has no such unit, or its whole units do not fit in 64 bits.
pub fn scaled(text: &[u8], unit: impl FnOnce(&[u8]) -> Option<u64>) -> Option<Scaled> {
    let (decimal, rest) = Decimal::split(text)?;
    decimal.scaled(unit(rest)?, 0)
}

/// Reads `text`, a number and a percent sign: so many hundredths of `whole`, which is at most 10^18, exact whatever the
/// number of its digits. `None` if it is no such thing, or more than all of it.
pub fn percent(text: &[u8], whole: u64) -> Option<Scaled> {
    let (decimal, b"%") = Decimal::split(text)? else { return None };
    let percent = decimal.scaled(1, 0)?;
    // Not told from the share: of nothing, any is nothing.
    (!percent.exceeds(100)).then(|| decimal.scaled(whole, -2))?
}

/// What follows the number that `text` begins with; `None` if it begins with none.
#[cold]
pub fn behind_number(text: &[u8]) -> Option<&[u8]> {
    Decimal::split(text).map(|(_, rest)| rest)
}

/// An everyday number, of up to nine digits, and the bytes that follow. What follows may make it another: a fraction,
/// an exponent.
#[inline]
pub fn everyday(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut value, mut digits) = (0_u64, 0_usize);
    // One digit more is no everyday number. A word of megabytes is not read to its end.
    for byte in text.get(..10).unwrap_or(text) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        digits = digits.wrapping_add(1);
    }
    let rest = text.get(digits..)?;
    (1..=9).contains(&digits).then_some((value, rest))
}

/// An everyday number with nothing behind it.
#[inline]
pub fn everyday_whole(text: &[u8]) -> Option<u64> {
    if let (Some(head), Some(tail), 4..=8) = (text.first_chunk(), text.last_chunk(), text.len()) {
        // Both halves, which overlap, in front of as many zeros as it takes to be eight digits.
        let bits = text.len().wrapping_mul(8);
        let halves =
            u64::from(u32::from_le_bytes(*head)) | u64::from(u32::from_le_bytes(*tail)) << bits.wrapping_sub(32);
        let room = 64_usize.wrapping_sub(bits);
        return eight_digits((halves << room).wrapping_add(ZEROS & !(u64::MAX << room)));
    }
    match everyday(text) {
        Some((value, [])) => Some(value),
        _ => None,
    }
}

/// `00000000`
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The number that eight digits say, the first of them in the lowest byte: all at once, in pairs, then pairs of pairs
/// (Johnny Lee, "Fast numeric string to int", 2016).
#[inline]
fn eight_digits(text: u64) -> Option<u64> {
    const HIGH_HALVES: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    // A digit has the high half of `0`, and still has it with six more.
    let with_six_more = text.wrapping_add(0x0606_0606_0606_0606);
    if text & HIGH_HALVES != ZEROS || with_six_more & HIGH_HALVES != ZEROS {
        return None;
    }
    let digits = text ^ ZEROS;
    let pairs = (digits.wrapping_mul((10 << 8) + 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul((100 << 16) + 1) >> 16) & 0x0000_ffff_0000_ffff;
    Some(fours.wrapping_mul((10_000 << 32) + 1) >> 32)
}

/// A decimal in whole units: `floor`, and whether something below one unit was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaled {
    /// The whole units.
    pub floor: u64,
    /// Whether the value lies above `floor`.
    pub more: bool,
}

impl Scaled {
    /// The whole units, rounded up.
    pub fn ceil(self) -> u64 {
        self.floor.saturating_add(u64::from(self.more))
    }

    /// Whether the unrounded value is above `bound`.
    pub fn exceeds(self, bound: u64) -> bool {
        self.floor > bound || (self.floor == bound && self.more)
    }
}

/// A decimal number, read but not yet scaled. Never negative: a sign is the caller's.
#[derive(Clone, Copy, Debug)]
struct Decimal<'a> {
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

/// Far beyond what any value in range can need, and far from overflow when added to a length.
const EXPONENT_BOUND: i64 = 1 << 40;

impl<'a> Decimal<'a> {
    /// Splits `text` at the end of the number that it begins with; what follows (a unit) is returned too.
    /// `None` if it does not begin with a number, or is longer than [`MAX_NUMBER`].
    fn split(text: &'a [u8]) -> Option<(Decimal<'a>, &'a [u8])> {
        if text.len() > MAX_NUMBER {
            return None;
        }
        let (whole, rest) = digits(text);
        if whole.is_empty() {
            return None;
        }
        let (fraction, rest) = match rest.split_first() {
            Some((b'.', after)) => match digits(after) {
                ([], _) => return None,
                found => found,
            },
            _ => (Default::default(), rest),
        };
        let (exponent, rest) = match rest.split_first() {
            Some((b'e', after)) => exponent(after)?,
            _ => (0, rest),
        };
        Some((Decimal { whole, fraction, exponent }, rest))
    }

    /// The value times `factor` times `10^shift`, exact.
    fn scaled(self, factor: u64, shift: i64) -> Option<Scaled> {
        let all = || self.whole.iter().chain(self.fraction);
        let Some(leading_zeros) = all().position(|digit| *digit != b'0') else {
            return Some(Scaled { floor: 0, more: false });
        };
        // How many of all digits stand before the decimal point, once it is moved. May be negative.
        let point = length(self.whole).saturating_add(self.exponent).saturating_add(shift);
        let significant = length(self.whole).saturating_add(length(self.fraction));
        // No number of that many digits fits; and powers of ten are not multiplied out for nothing.
        if point.saturating_sub(i64::try_from(leading_zeros).ok()?) > 20 {
            return None;
        }
        let before = usize::try_from(point.clamp(0, significant)).ok()?;
        let fractional = usize::try_from(significant.saturating_sub(point.max(0)).max(0)).ok()?;

        let mut whole = all()
            .take(before)
            .try_fold(0, |value: u64, digit| value.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0'))))?;
        if whole != 0 {
            let zeros = u32::try_from(point.saturating_sub(significant).max(0)).ok()?;
            whole = whole.checked_mul(10_u64.checked_pow(zeros)?)?;
        }

        // The fraction times the factor, digit by digit from the right, as on paper: exact for any length.
        let (mut carry, mut more) = (0_u64, false);
        let mut step = |digit: u64| {
            let product = digit.saturating_mul(factor).saturating_add(carry);
            more |= product % 10 != 0;
            carry = product / 10;
            carry != 0
        };
        for digit in all().rev().take(fractional) {
            step(u64::from(digit.wrapping_sub(b'0')));
        }
        // Zeros between the point and the first digit: they only wear the carry down.
        let mut zeros = point.saturating_neg().max(0);
        while zeros > 0 && step(0) {
            zeros = zeros.saturating_sub(1);
        }
        Some(Scaled { floor: whole.checked_mul(factor)?.checked_add(carry)?, more })
    }
}

/// The digits that `text` begins with, and the rest.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, &[]))
}

/// What follows an `e`: an optional sign and digits. Bounded, since a larger one decides nothing more.
fn exponent(text: &[u8]) -> Option<(i64, &[u8])> {
    let (negative, unsigned) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    let (found, rest) = digits(unsigned);
    if found.is_empty() {
        return None;
    }
    let value = found.iter().fold(0, |value: i64, digit| {
        value.saturating_mul(10).saturating_add(i64::from(digit.wrapping_sub(b'0'))).min(EXPONENT_BOUND)
    });
    Some((if negative { value.saturating_neg() } else { value }, rest))
}

fn length(digits: &[u8]) -> i64 {
    i64::try_from(digits.len()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
