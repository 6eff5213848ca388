//! Stored fields and effects of a log, and its description for RL.INFO.

use super::*;

#[test]
fn malformed_log_is_rejected() {
    let (last, max) = (Timestamp::MAX.micros(), Amount::MAX.millionths());
    for fields in [&[1, 0, 1][..], &[1, last, max], &[2, 5, 1, 6, max - 1], &[3, 0, 7, 1, 8, 2, 9]] {
        let fields = EncodedFields::integers(fields.iter().copied());
        assert_eq!(decoded::<SlidingLogUsage>(&fields).map(|usage| encoded(&usage)), Some(fields.clone()));
        assert!(fields.proper_prefixes().all(|fields| decoded::<SlidingLogUsage>(&fields).is_none()));
    }
    for (case, fields) in [
        ("no entries", &[0][..]),
        ("entry count out of range", &[u64::MAX, 5, 1]),
        ("cost of zero", &[1, 5, 0]),
        ("cost past saturation", &[1, 5, max + 1]),
        ("sum past saturation", &[2, 5, max, 6, 1]),
        ("timestamp out of range", &[1, last + 1, 1]),
        ("timestamps out of order", &[2, 6, 1, 5, 1]),
        ("duplicate timestamp", &[2, 5, 1, 5, 1]),
    ] {
        assert!(decoded::<SlidingLogUsage>(&EncodedFields::integers(fields.iter().copied())).is_none(), "{case}");
    }
}

#[test]
fn effect_holds_the_change_of_a_call() {
    let (limit, mut usage) = (log(10, "1ms"), SlidingLogUsage::default());
    for (micros, request, expected) in [
        (1000, Take(units(2)), &[CHANGE, 0, 0, 0, 1, 1000, 2_000_000][..]),
        (1000, take_one(), &[CHANGE, 0, 0, 0, 1, 1000, 1_000_000]),
        (1500, Take(units(7)), &[CHANGE, 0, 0, 0, 1, 1500, 7_000_000]),
        (1500, Refund(units(4)), &[CHANGE, 0, 0, 4_000_000, 0]),
        (1600, take_one(), &[CHANGE, 0, 0, 0, 1, 1600, 1_000_000]),
        (2500, take_one(), &[CHANGE, 0, 1, 0, 1, 2500, 1_000_000]),
        // From here on, the clock moves backwards before each call.
        (2400, Take(units(11)), &[CHANGE, 100, 0, 0, 0]),
        (2300, take_one(), &[CHANGE, 100, 0, 0, 1, 2300, 1_000_000]),
        (2200, Refund(units(1)), &[CHANGE, 100, 0, 1_000_000, 0]),
        (0, take_one(), &[CHANGE, 2200, 0, 0, 1, 0, 1_000_000]),
    ] {
        let before = usage.clone();
        let (_, effect) = call_and_encode_effect(&limit, &mut usage, us(micros), request);
        assert_eq!(effect, EncodedFields::integers(expected.iter().copied()), "{request:?} at {micros}");
        assert_eq!(encoded(&applied(&before, &effect).unwrap()), encoded(&usage));
        assert!(effect.proper_prefixes().all(|fields| applied(&before, &fields).is_none()));

        let whole = whole_effect(&usage);
        assert_eq!(whole, encoded(&usage).prepend(WHOLE));
        for elsewhere in [SlidingLogUsage::default(), before] {
            assert_eq!(encoded(&applied(&elsewhere, &whole).unwrap()), encoded(&usage));
        }
    }
}

#[test]
fn possible_effect_is_applied_and_impossible_effect_is_rejected() {
    let (last, max) = (Timestamp::MAX.micros(), Amount::MAX.millionths());
    let usage = decoded::<SlidingLogUsage>(&EncodedFields::integers([3, 5, 1, 7, 2, 9, 3])).unwrap();
    for (effect, expected) in [
        (&[CHANGE, 0, 0, 0, 0][..], Some(&[3, 5, 1, 7, 2, 9, 3][..])),
        (&[CHANGE, 6, 0, 0, 0], Some(&[3, 0, 1, 1, 2, 3, 3])),
        (&[CHANGE, 8, 0, 0, 1, 1, 4], Some(&[2, 0, 3, 1, 7])),
        (&[CHANGE, u64::MAX, 0, 0, 0], Some(&[1, 0, 6])),
        (&[CHANGE, 0, 2, 1, 1, last, 4], Some(&[2, 9, 2, last, 4])),
        (&[CHANGE, 0, 3, 0, 0], Some(&[0])),
        (&[CHANGE, 0, 0, max, 0], Some(&[0])),
        (&[CHANGE, 0, 0, 0, 1, 9, max], Some(&[3, 5, 1, 7, 2, 9, max - 3])),
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
        (&[CHANGE, 0, 0, max + 1, 0], None),
        (&[CHANGE, 0, 0, 0, 1, 8, 1], None),
        (&[CHANGE, 0, 0, 0, 1, 9, 0], None),
        (&[CHANGE, 0, 0, 0, 1, 9, max + 1], None),
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
        let expected = expected.map(|fields| EncodedFields::integers(fields.iter().copied()));
        assert_eq!(applied.map(|usage| encoded(&usage)), expected, "{effect:?}");
    }
}

#[test]
fn description_has_usage_entries_and_their_first_and_last_time() {
    let (limit, mut key) = (log(10, "60s"), Key(SlidingLogUsage::default()));
    assert_eq!(key.0.entries(), 0);
    for (at, cost) in [(5000, 4), (7000, 1), (9000, 2)] {
        key.call(&limit, at, Take(units(cost)));
    }
    assert_eq!(key.0.entries(), 3);
    assert_eq!(
        key.0.describe(Timestamp::EPOCH, None),
        [
            ("used", InfoField::Amount(units(7))),
            ("entries", InfoField::Count(3)),
            ("oldest", InfoField::Instant(us(5_000_000))),
            ("newest", InfoField::Instant(us(9_000_000))),
        ]
    );
    let describe = |now| key.0.describe(us(now), Some(us(69_000_000)))[..2].to_vec();
    let described =
        |used, entries| vec![("used", InfoField::Amount(units(used))), ("entries", InfoField::Count(entries))];
    assert_eq!(describe(64_999_999), described(7, 3));
    assert_eq!(describe(65_000_000), described(3, 2));
    assert_eq!(describe(69_000_000), described(0, 0));
    assert_eq!(describe(0), described(7, 3), "after the clock moved backwards");
    let unused = [("used", InfoField::Amount(Amount::ZERO)), ("entries", InfoField::Count(0))];
    assert_eq!(SlidingLogUsage::default().describe(Timestamp::EPOCH, None), unused);
}
