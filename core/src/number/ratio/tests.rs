use super::*;
use proptest::prelude::*;

fn non_zero(value: u64) -> NonZeroU64 {
    NonZeroU64::new(value).unwrap()
}

#[test]
fn division_is_exact_at_the_extremes() {
    for (a, b, c, down, up) in [
        (0, 0, 1, 0, 0),
        (7, 3, 2, 10, 11),
        (6, 3, 2, 9, 9),
        (u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX),
        (u64::MAX, u64::MAX, 1, u64::MAX, u64::MAX),
        (u64::MAX, 2, 4, u64::MAX / 2, u64::MAX / 2 + 1),
        // An exact and an inexact division whose product exceeds 64 bits.
        (1 << 40, 1 << 40, 1 << 20, 1 << 60, 1 << 60),
        (1 << 40, 1 << 40, (1 << 20) + 1, (1 << 60) - (1 << 40) + (1 << 20) - 1, (1 << 60) - (1 << 40) + (1 << 20)),
    ] {
        assert_eq!((floor(a, b, non_zero(c)), ceil(a, b, non_zero(c))), (down, up), "{a} * {b} / {c}");
    }
}

proptest! {
    #[test]
    fn quotient_equals_128_bit_arithmetic(a: u64, b: u64, c in 1..=u64::MAX) {
        let (product, c128) = (u128::from(a) * u128::from(b), u128::from(c));
        let narrow = |wide: u128| u64::try_from(wide).unwrap_or(u64::MAX);
        prop_assert_eq!(floor(a, b, non_zero(c)), narrow(product / c128));
        prop_assert_eq!(ceil(a, b, non_zero(c)), narrow(product.div_ceil(c128)));
    }

    #[test]
    fn gcd_is_the_greatest_common_divisor(a in 1..10_000u64, b in 1..10_000u64) {
        let g = gcd(non_zero(a), non_zero(b)).get();
        prop_assert!(a % g == 0 && b % g == 0);
        prop_assert!((g + 1..=a.min(b)).all(|larger| a % larger != 0 || b % larger != 0));
    }
}
