//! The refill of a bucket, exact to the unit and the microsecond.

use super::*;

#[test]
fn fractions_of_a_unit_are_carried_to_the_next_call() {
    // A unit takes 3 s, and calls come every 700 ms for 210 s. No time is lost. But a bucket with a capacity of one
    // unit is full after 3 s, so only every fifth call is granted, after 3.5 s.
    for (capacity, granted) in [(2, 70), (1, 60)] {
        let (limit, mut key) = (bucket(capacity, 1, "3s"), Key::default());
        key.call(&limit, 0, Take(units(capacity)));
        let passed = (1..=300).filter(|call| key.call(&limit, call * 700, take_one())[0] == 1);
        assert_eq!(passed.count(), granted, "{capacity}");
    }
}

#[test]
fn small_charges_add_up_exactly() {
    let (limit, mut usage) = (bucket(1000, 7, "3s"), BucketUsage::default());
    let at = |micros| Timestamp::from_micros(micros).unwrap();
    call(&limit, &mut usage, at(0), Take(units(1000)));
    for micros in (7..=7000).step_by(7) {
        call(&limit, &mut usage, at(micros), Take(millionths(16)));
    }
    // 1000.016 units are charged, and 0.016333.. units drain in 7 ms at 7 units in 3 s. A unit drains in 3/7 s.
    let used_millionths_times_3 = 3 * 1_000_016_000 - 7 * 7000;
    let decision = call(&limit, &mut usage, at(7000), Take(units(1000)));
    assert_eq!(decision.remaining, millionths(333));
    assert_eq!(decision.reset, Span::from_micros(u64::div_ceil(used_millionths_times_3, 7)));
    assert_eq!(decision.verdict, Verdict::After(decision.reset));
}

#[test]
fn high_rates_are_exact_to_the_microsecond() {
    // Rounding a unit to whole nanoseconds, as redis-cell does, gives wrong results here.
    for (rate, refill_micros) in [(600_000, 2), (2_000_000, 1), (3_000_000, 1), (999_983, 2), (1_000_000_000_000, 1)] {
        let (limit, mut usage) = (bucket(11, rate, "1s"), BucketUsage::default());
        let mut passes =
            |micros| call(&limit, &mut usage, Timestamp::from_micros(micros).unwrap(), take_one()).verdict.allowed();
        assert_eq!([0; 12].map(&mut passes).into_iter().filter(|passed| *passed).count(), 11, "{rate}");
        // It takes this many microseconds to refill one unit, and no fewer.
        assert_eq!([refill_micros - 1, refill_micros].map(passes), [false, true], "{rate}");
    }
    let (limit, mut key) = (bucket(700, 600_000, "1s"), Key::default());
    assert_eq!((1..=1000).filter(|at| key.call(&limit, *at, Take(units(600)))[0] == 1).count(), 1000);
}

#[test]
fn refund_keeps_the_fraction_of_a_step() {
    let (limit, mut usage) = (bucket(10, 3, "7s"), BucketUsage::default());
    let at = |micros| Timestamp::from_micros(micros).unwrap();
    call(&limit, &mut usage, at(0), Take(units(10)));
    // 9 units stay used, less the drain of a microsecond.
    let decision = call(&limit, &mut usage, at(1), Refund(units(1)));
    assert_eq!(decision.reset, Span::from_micros(20_999_999));
    assert!(!usage.is_unused());
    assert!(call(&limit, &mut usage, at(21_000_000), Take(units(10))).verdict.allowed());
}

#[test]
fn key_is_deleted_by_its_current_usage_and_not_the_stored_one() {
    // 7 millionths a minute: in 30 s, 3.5 of 10 have drained, and 6.5 are left to refund.
    let limit = Bucket::new(units(1), millionths(7), period("60s"), Discipline::Burst).unwrap();
    let mut key = Key::default();
    key.call(&limit, 0, Take(millionths(10)));
    assert_eq!(key.call(&limit, 30_000, Refund(millionths(6))), [1, 1, 0, 0, 4286]);
    assert!(!key.is_deleted());
    assert_eq!(key.call(&limit, 30_000, Refund(millionths(1))), [1, 1, 1, 0, 0]);
    assert!(key.is_deleted());
}

#[test]
fn changed_rate_applies_to_the_time_since_the_last_charge() {
    let mut key = Key::default();
    key.call(&bucket(10, 1, "1s"), 0, Take(units(10)));
    let peek = Take(Amount::ZERO);
    assert_eq!(key.peek(&bucket(10, 2, "1s"), 3000, peek), [1, 10, 6, 0, 2000]);
    assert_eq!(key.peek(&bucket(10, 1, "1s"), 3000, peek), [1, 10, 3, 0, 7000]);
    // A charge subtracts the drain at the rate of its limit.
    assert_eq!(key.call(&bucket(10, 1, "1s"), 3000, take_one()), [1, 10, 2, 0, 8000]);
    assert_eq!(key.peek(&bucket(10, 2, "1s"), 3000, peek), [1, 10, 2, 0, 4000]);
    assert_eq!(key.peek(&bucket(10, 10, "1m"), 3000, peek), [1, 10, 2, 0, 48_000]);
}
