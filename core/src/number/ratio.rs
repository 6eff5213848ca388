//! Exact integer `a * b / c`, to which every formula of a limiter is reduced.
//!
//! The product is computed in 128 bits, where two 64-bit factors always fit. The quotient saturates, which suits every
//! caller: a wait of 2^64 microseconds never ends.

use std::num::NonZeroU64;

/// Returns `floor(a * b / c)`, at most `u64::MAX`.
pub fn floor(a: u64, b: u64, c: NonZeroU64) -> u64 {
    divide(a, b, c).0
}

/// Returns `ceil(a * b / c)`, at most `u64::MAX`.
pub fn ceil(a: u64, b: u64, c: NonZeroU64) -> u64 {
    let (quotient, exact) = divide(a, b, c);
    quotient.saturating_add(u64::from(!exact))
}

/// Returns the quotient, and `true` if the division was exact.
fn divide(a: u64, b: u64, c: NonZeroU64) -> (u64, bool) {
    // A 64-bit division costs a fraction of a 128-bit one, and common limits fit.
    if let Some(product) = a.checked_mul(b) {
        return (product / c, product % c == 0);
    }
    let product = u128::from(a).saturating_mul(u128::from(b));
    let divisor = std::num::NonZeroU128::from(c);
    (u64::try_from(product / divisor).unwrap_or(u64::MAX), product % divisor == 0)
}

/// Returns the greatest common divisor (Euclid's algorithm).
pub fn gcd(a: NonZeroU64, b: NonZeroU64) -> NonZeroU64 {
    let (mut a, mut b) = (a, b.get());
    while let Some(divisor) = NonZeroU64::new(b) {
        b = a.get() % divisor;
        a = divisor;
    }
    a
}

#[cfg(test)]
mod tests;
