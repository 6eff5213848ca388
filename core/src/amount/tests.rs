use super::*;

#[test]
fn rounds_against_the_caller() {
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
fn goes_up_to_a_million_million_and_is_checked_before_rounding() {
    assert_eq!(Amount::parse_up(b"1000000000000"), Some(Amount::MAX_ARGUMENT));
    assert_eq!(Amount::parse_up(b"1e12"), Some(Amount::MAX_ARGUMENT));
    for text in ["1000000000000.0000001", "1000000000001", "1e13", "-1", "1x", ""] {
        assert_eq!(Amount::parse_down(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn saturates_as_usage_but_compares_exactly() {
    assert_eq!(Amount::MAX.plus(Amount::ONE), Amount::MAX);
    assert_eq!(Amount::MAX.excess(Amount::MAX_ARGUMENT, Amount::MAX), Amount::MAX_ARGUMENT);
    assert_eq!(Amount::ONE.minus(Amount::MAX), Amount::ZERO);
    assert_eq!(Amount::from_millionths(1 << 63), None);
}
