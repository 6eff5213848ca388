use super::*;
use crate::testing::calls::{lengths, us};
use crate::testing::oracle::almanac;
use crate::testing::oracle::almanac::{CalendarWindow, date, offsets};
use proptest::prelude::*;

fn offset(minutes: i64) -> Offset {
    Offset::parse(almanac::offset(minutes).as_bytes()).unwrap()
}

/// Returns the end of the window that contains a local time, both in microseconds since local clocks showed the epoch.
fn end(calendar: Calendar, offset_minutes: i64, local: i128) -> i128 {
    let offset_micros = i128::from(offset_minutes) * 60_000_000;
    let instant = us(u64::try_from(local - offset_micros).unwrap());
    i128::from(calendar.end(offset(offset_minutes), instant).micros()) + offset_micros
}

#[test]
fn almanac_contains_well_known_dates() {
    for (day, expected) in [
        (-1, (1969, 12, 31, 3)),
        (0, (1970, 1, 1, 4)),
        (789, (1972, 2, 29, 2)),
        (11_016, (2000, 2, 29, 2)),
        (19_675, (2023, 11, 14, 2)),
        (47_540, (2100, 2, 28, 7)),
        (47_541, (2100, 3, 1, 1)),
        (157_113, (2400, 2, 29, 2)),
    ] {
        assert_eq!(date(day), expected);
    }
}

#[test]
fn days_and_months_are_numbered_consecutively() {
    let mut month = month_of(DAYS_BEFORE_EPOCH - 1);
    for day in 0..=365_366 {
        let (.., day_of_month, _) = date(day);
        let number = DAYS_BEFORE_EPOCH + u64::try_from(day).unwrap();
        month += u64::from(day_of_month == 1);
        assert_eq!(
            (month_of(number), number - first_day(month) + 1),
            (month, u64::from(day_of_month)),
            "{:?}",
            date(day)
        );
    }
}

#[test]
fn window_ends_where_the_next_begins() {
    for window in CalendarWindow::all() {
        let calendar = window.implementation();
        let first_days: Vec<i64> = (0..365_000).filter(|day| window.begins_on(*day)).collect();
        for pair in first_days.windows(2) {
            let [begins, ends] = [pair[0], pair[1]].map(|day| i128::from(day) * almanac::DAY);
            for local in [begins, i128::midpoint(begins, ends), ends - 1] {
                assert_eq!(end(calendar, 0, local), ends, "{window:?} that began on {:?}", date(pair[0]));
            }
        }
    }
}

#[test]
fn window_that_began_before_the_epoch_ends_correctly() {
    let hour = 3_600_000_000;
    let end_hour = |text: &str, minutes, anchor: &str| {
        let calendar = Calendar::parse(text.as_bytes()).unwrap();
        let calendar = calendar.anchored(Anchor::parse(anchor.as_bytes()).unwrap()).unwrap_or(calendar);
        calendar.end(offset(minutes), Timestamp::EPOCH).micros() / hour
    };
    // West of UTC the local date is Wednesday, December 31.
    for (text, minutes, anchor, hours) in [
        ("1w", 0, "1", 4 * 24),
        ("1mo", 0, "1", 31 * 24),
        ("1mo", 0, "15", 14 * 24),
        ("3mo", 0, "31", 30 * 24),
        ("1y", 0, "1", 365 * 24),
        ("1w", 840, "1", 4 * 24 - 14),
        ("1mo", 840, "1", 31 * 24 - 14),
        ("1mo", -840, "1", 14),
        ("1mo", -840, "31", 30 * 24 + 14),
        ("3mo", -840, "1", 14),
        ("3mo", -840, "31", 30 * 24 + 14),
        ("1y", -840, "1", 14),
        ("1y", 840, "1", 365 * 24 - 14),
    ] {
        assert_eq!(end_hour(text, minutes, anchor), hours, "{text} {minutes} {anchor}");
    }
}

#[test]
fn window_at_the_last_timestamp_ends_within_a_leap_year() {
    let year = Calendar::parse(b"1y").unwrap();
    let leap_year_begin = us(730 * DAY); // 1972-01-01
    assert_eq!(year.end(Offset::UTC, leap_year_begin).since(leap_year_begin), Span::from_micros(366 * DAY));
    for window in CalendarWindow::all() {
        for minutes in [-840, 840] {
            let end = window.implementation().end(offset(minutes), Timestamp::MAX);
            assert!(end > Timestamp::MAX && end.since(Timestamp::MAX) <= Span::from_micros(366 * DAY), "{window:?}");
        }
    }
}

proptest! {
    #[test]
    fn end_of_a_window_equals_the_almanac(
        window in CalendarWindow::any(), minutes in offsets(), micros in 0..=Timestamp::MAX.micros(),
    ) {
        let local = i128::from(micros) + i128::from(minutes) * 60_000_000;
        prop_assert_eq!(end(window.implementation(), minutes, local), window.end(local));
    }

    #[test]
    fn plain_window_ends_at_a_multiple_in_local_time(
        window in lengths(), minutes in offsets(),
        micros in prop_oneof![0..=Timestamp::MAX.micros(), 0..200_000_000_000_u64],
    ) {
        let (offset_micros, length) = (i128::from(minutes) * 60_000_000, i128::from(window));
        let expected = ((i128::from(micros) + offset_micros).div_euclid(length) + 1) * length - offset_micros;
        let window = Period::new(Span::from_micros(window)).unwrap();
        prop_assert_eq!(i128::from(offset(minutes).end(window, us(micros)).micros()), expected);
    }

    #[test]
    fn parsed_offset_is_displayed_like_its_argument(minutes in offsets()) {
        prop_assert_eq!(offset(minutes).to_string(), almanac::offset(minutes));
        prop_assert_eq!(i64::from(i16::from_le_bytes(offset(minutes).to_bytes())), minutes);
    }
}

#[test]
fn offset_is_parsed() {
    for (text, minutes) in [
        ("+00:00", 0),
        ("-00:00", 0),
        ("+09:00", 540),
        ("-03:30", -210),
        ("+14:00", 840),
        ("-14:00", -840),
        ("+00:59", 59),
    ] {
        assert_eq!(Offset::parse(text.as_bytes()).map(|offset| i64::from(offset.minutes)), Some(minutes), "{text}");
    }
    assert_eq!(Offset::parse(b"-00:00"), Some(Offset::UTC));
    for text in [
        "",
        "+",
        "+:",
        "09:00",
        "+9:00",
        "+09",
        "+0900",
        "+09:0",
        "+09:000",
        "+009:00",
        "+09-00",
        "+14:01",
        "-14:01",
        "+15:00",
        "+08:60",
        "+-9:00",
        "+09:+1",
        " +09:00",
        "+09:00 ",
        "*09:00",
        "\u{2212}09:00",
        "+0a:00",
        "+00:a0",
        "Z",
        "Asia/Tokyo",
    ] {
        assert_eq!(Offset::parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn units_and_anchors_are_parsed() {
    for text in ["1w", "1mo", "3mo", "1y"] {
        assert_eq!(Calendar::parse(text.as_bytes()).unwrap().to_string(), text);
    }
    for text in ["", "1", "w", "2w", "1W", "01w", "1.0mo", "2mo", "6mo", "12mo", "1m", "1mon", "2y", "1y ", "1d"] {
        assert_eq!(Calendar::parse(text.as_bytes()), None, "{text}");
    }
    for day in 1..=31 {
        assert_eq!(Anchor::parse(day.to_string().as_bytes()).map(Anchor::day), Some(day));
    }
    for text in ["", "0", "32", "256", "-1", "+1", "1.0", "1st"] {
        assert_eq!(Anchor::parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn anchor_applies_only_to_months_and_quarters() {
    let fifteenth = Anchor::parse(b"15").unwrap();
    for (text, accepts_anchor) in [("1w", false), ("1mo", true), ("3mo", true), ("1y", false)] {
        let anchor = Calendar::parse(text.as_bytes()).unwrap().anchored(fifteenth).map(Calendar::anchor);
        assert_eq!(anchor, accepts_anchor.then_some(fifteenth), "{text}");
    }
}
