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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(value: u64) -> NonZeroU64 {
        NonZeroU64::new(value).unwrap()
    }

    #[test]
    fn divides_exactly_at_the_edges() {
        for (a, b, c, down, up) in [
            (0, 0, 1, 0, 0),
            (7, 3, 2, 10, 11),
            (6, 3, 2, 9, 9),
            (u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX),
            (u64::MAX, u64::MAX, 1, u64::MAX, u64::MAX),
            (u64::MAX, 2, 4, u64::MAX / 2, u64::MAX / 2 + 1),
        ] {
            assert_eq!((floor(a, b, of(c)), ceil(a, b, of(c))), (down, up), "{a} * {b} / {c}");
        }
    }

    proptest! {
        #[test]
        fn agrees_with_128_bits(a: u64, b: u64, c in 1..=u64::MAX) {
            let (product, c128) = (u128::from(a) * u128::from(b), u128::from(c));
            let narrow = |wide: u128| u64::try_from(wide).unwrap_or(u64::MAX);
            prop_assert_eq!(floor(a, b, of(c)), narrow(product / c128));
            prop_assert_eq!(ceil(a, b, of(c)), narrow(product.div_ceil(c128)));
        }

        #[test]
        fn gcd_is_the_greatest(a in 1..10_000u64, b in 1..10_000u64) {
            let g = gcd(of(a), of(b)).get();
            prop_assert!(a % g == 0 && b % g == 0);
            prop_assert!((g + 1..=a.min(b)).all(|larger| a % larger != 0 || b % larger != 0));
        }
    }
}
