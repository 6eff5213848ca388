//! Methods of `Key` take the time in milliseconds and return `[allowed, limit, remaining, wait_ms, reset_ms]`.

mod log_cost;
mod stored_log;

use super::*;
use crate::evaluate::Request;
use crate::evaluate::Request::{Force, Refund, Take, UpTo};
use crate::limit::{InfoField, Usage};
use crate::testing::calls::{
    Key, amounts, assert_charge_counts_until, call, call_and_encode_effect, lengths, millionths, peek, period, units,
    us,
};
use crate::testing::encoded_fields::{EncodedFields, applied, decoded, encoded, whole_effect};
use crate::testing::laws::{Lawful, laws};
use crate::testing::step_counter;
use crate::wire::codec::{CHANGE, WHOLE};
use proptest::prelude::*;

/// Maximum window in microseconds.
const MAX_WINDOW: u64 = 3650 * 86_400_000_000;

fn log(limit: u64, window: &str) -> SlidingLog {
    SlidingLog::new(units(limit), period(window))
}

fn take_one() -> Request {
    Take(units(1))
}

fn zero_cost() -> Request {
    Take(Amount::ZERO)
}

/// Runs calls on a new key, each at a time in milliseconds, and asserts the replies.
fn check(limit: &SlidingLog, calls: &[(u64, Request, [i64; 5])]) -> Key<SlidingLogUsage> {
    let mut key = Key::default();
    for (at, request, reply) in calls {
        assert_eq!(key.call(limit, *at, *request), *reply, "{request:?} at {at}");
    }
    key
}

#[test]
fn entry_expires_when_it_is_a_window_old() {
    for window in [1, 59, 61, 60_000_000, MAX_WINDOW] {
        let limit = SlidingLog::new(units(10), Period::new(Span::from_micros(window)).unwrap());
        for charged_at in [0, 1, 7, 1_700_000_000_000_000] {
            assert_charge_counts_until(&limit, &limit, charged_at, charged_at + window);
        }
    }
}

#[test]
fn trailing_window_is_counted_exactly() {
    let key = check(
        &log(10, "60s"),
        &[
            (0, Take(units(2)), [1, 10, 8, 0, 60_000]),
            (10_000, Take(units(3)), [1, 10, 5, 0, 60_000]),
            (20_000, Take(units(4)), [1, 10, 1, 0, 60_000]),
            (30_000, Take(units(2)), [0, 10, 1, 30_000, 50_000]),
            (59_999, Take(units(2)), [0, 10, 1, 1, 20_001]),
            (60_000, Take(units(2)), [1, 10, 1, 0, 60_000]),
        ],
    );
    for (cost, wait) in [(2, 10_000), (4, 10_000), (5, 20_000), (8, 20_000), (9, 60_000), (10, 60_000), (11, -1)] {
        assert_eq!(key.peek(&log(10, "60s"), 60_000, Take(units(cost))), [0, 10, 1, wait, 60_000], "{cost}");
    }
}

#[test]
fn calls_with_equal_timestamps_share_an_entry() {
    let (limit, mut usage) = (log(10, "60s"), SlidingLogUsage::default());
    for (micros, entries, entries_after_charge) in [(5, 1, None), (5, 1, None), (6, 2, None), (6, 2, None)] {
        call_and_encode_effect(&limit, &mut usage, us(micros), take_one());
        assert_eq!(
            (usage.entries.len(), limit.entries_after_charge(&usage, us(micros))),
            (entries, entries_after_charge)
        );
    }
    // A charge removes expired entries.
    for (micros, entries) in [(7, 3), (60_000_004, 3), (60_000_005, 2), (60_000_006, 1)] {
        assert_eq!(limit.entries_after_charge(&usage, us(micros)), Some(entries), "{micros}");
    }
}

#[test]
fn window_of_the_call_determines_counted_entries() {
    let mut key = check(&log(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 60_000])]);
    for (window, cost, reply) in [
        ("10s", 10, [1, 10, 10, 0, 0]),
        ("30s", 10, [1, 10, 10, 0, 0]),
        ("60s", 3, [0, 10, 2, 30_000, 30_000]),
        ("1h", 3, [0, 10, 2, 3_570_000, 3_570_000]),
    ] {
        assert_eq!(key.peek(&log(10, window), 30_000, Take(units(cost))), reply, "{window}");
    }
    // A charge removes the entries that are older than its window.
    assert_eq!(key.call(&log(10, "10s"), 30_000, take_one()), [1, 10, 9, 0, 10_000]);
    assert_eq!(key.peek(&log(10, "60s"), 30_000, zero_cost()), [1, 10, 9, 0, 60_000]);
    for (window, expires_at) in [("10s", 10_000_500), ("1h", 3_600_000_500)] {
        assert_charge_counts_until(&log(10, "60s"), &log(10, window), 500, expires_at);
    }
}

#[test]
fn refund_is_subtracted_from_the_oldest_entries() {
    let key = check(
        &log(10, "60s"),
        &[
            (0, Refund(units(1)), [1, 10, 10, 0, 0]),
            (0, Take(units(5)), [1, 10, 5, 0, 60_000]),
            (30_000, Take(units(5)), [1, 10, 0, 0, 60_000]),
            (31_000, Refund(units(4)), [1, 10, 4, 0, 59_000]),
            (32_000, Take(units(4)), [1, 10, 0, 0, 60_000]),
            // Only 1 unit of the first entry is left to expire.
            (59_999, take_one(), [0, 10, 0, 1, 32_001]),
            (60_000, Take(units(2)), [0, 10, 1, 30_000, 32_000]),
            (60_000, Refund(units(5)), [1, 10, 6, 0, 32_000]),
            (60_000, Refund(millionths(3_999_999)), [1, 10, 9, 0, 32_000]),
            (60_000, Refund(millionths(2)), [1, 10, 10, 0, 0]),
        ],
    );
    assert!(key.is_deleted());
    // An expired entry is not refunded.
    check(
        &log(10, "60s"),
        &[
            (0, Take(units(4)), [1, 10, 6, 0, 60_000]),
            (59_000, Take(units(4)), [1, 10, 2, 0, 60_000]),
            (60_000, Refund(units(3)), [1, 10, 9, 0, 59_000]),
        ],
    );
}

#[test]
fn forced_debt_expires_with_its_entries() {
    let limit = log(10, "60s");
    let mut key = check(&limit, &[(0, Force(units(8)), [1, 10, 2, 0, 60_000])]);
    assert_eq!(
        key.peek(&limit, 30_000, Force(units(25))),
        [0, 10, 2, 60_000, 30_000],
        "a peek with FORCE reports the wait after the charge"
    );
    for (at, request, reply) in [
        (30_000, Force(units(25)), [0, 10, 0, 60_000, 60_000]),
        (60_000, zero_cost(), [0, 10, 0, 30_000, 30_000]),
        (89_999, Force(Amount::ZERO), [0, 10, 0, 1, 1]),
        (90_000, take_one(), [1, 10, 9, 0, 60_000]),
    ] {
        assert_eq!(key.call(&limit, at, request), reply, "{request:?} at {at}");
    }
}

#[test]
fn upto_grants_the_whole_units_that_are_available() {
    let (limit, mut key) = (SlidingLog::new(millionths(10_500_000), period("60s")), Key::default());
    for (at, cost, granted) in [(0, 4, 4), (1000, 9, 6), (1000, 1, 0), (59_999, 9, 0), (60_000, 9, 4), (61_000, 9, 6)] {
        assert_eq!(key.granted(&limit, at, cost), granted, "{at}");
    }
    assert_eq!(key.call(&limit, 61_000, UpTo(units(9))), [0, 10, 0, 59_000, 60_000]);
    assert_eq!(Key::default().call(&log(0, "60s"), 0, UpTo(units(9))), [0, 0, 0, -1, 0]);
}

#[test]
fn limit_of_zero_admits_only_a_cost_of_zero() {
    check(&log(0, "60s"), &[(0, Take(millionths(1)), [0, 0, 0, -1, 0]), (0, zero_cost(), [1, 0, 0, 0, 0])]);
}

#[test]
fn backwards_clock_shifts_entries() {
    let limit = log(10, "60s");
    let mut key = check(
        &limit,
        &[(990_000, Take(units(4)), [1, 10, 6, 0, 60_000]), (1_000_000, Take(units(6)), [1, 10, 0, 0, 60_000])],
    );
    assert_eq!(key.peek(&limit, 40_000, Take(units(4))), [0, 10, 0, 50_000, 60_000]);
    assert_eq!(key.peek(&limit, 1_060_000, zero_cost()), [1, 10, 10, 0, 0], "a peek changes nothing");
    assert_eq!(key.call(&limit, 40_000, Take(units(4))), [0, 10, 0, 50_000, 60_000]);
    assert_eq!(key.peek(&limit, 90_000, Take(units(4))), [1, 10, 4, 0, 10_000], "a denied call stores the shift");
    // Entries before the epoch are merged at the epoch.
    for (millis, fields) in [(4, &[2, 0, 4_000_000, 4_000, 6_000_000][..]), (0, &[1, 0, 10_000_000])] {
        assert_eq!(key.call(&limit, millis, Take(units(10)))[3], 60_000);
        assert_eq!(encoded(&key.0), EncodedFields::integers(fields.iter().copied()));
    }
}

#[test]
fn log_is_exact_while_the_clock_crosses_its_whole_range_repeatedly() {
    let (limit, mut usage, mut visits) = (log(100, "10s"), SlidingLogUsage::default(), 0);
    for _ in 0..1000 {
        for at in [Timestamp::MAX.micros() - 1, Timestamp::MAX.micros(), 0, 5] {
            visits += step_counter::count(|| call(&limit, &mut usage, us(at), take_one()));
        }
        assert_eq!(encoded(&usage), EncodedFields::integers([2, 0, 3_000_000, 5, 1_000_000]));
        usage.remove_oldest(2);
        usage.delta = LogDelta::default();
    }
    // The marks of all entries are recomputed only once in dozens of rounds.
    assert!((1..100).contains(&visits), "{visits}");
}

#[test]
fn usage_saturates() {
    let (limit, mut usage) = (log(1_000_000_000_000, "60s"), SlidingLogUsage::default());
    for micros in 0..20 {
        call_and_encode_effect(&limit, &mut usage, us(micros), Force(Amount::MAX_ARGUMENT));
    }
    assert_eq!((usage.sum_from(0), usage.entries.len()), (Amount::MAX, 10), "a charge past saturation adds no entry");
    // The wait ignores the part of a FORCE past saturation, without a refund before it and with a refund of 5 * 10^11
    // units. The wait ends when the last of the entries that have to expire does.
    let forced = Force(Amount::MAX_ARGUMENT);
    for (millions, last_without_refund, last_after_refund) in
        [(9_223_372, 0, 0), (8_223_372, 1, 1), (600_000, 8, 9), (400_000, 8, 20)]
    {
        let limit = log(millions * 1_000_000, "60s");
        for (refunded, last_to_expire) in [(0, last_without_refund), (500_000_000_000, last_after_refund)] {
            let mut usage = usage.clone();
            call_and_encode_effect(&limit, &mut usage, us(20), Refund(units(refunded)));
            let wait = Verdict::After(Span::from_micros(60_000_000 - 20 + last_to_expire));
            assert_eq!(peek(&limit, &usage, us(20), forced).verdict, wait, "{limit:?} {refunded}");
            assert_eq!(call(&limit, &mut usage, us(20), forced).verdict, wait, "{limit:?} {refunded}");
        }
    }
    for (times, remaining) in [(8, 0), (1, 776_627_963_145), (1, 1_000_000_000_000)] {
        for _ in 0..times {
            call_and_encode_effect(&limit, &mut usage, us(20), Refund(Amount::MAX_ARGUMENT));
        }
        assert_eq!(limit.remaining(&usage, us(20)).whole_units(), remaining);
    }
    assert!(usage.is_unused());
}

#[test]
fn wrapping_totals_keep_sums_correct() {
    let (limit, mut usage) = (log(1_000_000_000_000, "60s"), SlidingLogUsage::default());
    for second in (0..).step_by(12).take(50) {
        let reply = call_and_encode_effect(&limit, &mut usage, us(second * 1_000_000), Force(Amount::MAX_ARGUMENT)).0;
        let expected = (second / 12 + 1).min(5);
        assert_eq!(usage.sum_from(0).whole_units(), expected * 1_000_000_000_000);
        assert_eq!(reply.verdict.allowed(), expected == 1);
        // All entries except the last have to expire, at 12, 24, 36 and 48 s from now.
        let wait = Span::from_micros((60 - 12) * 1_000_000);
        let verdict = limit.verdict(&usage, us(second * 1_000_000), Amount::ZERO);
        assert_eq!(verdict, if expected == 1 { Verdict::Allowed(Span::ZERO) } else { Verdict::After(wait) });
    }
}

#[test]
fn take_back_leaves_other_entries_unchanged() {
    let (limit, mut usage) = (log(10, "1s"), SlidingLogUsage::default());
    for micros in 1..=5 {
        call_and_encode_effect(&limit, &mut usage, us(micros), Take(units(2)));
    }
    for (micros, amount, reduction, expected_costs) in [
        (2, 1, 1, &[2, 1, 2, 2, 2][..]),
        (4, 2, 2, &[2, 1, 2, 2]),
        (4, 1, 0, &[2, 1, 2, 2]),
        (1, 3, 2, &[1, 2, 2]),
        (5, 9, 2, &[1, 2]),
        (6, 1, 0, &[1, 2]),
    ] {
        let before = usage.clone();
        assert_eq!(usage.take_back(Some(us(micros)), units(amount)), units(reduction));
        let costs: Vec<_> = usage.costs().map(|(_, cost)| cost).collect();
        assert_eq!(costs, expected_costs.iter().copied().map(units).collect::<Vec<_>>());
        let mut effect = EncodedFields::default();
        usage.encode_effect(&mut effect);
        assert_eq!(encoded(&applied(&before, &effect).unwrap()), encoded(&usage));
    }
    assert_eq!(usage.take_back(None, units(1)), Amount::ZERO);
}

#[test]
fn take_back_of_a_saturated_log_is_ignored() {
    let (limit, mut usage) = (log(1, "1s"), SlidingLogUsage::default());
    limit.charge(&mut usage, us(1), Amount::MAX.minus(millionths(1)));
    assert_eq!(limit.low_water_mark(&usage, us(2)), None);
    limit.charge(&mut usage, us(2), units(5));
    assert_eq!(limit.low_water_mark(&usage, us(2)), Some(Amount::ZERO));
    assert_eq!(usage.take_back(Some(us(1)), units(1)), Amount::ZERO);
}

impl Lawful for SlidingLog {
    fn limits() -> impl Strategy<Value = SlidingLog> {
        (amounts(), lengths()).prop_map(|(limit, window)| {
            SlidingLog::new(Amount::saturating(limit), Period::new(Span::from_micros(window)).unwrap())
        })
    }

    /// Asserts that the sum in every trailing window is at most the limit. The sum is highest just after an admitted
    /// call.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        for (now, _) in admitted {
            let trailing = admitted.iter().filter(|(at, _)| at <= now && at.plus(self.window.span()) > *now);
            let sum: u128 = trailing.map(|(_, cost)| cost).sum();
            assert!(sum <= u128::from(self.limit.millionths()));
        }
    }
}

laws!(SlidingLog);
