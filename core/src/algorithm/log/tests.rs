use super::*;
use crate::evaluate::Request;
use crate::evaluate::Request::{Force, GiveBack, Take, UpTo};
use crate::limit::{InfoField, Usage};
use crate::testing::calls::{
    Key, amounts, assert_leaves, call, call_and_tell, lengths, millionths, peek, period, units, us,
};
use crate::testing::effort;
use crate::testing::encoded_fields::{EncodedFields, applied, decoded, encoded, whole_effect};
use crate::testing::laws::{Lawful, laws};
use crate::wire::codec::{CHANGE, WHOLE};
use proptest::prelude::*;

const LONGEST: u64 = 3650 * 86_400_000_000;

fn log(limit: u64, window: &str) -> SlidingLog {
    SlidingLog::new(units(limit), period(window))
}

fn one() -> Request {
    Take(units(1))
}

fn look() -> Request {
    Take(Amount::ZERO)
}

/// Runs calls on a new key, each with its time in milliseconds, and compares the replies.
fn check(limit: &SlidingLog, calls: &[(u64, Request, [i64; 5])]) -> Key<SlidingLogUsage> {
    let mut key = Key::default();
    for (at, request, reply) in calls {
        assert_eq!(key.call(limit, *at, *request), *reply, "{request:?} at {at}");
    }
    key
}

#[test]
fn an_entry_leaves_when_it_is_a_window_old() {
    for window in [1, 59, 61, 60_000_000, LONGEST] {
        let limit = SlidingLog::new(units(10), Period::new(Span::from_micros(window)).unwrap());
        for charged in [0, 1, 7, 1_700_000_000_000_000] {
            assert_leaves(&limit, &limit, charged, charged + window);
        }
    }
}

#[test]
fn a_trailing_window_is_counted_exactly() {
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
fn equal_instants_share_an_entry() {
    let (limit, mut usage) = (log(10, "60s"), SlidingLogUsage::default());
    for (micros, entries, more) in [(5, 1, None), (5, 1, None), (6, 2, None), (6, 2, None)] {
        call_and_tell(&limit, &mut usage, us(micros), one());
        assert_eq!((usage.entries.len(), limit.entries_after_charge(&usage, us(micros))), (entries, more));
    }
    // What has left makes room for what comes.
    for (micros, entries) in [(7, 3), (60_000_004, 3), (60_000_005, 2), (60_000_006, 1)] {
        assert_eq!(limit.entries_after_charge(&usage, us(micros)), Some(entries), "{micros}");
    }
}

#[test]
fn an_entry_is_16_bytes_and_a_sixteenth_to_spare() {
    let (limit, mut usage) = (log(1_000_000, "1ms"), SlidingLogUsage::default());
    let most = |length: usize| 16 * (length + length / 16 + 4);
    for micros in 0..1000 {
        call_and_tell(&limit, &mut usage, us(micros), one());
        let length = usage.entries.len();
        assert!((16 * length..=most(length)).contains(&usage.heap_size()));
    }
    assert_eq!(usage.entries.len(), 1000);
    assert!(
        decoded::<SlidingLogUsage>(&encoded(&usage)).unwrap().heap_size() <= most(1000),
        "likewise when it is read"
    );
    // It shrinks with what leaves, if not at every step.
    for micros in (1000..2000).step_by(7) {
        call_and_tell(&limit, &mut usage, us(micros), one());
        assert!(usage.heap_size() <= most(2 * usage.entries.len()));
    }
    call_and_tell(&limit, &mut usage, us(9000), one());
    assert_eq!((usage.entries.len(), usage.heap_size() <= most(2)), (1, true));
}

#[test]
fn a_log_is_moved_to_more_room_now_and_then_and_to_less_once_it_has_lost_more_than_half() {
    let (limit, mut usage, mut sizes) = (log(1_000_000, "1ms"), SlidingLogUsage::default(), vec![0]);
    for micros in 0..1000 {
        call_and_tell(&limit, &mut usage, us(micros), one());
        sizes.push(usage.heap_size());
    }
    sizes.dedup();
    assert!(sizes.is_sorted() && sizes.len() < 100, "{} moves", sizes.len());
    // Eight entries, of which two are kept, or one.
    for (now, room) in [(1005, 8), (1006, 5)] {
        let mut usage = SlidingLogUsage::default();
        for micros in 0..8 {
            call_and_tell(&limit, &mut usage, us(micros), one());
        }
        call_and_tell(&limit, &mut usage, us(now), one());
        assert_eq!(usage.heap_size(), 16 * room, "at {now}");
    }
}

#[test]
fn usage_counts_as_far_back_as_the_calls_window_reaches() {
    let mut key = check(&log(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 60_000])]);
    for (window, cost, reply) in [
        ("10s", 10, [1, 10, 10, 0, 0]),
        ("30s", 10, [1, 10, 10, 0, 0]),
        ("60s", 3, [0, 10, 2, 30_000, 30_000]),
        ("1h", 3, [0, 10, 2, 3_570_000, 3_570_000]),
    ] {
        assert_eq!(key.peek(&log(10, window), 30_000, Take(units(cost))), reply, "{window}");
    }
    // A charge forgets what it does not reach.
    assert_eq!(key.call(&log(10, "10s"), 30_000, one()), [1, 10, 9, 0, 10_000]);
    assert_eq!(key.peek(&log(10, "60s"), 30_000, look()), [1, 10, 9, 0, 60_000]);
    for (window, leaves) in [("10s", 10_000_500), ("1h", 3_600_000_500)] {
        assert_leaves(&log(10, "60s"), &log(10, window), 500, leaves);
    }
}

#[test]
fn giving_back_takes_the_oldest_first() {
    let key = check(
        &log(10, "60s"),
        &[
            (0, GiveBack(units(1)), [1, 10, 10, 0, 0]),
            (0, Take(units(5)), [1, 10, 5, 0, 60_000]),
            (30_000, Take(units(5)), [1, 10, 0, 0, 60_000]),
            (31_000, GiveBack(units(4)), [1, 10, 4, 0, 59_000]),
            (32_000, Take(units(4)), [1, 10, 0, 0, 60_000]),
            // Of what came first only 1 is left to leave.
            (59_999, one(), [0, 10, 0, 1, 32_001]),
            (60_000, Take(units(2)), [0, 10, 1, 30_000, 32_000]),
            (60_000, GiveBack(units(5)), [1, 10, 6, 0, 32_000]),
            (60_000, GiveBack(millionths(3_999_999)), [1, 10, 9, 0, 32_000]),
            (60_000, GiveBack(millionths(2)), [1, 10, 10, 0, 0]),
        ],
    );
    assert!(key.is_gone());
    // What has left is not what is given back.
    check(
        &log(10, "60s"),
        &[
            (0, Take(units(4)), [1, 10, 6, 0, 60_000]),
            (59_000, Take(units(4)), [1, 10, 2, 0, 60_000]),
            (60_000, GiveBack(units(3)), [1, 10, 9, 0, 59_000]),
        ],
    );
}

#[test]
fn a_forced_debt_is_forgotten_as_it_leaves() {
    let limit = log(10, "60s");
    let mut key = check(&limit, &[(0, Force(units(8)), [1, 10, 2, 0, 60_000])]);
    assert_eq!(key.peek(&limit, 30_000, Force(units(25))), [0, 10, 2, 60_000, 30_000], "as if charged");
    for (at, request, reply) in [
        (30_000, Force(units(25)), [0, 10, 0, 60_000, 60_000]),
        (60_000, look(), [0, 10, 0, 30_000, 30_000]),
        (89_999, Force(Amount::ZERO), [0, 10, 0, 1, 1]),
        (90_000, one(), [1, 10, 9, 0, 60_000]),
    ] {
        assert_eq!(key.call(&limit, at, request), reply, "{request:?} at {at}");
    }
}

#[test]
fn upto_grants_the_whole_units_that_there_are() {
    let (limit, mut key) = (SlidingLog::new(millionths(10_500_000), period("60s")), Key::default());
    for (at, most, granted) in [(0, 4, 4), (1000, 9, 6), (1000, 1, 0), (59_999, 9, 0), (60_000, 9, 4), (61_000, 9, 6)] {
        assert_eq!(key.granted(&limit, at, most), granted, "{at}");
    }
    assert_eq!(key.call(&limit, 61_000, UpTo(units(9))), [0, 10, 0, 59_000, 60_000]);
    assert_eq!(Key::default().call(&log(0, "60s"), 0, UpTo(units(9))), [0, 0, 0, -1, 0]);
}

#[test]
fn a_limit_of_nothing_admits_nothing_but_looks() {
    check(&log(0, "60s"), &[(0, Take(millionths(1)), [0, 0, 0, -1, 0]), (0, look(), [1, 0, 0, 0, 0])]);
}

#[test]
fn a_clock_gone_back_takes_the_entries_along() {
    let limit = log(10, "60s");
    let mut key = check(
        &limit,
        &[(990_000, Take(units(4)), [1, 10, 6, 0, 60_000]), (1_000_000, Take(units(6)), [1, 10, 0, 0, 60_000])],
    );
    assert_eq!(key.peek(&limit, 40_000, Take(units(4))), [0, 10, 0, 50_000, 60_000]);
    assert_eq!(key.peek(&limit, 1_060_000, look()), [1, 10, 10, 0, 0], "a peek has written nothing");
    assert_eq!(key.call(&limit, 40_000, Take(units(4))), [0, 10, 0, 50_000, 60_000]);
    assert_eq!(key.peek(&limit, 90_000, Take(units(4))), [1, 10, 4, 0, 10_000], "a denied call has written that");
    // To the epoch, where all meet that lies before.
    for (millis, fields) in [(4, &[2, 0, 4_000_000, 4_000, 6_000_000][..]), (0, &[1, 0, 10_000_000])] {
        assert_eq!(key.call(&limit, millis, Take(units(10)))[3], 60_000);
        assert_eq!(encoded(&key.0), EncodedFields::integers(fields.iter().copied()));
    }
}

#[test]
fn in_a_long_log_nothing_costs_more() {
    let mut usage = SlidingLogUsage::default();
    for micros in 1_000_000..1_010_000 {
        call_and_tell(&log(10_000, "10s"), &mut usage, us(micros), one());
    }
    let (limit, last) = (log(10_000, "10s"), us(1_009_999));
    let looks = |usage: &SlidingLogUsage, now: Timestamp| {
        for request in [one(), Force(units(1)), Force(units(20_000)), UpTo(units(9)), GiveBack(units(1))] {
            peek(&limit, usage, now, request);
        }
        assert_eq!(peek(&limit, usage, now, Force(units(2))).verdict, Verdict::After(Span::from_micros(9_990_002)));
    };
    let walked = effort::without_copies(|| {
        for back in [0, 1, 1000, 1_000_000] {
            looks(&usage, last.minus(Span::from_micros(back)));
        }
        for back in [1, 1000] {
            call(&limit, &mut usage, last.minus(Span::from_micros(back)), one());
            looks(&usage, last.minus(Span::from_micros(back)));
        }
        call(&limit, &mut usage, Timestamp::EPOCH, one());
        call(&limit, &mut usage, last, one());
    });
    assert_eq!(walked, 0);
}

#[test]
fn a_clock_may_go_through_its_whole_range_however_often() {
    let (limit, mut usage, mut moved) = (log(100, "10s"), SlidingLogUsage::default(), 0);
    for _ in 0..1000 {
        for at in [Timestamp::MAX.micros() - 1, Timestamp::MAX.micros(), 0, 5] {
            moved += effort::of(|| call(&limit, &mut usage, us(at), one()));
        }
        assert_eq!(encoded(&usage), EncodedFields::integers([2, 0, 3_000_000, 5, 1_000_000]));
        usage.forget(2);
        usage.delta = LogDelta::default();
    }
    // In dozens of rounds all are moved once, one by one.
    assert!((1..100).contains(&moved), "{moved}");
}

#[test]
fn what_is_counted_saturates() {
    let (limit, mut usage) = (log(1_000_000_000_000, "60s"), SlidingLogUsage::default());
    for micros in 0..20 {
        call_and_tell(&limit, &mut usage, us(micros), Force(Amount::MAX_ARGUMENT));
    }
    assert_eq!((usage.sum_from(0), usage.entries.len()), (Amount::MAX, 10), "what adds nothing has no entry");
    // What of a FORCE is past saturation is not waited for: with nothing given back first, and with half a million
    // million units.
    let forced = Force(Amount::MAX_ARGUMENT);
    for (limit, full, half) in [(9_223_372, 0, 0), (8_223_372, 1, 1), (600_000, 8, 9), (400_000, 8, 20)] {
        let limit = log(limit * 1_000_000, "60s");
        for (given_back, last_to_leave) in [(0, full), (500_000_000_000, half)] {
            let mut usage = usage.clone();
            call_and_tell(&limit, &mut usage, us(20), GiveBack(units(given_back)));
            let wait = Verdict::After(Span::from_micros(60_000_000 - 20 + last_to_leave));
            assert_eq!(peek(&limit, &usage, us(20), forced).verdict, wait, "{limit:?} {given_back}");
            assert_eq!(call(&limit, &mut usage, us(20), forced).verdict, wait, "{limit:?} {given_back}");
        }
    }
    for (times, left) in [(8, 0), (1, 776_627_963_145), (1, 1_000_000_000_000)] {
        for _ in 0..times {
            call_and_tell(&limit, &mut usage, us(20), GiveBack(Amount::MAX_ARGUMENT));
        }
        assert_eq!(limit.remaining(&usage, us(20)).whole_units(), left);
    }
    assert!(usage.is_unused());
}

#[test]
fn running_totals_wrap_unnoticed() {
    let (limit, mut usage) = (log(1_000_000_000_000, "60s"), SlidingLogUsage::default());
    for second in (0..).step_by(12).take(50) {
        let told = call_and_tell(&limit, &mut usage, us(second * 1_000_000), Force(Amount::MAX_ARGUMENT)).0;
        let held = (second / 12 + 1).min(5);
        assert_eq!(usage.sum_from(0).whole_units(), held * 1_000_000_000_000);
        assert_eq!(told.verdict.allowed(), held == 1);
        // All but the last have to leave, and they do so at 12, 24, 36 and 48 s from now.
        let wait = Span::from_micros((60 - 12) * 1_000_000);
        let look = limit.verdict(&usage, us(second * 1_000_000), Amount::ZERO);
        assert_eq!(look, if held == 1 { Verdict::Allowed(Span::ZERO) } else { Verdict::After(wait) });
    }
}

#[test]
fn takes_nothing_for_a_log_that_is_none() {
    let (last, most) = (Timestamp::MAX.micros(), Amount::MAX.millionths());
    for fields in [&[1, 0, 1][..], &[1, last, most], &[2, 5, 1, 6, most - 1], &[3, 0, 7, 1, 8, 2, 9]] {
        let fields = EncodedFields::integers(fields.iter().copied());
        assert_eq!(decoded::<SlidingLogUsage>(&fields).map(|usage| encoded(&usage)), Some(fields.clone()));
        assert!(fields.cut_short().all(|fields| decoded::<SlidingLogUsage>(&fields).is_none()));
    }
    for (what, fields) in [
        ("no entry", &[0][..]),
        ("more entries than can be", &[u64::MAX, 5, 1]),
        ("a cost of nothing", &[1, 5, 0]),
        ("a cost past saturation", &[1, 5, most + 1]),
        ("a sum past saturation", &[2, 5, most, 6, 1]),
        ("too late an instant", &[1, last + 1, 1]),
        ("instants out of order", &[2, 6, 1, 5, 1]),
        ("an instant twice", &[2, 5, 1, 5, 1]),
    ] {
        assert!(decoded::<SlidingLogUsage>(&EncodedFields::integers(fields.iter().copied())).is_none(), "{what}");
    }
}

#[test]
fn an_effect_tells_what_a_call_has_changed() {
    let (limit, mut usage) = (log(10, "1ms"), SlidingLogUsage::default());
    for (micros, request, effect) in [
        (1000, Take(units(2)), &[CHANGE, 0, 0, 0, 1, 1000, 2_000_000][..]),
        (1000, one(), &[CHANGE, 0, 0, 0, 1, 1000, 1_000_000]),
        (1500, Take(units(7)), &[CHANGE, 0, 0, 0, 1, 1500, 7_000_000]),
        (1500, GiveBack(units(4)), &[CHANGE, 0, 0, 4_000_000, 0]),
        (1600, one(), &[CHANGE, 0, 0, 0, 1, 1600, 1_000_000]),
        (2500, one(), &[CHANGE, 0, 1, 0, 1, 2500, 1_000_000]),
        // The clock goes back: seen to by a denied call, by one that is admitted, by a give-back.
        (2400, Take(units(11)), &[CHANGE, 100, 0, 0, 0]),
        (2300, one(), &[CHANGE, 100, 0, 0, 1, 2300, 1_000_000]),
        (2200, GiveBack(units(1)), &[CHANGE, 100, 0, 1_000_000, 0]),
        (0, one(), &[CHANGE, 2200, 0, 0, 1, 0, 1_000_000]),
    ] {
        let before = usage.clone();
        let (_, told) = call_and_tell(&limit, &mut usage, us(micros), request);
        assert_eq!(told, EncodedFields::integers(effect.iter().copied()), "{request:?} at {micros}");
        assert_eq!(encoded(&applied(&before, &told).unwrap()), encoded(&usage));
        assert!(told.cut_short().all(|told| applied(&before, &told).is_none()));

        let whole = whole_effect(&usage);
        assert_eq!(whole, encoded(&usage).behind(WHOLE));
        for elsewhere in [SlidingLogUsage::default(), before] {
            assert_eq!(encoded(&applied(&elsewhere, &whole).unwrap()), encoded(&usage));
        }
    }
}

#[test]
fn what_is_taken_back_of_an_entry_leaves_the_others_as_they_are() {
    let (limit, mut usage) = (log(10, "1s"), SlidingLogUsage::default());
    for micros in 1..=5 {
        call_and_tell(&limit, &mut usage, us(micros), Take(units(2)));
    }
    for (place, amount, taken, left) in [
        (2, 1, 1, &[2, 1, 2, 2, 2][..]),
        (4, 2, 2, &[2, 1, 2, 2]),
        (4, 1, 0, &[2, 1, 2, 2]),
        (1, 3, 2, &[1, 2, 2]),
        (5, 9, 2, &[1, 2]),
        (6, 1, 0, &[1, 2]),
    ] {
        let before = usage.clone();
        assert_eq!(usage.take_back(Some(us(place)), units(amount)), units(taken));
        let costs: Vec<_> = usage.costs().map(|(_, cost)| cost).collect();
        assert_eq!(costs, left.iter().copied().map(units).collect::<Vec<_>>());
        let mut effect = EncodedFields::default();
        usage.encode_effect(&mut effect);
        assert_eq!(encoded(&applied(&before, &effect).unwrap()), encoded(&usage));
    }
    assert_eq!(usage.take_back(None, units(1)), Amount::ZERO);
}

#[test]
fn what_is_taken_back_moves_the_totals_of_the_fewer_entries() {
    let (limit, mut usage) = (log(1000, "1s"), SlidingLogUsage::default());
    for micros in 1..=1000 {
        limit.charge(&mut usage, us(micros), units(1));
    }
    for (place, moved) in [(1, 0), (3, 2), (500, 499), (501, 500), (502, 499), (998, 3), (1000, 1)] {
        assert_eq!(effort::of(|| usage.take_back(Some(us(place)), millionths(1))), moved, "{place}");
    }
}

#[test]
fn nothing_is_taken_back_of_what_has_saturated() {
    let (limit, mut usage) = (log(1, "1s"), SlidingLogUsage::default());
    limit.charge(&mut usage, us(1), Amount::MAX.minus(millionths(1)));
    assert_eq!(limit.low(&usage, us(2)), None);
    limit.charge(&mut usage, us(2), units(5));
    assert_eq!(limit.low(&usage, us(2)), Some(Amount::ZERO));
    assert_eq!(usage.take_back(Some(us(1)), units(1)), Amount::ZERO);
}

#[test]
fn refuses_an_effect_that_no_call_can_have_had() {
    let (last, most) = (Timestamp::MAX.micros(), Amount::MAX.millionths());
    let usage = decoded::<SlidingLogUsage>(&EncodedFields::integers([3, 5, 1, 7, 2, 9, 3])).unwrap();
    for (effect, becomes) in [
        (&[CHANGE, 0, 0, 0, 0][..], Some(&[3, 5, 1, 7, 2, 9, 3][..])),
        (&[CHANGE, 6, 0, 0, 0], Some(&[3, 0, 1, 1, 2, 3, 3])),
        (&[CHANGE, 8, 0, 0, 1, 1, 4], Some(&[2, 0, 3, 1, 7])),
        (&[CHANGE, u64::MAX, 0, 0, 0], Some(&[1, 0, 6])),
        (&[CHANGE, 0, 2, 1, 1, last, 4], Some(&[2, 9, 2, last, 4])),
        (&[CHANGE, 0, 3, 0, 0], Some(&[0])),
        (&[CHANGE, 0, 0, most, 0], Some(&[0])),
        (&[CHANGE, 0, 0, 0, 1, 9, most], Some(&[3, 5, 1, 7, 2, 9, most - 3])),
        (&[CHANGE, 0, 0, 0, 2, 9, 1], Some(&[3, 5, 1, 7, 2, 9, 2])),
        (&[CHANGE, 0, 0, 0, 2, 9, 3], Some(&[2, 5, 1, 7, 2])),
        (&[CHANGE, 0, 0, 0, 2, 7, 2], Some(&[2, 5, 1, 9, 3])),
        (&[CHANGE, 0, 0, 0, 2, 5, 1], Some(&[2, 7, 2, 9, 3])),
        (&[CHANGE, 6, 0, 0, 2, 1, 1], Some(&[3, 0, 1, 1, 1, 3, 3])),
        (&[CHANGE, 8, 0, 0, 2, 0, 3], Some(&[1, 1, 3])),
        (&[WHOLE, 1, 9, 3], Some(&[1, 9, 3])),
        (&[], None),
        (&[WHOLE, 0], None),
        (&[WHOLE, 2, 9, 3, 5, 1], None),
        (&[CHANGE, 0, 4, 0, 0], None),
        (&[CHANGE, 0, 0, most + 1, 0], None),
        (&[CHANGE, 0, 0, 0, 1, 8, 1], None),
        (&[CHANGE, 0, 0, 0, 1, 9, 0], None),
        (&[CHANGE, 0, 0, 0, 1, 9, most + 1], None),
        (&[CHANGE, 0, 0, 0, 1, last + 1, 1], None),
        (&[CHANGE, 0, 0, 0, 3, 9, 1], None),
        (&[CHANGE, 0, 0, 0, 2, 9, 4], None),
        (&[CHANGE, 0, 0, 0, 2, 9, 0], None),
        (&[CHANGE, 0, 0, 0, 2, 8, 1], None),
        (&[CHANGE, 0, 0, 0, 2, 10, 1], None),
        (&[CHANGE, 0, 1, 0, 2, 9, 1], None),
        (&[CHANGE, 0, 0, 1, 2, 9, 1], None),
        (&[CHANGE, 8, 0, 0, 2, 0, 4], None),
        (&[2, 0, 0, 0, 0], None),
    ] {
        let applied = applied(&usage, &EncodedFields::integers(effect.iter().copied()));
        let becomes = becomes.map(|fields| EncodedFields::integers(fields.iter().copied()));
        assert_eq!(applied.map(|usage| encoded(&usage)), becomes, "{effect:?}");
    }
}

#[test]
fn people_are_told_how_many_entries_there_are_and_from_when_to_when() {
    let (limit, mut key) = (log(10, "60s"), Key(SlidingLogUsage::default()));
    assert_eq!(key.0.entries(), 0);
    for (at, cost) in [(5000, 4), (7000, 1), (9000, 2)] {
        key.call(&limit, at, Take(units(cost)));
    }
    assert_eq!(key.0.entries(), 3);
    assert_eq!(
        key.0.describe(Timestamp::EPOCH),
        [
            ("used", InfoField::Amount(units(7))),
            ("entries", InfoField::Count(3)),
            ("oldest", InfoField::Instant(us(5_000_000))),
            ("newest", InfoField::Instant(us(9_000_000))),
        ]
    );
    let unused = [("used", InfoField::Amount(Amount::ZERO)), ("entries", InfoField::Count(0))];
    assert_eq!(SlidingLogUsage::default().describe(Timestamp::EPOCH), unused);
}

#[test]
fn room_for_an_entry_is_made_a_sixteenth_at_a_time() {
    for (length, room) in [(0, 4), (1, 5), (15, 19), (16, 21), (160, 174)] {
        assert_eq!(SlidingLogUsage::room_for(length), room, "{length}");
    }
}

impl Lawful for SlidingLog {
    fn limits() -> impl Strategy<Value = SlidingLog> {
        (amounts(), lengths()).prop_map(|(limit, window)| {
            SlidingLog::new(Amount::saturating(limit), Period::new(Span::from_micros(window)).unwrap())
        })
    }

    /// In any trailing window, the limit: it is fullest when something has just come.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        for (now, _) in admitted {
            let trailing = admitted.iter().filter(|(at, _)| at <= now && at.plus(self.window.span()) > *now);
            let sum: u128 = trailing.map(|(_, cost)| cost).sum();
            assert!(sum <= u128::from(self.limit.millionths()));
        }
    }
}

laws!(SlidingLog);
