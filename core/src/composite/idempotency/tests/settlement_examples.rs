//! Examples of settlements.

use super::*;

#[test]
fn drained_usage_is_not_taken_back() {
    let limit = Bucket::new(units(10), units(60), minute(), Discipline::Burst).unwrap();
    // 9 units are used at 0 s, and 4 of them are left at 5 s, when 3 more are charged.
    let mut key = key_after_calls(&limit, &[(0, "a", 9), (5, "", 3)]);
    assert_eq!(settle(&mut key, &limit, 5, "a", 6), 4);
    assert!(key.settlement.is_idle());
    // A settlement changes the amounts that later settlements can take back: 4 of 9 units are left at 5 s, and the
    // settlement of `a` takes 3 of them back.
    let mut key = key_after_calls(&limit, &[(0, "a", 4), (0, "b", 5), (5, "c", 3)]);
    assert_eq!(settle(&mut key, &limit, 5, "a", 3), 3);
    assert_eq!(settle(&mut key, &limit, 5, "b", 5), 1);
    assert_eq!(settle(&mut key, &limit, 5, "c", 2), 2);
    // A charge is settled once.
    assert_eq!(settle(&mut key, &limit, 5, "c", 1), 0);
}

#[test]
fn settlement_after_a_refund_takes_back_at_most_the_lowest_usage() {
    let limit = Bucket::new(units(100), units(60), minute(), Discipline::Burst).unwrap();
    let mut key = key_after_calls(&limit, &[(0, "a", 9)]);
    key.call(&limit, seconds(0), Call::Refund(units(7)));
    key.call(&limit, seconds(0), Call::Charge(units(50), None));
    assert_eq!(settle(&mut key, &limit, 0, "a", 9), 2);
}

#[test]
fn charge_of_an_expired_fixed_window_cannot_be_settled() {
    let limit = FixedWindow::new(units(10), minute());
    let mut key = key_after_calls(&limit, &[(0, "a", 9), (60, "b", 5)]);
    assert_eq!(settle(&mut key, &limit, 60, "a", 9), 0);
    assert_eq!(settle(&mut key, &limit, 60, "b", 4), 4);
}

#[test]
fn window_of_a_call_settled_to_zero_stays_open() {
    let limit = FixedWindow::new(units(10), minute());
    let mut key = key_after_calls(&limit, &[(0, "a", 9), (30, "", 1)]);
    assert_eq!(settle(&mut key, &limit, 40, "a", 9), 9);
    assert_eq!(limit.reset(&key.usage, seconds(40)), Span::SECOND.times(20));
}

#[test]
fn settlement_in_a_sliding_window_reduces_the_count_of_the_charge() {
    let limit = SlidingWindow::new(units(10), minute());
    let calls = [(0, "a", 8), (60, "b", 2)];
    // Three quarters of the previous count still count.
    assert_eq!(settle(&mut key_after_calls(&limit, &calls), &limit, 75, "a", 4), 3);
    assert_eq!(settle(&mut key_after_calls(&limit, &calls), &limit, 75, "b", 2), 2);
    let mut key = key_after_calls(&limit, &[(0, "a", 8), (60, "b", 2), (120, "c", 1)]);
    assert_eq!(settle(&mut key, &limit, 120, "a", 8), 0);
    assert_eq!(settle(&mut key, &limit, 120, "b", 1), 1);
}

#[test]
fn refunded_usage_is_not_taken_back_again() {
    let limit = StrictWindow::new(units(100), minute());
    for (refunded, reduction, taken) in [(0, 9, 9), (4, 9, 5), (4, 5, 5), (8, 5, 1), (9, 5, 0)] {
        let mut key = key_after_calls(&limit, &[(0, "a", 9)]);
        key.call(&limit, seconds(0), Call::Charge(units(20), None));
        key.call(&limit, seconds(0), Call::Refund(units(refunded)));
        assert_eq!(settle(&mut key, &limit, 1, "a", reduction), taken, "{reduction} less after a refund of {refunded}");
    }
    // Refunds before the charge do not matter.
    let mut key = key_after_calls(&limit, &[(0, "a", 9)]);
    key.call(&limit, seconds(0), Call::Refund(units(5)));
    key.call(&limit, seconds(0), Call::Charge(units(9), Some((b"b", Span::SECOND))));
    assert_eq!(settle(&mut key, &limit, 0, "b", 9), 9);
}

#[test]
fn charge_before_a_change_of_the_window_cannot_be_settled() {
    let (limit, longer) = (SlidingWindow::new(units(10), minute()), SlidingWindow::new(units(10), period("1h")));
    let mut key = key_after_calls(&limit, &[(0, "a", 5)]);
    key.call(&longer, seconds(0), Call::Charge(units(1), None));
    assert_eq!(settle(&mut key, &longer, 0, "a", 5), 0);
    let mut key = key_after_calls(&limit, &[(0, "a", 5)]);
    key.call(&longer, seconds(1), Call::Charge(units(1), Some((b"b", period("1h").span()))));
    assert_eq!(settle(&mut key, &longer, 1, "a", 5), 0);
    assert_eq!(settle(&mut key, &longer, 1, "b", 1), 1);
}

#[test]
fn charges_before_the_saturation_of_a_log_cannot_be_settled() {
    let max = 1_000_000_000_000;
    let limit = SlidingLog::new(units(max), minute());
    let mut calls = vec![(0, "", max); 8];
    calls.extend([(0, "a", max), (10, "b", max), (60, "c", 1)]);
    // The log saturated at `b`, and counted only a part of its cost. It would have counted more if `a` had cost less.
    for id in ["a", "b"] {
        assert_eq!(settle(&mut key_after_calls(&limit, &calls[..10]), &limit, 10, id, max), 0, "{id}");
        assert_eq!(settle(&mut key_after_calls(&limit, &calls), &limit, 69, id, max), 0, "{id}");
    }
    assert_eq!(settle(&mut key_after_calls(&limit, &calls), &limit, 70, "c", 1), 1);
}

#[test]
fn saturated_sum_of_refunds_ends_settlements() {
    let limit = SlidingLog::new(units(10), minute());
    let mut key = key_after_calls(&limit, &[(0, "", 1), (1, "a", 5)]);
    for _ in 0..10 {
        key.call(&limit, seconds(1), Call::Charge(Amount::MAX_ARGUMENT, None));
        key.call(&limit, seconds(1), Call::Refund(Amount::MAX_ARGUMENT));
    }
    key.call(&limit, seconds(2), Call::Charge(units(5), Some((b"b", Span::SECOND))));
    assert_eq!(settle(&mut key, &limit, 2, "b", 5), 0);
}

/// Asserts that a charge before the saturation cannot be settled, even after a refund.
fn assert_saturation_ends_settlements<L: Limit>(limit: &L) {
    let max = 1_000_000_000_000;
    let mut calls = vec![(0, "a", max)];
    calls.extend([(0, "", max); 9]);
    let mut key = key_after_calls(limit, &calls);
    key.call(limit, seconds(0), Call::Refund(units(1)));
    let used = key.encoded()[0].clone();
    settle(&mut key, limit, 0, "a", max);
    assert_eq!(key.encoded()[0], used, "nothing is taken back");
}

#[test]
fn charges_before_the_saturation_of_a_usage_cannot_be_settled() {
    assert_saturation_ends_settlements(&SlidingWindow::new(units(10), minute()));
    assert_saturation_ends_settlements(&StrictWindow::new(units(10), minute()));
    assert_saturation_ends_settlements(&SlidingLog::new(units(10), minute()));
}
