//! Methods of `Key` take the time in milliseconds and return `[allowed, limit, remaining, wait_ms, reset_ms]`.

use super::*;
use crate::evaluate::Request;
use crate::evaluate::Request::{Force, Refund, Take, UpTo};
use crate::testing::calls::{Key, amounts, assert_charge_counts_until, call, lengths, millionths, period, units, us};
use crate::testing::encoded_fields::{EncodedFields, decoded, encoded};
use crate::testing::laws::{Lawful, laws};
use proptest::collection::vec;
use proptest::prelude::*;

/// Maximum window in microseconds.
const MAX_WINDOW: u64 = 3650 * 86_400_000_000;

fn strict(limit: u64, window: &str) -> StrictWindow {
    StrictWindow::new(units(limit), period(window))
}

fn strict_micros(limit: u64, window: u64) -> StrictWindow {
    StrictWindow::new(units(limit), Period::new(Span::from_micros(window)).unwrap())
}

fn take_one() -> Request {
    Take(units(1))
}

fn zero_cost() -> Request {
    Take(Amount::ZERO)
}

/// Runs calls on a new key, each with its time in milliseconds, and compares the replies.
fn check(limit: &StrictWindow, calls: &[(u64, Request, [i64; 5])]) -> Key<StrictWindowUsage> {
    let mut key = Key::default();
    for (at, request, reply) in calls {
        assert_eq!(key.call(limit, *at, *request), *reply, "{request:?} at {at}");
    }
    key
}

#[test]
fn slot_expires_when_its_last_microsecond_is_a_window_old() {
    for (window, charged_at, expires_at) in [
        (60_000_000, 0, 60_999_999),
        (60_000_000, 999_999, 60_999_999),
        (60_000_000, 1_000_000, 61_999_999),
        // Slots of one microsecond are exact.
        (1, 5, 6),
        (59, 5, 64),
        (60, 5, 65),
        // Slots are 2 us long from a window of 61 us on, and 3 us long from 121 us on.
        (61, 4, 66),
        (61, 5, 66),
        (61, 6, 68),
        (120, 5, 125),
        (121, 5, 126),
        (121, 6, 129),
        (MAX_WINDOW, 7, MAX_WINDOW / 60 - 1 + MAX_WINDOW),
    ] {
        assert_charge_counts_until(&strict_micros(10, window), &strict_micros(10, window), charged_at, expires_at);
    }
}

#[test]
fn usage_counts_in_61_slots() {
    let (limit, mut usage) = (strict(61, "60s"), StrictWindowUsage::default());
    let mut passes = |at| call(&limit, &mut usage, us(at), take_one()).verdict.allowed();
    assert!((0..=60).all(|second| passes(second * 1_000_000)));
    for (slot, expires_at) in [(60, 60_999_999), (61, 61_999_999)] {
        assert_eq!(
            [slot * 1_000_000, expires_at - 1, expires_at, expires_at].map(&mut passes),
            [false, false, true, false]
        );
    }
}

#[test]
fn limit_is_admitted_once_at_any_offset_in_a_slot() {
    let limit = strict(10, "60s");
    for first in [0, 1, 500_000, 999_999] {
        let mut usage = StrictWindowUsage::default();
        let mut passes = |at| call(&limit, &mut usage, us(at), take_one()).verdict.allowed();
        let mut admitted = |at| (0..20).filter(|_| passes(at)).count();
        let times = [first, first + 59_999_999, 60_999_998, 60_999_999, 120_999_998, 120_999_999];
        assert_eq!(times.map(&mut admitted), [10, 0, 0, 10, 0, 10], "{first}");
    }
}

#[test]
fn wait_ends_when_enough_slots_have_expired() {
    let (limit, mut key) = (strict(10, "60s"), Key::default());
    for (second, cost) in [(0, 2), (10, 3), (20, 4)] {
        assert_eq!(key.call(&limit, second * 1000, Take(units(cost)))[0], 1);
    }
    for (cost, allowed, wait) in [
        (0, 1, 0),
        (1, 1, 0),
        (2, 0, 41_000),
        (3, 0, 41_000),
        (4, 0, 51_000),
        (6, 0, 51_000),
        (7, 0, 61_000),
        (10, 0, 61_000),
        (11, 0, -1),
    ] {
        assert_eq!(key.peek(&limit, 20_000, Take(units(cost))), [allowed, 10, 1, wait, 61_000], "{cost}");
    }
}

#[test]
fn charge_under_another_window_length_keeps_the_remaining_usage() {
    // With a window of 10 s, a slot is 166667 us long, and the slot that contains 30 s ends 60 us later. With a window
    // of an hour, a slot is a minute long.
    for (window, reset) in [("10s", 10_001), ("1h", 3_630_000)] {
        let limit = strict(10, window);
        let mut key = check(&strict(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 61_000])]);
        // Until the next charge, the usage expires under the stored length, and so do wait and reset.
        assert_eq!(key.call(&limit, 30_000, Take(units(3))), [0, 10, 2, 31_000, 31_000]);
        assert_eq!(key.peek(&limit, 60_999, zero_cost()), [1, 10, 2, 0, 1]);
        assert_eq!(key.peek(&limit, 61_000, zero_cost()), [1, 10, 10, 0, 0]);
        // 8 still count, and move to the current slot with the new charge.
        assert_eq!(key.call(&limit, 30_000, take_one()), [1, 10, 1, 0, reset]);
        assert_eq!(key.peek(&limit, 30_000, Take(units(2)))[3], reset);
        assert_eq!(key.peek(&strict(10, "60s"), 30_000, Take(units(2)))[3], reset);
    }
    for (window, charged_at, expires_at) in [("10s", 500, 60_999_999), ("1h", 59_999_999, 119_999_999)] {
        assert_charge_counts_until(&strict(10, "60s"), &strict(10, window), charged_at, expires_at);
    }
    // A refund keeps the remaining usage, too.
    let mut key = check(&strict(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 61_000])]);
    assert_eq!(key.call(&strict(10, "1h"), 30_000, Refund(units(1))), [1, 10, 3, 0, 3_630_000]);
}

#[test]
fn refund_is_subtracted_from_the_oldest_slots() {
    let key = check(
        &strict(10, "60s"),
        &[
            (0, Refund(units(1)), [1, 10, 10, 0, 0]),
            (0, Take(units(5)), [1, 10, 5, 0, 61_000]),
            (30_000, Take(units(5)), [1, 10, 0, 0, 61_000]),
            (31_000, Refund(units(5)), [1, 10, 5, 0, 60_000]),
            (32_000, Take(units(5)), [1, 10, 0, 0, 61_000]),
            // If the newer slot had been refunded, the 5 units of the first slot would expire now, and 15 units would
            // be used within 60 s.
            (61_000, take_one(), [0, 10, 0, 30_000, 32_000]),
            (61_000, Refund(units(7)), [1, 10, 7, 0, 32_000]),
            (61_000, Refund(millionths(2_999_999)), [1, 10, 9, 0, 32_000]),
            (61_000, Refund(millionths(2)), [1, 10, 10, 0, 0]),
        ],
    );
    assert!(key.is_deleted());
    // Expired usage is not refunded.
    check(
        &strict(10, "60s"),
        &[
            (0, Take(units(4)), [1, 10, 6, 0, 61_000]),
            (60_500, Take(units(4)), [1, 10, 2, 0, 60_500]),
            (61_000, Refund(units(3)), [1, 10, 9, 0, 60_000]),
        ],
    );
}

#[test]
fn forced_debt_expires_with_its_slots() {
    let limit = strict(10, "60s");
    let mut key = check(&limit, &[(0, Force(units(8)), [1, 10, 2, 0, 61_000])]);
    assert_eq!(
        key.peek(&limit, 30_000, Force(units(25))),
        [0, 10, 2, 61_000, 31_000],
        "a peek with FORCE reports the wait after the charge"
    );
    for (at, request, reply) in [
        (30_000, Force(units(25)), [0, 10, 0, 61_000, 61_000]),
        (61_000, zero_cost(), [0, 10, 0, 30_000, 30_000]),
        (90_999, Force(Amount::ZERO), [0, 10, 0, 1, 1]),
        (91_000, take_one(), [1, 10, 9, 0, 61_000]),
    ] {
        assert_eq!(key.call(&limit, at, request), reply, "{request:?} at {at}");
    }
}

#[test]
fn upto_grants_the_remaining_whole_units() {
    let (limit, mut key) = (StrictWindow::new(millionths(10_500_000), period("60s")), Key::default());
    for (at, cost, granted) in [(0, 4, 4), (1000, 9, 6), (1000, 1, 0), (60_999, 9, 0), (61_000, 9, 4), (62_000, 9, 6)] {
        assert_eq!(key.granted(&limit, at, cost), granted, "{at}");
    }
    assert_eq!(key.call(&limit, 62_000, UpTo(units(9))), [0, 10, 0, 60_000, 61_000]);
    assert_eq!(Key::default().call(&strict(0, "60s"), 0, UpTo(units(9))), [0, 0, 0, -1, 0]);
}

#[test]
fn limit_of_zero_admits_only_a_cost_of_zero() {
    check(&strict(0, "60s"), &[(0, Take(millionths(1)), [0, 0, 0, -1, 0]), (0, zero_cost(), [1, 0, 0, 0, 0])]);
}

#[test]
fn clock_step_back_moves_the_slots() {
    let limit = strict(10, "60s");
    let mut key = check(
        &limit,
        &[(990_200, Take(units(4)), [1, 10, 6, 0, 60_800]), (1_000_500, Take(units(6)), [1, 10, 0, 0, 60_500])],
    );
    // A step of 959.8 s: the end of the older slot moves to 31.199999 s, and the end of the newer slot to after now.
    assert_eq!(key.peek(&limit, 40_700, Take(units(4))), [0, 10, 0, 51_300, 60_300]);
    assert_eq!(key.peek(&limit, 1_061_000, zero_cost()), [1, 10, 10, 0, 0], "a peek changes nothing");
    assert_eq!(key.call(&limit, 40_700, Take(units(4))), [0, 10, 0, 51_300, 60_300]);
    assert_eq!(key.peek(&limit, 91_999, Take(units(4))), [0, 10, 0, 1, 9001], "a denied call stores the moved slots");
    assert_eq!(key.peek(&limit, 92_000, Take(units(4))), [1, 10, 4, 0, 9000]);
    // A step to the epoch, where all earlier slots are merged.
    assert_eq!(key.peek(&limit, 0, take_one()), [0, 10, 0, 61_000, 61_000]);
    assert_eq!(key.call(&limit, 0, take_one()), [0, 10, 0, 61_000, 61_000]);
    assert_eq!(encoded(&key.0), EncodedFields::integers([60_000_000, 0, 1, 0, 10_000_000]));
}

#[test]
fn clock_step_back_by_a_microsecond_frees_no_usage() {
    let limit = strict(10, "60s");
    for charged_at in [1_000_000_000, 1_000_000_001, 1_000_999_999] {
        let (mut usage, now) = (StrictWindowUsage::default(), us(charged_at - 1));
        call(&limit, &mut usage, us(charged_at), Take(units(10)));
        let moved = call(&limit, &mut usage, now, take_one());
        let new = call(&limit, &mut StrictWindowUsage::default(), now, take_one());
        assert_eq!((moved.verdict, moved.reset), (Verdict::After(new.reset), new.reset), "as if charged now");
        // Once the clock has caught up, the usage is not moved again.
        let before = encoded(&usage);
        call(&limit, &mut usage, us(charged_at), take_one());
        assert_eq!(encoded(&usage), before);
    }
}

#[test]
fn counts_saturate_per_slot() {
    let (limit, mut key) = (strict(1_000_000_000_000, "60s"), Key::default());
    for at in [0, 1000] {
        for _ in 0..20 {
            key.call(&limit, at, Force(Amount::MAX_ARGUMENT));
        }
    }
    assert_eq!(key.peek(&limit, 1000, zero_cost()), [0, 1_000_000_000_000, 0, 61_000, 61_000]);
    for (times, remaining) in [(17, 0), (1, 553_255_926_290), (1, 1_000_000_000_000)] {
        for _ in 0..times {
            key.call(&limit, 1000, Refund(Amount::MAX_ARGUMENT));
        }
        assert_eq!(key.peek(&limit, 1000, zero_cost())[2], remaining);
    }
    assert!(key.is_deleted());
}

#[test]
fn usage_is_504_bytes_and_rejects_invalid_encodings() {
    assert_eq!(size_of::<StrictWindowUsage>(), 504);
    let (last, max) = (Timestamp::MAX.micros(), Amount::MAX.millionths());
    let all = [60_000_000, 60_000_000, 61].into_iter().chain((0..61).flat_map(|age| [age, max]));
    for fields in [
        vec![1, 0, 1, 0, 1],
        vec![60_000_000, 60_999_998, 1, 60, 7],
        vec![60_000_000, 5_000_000, 2, 0, 1, 5, 1],
        vec![MAX_WINDOW, last, 2, 3, max, 60, 1],
        all.clone().collect(),
    ] {
        let fields = EncodedFields::integers(fields);
        assert_eq!(decoded::<StrictWindowUsage>(&fields).map(|usage| encoded(&usage)), Some(fields.clone()));
        assert!(fields.proper_prefixes().all(|fields| decoded::<StrictWindowUsage>(&fields).is_none()));
    }
    let mut too_many: Vec<u64> = all.chain([61, 1]).collect();
    too_many[2] = 62;
    for (case, fields) in [
        ("no window", &[0, 5, 1, 0, 1][..]),
        ("too long a window", &[MAX_WINDOW + 1, 5, 1, 0, 1]),
        ("a time out of range", &[60_000_000, last + 1, 1, 0, 1]),
        ("no slot in use", &[60_000_000, 5, 0]),
        ("62 slots in use", &too_many),
        ("ages out of order", &[60_000_000, 5_000_000, 2, 1, 1, 0, 1]),
        ("a repeated age", &[60_000_000, 5_000_000, 2, 1, 1, 1, 1]),
        ("an age of 61", &[60_000_000, 99_000_000, 1, 61, 1]),
        ("a slot before the epoch", &[60_000_000, 4_999_999, 1, 5, 1]),
        ("an expired slot", &[60_000_000, 60_999_999, 1, 60, 7]),
        ("an expired slot of a microsecond", &[1, 5, 1, 1, 1]),
        ("a count of zero", &[60_000_000, 5, 1, 0, 0]),
        ("a count past saturation", &[60_000_000, 5, 1, 0, max + 1]),
    ] {
        assert_eq!(decoded::<StrictWindowUsage>(&EncodedFields::integers(fields.iter().copied())), None, "{case}");
    }
}

#[test]
fn slot_that_expires_during_the_newest_slot_is_dropped_by_the_next_charge() {
    let (limit, mut usage) = (strict(10, "60s"), StrictWindowUsage::default());
    for (at, fields) in [
        (0, &[60_000_000, 0, 1, 0, 1_000_000][..]),
        (60_500_000, &[60_000_000, 60_500_000, 2, 0, 1_000_000, 60, 1_000_000]),
        (60_999_999, &[60_000_000, 60_999_999, 1, 0, 2_000_000]),
    ] {
        call(&limit, &mut usage, us(at), take_one());
        assert_eq!(encoded(&usage), EncodedFields::integers(fields.iter().copied()), "{at}");
    }
}

#[test]
fn description_shows_the_sum_of_all_slots() {
    let (limit, mut key) = (strict(10, "60s"), Key::default());
    key.call(&limit, 5000, Take(units(4)));
    key.call(&limit, 65_998, Take(units(3)));
    assert_eq!(
        key.0.describe(Timestamp::EPOCH, None),
        [
            ("used", InfoField::Amount(units(7))),
            ("written", InfoField::Instant(us(65_998_000))),
            ("window", InfoField::Span(period("60s").span())),
        ]
    );
    let used = |seconds: u64| key.0.describe(us(seconds * 1_000_000), None)[0].clone();
    for (seconds, expected) in [(66, 3), (125, 3), (128, 0)] {
        assert_eq!(used(seconds), ("used", InfoField::Amount(units(expected))), "{seconds}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn caller_that_always_sends_gets_nearly_the_whole_limit(
        limit in 1..=100u64,
        window in lengths(),
        begin in 0..1_000_000_000_000_000u64,
        earlier in vec((0..=15u64, 1..=100u64), 0..10),
        is_always_sending in any::<bool>(),
    ) {
        const WINDOWS: u64 = 8;
        // A caller that sends every microsecond gets 60/61 of the limit. With 150 calls per window it gets 96/100.
        let (interval, numerator, denominator) =
            if is_always_sending { (1, 60, 61) } else { (window.div_ceil(150), 96, 100) };
        let (strict_limit, mut usage, mut now) = (strict_micros(limit, window), StrictWindowUsage::default(), begin);
        for (percent, cost) in earlier {
            now += window * percent / 100;
            call(&strict_limit, &mut usage, us(now), UpTo(units(cost)));
        }
        let mut admitted = limit - strict_limit.remaining(&usage, us(now)).whole_units();
        let end = now + WINDOWS * window;
        // Far more than two calls per slot or 150 per window: only waits that make no progress need so many.
        let mut calls = 0..10_000;
        while now < end {
            prop_assert!(calls.next().is_some(), "still at {now} of {end}");
            let decision = call(&strict_limit, &mut usage, us(now), UpTo(units(limit)));
            admitted += decision.granted.unwrap().whole_units();
            // Denied calls change nothing, so they are skipped.
            let wait = if let Verdict::After(wait) = decision.verdict { wait.micros().max(1) } else { 1 };
            now += wait.div_ceil(interval) * interval;
        }
        prop_assert!(admitted * denominator >= limit * WINDOWS * numerator, "{admitted} of {}", limit * WINDOWS);
    }
}

impl Lawful for StrictWindow {
    fn limits() -> impl Strategy<Value = StrictWindow> {
        (amounts(), lengths()).prop_map(|(limit, window)| {
            StrictWindow::new(Amount::saturating(limit), Period::new(Span::from_micros(window)).unwrap())
        })
    }

    /// Asserts that no trailing window admits more than the limit. A window is fullest just after a charge.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        for (now, _) in admitted {
            let trailing = admitted.iter().filter(|(at, _)| at <= now && at.plus(self.window.span()) > *now);
            let sum: u128 = trailing.map(|(_, cost)| cost).sum();
            assert!(sum <= u128::from(self.limit.millionths()));
        }
    }

    // A denial never lasts longer than a full recovery: after a clock step back, no slot is later than the slot of a
    // charge made now.
}

laws!(StrictWindow);
