//! Methods of `Key` take the time in milliseconds and return `[allowed, limit, remaining, wait_ms, reset_ms]`.

mod calendar_windows;

use super::calendar::Anchor;
use super::*;
use crate::evaluate::Request;
use crate::evaluate::Request::{Force, Refund, Take};
use crate::expiry::{Expiry, StepBack};
use crate::testing::calls::{Key, amounts, call, lengths, millionths, period, units, us};
use crate::testing::encoded_fields::{EncodedFields, decoded, encoded};
use crate::testing::laws::{Lawful, laws};
use crate::testing::oracle::almanac::{CalendarWindow, offset, offsets};
use proptest::prelude::*;

fn plain(limit: u64, window: &str) -> FixedWindow {
    FixedWindow::new(units(limit), period(window))
}

fn aligned(limit: u64, window: &str) -> FixedWindow {
    FixedWindow::aligned(units(limit), period(window), Offset::UTC)
}

/// Creates a window from words such as `1mo`, `1mo ANCHOR 31` or `3mo OFFSET +09:00 ANCHOR 31`.
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

fn utc_offset(text: &str) -> Offset {
    Offset::parse(text.as_bytes()).unwrap()
}

fn take_one() -> Request {
    Take(units(1))
}

#[test]
fn window_opens_with_the_first_admitted_call() {
    let (limit, mut key) = (plain(10, "1m"), Key::default());
    for (at, request, reply) in [
        (1000, Take(units(11)), [0, 10, 10, -1, 0]),
        (2000, Take(Amount::ZERO), [1, 10, 10, 0, 0]),
        (59_000, Take(units(4)), [1, 10, 6, 0, 60_000]),
        (60_000, Take(units(6)), [1, 10, 0, 0, 59_000]),
        (118_999, take_one(), [0, 10, 0, 1, 1]),
        (119_000, Take(Amount::ZERO), [1, 10, 10, 0, 0]),
        (130_000, take_one(), [1, 10, 9, 0, 60_000]),
    ] {
        assert_eq!(key.call(&limit, at, request), reply, "{request:?} at {at}");
    }
}

#[test]
fn window_ends_after_its_last_microsecond() {
    for (limit, start, end) in [(plain(1, "1s"), 1_500_000, 2_500_000), (aligned(1, "1s"), 1_500_000, 2_000_000)] {
        let (mut usage, at) = (FixedWindowUsage::default(), |micros| Timestamp::from_micros(micros).unwrap());
        assert!(call(&limit, &mut usage, at(start), take_one()).verdict.allowed());
        let denied = call(&limit, &mut usage, at(end - 1), take_one());
        assert_eq!(denied.verdict, Verdict::After(Span::from_micros(1)));
        assert!(call(&limit, &mut usage, at(end), take_one()).verdict.allowed());
    }
}

#[test]
fn usage_counts_for_the_window_of_the_call() {
    let mut key = Key::default();
    key.call(&plain(10, "1m"), 0, Take(units(10)));
    for (at, window, reply) in [
        (29_999, "30s", [0, 10, 0, 1, 1]),
        (30_000, "30s", [1, 10, 10, 0, 0]),
        (30_000, "1m", [0, 10, 0, 30_000, 30_000]),
        (60_000, "1h", [0, 10, 0, 3_540_000, 3_540_000]),
    ] {
        assert_eq!(key.peek(&plain(10, window), at, take_one()), reply, "{window} at {at}");
    }
}

#[test]
fn state_of_the_other_mode_counts_for_a_window_after_its_timestamp() {
    let (plain, aligned) = (plain(10, "1m"), aligned(10, "1m"));
    let mut key = Key::default();
    key.call(&plain, 50_000, Take(units(4)));
    assert_eq!(key.peek(&aligned, 60_000, take_one()), [1, 10, 6, 0, 50_000]);
    // After a charge, the state has the call's mode, and the usage ends with the minute.
    assert_eq!(key.call(&aligned, 60_000, take_one()), [1, 10, 5, 0, 60_000]);
    assert_eq!(key.peek(&aligned, 119_999, take_one()), [1, 10, 5, 0, 1]);
    assert_eq!(key.peek(&plain, 119_999, take_one()), [1, 10, 5, 0, 1]);

    let mut key = Key::default();
    key.call(&aligned, 50_000, Take(units(4)));
    assert_eq!(key.peek(&plain, 109_999, take_one()), [1, 10, 6, 0, 1]);
    assert_eq!(key.peek(&aligned, 60_000, take_one()), [1, 10, 10, 0, 0]);
    assert_eq!(key.call(&plain, 70_000, take_one()), [1, 10, 5, 0, 40_000]);
    assert_eq!(key.peek(&aligned, 109_999, take_one()), [1, 10, 5, 0, 1]);
}

#[test]
fn forced_debt_ends_with_the_window() {
    let (limit, mut key) = (plain(10, "1m"), Key::default());
    assert_eq!(
        key.peek(&limit, 0, Force(units(25))),
        [0, 10, 10, 60_000, 0],
        "a peek with FORCE reports the wait after the charge"
    );
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
fn upto_grants_the_remaining_whole_units() {
    let (limit, mut key) = (FixedWindow::new(millionths(10_500_000), period("1m")), Key::default());
    for (cost, granted) in [(4, 4), (9, 6), (1, 0)] {
        assert_eq!(key.granted(&limit, 0, cost), granted);
    }
    assert_eq!(key.call(&limit, 1000, Request::UpTo(units(99))), [0, 10, 0, 59_000, 59_000]);
    assert_eq!(key.call(&limit, 1000, Take(millionths(500_000))), [1, 10, 0, 0, 59_000]);
}

#[test]
fn refund_lowers_the_usage_of_the_open_window() {
    let mut key = Key::default();
    let (limit, longer) = (plain(10, "1m"), plain(10, "2m"));
    for (limit, at, request, reply, is_deleted) in [
        (&limit, 0, Refund(units(1)), [1, 10, 10, 0, 0], true),
        (&limit, 0, Take(units(8)), [1, 10, 2, 0, 60_000], false),
        (&limit, 20_000, Refund(units(3)), [1, 10, 5, 0, 40_000], false),
        (&longer, 70_000, Refund(units(3)), [1, 10, 8, 0, 50_000], false),
        (&limit, 70_000, Refund(units(1)), [1, 10, 10, 0, 0], true),
        (&limit, 70_000, take_one(), [1, 10, 9, 0, 60_000], false),
        (&limit, 70_000, Refund(units(9)), [1, 10, 10, 0, 0], true),
    ] {
        assert_eq!(key.call(limit, at, request), reply, "{request:?} at {at}");
        assert_eq!(key.is_deleted(), is_deleted, "{request:?} at {at}");
    }
    // Like a charge, a refund updates the timestamp of an aligned window.
    let mut key = Key::default();
    key.call(&aligned(10, "1m"), 10_000, Take(units(8)));
    key.call(&aligned(10, "1m"), 30_000, Refund(units(1)));
    assert_eq!(key.peek(&plain(10, "1m"), 30_000, take_one()), [1, 10, 3, 0, 60_000]);
}

#[test]
fn limit_of_zero_admits_only_a_cost_of_zero() {
    let (limit, mut key) = (plain(0, "1m"), Key::default());
    assert_eq!(key.call(&limit, 0, Take(millionths(1))), [0, 0, 0, -1, 0]);
    assert_eq!(key.call(&limit, 0, Take(Amount::ZERO)), [1, 0, 0, 0, 0]);
    assert_eq!(key.call(&limit, 0, Request::UpTo(units(1))), [0, 0, 0, -1, 0]);
}

#[test]
fn clock_step_back_reopens_the_window_with_its_usage() {
    for (limit, reset) in [(plain(10, "1m"), 60_000), (aligned(10, "1m"), 20_000)] {
        let mut key = Key::default();
        key.call(&limit, 1_000_000, Take(units(10)));
        assert_eq!(key.peek(&limit, 40_000, take_one()), [0, 10, 0, reset, reset]);
        assert_eq!(key.peek(&limit, 1_100_000, take_one()), [1, 10, 10, 0, 0], "a peek changes nothing");
        assert_eq!(key.call(&limit, 40_000, take_one()), [0, 10, 0, reset, reset]);
        assert_eq!(
            key.call(&limit, 100_000, take_one()),
            [1, 10, 9, 0, reset],
            "a denied call stores the moved-back time"
        );
    }
}

#[test]
fn usage_saturates() {
    let (limit, mut key) = (plain(1_000_000_000_000, "3650d"), Key::default());
    let end = 3650 * 86_400_000;
    for _ in 0..20 {
        assert_eq!(key.call(&limit, 0, Force(Amount::MAX_ARGUMENT))[4], end);
    }
    assert_eq!(key.peek(&limit, 0, Take(Amount::ZERO)), [0, 1_000_000_000_000, 0, end, end]);
}

#[test]
fn usage_is_16_bytes_and_rejects_invalid_encodings() {
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
fn description_shows_the_opening_or_the_last_charge() {
    let stamp = InfoField::Instant(Timestamp::from_micros(7_500_000).unwrap());
    for (limit, mode, stamp_name) in [(plain(10, "1m"), "plain", "start"), (aligned(10, "1m"), "aligned", "charged")] {
        let mut key = Key::default();
        key.call(&limit, 7500, Take(units(3)));
        let facts =
            [("used", InfoField::Amount(units(3))), ("mode", InfoField::Word(mode)), (stamp_name, stamp.clone())];
        assert_eq!(key.0.describe(Timestamp::EPOCH, None), facts);
        let used = |now, recovers_at| {
            key.0.describe(Timestamp::from_micros(now).unwrap(), Timestamp::from_micros(recovers_at))[0].clone()
        };
        assert_eq!(used(66_999_999, 67_000_000), facts[0]);
        assert_eq!(used(67_000_000, 67_000_000), ("used", InfoField::Amount(Amount::ZERO)));
    }
}

impl Lawful for FixedWindow {
    // The end of an aligned window is not stored, and two windows with the same end cannot be distinguished.
    const LIMITS_OF_AN_EXPIRY: usize = 1;

    fn limits() -> impl Strategy<Value = FixedWindow> {
        let length = || lengths().prop_map(|window| Period::new(Span::from_micros(window)).unwrap());
        let any_offset = || offsets().prop_map(|minutes| Offset::parse(offset(minutes).as_bytes()).unwrap());
        let bounds = prop_oneof![
            length().prop_map(Bounds::FirstCall),
            length().prop_map(Bounds::Multiples),
            (length(), any_offset())
                .prop_map(|(window, offset)| Bounds::LocalTime(LocalBounds::Multiples(window, offset))),
            (CalendarWindow::any(), any_offset())
                .prop_map(|(window, offset)| Bounds::LocalTime(LocalBounds::Dates(window.implementation(), offset))),
        ];
        (amounts(), bounds).prop_map(|(limit, bounds)| FixedWindow { limit: Amount::saturating(limit), bounds })
    }

    /// Asserts that no window admits more than the limit.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        let (mut end, mut sum) = (Timestamp::EPOCH, 0);
        for (at, cost) in admitted {
            if *at >= end {
                end = match self.bounds {
                    Bounds::FirstCall(window) => at.plus(window.span()),
                    Bounds::Multiples(window) => at.aligned(window).plus(window.span()),
                    Bounds::LocalTime(LocalBounds::Multiples(window, offset)) => offset.end(window, *at),
                    Bounds::LocalTime(LocalBounds::Dates(calendar, offset)) => calendar.end(offset, *at),
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
fn refund_after_the_window_leaves_no_usage() {
    for limit in [plain(10, "1m"), aligned(10, "1m")] {
        let mut key = Key::default();
        key.call(&limit, 20_000, Take(units(8)));
        let reply = key.call(&limit, 80_000, Refund(units(3)));
        assert_eq!((reply, key.is_deleted()), ([1, 10, 10, 0, 0], true));
    }
}

#[test]
fn displayed_window_is_its_spec() {
    let tokyo = utc_offset("+09:00");
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
