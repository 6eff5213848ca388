//! Methods of `Key` take the time in milliseconds and return `[allowed, limit, remaining, wait_ms, reset_ms]`.

use super::*;
use crate::evaluate::Request;
use crate::evaluate::Request::{Force, Refund, Take};
use crate::testing::calls::{Key, amounts, call, lengths, millionths, period, units};
use crate::testing::encoded_fields::{EncodedFields, decoded, encoded};
use crate::testing::laws::{Lawful, laws};
use proptest::prelude::*;

fn sliding(limit: u64, window: &str) -> SlidingWindow {
    SlidingWindow::new(units(limit), period(window))
}

fn take_one() -> Request {
    Take(units(1))
}

fn zero_cost() -> Request {
    Take(Amount::ZERO)
}

/// Runs calls on a new key, each with its time in milliseconds, and compares the replies.
fn check(limit: &SlidingWindow, calls: &[(u64, Request, [i64; 5])]) -> Key<SlidingWindowUsage> {
    let mut key = Key::default();
    for (at, request, reply) in calls {
        assert_eq!(key.call(limit, *at, *request), *reply, "{request:?} at {at}");
    }
    key
}

#[test]
fn previous_window_is_weighted_by_its_overlap() {
    check(
        &sliding(10, "60s"),
        &[
            (0, Take(units(10)), [1, 10, 0, 0, 120_000]),
            (60_000, zero_cost(), [1, 10, 0, 0, 60_000]),
            (65_999, take_one(), [0, 10, 0, 1, 54_001]),
            (66_000, take_one(), [1, 10, 0, 0, 114_000]),
            // Half of the previous 10 units and 1 current unit are used.
            (90_000, zero_cost(), [1, 10, 4, 0, 90_000]),
            (90_001, Take(units(4)), [1, 10, 0, 0, 89_999]),
            (119_999, zero_cost(), [1, 10, 4, 0, 60_001]),
            (120_000, zero_cost(), [1, 10, 5, 0, 60_000]),
            (180_000, zero_cost(), [1, 10, 10, 0, 0]),
        ],
    );
}

#[test]
fn wait_ends_in_the_current_or_the_next_window() {
    check(
        &sliding(10, "60s"),
        &[
            (0, Take(units(4)), [1, 10, 6, 0, 120_000]),
            // 4 units have to fade to 1 after the end of the window.
            (30_000, Take(units(9)), [0, 10, 6, 75_000, 90_000]),
            (30_000, Take(units(10)), [0, 10, 6, 90_000, 90_000]),
            // 4 fade to 2 beside 3 in the current window, and 3 fade to 1 in the next.
            (60_000, Take(units(3)), [1, 10, 3, 0, 120_000]),
            (60_000, Take(units(5)), [0, 10, 3, 30_000, 120_000]),
            (60_000, Take(units(7)), [0, 10, 3, 60_000, 120_000]),
            (60_000, Take(units(9)), [0, 10, 3, 100_000, 120_000]),
            (60_000, Take(units(11)), [0, 10, 3, -1, 120_000]),
        ],
    );
}

#[test]
fn comparison_of_the_estimate_is_exact() {
    // Beside a third of a unit, two thirds fit if rounded down to a millionth, but not if rounded up.
    let limit = SlidingWindow::new(units(1), period("3us"));
    let at = |micros| Timestamp::from_micros(micros).unwrap();
    for (cost, allowed) in [(666_666, true), (666_667, false)] {
        let mut usage = SlidingWindowUsage::default();
        call(&limit, &mut usage, at(0), take_one());
        assert_eq!(call(&limit, &mut usage, at(5), Take(millionths(cost))).verdict.allowed(), allowed);
    }
}

#[test]
fn windows_follow_each_other_until_recovery() {
    check(
        &sliding(10, "60s"),
        &[
            (50_000, Take(units(11)), [0, 10, 10, -1, 0]),
            (50_000, zero_cost(), [1, 10, 10, 0, 0]),
            (100_000, take_one(), [1, 10, 9, 0, 120_000]),
            // The second window opened at 160 s.
            (219_000, take_one(), [1, 10, 8, 0, 61_000]),
            (279_999, zero_cost(), [1, 10, 9, 0, 1]),
            // The key has just recovered, so a new window opens now.
            (280_000, take_one(), [1, 10, 9, 0, 120_000]),
        ],
    );
}

#[test]
fn trailing_window_can_hold_nearly_twice_the_limit() {
    let (limit, mut key) = (sliding(10, "60s"), Key::default());
    assert_eq!(key.admitted(&limit, 0, 1), 1);
    let last = key.admitted(&limit, 59_999, 20);
    let in_next_window: usize = (60_000..119_999).step_by(100).map(|at| key.admitted(&limit, at, 20)).sum();
    assert_eq!((last, in_next_window), (9, 9));
}

#[test]
fn charge_under_another_window_length_keeps_the_remaining_usage() {
    for (window, reset) in [("10s", 20_000), ("1h", 7_200_000)] {
        let mut key = check(&sliding(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 120_000])]);
        let limit = sliding(10, window);
        // Until the next charge, the usage decays under the stored length, and so do wait and reset.
        assert_eq!(key.call(&limit, 90_000, Take(units(7))), [0, 10, 6, 7500, 30_000]);
        assert_eq!(key.peek(&limit, 97_500, Take(units(7))), [1, 10, 7, 0, 22_500]);
        // 4 units still count.
        assert_eq!(key.call(&limit, 90_000, take_one()), [1, 10, 5, 0, reset]);
        assert_eq!(key.peek(&limit, 90_000, Take(units(6)))[3], reset / 10 * 6);
    }
    // Usage that no longer counts does not affect the new window.
    let mut key = check(&sliding(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 120_000])]);
    assert_eq!(key.call(&sliding(10, "1h"), 120_000, take_one()), [1, 10, 9, 0, 7_200_000]);
}

#[test]
fn usage_kept_under_another_length_is_rounded_up() {
    let mut key = Key::default();
    key.call(&sliding(1, "60s"), 0, Take(millionths(1)));
    key.call(&sliding(1, "10s"), 90_000, Take(millionths(1)));
    assert_eq!(key.peek(&sliding(1, "10s"), 90_000, Take(millionths(999_998))), [1, 1, 0, 0, 20_000]);
    assert_eq!(key.peek(&sliding(1, "10s"), 90_000, Take(millionths(999_999)))[0], 0);
}

#[test]
fn refund_lowers_the_current_count_and_then_the_estimate() {
    let key = check(
        &sliding(10, "60s"),
        &[
            (0, Refund(units(1)), [1, 10, 10, 0, 0]),
            (0, Take(units(8)), [1, 10, 2, 0, 120_000]),
            (30_000, Refund(units(2)), [1, 10, 4, 0, 90_000]),
            (90_000, Take(units(2)), [1, 10, 5, 0, 90_000]),
            // Refunds the current count of 2, and 1 of the estimate of 3 from the previous 6, of which 4 are left.
            (90_000, Refund(units(3)), [1, 10, 8, 0, 30_000]),
            (105_000, zero_cost(), [1, 10, 9, 0, 15_000]),
            (105_000, Refund(units(1)), [1, 10, 10, 0, 0]),
            // The new window opens now, not where the next one would have followed.
            (106_000, take_one(), [1, 10, 9, 0, 120_000]),
        ],
    );
    assert!(!key.is_deleted());
    let mut key = check(&sliding(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 120_000])]);
    assert_eq!(key.call(&sliding(10, "60s"), 90_000, Refund(units(99))), [1, 10, 10, 0, 0]);
    assert!(key.is_deleted());
}

#[test]
fn refund_is_rounded_against_the_client() {
    // The previous count is weighted by two thirds. To lower the estimate by a millionth, the count would have to
    // decrease by one and a half, which is rounded down. So three refunds of a millionth lower the estimate by two.
    let (limit, mut key) = (SlidingWindow::new(units(1), period("3s")), Key::default());
    key.call(&limit, 0, Take(millionths(900_000)));
    for _ in 0..3 {
        key.call(&limit, 4000, Refund(millionths(1)));
    }
    assert_eq!(key.peek(&limit, 4000, Take(millionths(400_002)))[0], 1);
    assert_eq!(key.peek(&limit, 4000, Take(millionths(400_003)))[0], 0);
}

#[test]
fn refund_under_another_length_opens_a_window() {
    let mut key = check(&sliding(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 120_000])]);
    assert_eq!(key.call(&sliding(10, "10s"), 90_000, Refund(units(1))), [1, 10, 7, 0, 20_000]);
    assert_eq!(key.call(&sliding(10, "10s"), 90_000, Refund(units(3))), [1, 10, 10, 0, 0]);
    assert!(key.is_deleted());
}

#[test]
fn forced_debt_fades_with_its_window() {
    let limit = sliding(10, "60s");
    assert_eq!(
        Key::default().peek(&limit, 0, Force(units(40))),
        [0, 10, 10, 105_000, 0],
        "a peek with FORCE reports the wait after the charge"
    );
    check(
        &limit,
        &[
            (0, Force(units(40)), [0, 10, 0, 105_000, 120_000]),
            (60_000, zero_cost(), [0, 10, 0, 45_000, 60_000]),
            (104_999, zero_cost(), [0, 10, 0, 1, 15_001]),
            (105_000, zero_cost(), [1, 10, 0, 0, 15_000]),
            (105_000, take_one(), [0, 10, 0, 1500, 15_000]),
            (105_000, Force(units(1)), [0, 10, 0, 1500, 75_000]),
            (119_000, Force(units(1)), [1, 10, 7, 0, 61_000]),
        ],
    );
}

#[test]
fn upto_grants_the_remaining_whole_units() {
    let (limit, mut key) = (sliding(10, "60s"), Key::default());
    for (at, cost, granted) in [(0, 8, 8), (0, 8, 2), (0, 1, 0), (65_999, 9, 0), (66_000, 9, 1), (78_001, 9, 2)] {
        assert_eq!(key.granted(&limit, at, cost), granted, "{at}");
    }
    assert_eq!(key.call(&limit, 78_001, Request::UpTo(units(9))), [0, 10, 0, 5999, 101_999]);
    assert_eq!(key.call(&sliding(0, "60s"), 78_001, Request::UpTo(units(9)))[3], -1);
}

#[test]
fn limit_of_zero_admits_only_a_cost_of_zero() {
    let limit = sliding(0, "60s");
    check(&limit, &[(0, Take(millionths(1)), [0, 0, 0, -1, 0]), (0, zero_cost(), [1, 0, 0, 0, 0])]);
}

#[test]
fn clock_step_back_reopens_the_window_with_its_counts() {
    let limit = sliding(10, "60s");
    let mut key = check(
        &limit,
        &[(1_000_000, Take(units(8)), [1, 10, 2, 0, 120_000]), (1_090_000, take_one(), [1, 10, 5, 0, 90_000])],
    );
    // The window opened at 1060 s. At an earlier time both counts have full weight.
    assert_eq!(key.peek(&limit, 1_060_000, zero_cost()), [1, 10, 1, 0, 120_000]);
    assert_eq!(key.peek(&limit, 500_000, Take(units(2))), [0, 10, 1, 7500, 120_000]);
    assert_eq!(key.peek(&limit, 1_120_000, zero_cost()), [1, 10, 9, 0, 60_000], "a peek changes nothing");
    assert_eq!(key.call(&limit, 500_000, Take(units(2))), [0, 10, 1, 7500, 120_000]);
    assert_eq!(key.peek(&limit, 620_000, zero_cost()), [1, 10, 10, 0, 0], "a denied call stores the moved-back time");
}

#[test]
fn counts_saturate() {
    let (limit, mut key) = (sliding(1_000_000_000_000, "60s"), Key::default());
    for at in [0, 60_000] {
        for _ in 0..20 {
            key.call(&limit, at, Force(Amount::MAX_ARGUMENT));
        }
    }
    // Both counts are saturated at 9.22 times the limit, and the current count has to fade to the limit.
    assert_eq!(key.peek(&limit, 60_000, zero_cost()), [0, 1_000_000_000_000, 0, 113_495, 120_000]);
}

#[test]
fn usage_is_32_bytes_and_rejects_invalid_encodings() {
    assert_eq!(size_of::<SlidingWindowUsage>(), 32);
    let (last, max_window, max) = (Timestamp::MAX.micros(), 3650 * 86_400_000_000, Amount::MAX.millionths());
    for fields in [[0, 1, 1, 0], [0, 1, 0, 1], [last, max_window, max, max]] {
        assert_eq!(
            decoded::<SlidingWindowUsage>(&EncodedFields::integers(fields)).map(|usage| encoded(&usage)),
            Some(EncodedFields::integers(fields))
        );
    }
    for fields in [
        &[][..],
        &[5, 1, 1],
        &[5, 1, 0, 0],
        &[5, 0, 1, 1],
        &[5, max_window + 1, 1, 1],
        &[last + 1, 1, 1, 1],
        &[5, 1, 1 << 63, 1],
        &[5, 1, 1, 1 << 63],
    ] {
        assert_eq!(decoded::<SlidingWindowUsage>(&EncodedFields::integers(fields.iter().copied())), None, "{fields:?}");
    }
}

#[test]
fn description_shows_both_counts_and_the_window() {
    let (limit, mut key) = (sliding(10, "60s"), Key::default());
    key.call(&limit, 5000, Take(units(4)));
    key.call(&limit, 66_000, Take(units(3)));
    assert_eq!(
        key.0.describe(Timestamp::EPOCH, None),
        [
            ("used", InfoField::Amount(units(7))),
            ("previous", InfoField::Amount(units(4))),
            ("current", InfoField::Amount(units(3))),
            ("start", InfoField::Instant(Timestamp::from_micros(65_000_000).unwrap())),
            ("window", InfoField::Span(period("60s").span())),
        ]
    );
    let used = |millis: u64| key.0.describe(Timestamp::from_micros(millis * 1000).unwrap(), None)[0].clone();
    for (millis, expected) in [(95_000, 5), (125_000, 3), (145_000, 2), (185_000, 0), (500_000, 0)] {
        assert_eq!(used(millis), ("used", InfoField::Amount(units(expected))), "{millis}");
    }
}

impl Lawful for SlidingWindow {
    fn limits() -> impl Strategy<Value = SlidingWindow> {
        (amounts(), lengths()).prop_map(|(limit, window)| {
            SlidingWindow::new(Amount::saturating(limit), Period::new(Span::from_micros(window)).unwrap())
        })
    }

    /// Asserts that no trailing window admits twice the limit.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        for (now, _) in admitted {
            let trailing = admitted.iter().filter(|(at, _)| at <= now && at.plus(self.window.span()) > *now);
            let sum: u128 = trailing.map(|(_, cost)| cost).sum();
            assert!(sum < 2 * u128::from(self.limit.millionths()));
        }
    }
}

laws!(SlidingWindow);

#[test]
fn steady_caller_within_the_limit_is_never_denied() {
    // 100 calls in 10 s, plus one for the call at the start of a window, when the previous count still weighs 100.
    let (limit, mut key) = (sliding(101, "10s"), Key::default());
    assert!((0..1000).all(|call| key.call(&limit, call * 100, take_one())[0] == 1));
}

#[test]
fn admitted_units_fill_the_estimate_exactly() {
    let (limit, mut key) = (sliding(10, "10s"), Key::default());
    // At the end, 7.5 of the 10 still count.
    assert_eq!([0, 10_000, 12_500].map(|at| key.admitted(&limit, at, 12)), [10, 0, 2]);
    assert_eq!(key.call(&limit, 12_500, Take(millionths(500_000)))[0], 1);
    assert_eq!(key.call(&limit, 12_500, Take(millionths(1)))[0], 0);
}
