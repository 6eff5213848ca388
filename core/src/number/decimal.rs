//! Numbers as clients print them: `1`, `0.5`, `1.6667`, `1e-06`, `0.30000000000000004`.
//!
//! The grammar is `digits[.digits][e[+-]digits]`, in a word of at most 64 characters. A value is never converted to a
//! float: its digits are scaled to whole units (millionths, microseconds) at once. A remainder below one unit is
//! reported, so that the caller decides the direction of rounding.

/// Maximum length of a number with its unit, in characters. Longer text would cost the server more time to parse than
/// its sender to send.
pub const MAX_NUMBER: usize = 64;

/// Parses `text`, a number with an optional unit, and scales it to whole units.
///
/// `parse_unit` receives the text after the number and returns the factor of that unit. Returns `None` if `text` is not
/// a number, the unit is unknown, or the whole units do not fit in 64 bits.
pub fn parse_scaled(text: &[u8], parse_unit: impl FnOnce(&[u8]) -> Option<u64>) -> Option<Scaled> {
    let (decimal, rest) = Decimal::split(text)?;
    decimal.scale(parse_unit(rest)?, 0)
}

/// Parses `text`, a number followed by a percent sign, and returns that share of `whole`, which must be at most 10^18.
/// The result is exact for any number of digits.
///
/// Returns `None` if `text` is malformed or above 100 %.
pub fn parse_percent(text: &[u8], whole: u64) -> Option<Scaled> {
    let (decimal, b"%") = Decimal::split(text)? else { return None };
    let percent = decimal.scale(1, 0)?;
    // The bound is checked on the percentage, because any percentage of zero gives a share of zero.
    (!percent.exceeds(100)).then(|| decimal.scale(whole, -2))?
}

/// Returns the text after the leading number of `text`, or `None` if there is no leading number.
#[cold]
pub fn after_number(text: &[u8]) -> Option<&[u8]> {
    Decimal::split(text).map(|(_, rest)| rest)
}

/// Returns `true` if `text` begins with a digit, a sign or a decimal point.
pub fn begins_as_number(text: &[u8]) -> bool {
    text.first().is_some_and(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'+' | b'-'))
}

/// Splits `text` into a leading integer of one to nine digits and the remaining bytes.
///
/// The remaining bytes may continue the number (a fraction, an exponent). Returns `None` for zero or more than nine
/// digits.
#[inline]
pub fn split_short_integer(text: &[u8]) -> Option<(u64, &[u8])> {
    let (mut value, mut digits) = (0_u64, 0_usize);
    // Ten digits are already too many, so a word of megabytes is not read to its end.
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

/// Parses an integer of one to nine digits. Returns `None` for any other text.
#[inline]
pub fn parse_short_integer(text: &[u8]) -> Option<u64> {
    if let (Some(head), Some(tail), 4..=8) = (text.first_chunk(), text.last_chunk(), text.len()) {
        // The halves overlap if there are fewer than eight digits. Zeros before the number fill up to eight digits.
        let bits = text.len().wrapping_mul(8);
        let halves =
            u64::from(u32::from_le_bytes(*head)) | u64::from(u32::from_le_bytes(*tail)) << bits.wrapping_sub(32);
        let padding_bits = 64_usize.wrapping_sub(bits);
        return parse_eight_digits((halves << padding_bits).wrapping_add(ZEROS & !(u64::MAX << padding_bits)));
    }
    match split_short_integer(text) {
        Some((value, [])) => Some(value),
        _ => None,
    }
}

/// ASCII `00000000`.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// Parses eight ASCII digits, the first of them in the lowest byte. Returns `None` if a byte is not a digit.
///
/// All digits are converted in parallel, in pairs and then in pairs of pairs (Johnny Lee, "Fast numeric string to int",
/// 2016).
#[inline]
fn parse_eight_digits(text: u64) -> Option<u64> {
    const HIGH_HALVES: u64 = 0xf0f0_f0f0_f0f0_f0f0;
    // The high half of a digit's byte is that of `0`, and stays the same after adding six.
    let with_six_more = text.wrapping_add(0x0606_0606_0606_0606);
    if text & HIGH_HALVES != ZEROS || with_six_more & HIGH_HALVES != ZEROS {
        return None;
    }
    let digits = text ^ ZEROS;
    let pairs = (digits.wrapping_mul((10 << 8) + 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul((100 << 16) + 1) >> 16) & 0x0000_ffff_0000_ffff;
    Some(fours.wrapping_mul((10_000 << 32) + 1) >> 32)
}

/// Decimal number in whole units, with a flag for a remainder below one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaled {
    /// Number of whole units.
    pub floor: u64,
    /// `true` if the exact value is above `floor`.
    pub inexact: bool,
}

impl Scaled {
    /// Returns the whole units, rounded up.
    pub fn ceil(self) -> u64 {
        self.floor.saturating_add(u64::from(self.inexact))
    }

    /// Returns `true` if the unrounded value is above `bound`.
    pub fn exceeds(self, bound: u64) -> bool {
        self.floor > bound || (self.floor == bound && self.inexact)
    }
}

/// Digits and exponent of a decimal number without a sign.
#[derive(Clone, Copy, Debug)]
struct Decimal<'a> {
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

/// Bound of exponents: far beyond any value in range, and far from overflow when added to a length.
const EXPONENT_BOUND: i64 = 1 << 40;

impl<'a> Decimal<'a> {
    /// Splits `text` into the number that it begins with and the remaining text (a unit).
    ///
    /// Returns `None` if `text` does not begin with a number or is longer than [`MAX_NUMBER`].
    fn split(text: &'a [u8]) -> Option<(Decimal<'a>, &'a [u8])> {
        if text.len() > MAX_NUMBER {
            return None;
        }
        let (whole, rest) = split_digits(text);
        if whole.is_empty() {
            return None;
        }
        let (fraction, rest) = match rest.split_first() {
            Some((b'.', after)) => match split_digits(after) {
                ([], _) => return None,
                fraction => fraction,
            },
            _ => (Default::default(), rest),
        };
        let (exponent, rest) = match rest.split_first() {
            Some((b'e', after)) => parse_exponent(after)?,
            _ => (0, rest),
        };
        Some((Decimal { whole, fraction, exponent }, rest))
    }

    /// Returns the value times `factor` times `10^shift`, exactly. Returns `None` if the whole units do not fit in 64
    /// bits.
    fn scale(self, factor: u64, shift: i64) -> Option<Scaled> {
        let all_digits = || self.whole.iter().chain(self.fraction);
        let Some(leading_zeros) = all_digits().position(|digit| *digit != b'0') else {
            return Some(Scaled { floor: 0, inexact: false });
        };
        // Number of digits before the decimal point of the shifted number. May be negative.
        let point = length(self.whole).saturating_add(self.exponent).saturating_add(shift);
        let digit_count = length(self.whole).saturating_add(length(self.fraction));
        // More than 20 digits never fit in 64 bits.
        if point.saturating_sub(i64::try_from(leading_zeros).ok()?) > 20 {
            return None;
        }
        let whole_digits = usize::try_from(point.clamp(0, digit_count)).ok()?;
        let fraction_digits = usize::try_from(digit_count.saturating_sub(point.max(0)).max(0)).ok()?;

        let mut whole = all_digits()
            .take(whole_digits)
            .try_fold(0, |value: u64, digit| value.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0'))))?;
        if whole != 0 {
            let zeros = u32::try_from(point.saturating_sub(digit_count).max(0)).ok()?;
            whole = whole.checked_mul(10_u64.checked_pow(zeros)?)?;
        }

        // Long multiplication of the fraction by the factor, from the right digit to the left: exact for any length.
        let (mut carry, mut inexact) = (0_u64, false);
        let mut multiply_digit = |digit: u64| {
            let product = digit.saturating_mul(factor).saturating_add(carry);
            inexact |= product % 10 != 0;
            carry = product / 10;
            carry != 0
        };
        for digit in all_digits().rev().take(fraction_digits) {
            multiply_digit(u64::from(digit.wrapping_sub(b'0')));
        }
        // Zeros between the decimal point and the first digit only divide the carry by ten, until it is zero.
        let mut zeros = point.saturating_neg().max(0);
        while zeros > 0 && multiply_digit(0) {
            zeros = zeros.saturating_sub(1);
        }
        Some(Scaled { floor: whole.checked_mul(factor)?.checked_add(carry)?, inexact })
    }
}

/// Splits `text` after its leading digits.
fn split_digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, &[]))
}

/// Parses an exponent, an optional sign and digits, and returns it with the remaining text. The value is clamped to
/// [`EXPONENT_BOUND`].
fn parse_exponent(text: &[u8]) -> Option<(i64, &[u8])> {
    let (negative, unsigned) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    let (digits, rest) = split_digits(unsigned);
    if digits.is_empty() {
        return None;
    }
    let value = digits.iter().fold(0, |value: i64, digit| {
        value.saturating_mul(10).saturating_add(i64::from(digit.wrapping_sub(b'0'))).min(EXPONENT_BOUND)
    });
    Some((if negative { value.saturating_neg() } else { value }, rest))
}

fn length(digits: &[u8]) -> i64 {
    i64::try_from(digits.len()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
