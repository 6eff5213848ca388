use super::*;
use crate::Ask::{self, Force, GiveBack, Take};
use crate::calls::{Fields, Key, amounts, call, lengths, millionths, period, units};
use crate::laws::{Lawful, decoded, encoded, laws};
use proptest::prelude::*;

fn plain(limit: u64, window: &str) -> FixedWindow {
    FixedWindow::new(units(limit), period(window), false)
}

fn aligned(limit: u64, window: &str) -> FixedWindow {
    FixedWindow::new(units(limit), period(window), true)
}

fn one() -> Ask {
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
    for (at, ask, reply) in [
        (1000, Take(units(11)), [0, 10, 10, -1, 0]),
        (2000, Take(Amount::ZERO), [1, 10, 10, 0, 0]),
        (59_000, Take(units(4)), [1, 10, 6, 0, 60_000]),
        (60_000, Take(units(6)), [1, 10, 0, 0, 59_000]),
        (118_999, one(), [0, 10, 0, 1, 1]),
        (119_000, Take(Amount::ZERO), [1, 10, 10, 0, 0]),
        (130_000, one(), [1, 10, 9, 0, 60_000]),
    ] {
        assert_eq!(key.call(&limit, at, ask), reply, "{ask:?} at {at}");
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
    for (at, ask, reply) in [
        (0, Force(units(25)), [0, 10, 0, 60_000, 60_000]),
        (1000, Take(Amount::ZERO), [0, 10, 0, 59_000, 59_000]),
        (1000, Force(units(1)), [0, 10, 0, 59_000, 59_000]),
        (60_000, Force(units(10)), [1, 10, 0, 0, 60_000]),
    ] {
        assert_eq!(key.call(&limit, at, ask), reply, "{ask:?} at {at}");
    }
}

#[test]
fn upto_grants_the_whole_units_that_there_are() {
    let (limit, mut key) = (FixedWindow::new(millionths(10_500_000), period("1m"), false), Key::default());
    for (most, granted) in [(4, 4), (9, 6), (1, 0)] {
        assert_eq!(key.granted(&limit, 0, most), granted);
    }
    assert_eq!(key.call(&limit, 1000, Ask::UpTo(units(99))), [0, 10, 0, 59_000, 59_000]);
    assert_eq!(key.call(&limit, 1000, Take(millionths(500_000))), [1, 10, 0, 0, 59_000]);
}

#[test]
fn giving_back_lowers_the_open_windows_usage() {
    let mut key = Key::default();
    let (limit, longer) = (plain(10, "1m"), plain(10, "2m"));
    for (limit, at, ask, reply, gone) in [
        (&limit, 0, GiveBack(units(1)), [1, 10, 10, 0, 0], true),
        (&limit, 0, Take(units(8)), [1, 10, 2, 0, 60_000], false),
        (&limit, 20_000, GiveBack(units(3)), [1, 10, 5, 0, 40_000], false),
        (&longer, 70_000, GiveBack(units(3)), [1, 10, 8, 0, 50_000], false),
        (&limit, 70_000, GiveBack(units(1)), [1, 10, 10, 0, 0], true),
        (&limit, 70_000, one(), [1, 10, 9, 0, 60_000], false),
        (&limit, 70_000, GiveBack(units(9)), [1, 10, 10, 0, 0], true),
    ] {
        assert_eq!(key.call(limit, at, ask), reply, "{ask:?} at {at}");
        assert_eq!(key.is_gone(), gone, "{ask:?} at {at}");
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
    assert_eq!(key.call(&limit, 0, Ask::UpTo(units(1))), [0, 0, 0, -1, 0]);
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
            decoded::<FixedWindowUsage>(&Fields::integers(fields)).map(|usage| encoded(&usage)),
            Some(Fields::integers(fields))
        );
    }
    for fields in [&[][..], &[1], &[1, 5], &[0, 5, 0], &[1 << 63, 5, 0], &[1, last + 1, 0], &[1, 5, 2]] {
        assert_eq!(decoded::<FixedWindowUsage>(&Fields::integers(fields.iter().copied())), None, "{fields:?}");
    }
}

#[test]
fn people_are_told_when_a_window_opened_or_was_charged() {
    let at = Fact::Instant(Timestamp::from_micros(7_500_000).unwrap());
    for (limit, mode, instant) in [(plain(10, "1m"), "plain", "start"), (aligned(10, "1m"), "aligned", "charged")] {
        let mut key = Key::default();
        key.call(&limit, 7500, Take(units(3)));
        let facts = [("used", Fact::Amount(units(3))), ("mode", Fact::Word(mode)), (instant, at.clone())];
        assert_eq!(key.0.describe(), facts);
    }
}

impl Lawful for FixedWindow {
    // Of an aligned window no other limit knows when it ends; two that end together cannot be told apart.
    const LIMITS_OF_AN_EXPIRY: usize = 1;

    fn limits() -> impl Strategy<Value = FixedWindow> {
        (amounts(), lengths(), any::<bool>()).prop_map(|(limit, window, aligned)| {
            let window = Period::new(Span::from_micros(window)).unwrap();
            FixedWindow::new(Amount::saturating(limit), window, aligned)
        })
    }

    /// In each window, the limit.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        let (mut start, mut sum) = (None, 0);
        for (at, cost) in admitted {
            if start.is_none_or(|start: Timestamp| *at >= start.plus(self.window.span())) {
                start = Some(if self.aligned { at.aligned(self.window) } else { *at });
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
