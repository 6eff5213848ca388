//! Methods of `Key` take the time in milliseconds and return `[allowed, limit, remaining, wait_ms, reset_ms]`.

mod bucket_fast_take;
mod exact_refill;

use super::*;
use crate::evaluate::Request::{Force, Refund, Take, Within};
use crate::evaluate::{Request, evaluate};
use crate::testing::calls::{Key, amounts, call, lengths, millionths, period, units, us};
use crate::testing::encoded_fields::{EncodedFields, decoded, encoded};
use crate::testing::laws::{Lawful, laws};
use proptest::prelude::*;
use proptest::sample::select;

fn bucket(capacity: u64, refill: u64, every: &str) -> Bucket {
    Bucket::new(units(capacity), units(refill), period(every), Discipline::Burst).unwrap()
}

fn queue(capacity: u64, leak: u64, every: &str) -> Bucket {
    Bucket { discipline: Discipline::Queue, ..bucket(capacity, leak, every) }
}

fn take_one() -> Request {
    Take(units(1))
}

#[test]
fn documented_trace_is_exact_to_the_unit() {
    let (limit, mut key) = (bucket(200, 100, "60s"), Key::default());
    for (second, calls, granted, remaining) in [(0, 150, 150, 50), (30, 80, 80, 20), (70, 50, 50, 36), (75, 50, 45, 0)]
    {
        assert_eq!(key.admitted(&limit, second * 1000, calls), granted);
        assert_eq!(key.peek(&limit, second * 1000, take_one())[2], remaining);
    }
    assert_eq!(key.call(&limit, 75_000, take_one()), [0, 200, 0, 600, 120_000]);
}

#[test]
fn burst_is_granted_and_then_exactly_the_refill() {
    let (limit, mut usage) = (bucket(50, 10, "1s"), BucketUsage::default());
    // 60 requests a second, evenly: the first second adds 9 to the burst before it ends.
    for (second, granted) in [(0, 59), (1, 10), (2, 10), (3, 10), (4, 10)] {
        let times = (0..60).map(|request| Timestamp::from_micros(second * 1_000_000 + request * 1_000_000 / 60));
        let passes = |now: Option<Timestamp>| call(&limit, &mut usage, now.unwrap(), take_one()).verdict.allowed();
        assert_eq!(times.map(passes).filter(|passed| *passed).count(), granted);
    }
}

#[test]
fn costs_may_be_decimals() {
    let (limit, mut key) = (bucket(3, 1, "1s"), Key::default());
    for (cost, reply) in [
        (500_000, [1, 3, 2, 0, 500]),
        (1_000_000, [1, 3, 1, 0, 1500]),
        (2_000_000, [0, 3, 1, 500, 1500]),
        (1_500_000, [1, 3, 0, 0, 3000]),
        (1, [0, 3, 0, 1, 3000]),
        (3_000_000, [0, 3, 0, 3000, 3000]),
        (3_000_001, [0, 3, 0, -1, 3000]),
    ] {
        assert_eq!(key.call(&limit, 0, Take(millionths(cost))), reply, "{cost}");
    }
}

#[test]
fn scale_multiplies_capacity_and_refill() {
    let tenth = Amount::parse_down(b"0.1").unwrap();
    for (factor, capacity, refill) in [
        (units(10), 30_000_000, 10_000_000),
        (units(1), 3_000_000, 1_000_000),
        (tenth, 300_000, 100_000),
        // The refill is at least a millionth, and a factor of 0 leaves it unchanged.
        (millionths(1), 3, 1),
        (units(0), 0, 1_000_000),
    ] {
        let scaled = bucket(3, 1, "1s").scaled(factor);
        assert_eq!((scaled.capacity.millionths(), scaled.refill.get()), (capacity, refill), "{factor}");
    }
    let smallest_refill = Bucket::new(units(5), millionths(1), period("1us"), Discipline::Queue).unwrap().scaled(tenth);
    assert_eq!((smallest_refill.capacity.millionths(), smallest_refill.refill.get()), (500_000, 1));
    // The refill is high enough for a full recovery within 36500 days.
    let slow = Bucket::new(millionths(10), millionths(9), period("3650d"), Discipline::Burst).unwrap();
    let scaled = slow.scaled(Amount::parse_down(b"1.1").unwrap());
    assert_eq!((scaled.capacity.millionths(), scaled.refill.get()), (11, 9));
    let slow = Bucket::new(millionths(10), millionths(1), period("3650d"), Discipline::Burst).unwrap();
    assert_eq!(slow.scaled(Amount::parse_down(b"1.9").unwrap()).refill.get(), 2);
}

#[test]
fn prepared_bucket_drains_by_the_scaled_refill() {
    let scaled = bucket(10, 1, "7s").prepared().scaled(units(2));
    for limit in [scaled, scaled.prepared()] {
        let mut key = Key::default();
        assert_eq!(key.call(&limit, 0, Take(units(20))), [1, 20, 0, 0, 70_000]);
        // A charge subtracts the usage that has drained by then.
        assert_eq!(key.call(&limit, 35_000, Take(units(10))), [1, 20, 0, 0, 70_000]);
    }
}

#[test]
fn wait_is_rounded_up_to_the_millisecond() {
    // A unit is refilled in 333.3 ms.
    let (limit, mut key) = (bucket(1, 3, "1s"), Key::default());
    for (at, reply) in
        [(0, [1, 1, 0, 0, 334]), (1, [0, 1, 0, 333, 333]), (333, [0, 1, 0, 1, 1]), (334, [1, 1, 0, 0, 334])]
    {
        assert_eq!(key.call(&limit, at, take_one()), reply, "{at}");
    }
}

#[test]
fn leaky_bucket_reports_evenly_spaced_delays() {
    let (limit, mut key) = (queue(5, 2, "1s"), Key::default());
    for delay in [0, 500, 1000, 1500, 2000] {
        let before = key.peek(&limit, 0, Take(Amount::ZERO));
        assert_eq!([before[0], before[3]], [1, delay], "COST 0 reports the delay that a charge would have");
        let reply = key.call(&limit, 0, take_one());
        assert_eq!([reply[0], reply[3]], [1, delay]);
    }
    assert_eq!(key.call(&limit, 0, take_one()), [0, 5, 0, 500, 2500]);
    assert_eq!(key.call(&limit, 700, take_one()), [1, 5, 0, 1800, 2300]);
    // The delay of an UPTO is that of its first unit.
    assert_eq!(key.call(&limit, 2000, Request::UpTo(units(9))), [1, 5, 0, 1000, 2500]);
    assert_eq!(key.call(&limit, 2000, Refund(units(4))), [1, 5, 4, 0, 500]);
    assert_eq!(key.call(&limit, 2000, take_one()), [1, 5, 3, 500, 1000]);
}

#[test]
fn leaky_bucket_of_one_grants_at_the_rate() {
    let (limit, mut key) = (queue(1, 10, "1s"), Key::default());
    let granted = (0..1000).filter(|at| key.call(&limit, *at, take_one())[0] == 1);
    assert!(granted.eq((0..1000).step_by(100)));
}

#[test]
fn maxwait_grants_calls_that_fit_in_time() {
    let (limit, mut key) = (bucket(2, 1, "1s"), Key::default());
    let within = |cost, seconds: u64| Within(units(cost), Span::from_micros(seconds * 1_000_000));
    for (request, reply) in [
        (within(2, 0), [1, 2, 0, 0, 2000]),
        (within(1, 0), [0, 2, 0, 1000, 2000]),
        (within(1, 3), [1, 2, 0, 1000, 3000]),
        (within(2, 3), [1, 2, 0, 3000, 5000]),
        (within(1, 3), [0, 2, 0, 1000, 5000]),
        (within(0, 3), [1, 2, 0, 3000, 5000]),
        (within(3, 86_400), [0, 2, 0, -1, 5000]),
        (take_one(), [0, 2, 0, 4000, 5000]),
    ] {
        assert_eq!(key.call(&limit, 0, request), reply, "{request:?}");
    }
    assert_eq!(key.call(&limit, 1000, within(1, 3)), [1, 2, 0, 3000, 5000]);
}

#[test]
fn forced_debt_drains() {
    let (limit, mut key) = (bucket(10, 1, "1s"), Key::default());
    assert_eq!(key.call(&limit, 0, Force(units(4))), [1, 10, 6, 0, 4000]);
    assert_eq!(
        key.peek(&limit, 0, Force(units(20))),
        [0, 10, 6, 14_000, 4000],
        "a peek with FORCE reports the wait after the charge"
    );
    for (at, request, reply) in [
        (0, Force(units(20)), [0, 10, 0, 14_000, 24_000]),
        (0, Take(Amount::ZERO), [0, 10, 0, 14_000, 24_000]),
        (13_999, Take(Amount::ZERO), [0, 10, 0, 1, 10_001]),
        (14_000, Take(Amount::ZERO), [1, 10, 0, 0, 10_000]),
        (14_000, Force(Amount::ZERO), [1, 10, 0, 0, 10_000]),
        (14_000, take_one(), [0, 10, 0, 1000, 10_000]),
        (24_000, take_one(), [1, 10, 9, 0, 1000]),
    ] {
        assert_eq!(key.call(&limit, at, request), reply, "{request:?} at {at}");
    }
}

#[test]
fn upto_grants_the_whole_units_that_are_available() {
    let (limit, mut key) = (bucket(10, 1, "1s"), Key::default());
    for (at, cost, granted) in [(0, 4, 4), (500, 9, 6), (500, 9, 0), (999, 1, 0), (1000, 1, 1), (99_000, 99, 10)] {
        assert_eq!(key.granted(&limit, at, cost), granted, "{at}");
    }
    assert_eq!(key.call(&limit, 99_000, Request::UpTo(units(5))), [0, 10, 0, 1000, 10_000]);
    assert_eq!(Key::default().call(&bucket(0, 1, "1s"), 0, Request::UpTo(units(5))), [0, 0, 0, -1, 0]);
}

#[test]
fn refund_lowers_usage_and_deletes_an_unused_key() {
    let (limit, mut key) = (bucket(10, 1, "1s"), Key::default());
    for (at, request, reply, is_deleted) in [
        (0, Refund(units(3)), [1, 10, 10, 0, 0], true),
        (0, Take(units(8)), [1, 10, 2, 0, 8000], false),
        (500, Refund(units(3)), [1, 10, 5, 0, 4500], false),
        (1000, Refund(units(4)), [1, 10, 10, 0, 0], true),
        (1000, take_one(), [1, 10, 9, 0, 1000], false),
        (1000, Refund(units(1000)), [1, 10, 10, 0, 0], true),
    ] {
        assert_eq!(key.call(&limit, at, request), reply, "{request:?} at {at}");
        assert_eq!(key.is_deleted(), is_deleted, "{request:?} at {at}");
    }
}

#[test]
fn zero_capacity_grants_only_a_cost_of_zero() {
    let (limit, mut key) = (bucket(0, 1, "1s"), Key::default());
    assert_eq!(key.call(&limit, 0, Take(millionths(1))), [0, 0, 0, -1, 0]);
    assert_eq!(key.call(&limit, 0, Take(Amount::ZERO)), [1, 0, 0, 0, 0]);
    assert_eq!(key.call(&limit, 0, Force(units(1))), [0, 0, 0, 1000, 1000]);
}

#[test]
fn changed_limit_applies_to_existing_usage() {
    let mut key = Key::default();
    assert_eq!(key.call(&bucket(10, 1, "1s"), 0, Take(units(10))), [1, 10, 0, 0, 10_000]);
    assert_eq!(key.peek(&bucket(15, 1, "1s"), 0, take_one()), [1, 15, 5, 0, 10_000]);
    assert_eq!(key.peek(&bucket(5, 1, "1s"), 0, take_one()), [0, 5, 0, 6000, 10_000]);
    assert_eq!(key.peek(&bucket(10, 100, "1s"), 0, take_one()), [0, 10, 0, 10, 100]);
    assert_eq!(key.call(&queue(20, 2, "1s"), 1000, take_one()), [1, 20, 11, 4000, 4500]);
}

#[test]
fn backwards_clock_keeps_the_stored_usage() {
    let (limit, mut key) = (bucket(10, 1, "1s"), Key::default());
    assert_eq!(key.call(&limit, 100_000, Take(units(10))), [1, 10, 0, 0, 10_000]);
    assert_eq!(key.peek(&limit, 40_000, take_one()), [0, 10, 0, 1000, 10_000]);
    assert_eq!(key.peek(&limit, 105_000, take_one()), [1, 10, 5, 0, 5000], "a peek changes nothing");
    assert_eq!(key.call(&limit, 40_000, take_one()), [0, 10, 0, 1000, 10_000]);
    assert_eq!(key.peek(&limit, 50_000, take_one()), [1, 10, 10, 0, 0], "a denied call stores the moved-back time");
}

#[test]
fn recovering_at_returns_a_usage_that_recovers_at_that_time() {
    let at = |micros| Timestamp::from_micros(micros).unwrap();
    for (limit, instant, reset) in [
        (bucket(10, 1, "1s"), 7_500_000, 5_500_000),
        // The reset is up to the drain time of a millionth later, because usage is stored in whole millionths.
        (bucket(10, 1, "3s"), 7_500_001, 5_500_002),
        (bucket(10, 1, "1s"), 2_000_000, 0),
        (bucket(10, 1, "1s"), 1_999_999, 0),
    ] {
        let usage = limit.recovering_at(at(instant), at(2_000_000));
        assert_eq!(limit.reset(&usage, at(2_000_000)), Span::from_micros(reset));
        assert_eq!(usage.is_unused(), reset == 0);
    }
}

#[test]
fn usage_saturates() {
    let (limit, mut key) = (bucket(1_000_000_000_000, 1_000_000_000_000, "1s"), Key::default());
    for _ in 0..20 {
        key.call(&limit, 0, Force(Amount::MAX_ARGUMENT));
    }
    assert_eq!(key.peek(&limit, 0, Take(Amount::ZERO)), [0, 1_000_000_000_000, 0, 8224, 9224]);
    let slow = bucket(1, 1, "3650d");
    assert_eq!(key.peek(&slow, 0, Take(Amount::ZERO))[3..], [365_000 * 86_400_000; 2]);
}

#[test]
fn refill_that_is_too_slow_is_rejected() {
    for (capacity, refill, error) in [
        (Amount::ZERO, Amount::ZERO, Some(InvalidBucket::NoRefill)),
        (Amount::ZERO, millionths(1), None),
        (units(36_500), units(1), None),
        (millionths(36_500_000_001), units(1), Some(InvalidBucket::SlowRefill)),
        (Amount::MAX_ARGUMENT, millionths(1), Some(InvalidBucket::SlowRefill)),
        (Amount::MAX_ARGUMENT, Amount::MAX_ARGUMENT, None),
    ] {
        assert_eq!(Bucket::new(capacity, refill, period("1d"), Discipline::Burst).err(), error, "{capacity:?}");
    }
}

#[test]
fn usage_takes_16_bytes_and_malformed_fields_are_rejected() {
    assert_eq!(size_of::<BucketUsage>(), 16);
    let last = Timestamp::MAX.micros();
    for fields in [[1, 0], [1, last], [Amount::MAX.millionths(), last]] {
        assert_eq!(
            decoded::<BucketUsage>(&EncodedFields::integers(fields)).map(|usage| encoded(&usage)),
            Some(EncodedFields::integers(fields))
        );
    }
    for fields in [&[][..], &[1], &[0, 5], &[1 << 63, 5], &[1, last + 1]] {
        assert_eq!(decoded::<BucketUsage>(&EncodedFields::integers(fields.iter().copied())), None, "{fields:?}");
    }
}

#[test]
fn described_facts_hold_the_usage_and_its_time() {
    let mut key = Key::default();
    key.call(&bucket(10, 1, "1s"), 7000, Take(units(3)));
    let at = Timestamp::from_micros(7_000_000).unwrap();
    assert_eq!(
        key.0.describe(Timestamp::EPOCH, None),
        [("used", InfoField::Amount(units(3))), ("drained_to", InfoField::Instant(at))]
    );
}

#[test]
fn described_usage_drains_until_the_recovery() {
    let mut key = Key::default();
    key.call(&bucket(10, 1, "1s"), 7000, Take(units(3)));
    let used = |millis: u64, recovers_at| match &key.0.describe(us(millis * 1000), recovers_at)[0] {
        ("used", InfoField::Amount(used)) => used.to_string(),
        fact => unreachable!("{fact:?}"),
    };
    let recovers_at = Some(us(10_000_000));
    let described = [7000, 8000, 8500, 9999, 10_000, 12_000].map(|millis| used(millis, recovers_at));
    assert_eq!(described, ["3", "2", "1.5", "0.001", "0", "0"]);
    // The stored usage is described after the clock moved backwards, and for a key that never expires.
    assert_eq!(used(0, recovers_at), "3");
    assert_eq!(used(60_000, None), "3");
    assert_eq!(used(60_000, Some(us(7_000_000).plus(Span::MAX))), "3");
    // With a later recovery, the described usage is an upper bound.
    assert_eq!(used(8000, Some(us(11_000_000))), "2.25");
}

proptest! {
    #[test]
    fn described_usage_is_a_tight_upper_bound(
        limit in Bucket::limits(), cost in 1..=1_000_000_000_000_u64, thousandths in 0..=1000_u64,
    ) {
        let (mut usage, cost) = (BucketUsage::default(), Amount::saturating(cost).min(limit.limit()));
        limit.charge(&mut usage, us(5), cost);
        let reset = limit.reset(&usage, us(5));
        let now = us(5).plus(Span::from_micros(reset.micros() / 1000 * thousandths));
        let described = match &usage.describe(now, Some(us(5).plus(reset)))[0].1 {
            InfoField::Amount(used) => used.millionths(),
            fact => unreachable!("{fact:?}"),
        };
        let used = limit.used_at(&usage, now).millionths();
        let [_, refill, period] = limit.fields();
        prop_assert!(used <= described && described <= used.saturating_add(refill / period + 1), "{used} {described}");
    }
}

impl Lawful for Bucket {
    fn limits() -> impl Strategy<Value = Bucket> {
        let discipline = select(vec![Discipline::Burst, Discipline::Queue]);
        (amounts(), amounts(), lengths(), discipline).prop_filter_map(
            "recovers too slowly",
            |(capacity, refill, period, discipline)| {
                let period = Period::new(Span::from_micros(period)).unwrap();
                Bucket::new(Amount::saturating(capacity), Amount::saturating(refill), period, discipline).ok()
            },
        )
    }

    /// Asserts that every interval grants at most the capacity plus the refill in the interval.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        let period = u128::from(self.period.micros().get());
        for (index, (from, _)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for (to, cost) in &admitted[index..] {
                sum += cost;
                let refilled = u128::from(self.refill.get()) * u128::from(to.since(*from).micros());
                assert!(sum * period <= u128::from(self.capacity.millionths()) * period + refilled);
            }
        }
    }

    /// Returns one step: the stored time, which a move back compares with `now`, may lie up to a step before the last
    /// charge. The amount that drained between these times counts as undrained.
    fn lockout_beyond_recovery(&self) -> Span {
        let step = self.period.micros().get() / ratio::gcd(self.period.micros(), self.refill);
        Span::from_micros(step)
    }
}

laws!(Bucket);
