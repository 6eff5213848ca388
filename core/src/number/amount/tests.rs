use super::*;

#[test]
fn parsed_amount_is_rounded_against_the_client() {
    for (text, down, up) in [
        ("1", 1_000_000, 1_000_000),
        ("0.30000000000000004", 300_000, 300_001),
        ("0.0000001", 0, 1),
        ("1.6666667", 1_666_666, 1_666_667),
    ] {
        let text = text.as_bytes();
        assert_eq!(Amount::parse_down(text), Some(Amount(down)));
        assert_eq!(Amount::parse_up(text), Some(Amount(up)));
    }
}

#[test]
fn amount_above_1e12_or_malformed_amount_is_rejected() {
    assert_eq!(Amount::parse_up(b"1000000000000"), Some(Amount::MAX_ARGUMENT));
    assert_eq!(Amount::parse_up(b"1e12"), Some(Amount::MAX_ARGUMENT));
    // The first amount is rejected although it would be rounded to 10^12.
    for text in ["1000000000000.0000001", "1000000000001", "1e13", "-1", "1x", ""] {
        assert_eq!(Amount::parse_down(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn usage_saturates_but_excess_is_exact() {
    assert_eq!(Amount::MAX.plus(Amount::ONE), Amount::MAX);
    assert_eq!(Amount::MAX.excess(Amount::MAX_ARGUMENT, Amount::MAX), Amount::MAX_ARGUMENT);
    assert_eq!(Amount::ONE.minus(Amount::MAX), Amount::ZERO);
    assert_eq!(Amount::from_millionths(1 << 63), None);
}

#[test]
fn fraction_and_exponent_are_parsed() {
    let long = format!("1{}e-54", "0".repeat(59));
    for (text, millionths) in [
        ("0.0", 0),
        ("007", 7_000_000),
        ("0007.5000", 7_500_000),
        ("1e-99999999999999999999", 0),
        ("0e99999999999999999999", 0),
        ("1e+3", 1_000_000_000),
        ("1e003", 1_000_000_000),
        ("12345e-2", 123_450_000),
        ("0.00000000000000000000000000005e30", 50_000_000),
        (long.as_str(), 100_000_000_000),
        ("4294967296", 4_294_967_296_000_000),
        ("999999999999.999999", 999_999_999_999_999_999),
        ("1000000000000.0000000000", 1_000_000_000_000_000_000),
        ("0.001e15", 1_000_000_000_000_000_000),
    ] {
        assert_eq!(Amount::parse_down(text.as_bytes()), Some(Amount(millionths)), "{text}");
    }
}

#[test]
fn share_is_rounded_to_a_millionth_in_the_named_direction() {
    let third = |share: fn(Amount, Span, Period) -> Amount, amount| {
        share(Amount(amount), Span::SECOND, Period::new(Span::SECOND.times(3)).unwrap()).millionths()
    };
    assert_eq!([2, 3, 4].map(|amount| third(Amount::share_down, amount)), [0, 1, 1]);
    assert_eq!([2, 3, 4].map(|amount| third(Amount::share_up, amount)), [1, 1, 2]);
}

#[test]
fn whole_units_drop_the_decimals() {
    for (millionths, whole) in [(0, 0), (999_999, 0), (1_000_000, 1), (2_500_000, 2)] {
        assert_eq!(Amount(millionths).whole_units(), whole);
        assert_eq!(Amount(millionths).floor(), Amount(whole * 1_000_000));
    }
}

#[test]
fn display_is_parsed_back_to_the_same_amount() {
    for (millionths, text) in [
        (0, "0"),
        (1, "0.000001"),
        (120_000, "0.12"),
        (500_000, "0.5"),
        (1_000_000, "1"),
        (100_000_000, "100"),
        (12_000_340, "12.00034"),
    ] {
        assert_eq!(Amount(millionths).to_string(), text);
        assert_eq!(Amount::parse_down(text.as_bytes()), Some(Amount(millionths)));
    }
}
