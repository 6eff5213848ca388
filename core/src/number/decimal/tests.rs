use super::{parse_short_integer, split_short_integer};
use num_bigint::BigUint;
use num_traits::Pow;
use proptest::prelude::*;

fn scaled(text: &str, factor: u64, shift: u32) -> Option<(u64, bool)> {
    let scaled = super::parse_scaled(text.as_bytes(), |rest| rest.is_empty().then_some(factor * 10_u64.pow(shift)))?;
    Some((scaled.floor, scaled.inexact))
}

#[test]
fn number_in_any_notation_is_scaled() {
    for (text, expected) in [
        ("0", (0, false)),
        ("1", (1_000_000, false)),
        ("007", (7_000_000, false)),
        ("0.5", (500_000, false)),
        ("1.6667", (1_666_700, false)),
        ("1e-06", (1, false)),
        ("1e-7", (0, true)),
        ("0.30000000000000004", (300_000, true)),
        ("1e+3", (1_000_000_000, false)),
        ("1e12", (1_000_000_000_000_000_000, false)),
        ("0.000001e12", (1_000_000_000_000, false)),
        ("1000000000000", (1_000_000_000_000_000_000, false)),
        ("123456789012.3456789", (123_456_789_012_345_678, true)),
        ("0e999999999999999999999", (0, false)),
        ("1e-999999999999999999999", (0, true)),
        ("10000000000000000000000000e-20", (100_000_000_000, false)),
    ] {
        assert_eq!(scaled(text, 1, 6), Some(expected), "{text}");
    }
}

#[test]
fn number_beyond_64_bits_is_rejected() {
    assert_eq!(scaled("18446744073709551615", 1, 0), Some((u64::MAX, false)));
    assert_eq!(scaled("18446744073709551615.5", 1, 0), Some((u64::MAX, true)));
    assert_eq!(scaled("18446744073709.551615", 1, 6), Some((u64::MAX, false)));
    assert_eq!(scaled("0.00018446744073709551615e23", 1, 0), Some((u64::MAX, false)));
    assert_eq!(scaled("18446744073709551616", 1, 0), None);
    assert_eq!(scaled("18446744073709.551616", 1, 6), None);
    assert_eq!(scaled("100000000000000000000", 1, 0), None);
    assert_eq!(scaled("1e99999999999999999999", 1, 6), None);
    assert_eq!(scaled("1e14", 1, 6), None);
}

#[test]
fn malformed_number_is_rejected() {
    for text in ["", ".", ".5", "1.", "1.e5", "+1", "-1", "e5", "1e", "1e+", "1e-", "x"] {
        assert_eq!(super::parse_scaled(text.as_bytes(), |_| Some(1)), None, "{text:?}");
    }
}

#[test]
fn text_longer_than_64_characters_is_rejected() {
    let texts = |zeros: usize| {
        let zeros = "0".repeat(zeros);
        [format!("{zeros}1234"), format!("1.{zeros}00"), format!("1e-{zeros}1"), format!("{zeros}123s")]
    };
    let is_accepted = |text: &String| super::parse_scaled(text.as_bytes(), |_| Some(1)).is_some();
    assert_eq!(texts(60).each_ref().map(is_accepted), [true; 4]);
    assert_eq!(texts(61).each_ref().map(is_accepted), [false; 4]);
    let percent_is_accepted = |digits| super::parse_percent(format!("{}%", "0".repeat(digits)).as_bytes(), 1).is_some();
    assert_eq!([63, 64].map(percent_is_accepted), [true, false]);
    let integer_is_accepted = |digits| crate::wire::args::whole("0".repeat(digits).as_bytes(), 1).is_some();
    assert_eq!([64, 65].map(integer_is_accepted), [true, false]);
}

#[test]
fn unit_parser_receives_the_text_after_the_number() {
    for (text, expected) in [("60s", "s"), ("1.5h", "h"), ("1E5", "E5"), ("1_0", "_0"), ("1.5.5", ".5"), ("7", "")] {
        let mut received = None;
        super::parse_scaled(text.as_bytes(), |rest| {
            received = Some(rest.to_vec());
            None
        });
        assert_eq!(received, Some(expected.as_bytes().to_vec()));
    }
}

#[test]
fn short_integer_of_each_length_is_parsed() {
    let digits = "907060504";
    for length in 1..=digits.len() {
        let text = &digits.as_bytes()[..length];
        let expected = digits[..length].parse().ok();
        assert_eq!(parse_short_integer(text), expected);
        for index in 0..length {
            // The bytes next to the digits, which parallel arithmetic could mistake for digits, and bytes with the
            // highest bit set.
            for byte in [0, b'/', b':', b'@', b'p', b'0' | 0x80, 0xff] {
                let mut text = text.to_vec();
                text[index] = byte;
                assert_eq!(parse_short_integer(&text), None, "{text:?}");
            }
        }
    }
    for text in ["", "1234567890", "1.5", "1e5"] {
        assert_eq!(parse_short_integer(text.as_bytes()), None, "{text}");
    }
}

proptest! {
    #[test]
    fn short_integer_equals_its_value(value in 0..1_000_000_000_u64, zeros in 0..9_usize) {
        let text = format!("{}{value}", "0".repeat(zeros));
        let expected = (text.len() <= 9).then_some(value);
        prop_assert_eq!(parse_short_integer(text.as_bytes()), expected);
        let with_unit = format!("{text}ms");
        prop_assert_eq!(split_short_integer(with_unit.as_bytes()), expected.map(|value| (value, &b"ms"[..])));
    }

    #[test]
    fn scaled_number_equals_exact_arithmetic(
        whole in "[0-9]{1,25}",
        fraction in proptest::option::of("[0-9]{1,33}"),
        exponent in proptest::option::of(-50..50i64),
        (factor, shift) in proptest::sample::select(vec![(1, 0), (1, 3), (1, 6), (6, 7), (36, 8), (864, 8)]),
    ) {
        let mut text = whole.clone();
        if let Some(fraction) = &fraction {
            text = format!("{text}.{fraction}");
        }
        if let Some(exponent) = exponent {
            text = format!("{text}e{exponent}");
        }
        let fraction = fraction.unwrap_or_default();
        let mantissa: BigUint = format!("{whole}{fraction}").parse().unwrap();
        let power = exponent.unwrap_or(0) + i64::from(shift) - i64::try_from(fraction.len()).unwrap();
        let numerator = mantissa * factor * BigUint::from(10u8).pow(power.max(0).unsigned_abs());
        let denominator = BigUint::from(10u8).pow(power.min(0).unsigned_abs());
        let floor = &numerator / &denominator;
        let inexact = &floor * &denominator != numerator;
        match scaled(&text, factor, shift) {
            Some(scaled) => prop_assert_eq!((BigUint::from(scaled.0), scaled.1), (floor, inexact)),
            None => prop_assert!(floor > BigUint::from(u64::MAX), "{} fits in 64 bits but is rejected", text),
        }
    }
}
