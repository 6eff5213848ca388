//! Single cases of settlements.

use super::*;

#[test]
fn drained_usage_is_not_taken_back() {
    let limit = Bucket::new(units(10), units(60), minute(), Discipline::Burst).unwrap();
    // 9 units at 0 s and 4 at 5 s, before 3 more are charged: 4 of the first 9 are left.
    let mut key = charged(&limit, &[(0, "a", 9), (5, "", 3)]);
    assert_eq!(settled(&mut key, &limit, 5, "a", 6), 4);
    assert!(key.settlement.is_idle());
    // A settlement changes the amounts that other charges can settle: 4 of 9 units were left at 5 s, which the
    // settlement of a takes back.
    let mut key = charged(&limit, &[(0, "a", 4), (0, "b", 5), (5, "c", 3)]);
    assert_eq!(settled(&mut key, &limit, 5, "a", 3), 3);
    assert_eq!(settled(&mut key, &limit, 5, "b", 5), 1);
    assert_eq!(settled(&mut key, &limit, 5, "c", 2), 2);
    // A charge is settled once.
    assert_eq!(settled(&mut key, &limit, 5, "c", 1), 0);
}

#[test]
fn refund_is_limited_to_the_usage() {
    let limit = Bucket::new(units(100), units(60), minute(), Discipline::Burst).unwrap();
    let mut key = charged(&limit, &[(0, "a", 9)]);
    key.make(&limit, seconds(0), Call::Refund(units(7)));
    key.make(&limit, seconds(0), Call::Charge(units(50), None));
    assert_eq!(settled(&mut key, &limit, 0, "a", 9), 2);
}

#[test]
fn charge_of_an_expired_fixed_window_cannot_be_settled() {
    let limit = FixedWindow::new(units(10), minute());
    let mut key = charged(&limit, &[(0, "a", 9), (60, "b", 5)]);
    assert_eq!(settled(&mut key, &limit, 60, "a", 9), 0);
    assert_eq!(settled(&mut key, &limit, 60, "b", 4), 4);
}

#[test]
fn call_settled_to_zero_has_still_opened_its_window() {
    let limit = FixedWindow::new(units(10), minute());
    let mut key = charged(&limit, &[(0, "a", 9), (30, "", 1)]);
    assert_eq!(settled(&mut key, &limit, 40, "a", 9), 9);
    assert_eq!(limit.reset(&key.usage, seconds(40)), Span::SECOND.times(20));
}

#[test]
fn sliding_window_settles_in_the_count_of_the_charge() {
    let limit = SlidingWindow::new(units(10), minute());
    let calls = [(0, "a", 8), (60, "b", 2)];
    // Three quarters of the previous count still count.
    assert_eq!(settled(&mut charged(&limit, &calls), &limit, 75, "a", 4), 3);
    assert_eq!(settled(&mut charged(&limit, &calls), &limit, 75, "b", 2), 2);
    let mut key = charged(&limit, &[(0, "a", 8), (60, "b", 2), (120, "c", 1)]);
    assert_eq!(settled(&mut key, &limit, 120, "a", 8), 0);
    assert_eq!(settled(&mut key, &limit, 120, "b", 1), 1);
}

#[test]
fn refunded_usage_is_not_taken_back_again() {
    let limit = StrictWindow::new(units(100), minute());
    for (refunded, less, settles) in [(0, 9, 9), (4, 9, 5), (4, 5, 5), (8, 5, 1), (9, 5, 0)] {
        let mut key = charged(&limit, &[(0, "a", 9)]);
        key.make(&limit, seconds(0), Call::Charge(units(20), None));
        key.make(&limit, seconds(0), Call::Refund(units(refunded)));
        assert_eq!(settled(&mut key, &limit, 1, "a", less), settles, "{less} less after {refunded}");
    }
    // Refunds before the charge do not matter.
    let mut key = charged(&limit, &[(0, "a", 9)]);
    key.make(&limit, seconds(0), Call::Refund(units(5)));
    key.make(&limit, seconds(0), Call::Charge(units(9), Some((b"b", Span::SECOND))));
    assert_eq!(settled(&mut key, &limit, 0, "b", 9), 9);
}

#[test]
fn changed_window_ends_settlements() {
    let (limit, other) = (SlidingWindow::new(units(10), minute()), SlidingWindow::new(units(10), period("1h")));
    let mut key = charged(&limit, &[(0, "a", 5)]);
    key.make(&other, seconds(0), Call::Charge(units(1), None));
    assert_eq!(settled(&mut key, &other, 0, "a", 5), 0);
    let mut key = charged(&limit, &[(0, "a", 5)]);
    key.make(&other, seconds(1), Call::Charge(units(1), Some((b"b", period("1h").span()))));
    assert_eq!(settled(&mut key, &other, 1, "a", 5), 0);
    assert_eq!(settled(&mut key, &other, 1, "b", 1), 1);
}

#[test]
fn charges_before_the_saturation_of_a_log_cannot_be_settled() {
    let most = 1_000_000_000_000;
    let limit = SlidingLog::new(units(most), minute());
    let mut calls = vec![(0, "", most); 8];
    calls.extend([(0, "a", most), (10, "b", most), (60, "c", 1)]);
    // A fifth of the cost of b was counted: there would have been more room if a had cost less.
    for id in ["a", "b"] {
        assert_eq!(settled(&mut charged(&limit, &calls[..10]), &limit, 10, id, most), 0, "{id}");
        assert_eq!(settled(&mut charged(&limit, &calls), &limit, 69, id, most), 0, "{id}");
    }
    assert_eq!(settled(&mut charged(&limit, &calls), &limit, 70, "c", 1), 1);
}

#[test]
fn saturated_sum_of_refunds_ends_settlements() {
    let limit = SlidingLog::new(units(10), minute());
    let mut key = charged(&limit, &[(0, "", 1), (1, "a", 5)]);
    for _ in 0..10 {
        key.make(&limit, seconds(1), Call::Charge(Amount::MAX_ARGUMENT, None));
        key.make(&limit, seconds(1), Call::Refund(Amount::MAX_ARGUMENT));
    }
    key.make(&limit, seconds(2), Call::Charge(units(5), Some((b"b", Span::SECOND))));
    assert_eq!(settled(&mut key, &limit, 2, "b", 5), 0);
}

/// Asserts that a charge before the saturation cannot be settled, even after a refund.
fn assert_saturation_ends_settlements<L: Limit>(limit: &L) {
    let most = 1_000_000_000_000;
    let mut calls = vec![(0, "a", most)];
    calls.extend([(0, "", most); 9]);
    let mut key = charged(limit, &calls);
    key.make(limit, seconds(0), Call::Refund(units(1)));
    let used = key.encoded()[0].clone();
    settled(&mut key, limit, 0, "a", most);
    assert_eq!(key.encoded()[0], used, "nothing is taken back");
}

#[test]
fn charges_before_the_saturation_of_a_window_cannot_be_settled() {
    assert_saturation_ends_settlements(&SlidingWindow::new(units(10), minute()));
    assert_saturation_ends_settlements(&StrictWindow::new(units(10), minute()));
    assert_saturation_ends_settlements(&SlidingLog::new(units(10), minute()));
}
