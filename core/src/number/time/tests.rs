use super::*;

#[test]
fn duration_is_parsed_in_each_unit() {
    for (text, micros) in [
        ("60", 60_000_000),
        ("0.5", 500_000),
        ("1us", 1),
        ("1.5us", 2),
        ("100ms", 100_000),
        ("0.001ms", 1),
        ("1s", 1_000_000),
        ("1m", 60_000_000),
        ("1.5h", 5_400_000_000),
        ("0.0000000001d", 9),
        ("1d", DAY),
        ("3650d", 3650 * DAY),
        ("87600h", 3650 * DAY),
        ("1e-6", 1),
        ("1e3ms", 1_000_000),
    ] {
        let expected = Period::new(Span(micros));
        assert!(expected.is_some());
        assert_eq!(Period::parse(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn malformed_or_out_of_range_duration_is_rejected() {
    for text in [
        "",
        "s",
        "1 s",
        "1S",
        "1min",
        "-1",
        "+1",
        "0.9us",
        "0.0001ms",
        "0.00000000001d",
        "3650.0000000000000000001d",
        "3651d",
        "1e99",
        ".5s",
        "1.s",
    ] {
        assert_eq!(Span::parse(text.as_bytes()), None, "{text}");
    }
    assert_eq!(Span::parse(b"0"), Some(Span::ZERO));
    assert_eq!(Period::parse(b"0"), None);
    assert_eq!(Period::parse(b"0s"), None);
}

#[test]
fn clock_out_of_range_is_clamped() {
    assert_eq!(Timestamp::from_clock(-5), Timestamp(0));
    assert_eq!(Timestamp::from_clock(i64::MAX), Timestamp::MAX);
}

#[test]
fn ceil_millis_rounds_up() {
    assert_eq!(Span(1).ceil_millis(), 1);
    assert_eq!(Span(1000).ceil_millis(), 1);
    assert_eq!(Span(1001).ceil_millis(), 2);
}

#[test]
fn whole_periods_rounds_down() {
    let period = Period::new(Span(60)).unwrap();
    assert_eq!([0, 59, 60, 119, 120].map(|micros| Span(micros).whole_periods(period)), [0, 0, 1, 1, 2]);
}

#[test]
fn aligned_returns_the_latest_multiple_of_the_period() {
    let period = Period::new(Span(60)).unwrap();
    assert_eq!([0, 59, 60, 121].map(|micros| Timestamp(micros).aligned(period)), [0, 0, 60, 120].map(Timestamp));
}

#[test]
fn fraction_of_a_microsecond_is_rounded_up() {
    for (text, micros) in [
        ("0.0000010", 1),
        ("1e-6s", 1),
        ("1.1us", 2),
        ("0.0000011", 2),
        ("0.0010001ms", 2),
        ("1.0000000000000000000001us", 2),
        ("0.1d", DAY / 10),
        ("315360000", 3650 * DAY),
        ("315360000000000us", 3650 * DAY),
    ] {
        assert_eq!(Span::parse(text.as_bytes()), Some(Span(micros)), "{text}");
    }
}
