//! The refill of a bucket, exact to the unit and the microsecond.

use super::*;

#[test]
fn time_that_gave_no_whole_unit_stays_to_be_counted() {
    // A unit takes 3 s, and calls come every 700 ms for 210 s. None of the time is lost; but a full bucket spills, and
    // has room for one unit only: then a call passes every 3.5 s.
    for (capacity, admitted) in [(2, 70), (1, 60)] {
        let (limit, mut key) = (bucket(capacity, 1, "3s"), Key::default());
        key.call(&limit, 0, Take(units(capacity)));
        let passed = (1..=300).filter(|call| key.call(&limit, call * 700, one())[0] == 1);
        assert_eq!(passed.count(), admitted, "{capacity}");
    }
}

#[test]
fn thousands_of_tiny_charges_add_up_to_what_they_are() {
    let (limit, mut usage) = (bucket(1000, 7, "3s"), BucketUsage::default());
    let at = |micros| Timestamp::from_micros(micros).unwrap();
    call(&limit, &mut usage, at(0), Take(units(1000)));
    for micros in (7..=7000).step_by(7) {
        call(&limit, &mut usage, at(micros), Take(millionths(16)));
    }
    // 1000.016 units less 7 ms of 7 in 3 s: 1000.016 - 0.016333..; a unit takes 3/7 s.
    let used_millionths_by_3 = 3 * 1_000_016_000 - 7 * 7000;
    let told = call(&limit, &mut usage, at(7000), Take(units(1000)));
    assert_eq!(told.remaining, millionths(333));
    assert_eq!(told.reset, Span::from_micros(u64::div_ceil(used_millionths_by_3, 7)));
    assert_eq!(told.verdict, Verdict::After(told.reset));
}

#[test]
fn high_rates_are_exact_to_the_microsecond() {
    // Whoever rounds a unit to whole nanoseconds, as redis-cell does, gets these wrong.
    for (rate, refills) in [(600_000, 2), (2_000_000, 1), (3_000_000, 1), (999_983, 2), (1_000_000_000_000, 1)] {
        let (limit, mut usage) = (bucket(11, rate, "1s"), BucketUsage::default());
        let mut passes =
            |micros| call(&limit, &mut usage, Timestamp::from_micros(micros).unwrap(), one()).verdict.allowed();
        assert_eq!([0; 12].map(&mut passes).into_iter().filter(|passed| *passed).count(), 11, "{rate}");
        // It takes this many microseconds to refill one unit, and no fewer.
        assert_eq!([refills - 1, refills].map(passes), [false, true], "{rate}");
    }
    let (limit, mut key) = (bucket(700, 600_000, "1s"), Key::default());
    assert_eq!((1..=1000).filter(|at| key.call(&limit, *at, Take(units(600)))[0] == 1).count(), 1000);
}

#[test]
fn giving_back_keeps_the_time_that_a_division_left_over() {
    let (limit, mut usage) = (bucket(10, 3, "7s"), BucketUsage::default());
    let at = |micros| Timestamp::from_micros(micros).unwrap();
    call(&limit, &mut usage, at(0), Take(units(10)));
    // 9 stay used, less what a microsecond has drained.
    let told = call(&limit, &mut usage, at(1), GiveBack(units(1)));
    assert_eq!(told.reset, Span::from_micros(20_999_999));
    assert!(!usage.is_unused());
    assert!(call(&limit, &mut usage, at(21_000_000), Take(units(10))).verdict.allowed());
}

#[test]
fn a_key_goes_by_what_is_used_now_and_not_by_what_is_stored() {
    // 7 millionths a minute: in half of one 3.5 of 10 have drained, and 6.5 are left to give back.
    let limit = Bucket::new(units(1), millionths(7), period("60s"), Discipline::Burst).unwrap();
    let mut key = Key::default();
    key.call(&limit, 0, Take(millionths(10)));
    assert_eq!(key.call(&limit, 30_000, GiveBack(millionths(6))), [1, 1, 0, 0, 4286]);
    assert!(!key.is_gone());
    assert_eq!(key.call(&limit, 30_000, GiveBack(millionths(1))), [1, 1, 1, 0, 0]);
    assert!(key.is_gone());
}

#[test]
fn another_rate_prices_the_time_since_the_last_charge() {
    let mut key = Key::default();
    key.call(&bucket(10, 1, "1s"), 0, Take(units(10)));
    let look = Take(Amount::ZERO);
    assert_eq!(key.peek(&bucket(10, 2, "1s"), 3000, look), [1, 10, 6, 0, 2000]);
    assert_eq!(key.peek(&bucket(10, 1, "1s"), 3000, look), [1, 10, 3, 0, 7000]);
    // A charge settles what its own rate has drained.
    assert_eq!(key.call(&bucket(10, 1, "1s"), 3000, one()), [1, 10, 2, 0, 8000]);
    assert_eq!(key.peek(&bucket(10, 2, "1s"), 3000, look), [1, 10, 2, 0, 4000]);
    assert_eq!(key.peek(&bucket(10, 10, "1m"), 3000, look), [1, 10, 2, 0, 48_000]);
}
