//! `a * b / c` in whole numbers, exact: the one place where a product is divided.
//!
//! Every formula of a limiter comes down to this. The product is taken in 128 bits, where 64 by 64 always fits;
//! the quotient saturates, which every caller wants (a wait of more than 2^64 microseconds is "for ever").

use std::num::NonZeroU64;

/// `floor(a * b / c)`, at most `u64::MAX`.
pub fn floor(a: u64, b: u64, c: NonZeroU64) -> u64 {
    divided(a, b, c).0
}

/// `ceil(a * b / c)`, at most `u64::MAX`.
pub fn ceil(a: u64, b: u64, c: NonZeroU64) -> u64 {
    let (quotient, exact) = divided(a, b, c);
    quotient.saturating_add(u64::from(!exact))
}

/// The quotient, and whether nothing was left over.
fn divided(a: u64, b: u64, c: NonZeroU64) -> (u64, bool) {
    // A 64-bit division costs a fraction of a 128-bit one, and everyday limits fit.
    if let Some(product) = a.checked_mul(b) {
        return (product / c, product % c == 0);
    }
    let product = u128::from(a).saturating_mul(u128::from(b));
    let wide = std::num::NonZeroU128::from(c);
    (u64::try_from(product / wide).unwrap_or(u64::MAX), product % wide == 0)
}

/// The greatest common divisor (Euclid's algorithm).
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
