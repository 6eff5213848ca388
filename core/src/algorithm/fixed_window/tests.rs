use super::*;
use crate::evaluate::Request;
use crate::evaluate::Request::{Force, GiveBack, Take};
use crate::expiry::{Expiry, StepBack};
use crate::testing::calls::{Key, amounts, call, lengths, millionths, period, units, us};
use crate::testing::encoded_fields::{EncodedFields, decoded, encoded};
use crate::testing::laws::{Lawful, laws};
use crate::testing::oracle::almanac::{Turns, offset, offsets};
use proptest::prelude::*;

const DAY: u64 = 86_400_000;

fn plain(limit: u64, window: &str) -> FixedWindow {
    FixedWindow::new(units(limit), period(window), false)
}

fn aligned(limit: u64, window: &str) -> FixedWindow {
    FixedWindow::new(units(limit), period(window), true)
}

/// Of words such as `1mo`, `1mo ANCHOR 31` or `3mo OFFSET +09:00 ANCHOR 31`.
fn calendar(limit: u64, words: &str) -> FixedWindow {
    let mut words = words.split(' ');
    let (mut calendar, mut offset) = (Calendar::parse(words.next().unwrap().as_bytes()).unwrap(), Offset::UTC);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        match name {
            "OFFSET" => offset = Offset::parse(value.as_bytes()).unwrap(),
            "ANCHOR" => calendar = calendar.anchored(Anchor::parse(value.as_bytes()).unwrap()).unwrap(),
            other => unreachable!("{other}"),
        }
    }
    FixedWindow::calendar(units(limit), calendar, offset)
}

fn distance(text: &str) -> Offset {
    Offset::parse(text.as_bytes()).unwrap()
}

fn one() -> Request {
    Take(units(1))
}

#[test]
fn aligned_ten_at_59_and_ten_at_00_both_pass() {
    let (limit, mut key) = (aligned(10, "1m"), Key::default());
    assert_eq!(key.admitted(&limit, 59_000, 11), 10);
    assert_eq!(key.call(&limit, 59_999, one()), [0, 10, 0, 1, 1]);
    assert_eq!(key.admitted(&limit, 60_000, 11), 10);
    assert_eq!(key.call(&limit, 60_000, one()), [0, 10, 0, 60_000, 60_000]);
}

#[test]
fn a_window_opens_with_the_first_admitted_call() {
    let (limit, mut key) = (plain(10, "1m"), Key::default());
    for (at, request, reply) in [
        (1000, Take(units(11)), [0, 10, 10, -1, 0]),
        (2000, Take(Amount::ZERO), [1, 10, 10, 0, 0]),
        (59_000, Take(units(4)), [1, 10, 6, 0, 60_000]),
        (60_000, Take(units(6)), [1, 10, 0, 0, 59_000]),
        (118_999, one(), [0, 10, 0, 1, 1]),
        (119_000, Take(Amount::ZERO), [1, 10, 10, 0, 0]),
        (130_000, one(), [1, 10, 9, 0, 60_000]),
    ] {
        assert_eq!(key.call(&limit, at, request), reply, "{request:?} at {at}");
    }
}

#[test]
fn a_window_ends_with_its_last_microsecond() {
    for (limit, start, end) in [(plain(1, "1s"), 1_500_000, 2_500_000), (aligned(1, "1s"), 1_500_000, 2_000_000)] {
        let (mut usage, at) = (FixedWindowUsage::default(), |micros| Timestamp::from_micros(micros).unwrap());
        assert!(call(&limit, &mut usage, at(start), one()).verdict.allowed());
        let denied = call(&limit, &mut usage, at(end - 1), one());
        assert_eq!(denied.verdict, Verdict::After(Span::from_micros(1)));
        assert!(call(&limit, &mut usage, at(end), one()).verdict.allowed());
    }
}

#[test]
fn usage_counts_for_as_long_as_the_calls_window() {
    let mut key = Key::default();
    key.call(&plain(10, "1m"), 0, Take(units(10)));
    for (at, window, reply) in [
        (29_999, "30s", [0, 10, 0, 1, 1]),
        (30_000, "30s", [1, 10, 10, 0, 0]),
        (30_000, "1m", [0, 10, 0, 30_000, 30_000]),
        (60_000, "1h", [0, 10, 0, 3_540_000, 3_540_000]),
    ] {
        assert_eq!(key.peek(&plain(10, window), at, one()), reply, "{window} at {at}");
    }
}

#[test]
fn aligned_usage_counts_while_its_last_charge_lies_in_the_window_of_now() {
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
fn state_of_the_other_mode_counts_until_its_instant_and_a_window() {
    let (plain, aligned) = (plain(10, "1m"), aligned(10, "1m"));
    let mut key = Key::default();
    key.call(&plain, 50_000, Take(units(4)));
    assert_eq!(key.peek(&aligned, 60_000, one()), [1, 10, 6, 0, 50_000]);
    // Charged in its own mode, it is of that mode: from here on it ends with the minute.
    assert_eq!(key.call(&aligned, 60_000, one()), [1, 10, 5, 0, 60_000]);
    assert_eq!(key.peek(&aligned, 119_999, one()), [1, 10, 5, 0, 1]);
    assert_eq!(key.peek(&plain, 119_999, one()), [1, 10, 5, 0, 1]);

    let mut key = Key::default();
    key.call(&aligned, 50_000, Take(units(4)));
    assert_eq!(key.peek(&plain, 109_999, one()), [1, 10, 6, 0, 1]);
    assert_eq!(key.peek(&aligned, 60_000, one()), [1, 10, 10, 0, 0]);
    assert_eq!(key.call(&plain, 70_000, one()), [1, 10, 5, 0, 40_000]);
    assert_eq!(key.peek(&aligned, 109_999, one()), [1, 10, 5, 0, 1]);
}

#[test]
fn a_forced_debt_is_forgotten_with_the_window() {
    let (limit, mut key) = (plain(10, "1m"), Key::default());
    assert_eq!(key.peek(&limit, 0, Force(units(25))), [0, 10, 10, 60_000, 0], "as if charged");
    for (at, request, reply) in [
        (0, Force(units(25)), [0, 10, 0, 60_000, 60_000]),
        (1000, Take(Amount::ZERO), [0, 10, 0, 59_000, 59_000]),
        (1000, Force(units(1)), [0, 10, 0, 59_000, 59_000]),
        (60_000, Force(units(10)), [1, 10, 0, 0, 60_000]),
    ] {
        assert_eq!(key.call(&limit, at, request), reply, "{request:?} at {at}");
    }
}

#[test]
fn upto_grants_the_whole_units_that_there_are() {
    let (limit, mut key) = (FixedWindow::new(millionths(10_500_000), period("1m"), false), Key::default());
    for (most, granted) in [(4, 4), (9, 6), (1, 0)] {
        assert_eq!(key.granted(&limit, 0, most), granted);
    }
    assert_eq!(key.call(&limit, 1000, Request::UpTo(units(99))), [0, 10, 0, 59_000, 59_000]);
    assert_eq!(key.call(&limit, 1000, Take(millionths(500_000))), [1, 10, 0, 0, 59_000]);
}

#[test]
fn giving_back_lowers_the_open_windows_usage() {
    let mut key = Key::default();
    let (limit, longer) = (plain(10, "1m"), plain(10, "2m"));
    for (limit, at, request, reply, gone) in [
        (&limit, 0, GiveBack(units(1)), [1, 10, 10, 0, 0], true),
        (&limit, 0, Take(units(8)), [1, 10, 2, 0, 60_000], false),
        (&limit, 20_000, GiveBack(units(3)), [1, 10, 5, 0, 40_000], false),
        (&longer, 70_000, GiveBack(units(3)), [1, 10, 8, 0, 50_000], false),
        (&limit, 70_000, GiveBack(units(1)), [1, 10, 10, 0, 0], true),
        (&limit, 70_000, one(), [1, 10, 9, 0, 60_000], false),
        (&limit, 70_000, GiveBack(units(9)), [1, 10, 10, 0, 0], true),
    ] {
        assert_eq!(key.call(limit, at, request), reply, "{request:?} at {at}");
        assert_eq!(key.is_gone(), gone, "{request:?} at {at}");
    }
    // It moves an aligned window's instant like any charge.
    let mut key = Key::default();
    key.call(&aligned(10, "1m"), 10_000, Take(units(8)));
    key.call(&aligned(10, "1m"), 30_000, GiveBack(units(1)));
    assert_eq!(key.peek(&plain(10, "1m"), 30_000, one()), [1, 10, 3, 0, 60_000]);
}

#[test]
fn a_limit_of_nothing_admits_nothing_but_looks() {
    let (limit, mut key) = (plain(0, "1m"), Key::default());
    assert_eq!(key.call(&limit, 0, Take(millionths(1))), [0, 0, 0, -1, 0]);
    assert_eq!(key.call(&limit, 0, Take(Amount::ZERO)), [1, 0, 0, 0, 0]);
    assert_eq!(key.call(&limit, 0, Request::UpTo(units(1))), [0, 0, 0, -1, 0]);
}

#[test]
fn a_clock_gone_back_opens_the_window_anew_with_what_was_used() {
    for (limit, reset) in [(plain(10, "1m"), 60_000), (aligned(10, "1m"), 20_000)] {
        let mut key = Key::default();
        key.call(&limit, 1_000_000, Take(units(10)));
        assert_eq!(key.peek(&limit, 40_000, one()), [0, 10, 0, reset, reset]);
        assert_eq!(key.peek(&limit, 1_100_000, one()), [1, 10, 10, 0, 0], "a peek has written nothing");
        assert_eq!(key.call(&limit, 40_000, one()), [0, 10, 0, reset, reset]);
        assert_eq!(key.call(&limit, 100_000, one()), [1, 10, 9, 0, reset], "a denied call has written that");
    }
}

#[test]
fn what_is_used_saturates() {
    let (limit, mut key) = (plain(1_000_000_000_000, "3650d"), Key::default());
    let end = 3650 * 86_400_000;
    for _ in 0..20 {
        assert_eq!(key.call(&limit, 0, Force(Amount::MAX_ARGUMENT))[4], end);
    }
    assert_eq!(key.peek(&limit, 0, Take(Amount::ZERO)), [0, 1_000_000_000_000, 0, end, end]);
}

#[test]
fn a_key_is_16_bytes_and_takes_nothing_for_one_that_is_none() {
    assert_eq!(size_of::<FixedWindowUsage>(), 16);
    let last = Timestamp::MAX.micros();
    for fields in [[1, 0, 0], [1, last, 1], [Amount::MAX.millionths(), last, 0]] {
        assert_eq!(
            decoded::<FixedWindowUsage>(&EncodedFields::integers(fields)).map(|usage| encoded(&usage)),
            Some(EncodedFields::integers(fields))
        );
    }
    for fields in [&[][..], &[1], &[1, 5], &[0, 5, 0], &[1 << 63, 5, 0], &[1, last + 1, 0], &[1, 5, 2]] {
        assert_eq!(decoded::<FixedWindowUsage>(&EncodedFields::integers(fields.iter().copied())), None, "{fields:?}");
    }
}

#[test]
fn people_are_told_when_a_window_opened_or_was_charged() {
    let at = InfoField::Instant(Timestamp::from_micros(7_500_000).unwrap());
    for (limit, mode, instant) in [(plain(10, "1m"), "plain", "start"), (aligned(10, "1m"), "aligned", "charged")] {
        let mut key = Key::default();
        key.call(&limit, 7500, Take(units(3)));
        let facts = [("used", InfoField::Amount(units(3))), ("mode", InfoField::Word(mode)), (instant, at.clone())];
        assert_eq!(key.0.describe(Timestamp::EPOCH), facts);
    }
}

impl Lawful for FixedWindow {
    // Of an aligned window no other limit knows when it ends; two that end together cannot be told apart.
    const LIMITS_OF_AN_EXPIRY: usize = 1;

    fn limits() -> impl Strategy<Value = FixedWindow> {
        let length = || lengths().prop_map(|window| Period::new(Span::from_micros(window)).unwrap());
        let distance = || offsets().prop_map(|minutes| Offset::parse(offset(minutes).as_bytes()).unwrap());
        let bounds = prop_oneof![
            length().prop_map(Bounds::FirstCall),
            length().prop_map(Bounds::Multiples),
            (length(), distance()).prop_map(|(window, offset)| Bounds::Clocks(Clocks::Multiples(window, offset))),
            (Turns::any(), distance())
                .prop_map(|(turns, offset)| Bounds::Clocks(Clocks::Dates(turns.implementation(), offset))),
        ];
        (amounts(), bounds).prop_map(|(limit, bounds)| FixedWindow { limit: Amount::saturating(limit), bounds })
    }

    /// In each window, the limit.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        let (mut end, mut sum) = (Timestamp::EPOCH, 0);
        for (at, cost) in admitted {
            if *at >= end {
                end = match self.bounds {
                    Bounds::FirstCall(window) => at.plus(window.span()),
                    Bounds::Multiples(window) => at.aligned(window).plus(window.span()),
                    Bounds::Clocks(Clocks::Multiples(window, offset)) => offset.end(window, *at),
                    Bounds::Clocks(Clocks::Dates(calendar, offset)) => calendar.end(offset, *at),
                };
                sum = 0;
            }
            sum += cost;
            assert!(sum <= u128::from(self.limit.millionths()));
        }
    }
}

laws!(FixedWindow);

#[test]
fn an_aligned_window_ends_where_the_calendar_says() {
    // Tuesday, 2023-11-14 22:13:20 UTC. The epoch was a Thursday.
    let now = 1_700_000_000_000;
    let (minute, hour, day) = (60_000, 3_600_000, 86_400_000);
    for (window, left) in [
        ("1m", 40_000),
        ("1h", 46 * minute + 40_000),
        ("1d", hour + 46 * minute + 40_000),
        ("7d", day + hour + 46 * minute + 40_000),
        ("3s", 1000),
        ("7ms", 6),
    ] {
        let told = Key::default().call(&aligned(10, window), now, one());
        assert_eq!(told, [1, 10, 9, 0, left], "{window}");
    }
}

#[test]
fn giving_back_after_the_window_leaves_nothing() {
    for limit in [plain(10, "1m"), aligned(10, "1m")] {
        let mut key = Key::default();
        key.call(&limit, 20_000, Take(units(8)));
        let told = key.call(&limit, 80_000, GiveBack(units(3)));
        assert_eq!((told, key.is_gone()), ([1, 10, 10, 0, 0], true));
    }
}

#[test]
fn a_calendar_window_ends_with_its_week_month_quarter_or_year() {
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
        // In Tokyo it is the 15th.
        ("1mo OFFSET +09:00 ANCHOR 15", 30 * day - 9 * hour),
        ("1mo ANCHOR 31", 15 * day),
        ("3mo ANCHOR 15", 61 * day),
        ("3mo ANCHOR 31", 77 * day),
    ] {
        let told = Key::default().call(&calendar(10, words), now, one());
        assert_eq!(told, [1, 10, 9, 0, midnight + after_midnight], "{words}");
    }
}

#[test]
fn a_month_from_the_31st_begins_on_the_last_day_of_a_shorter_one() {
    // 2024-01-31, -02-29 and -03-31; 2025-01-31, -02-28 and -03-31.
    for [january, february, march] in [[19_753, 19_782, 19_813], [20_119, 20_147, 20_178]] {
        let (limit, mut key) = (calendar(10, "1mo ANCHOR 31"), Key::default());
        for (at, left) in [
            (january * DAY - 1, 1),
            (january * DAY, (february - january) * DAY),
            (february * DAY, (march - february) * DAY),
        ] {
            let left = i64::try_from(left).unwrap();
            assert_eq!(key.call(&limit, at, Take(units(10))), [1, 10, 0, 0, left]);
            assert_eq!(key.call(&limit, at, one()), [0, 10, 0, left, left]);
        }
        assert_eq!(key.peek(&limit, march * DAY - 1, one()), [0, 10, 0, 1, 1]);
    }
}

#[test]
fn by_clocks_in_the_east_a_day_ends_before_midnight() {
    let hour = 3_600_000;
    for (text, left) in [("+00:00", 24), ("+09:00", 15), ("-09:00", 9), ("+14:00", 10), ("-14:00", 14)] {
        let limit = FixedWindow::aligned(units(10), period("1d"), distance(text));
        let (left, mut key) = (left * hour, Key::default());
        assert_eq!(key.call(&limit, 0, Take(units(10))), [1, 10, 0, 0, left], "{text}");
        let end = u64::try_from(left).unwrap();
        assert_eq!(key.peek(&limit, end - 1, one()), [0, 10, 0, 1, 1], "{text}");
        assert_eq!(key.call(&limit, end, one()), [1, 10, 9, 0, 24 * hour], "{text}");
    }
}

#[test]
fn state_of_the_other_mode_counts_until_the_end_of_the_calendar_window_of_its_instant() {
    // From the 20th of January 1970.
    let (plain, month, ides) = (plain(10, "7d"), calendar(10, "1mo"), calendar(10, "1mo ANCHOR 15"));
    let left = |days: u64| i64::try_from(days * DAY).unwrap();
    let mut key = Key::default();
    key.call(&plain, 19 * DAY, Take(units(4)));
    assert_eq!(key.peek(&month, 20 * DAY, one()), [1, 10, 6, 0, left(11)]);
    assert_eq!(key.peek(&ides, 20 * DAY, one()), [1, 10, 6, 0, left(25)]);
    assert_eq!(key.peek(&month, 31 * DAY, one()), [1, 10, 10, 0, 0]);
    // Charged in its own mode, it is of that mode.
    assert_eq!(key.call(&month, 30 * DAY, one()), [1, 10, 5, 0, left(1)]);
    // Under other numbers it is an aligned window's: until its last charge and the plain window, ...
    assert_eq!(key.peek(&plain, 30 * DAY, one()), [1, 10, 5, 0, left(7)]);
    assert_eq!(key.peek(&plain, 37 * DAY, one()), [1, 10, 10, 0, 0]);
    // ... or while that lies in the window of now.
    assert_eq!(key.peek(&aligned(10, "7d"), 30 * DAY, one()), [1, 10, 5, 0, left(5)]);
    assert_eq!(key.peek(&ides, 44 * DAY, one()), [1, 10, 5, 0, left(1)]);
    assert_eq!(key.peek(&calendar(10, "1y"), 44 * DAY, one()), [1, 10, 5, 0, left(321)]);
}

#[test]
fn a_clock_gone_back_over_the_end_of_a_month_counts_what_was_used_in_the_month_before() {
    let (limit, mut key) = (calendar(10, "1mo"), Key::default());
    key.call(&limit, 32 * DAY, Take(units(10)));
    let left = i64::try_from(DAY).unwrap();
    assert_eq!(key.peek(&limit, 30 * DAY, one()), [0, 10, 0, left, left]);
    assert_eq!(key.peek(&limit, 59 * DAY, one()), [1, 10, 10, 0, 0], "a peek has written nothing");
    assert_eq!(key.call(&limit, 30 * DAY, one()), [0, 10, 0, left, left]);
    // Which a call then has written: it counts no longer than January.
    assert_eq!(key.call(&limit, 31 * DAY, one()), [1, 10, 9, 0, 28 * left]);
}

#[test]
fn a_clock_gone_back_over_the_end_of_a_month_makes_no_key_expire_before_it_has_recovered() {
    let (january, february) = (us(30 * DAY * 1000), us(32 * DAY * 1000));
    let (month, minute) = (calendar(10, "1mo"), aligned(10, "1m"));
    let mut usage = FixedWindowUsage::default();
    month.charge(&mut usage, february, units(10));
    let expiry = |limit: FixedWindow, usage: &FixedWindowUsage, now| Expiry::of(now, limit.reset(usage, now));
    let present = expiry(month, &usage, february).after_charge(None, false);
    let back = usage.ahead(january);
    let mut moved = usage;
    moved.move_back(january);
    let seen_by = |limit| {
        let (before, after) = (expiry(limit, &usage, february), expiry(limit, &moved, january));
        StepBack { now: january, back, recovery: moved.recovery(), before, after }.expiry(Some(present))
    };
    // By its own limit's reckoning it recovers with January.
    let recovered = month.end(&moved, january).ceil_millis();
    assert_eq!(recovered, 31 * DAY);
    assert!((recovered + 1..=recovered + DAY / 8 + 1000).contains(&seen_by(month)), "{}", seen_by(month));
    // Another does not know how long it is remembered, and leaves it.
    assert_eq!(seen_by(minute), present);
}

#[test]
fn limits_of_different_words_are_known_by_different_numbers() {
    let identity = |limit: &FixedWindow| (limit.identity().micros, limit.identity().words);
    let (day, tokyo, lima) = (period("1d"), distance("+09:00"), distance("-05:00"));
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
    // Stored, so never to change.
    let known = [
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
    assert_eq!(limits.map(|limit| identity(&limit)), known);
    // Their numbers do not matter, nor a distance of nothing.
    assert_eq!(identity(&calendar(11, "1mo OFFSET +00:00 ANCHOR 1")), (0, 0x0103));
    assert_eq!(identity(&FixedWindow::aligned(units(11), day, Offset::UTC)), (micros, 1));
}

#[test]
fn it_displays_as_the_words_that_it_is_read_from() {
    let tokyo = distance("+09:00");
    for (limit, text) in [
        (plain(7, "60s"), "FIXED 7 1m"),
        (aligned(7, "60s"), "FIXED 7 1m ALIGNED"),
        (FixedWindow::aligned(units(7), period("1d"), tokyo), "FIXED 7 1d ALIGNED OFFSET +09:00"),
        (FixedWindow::aligned(units(7), period("1d"), Offset::UTC), "FIXED 7 1d ALIGNED"),
        (calendar(7, "1w"), "FIXED 7 1w ALIGNED"),
        (calendar(7, "1y OFFSET -03:30"), "FIXED 7 1y ALIGNED OFFSET -03:30"),
        (calendar(7, "3mo ANCHOR 1"), "FIXED 7 3mo ALIGNED"),
        (calendar(7, "3mo ANCHOR 15"), "FIXED 7 3mo ALIGNED ANCHOR 15"),
        (calendar(1000, "1mo ANCHOR 31 OFFSET +09:00"), "FIXED 1000 1mo ALIGNED OFFSET +09:00 ANCHOR 31"),
    ] {
        assert_eq!(limit.to_string(), text);
    }
}
