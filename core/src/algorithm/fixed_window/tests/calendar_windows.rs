//! Aligned windows and calendar windows with offsets from UTC.

use super::*;

/// Milliseconds in a day.
const DAY: u64 = 86_400_000;

#[test]
fn aligned_window_admits_the_limit_on_both_sides_of_a_boundary() {
    let (limit, mut key) = (aligned(10, "1m"), Key::default());
    assert_eq!(key.admitted(&limit, 59_000, 11), 10);
    assert_eq!(key.call(&limit, 59_999, take_one()), [0, 10, 0, 1, 1]);
    assert_eq!(key.admitted(&limit, 60_000, 11), 10);
    assert_eq!(key.call(&limit, 60_000, take_one()), [0, 10, 0, 60_000, 60_000]);
}

#[test]
fn aligned_usage_counts_while_its_last_charge_is_in_the_current_window() {
    let mut key = Key::default();
    key.call(&aligned(10, "1m"), 50_000, Take(units(2)));
    key.call(&aligned(10, "1m"), 55_000, Take(units(2)));
    for (at, window, reply) in [
        (55_000, "10s", [1, 10, 6, 0, 5000]),
        (60_000, "10s", [1, 10, 10, 0, 0]),
        (60_000, "1m", [1, 10, 10, 0, 0]),
        (60_000, "1h", [1, 10, 6, 0, 3_540_000]),
    ] {
        assert_eq!(key.peek(&aligned(10, window), at, Take(Amount::ZERO)), reply, "{window} at {at}");
    }
}

#[test]
fn aligned_window_ends_at_a_multiple_of_its_length() {
    // Tuesday, 2023-11-14 22:13:20 UTC. The epoch was a Thursday.
    let now = 1_700_000_000_000;
    let (minute, hour, day) = (60_000, 3_600_000, 86_400_000);
    for (window, reset) in [
        ("1m", 40_000),
        ("1h", 46 * minute + 40_000),
        ("1d", hour + 46 * minute + 40_000),
        ("7d", day + hour + 46 * minute + 40_000),
        ("3s", 1000),
        ("7ms", 6),
    ] {
        let reply = Key::default().call(&aligned(10, window), now, take_one());
        assert_eq!(reply, [1, 10, 9, 0, reset], "{window}");
    }
}

#[test]
fn calendar_window_ends_with_its_unit() {
    // Tuesday, 2023-11-14 22:13:20 UTC.
    let now = 1_700_000_000_000;
    let (hour, day) = (3_600_000, 86_400_000);
    let midnight = hour + 46 * 60_000 + 40_000;
    for (words, after_midnight) in [
        ("1w", 5 * day),
        ("1mo", 16 * day),
        ("3mo", 47 * day),
        ("1y", 47 * day),
        ("1w OFFSET +09:00", 5 * day - 9 * hour),
        ("1mo OFFSET -08:00", 16 * day + 8 * hour),
        ("1mo ANCHOR 15", 0),
        ("1mo OFFSET +01:00 ANCHOR 15", -hour),
        // The local date in Tokyo is the 15th.
        ("1mo OFFSET +09:00 ANCHOR 15", 30 * day - 9 * hour),
        ("1mo ANCHOR 31", 15 * day),
        ("3mo ANCHOR 15", 61 * day),
        ("3mo ANCHOR 31", 77 * day),
    ] {
        let reply = Key::default().call(&calendar(10, words), now, take_one());
        assert_eq!(reply, [1, 10, 9, 0, midnight + after_midnight], "{words}");
    }
}

#[test]
fn month_anchored_on_the_31st_begins_on_the_last_day_of_shorter_months() {
    // 2024-01-31, -02-29 and -03-31; 2025-01-31, -02-28 and -03-31.
    for [january, february, march] in [[19_753, 19_782, 19_813], [20_119, 20_147, 20_178]] {
        let (limit, mut key) = (calendar(10, "1mo ANCHOR 31"), Key::default());
        for (at, reset) in [
            (january * DAY - 1, 1),
            (january * DAY, (february - january) * DAY),
            (february * DAY, (march - february) * DAY),
        ] {
            let reset = i64::try_from(reset).unwrap();
            assert_eq!(key.call(&limit, at, Take(units(10))), [1, 10, 0, 0, reset]);
            assert_eq!(key.call(&limit, at, take_one()), [0, 10, 0, reset, reset]);
        }
        assert_eq!(key.peek(&limit, march * DAY - 1, take_one()), [0, 10, 0, 1, 1]);
    }
}

#[test]
fn day_ends_at_local_midnight_with_an_offset() {
    let hour = 3_600_000;
    for (text, reset_hours) in [("+00:00", 24), ("+09:00", 15), ("-09:00", 9), ("+14:00", 10), ("-14:00", 14)] {
        let limit = FixedWindow::aligned(units(10), period("1d"), utc_offset(text));
        let (reset, mut key) = (reset_hours * hour, Key::default());
        assert_eq!(key.call(&limit, 0, Take(units(10))), [1, 10, 0, 0, reset], "{text}");
        let end = u64::try_from(reset).unwrap();
        assert_eq!(key.peek(&limit, end - 1, take_one()), [0, 10, 0, 1, 1], "{text}");
        assert_eq!(key.call(&limit, end, take_one()), [1, 10, 9, 0, 24 * hour], "{text}");
    }
}

#[test]
fn state_of_the_other_mode_counts_until_the_end_of_its_calendar_window() {
    // The first charge is on January 20, 1970.
    let (plain, month, fifteenth) = (plain(10, "7d"), calendar(10, "1mo"), calendar(10, "1mo ANCHOR 15"));
    let millis = |days: u64| i64::try_from(days * DAY).unwrap();
    let mut key = Key::default();
    key.call(&plain, 19 * DAY, Take(units(4)));
    assert_eq!(key.peek(&month, 20 * DAY, take_one()), [1, 10, 6, 0, millis(11)]);
    assert_eq!(key.peek(&fifteenth, 20 * DAY, take_one()), [1, 10, 6, 0, millis(25)]);
    assert_eq!(key.peek(&month, 31 * DAY, take_one()), [1, 10, 10, 0, 0]);
    // After a charge, the state has the call's mode.
    assert_eq!(key.call(&month, 30 * DAY, take_one()), [1, 10, 5, 0, millis(1)]);
    // Under a plain window, the usage counts until its last charge plus that window.
    assert_eq!(key.peek(&plain, 30 * DAY, take_one()), [1, 10, 5, 0, millis(7)]);
    assert_eq!(key.peek(&plain, 37 * DAY, take_one()), [1, 10, 10, 0, 0]);
    // Under another aligned window, the usage counts while its last charge is in the current window.
    assert_eq!(key.peek(&aligned(10, "7d"), 30 * DAY, take_one()), [1, 10, 5, 0, millis(5)]);
    assert_eq!(key.peek(&fifteenth, 44 * DAY, take_one()), [1, 10, 5, 0, millis(1)]);
    assert_eq!(key.peek(&calendar(10, "1y"), 44 * DAY, take_one()), [1, 10, 5, 0, millis(321)]);
}

#[test]
fn clock_step_back_to_the_previous_month_counts_the_usage_there() {
    let (limit, mut key) = (calendar(10, "1mo"), Key::default());
    key.call(&limit, 32 * DAY, Take(units(10)));
    let day = i64::try_from(DAY).unwrap();
    assert_eq!(key.peek(&limit, 30 * DAY, take_one()), [0, 10, 0, day, day]);
    assert_eq!(key.peek(&limit, 59 * DAY, take_one()), [1, 10, 10, 0, 0], "a peek changes nothing");
    assert_eq!(key.call(&limit, 30 * DAY, take_one()), [0, 10, 0, day, day]);
    // The denied call has moved the usage to January, so that the usage ends with January.
    assert_eq!(key.call(&limit, 31 * DAY, take_one()), [1, 10, 9, 0, 28 * day]);
}

#[test]
fn clock_step_back_to_the_previous_month_keeps_the_expiry_after_the_recovery() {
    let (january, february) = (us(30 * DAY * 1000), us(32 * DAY * 1000));
    let (month, minute) = (calendar(10, "1mo"), aligned(10, "1m"));
    let mut usage = FixedWindowUsage::default();
    month.charge(&mut usage, february, units(10));
    let expiry = |limit: FixedWindow, usage: &FixedWindowUsage, now| Expiry::of(now, limit.reset(usage, now));
    let present = expiry(month, &usage, february).after_charge(None, false);
    let moved_back = usage.ahead(january);
    let mut moved = usage;
    moved.move_back(january);
    let expiry_under = |limit| {
        let (range_before, range_after) = (expiry(limit, &usage, february), expiry(limit, &moved, january));
        let recovery = moved.recovery_source();
        StepBack { now: january, moved_back, recovery, range_before, range_after }.expiry(Some(present))
    };
    // Under the limit of the last charge, the usage recovers at the end of January.
    let recovered = month.end(&moved, january).ceil_millis();
    assert_eq!(recovered, 31 * DAY);
    assert!((recovered + 1..=recovered + DAY / 8 + 1000).contains(&expiry_under(month)), "{}", expiry_under(month));
    // A call under another limit leaves the expiry unchanged, because the recovery is unknown.
    assert_eq!(expiry_under(minute), present);
}

#[test]
fn limits_of_different_words_have_different_identities() {
    let identity = |limit: &FixedWindow| (limit.identity().micros, limit.identity().options);
    let (day, tokyo, lima) = (period("1d"), utc_offset("+09:00"), utc_offset("-05:00"));
    let limits = [
        plain(10, "1d"),
        plain(10, "7d"),
        aligned(10, "1d"),
        FixedWindow::aligned(units(10), day, tokyo),
        FixedWindow::aligned(units(10), day, lima),
        calendar(10, "1w"),
        calendar(10, "1mo"),
        calendar(10, "3mo"),
        calendar(10, "1y"),
        calendar(10, "1mo OFFSET +09:00"),
        calendar(10, "1mo ANCHOR 15"),
        calendar(10, "1mo ANCHOR 31"),
        calendar(10, "3mo OFFSET +09:00 ANCHOR 31"),
    ];
    let micros = DAY * 1000;
    // Identities are stored, so they never change.
    let expected = [
        (micros, 0),
        (7 * micros, 0),
        (micros, 1),
        (micros, 0x021c_0001),
        (micros, 0xfed4_0001),
        (0, 0x0102),
        (0, 0x0103),
        (0, 0x0104),
        (0, 0x0105),
        (0, 0x021c_0103),
        (0, 0x0f03),
        (0, 0x1f03),
        (0, 0x021c_1f04),
    ];
    assert_eq!(limits.map(|limit| identity(&limit)), expected);
    // Limits and an offset of zero are not part of the identity.
    assert_eq!(identity(&calendar(11, "1mo OFFSET +00:00 ANCHOR 1")), (0, 0x0103));
    assert_eq!(identity(&FixedWindow::aligned(units(11), day, Offset::UTC)), (micros, 1));
}

#[test]
fn words_of_an_aligned_window_follow_from_its_identity() {
    for words in ["1w", "1mo", "3mo OFFSET +09:00 ANCHOR 31", "1y OFFSET -05:00", "1mo ANCHOR 2"] {
        let (window, rest) =
            words.split_once(' ').map_or((words, String::new()), |(window, rest)| (window, format!(" {rest}")));
        let words_of_identity = FixedWindow::aligned_words(calendar(10, words).identity());
        assert_eq!(words_of_identity, Some(format!("{window} ALIGNED{rest}")));
    }
    let words_of = |limit: FixedWindow| FixedWindow::aligned_words(limit.identity());
    assert_eq!(words_of(aligned(10, "1d")).as_deref(), Some("1d ALIGNED"));
    assert_eq!(
        words_of(FixedWindow::aligned(units(10), period("1d"), utc_offset("-14:00"))).as_deref(),
        Some("1d ALIGNED OFFSET -14:00")
    );
    assert_eq!(words_of(plain(10, "1d")), None);
    assert_eq!(Offset::from_bytes((14 * 60 + 1_i16).to_le_bytes()), None);
}
