//! Stored settlements, their effects, and the cost of many ids.

use super::*;

#[test]
fn settlement_without_charges_equals_a_new_one() {
    let limit = StrictWindow::new(units(100), minute());
    let mut key = charged(&limit, &[(0, "a", 9), (0, "b", 9)]);
    key.make(&limit, seconds(0), Call::Refund(units(1)));
    let mut never = EncodedFields::default();
    Settlement::default().encode(&mut never);
    for (id, idle) in [("a", false), ("b", true)] {
        settled(&mut key, &limit, 0, id, 1);
        assert_eq!((key.settlement.is_idle(), key.encoded()[1] == never), (idle, idle));
    }
    // Calls are not recorded while there are no charges.
    key.make(&limit, seconds(0), Call::Refund(units(1)));
    assert_eq!(key.encoded()[1], never);
}

#[test]
fn malformed_settlement_is_rejected() {
    let most = Amount::MAX.millionths();
    // The refunded amount, the next number, and the first number without a low-water mark; then the first number of
    // each group and its difference.
    for (settlement, numbers, sound) in [
        (&[0, 0, 0, 0][..], &[][..], true),
        (&[0, 1, 0, 0], &[0], true),
        (&[7, 3, 2, 2, 0, 0, 1, 5], &[0, 1, 2], true),
        (&[0, 3, 3, 1, 1, most], &[1, 2], true),
        (&[1, 0, 0, 0], &[], false),
        (&[0, 1, 0, 0], &[], false),
        (&[0, 1, 0, 0], &[1], false),
        (&[0, 1, 0, 0], &[0, 0], false),
        (&[0, 1, 2, 0], &[0], false),
        (&[0, u64::MAX, 0, 0], &[0], false),
        (&[0, 2, 1, 0], &[0], false),
        (&[0, 2, 2, 2, 0, 1, 1, 0], &[0, 1], false),
        (&[0, 2, 2, 2, 1, 1, 0, 1], &[0, 1], false),
        (&[0, 2, 2, 2, 0, 1, 1, 1], &[0], false),
        (&[0, 2, 2, 2, 0, 1, 1, 1], &[0, 0, 1], false),
        (&[0, 2, 2, 1, 2, 1], &[0], false),
        (&[0, 2, 2, 2, 0, most, 1, 1], &[0, 1], false),
        (&[most + 1, 1, 0, 0], &[0], false),
        (&[0, 3, 3, 2, 1, 1, 1, 1], &[1, 2], false),
        (&[0, 1 << 63, 0, 0], &[0], false),
    ] {
        let decoded = Settlement::decode(&mut EncodedFields::integers(settlement.iter().copied()));
        let counted = decoded.and_then(|mut settlement| {
            let charge = |number: &u64| Charge {
                component: 0,
                cost: units(1),
                number: *number,
                place: None,
                refunded: Amount::ZERO,
            };
            let counted = numbers.iter().all(|number| settlement.count(&charge(number)));
            (counted && settlement.is_sound()).then_some(settlement)
        });
        assert_eq!(counted.is_some(), sound, "{settlement:?} of {numbers:?}");
        let mut back = EncodedFields::default();
        if let Some(counted) = counted {
            counted.encode(&mut back);
            assert_eq!(back, EncodedFields::integers(settlement.iter().copied()));
        }
    }
}

#[test]
fn impossible_effect_is_rejected() {
    let limit = Bucket::new(units(100), units(60), minute(), Discipline::Burst).unwrap();
    let key = charged(&limit, &[(0, "a", 4), (0, "b", 5)]);
    let charge = key.ids.find(b"a", seconds(0)).unwrap().charges[0];
    let four = units(4).millionths();
    for (effect, with, without) in [
        (&[0][..], true, true),
        (&[1, four], true, false),
        (&[1, four + 1], false, false),
        (&[1, 0], false, false),
        (&[2, 0], true, true),
        (&[2, u64::MAX], false, false),
        (&[3, four, 0], true, false),
        (&[4, 1], true, true),
        (&[4, 0], false, false),
        (&[6, 1, 1], false, false),
        (&[8], false, false),
        (&[], false, false),
    ] {
        let accepts =
            |charge| key.settlement.accepts_effect(&mut EncodedFields::integers(effect.iter().copied()), charge);
        assert_eq!((accepts(Some(&charge)), accepts(None)), (with, without), "{effect:?}");
    }
    // Without charges, no low-water mark is propagated.
    let never = Settlement::default();
    assert!(never.accepts_effect(&mut EncodedFields::integers([0]), None));
    assert!(!never.accepts_effect(&mut EncodedFields::integers([2, 1]), None));
    assert!(!never.accepts_effect(&mut EncodedFields::integers([4, 1]), None));
}

#[test]
fn steps_of_a_call_are_bounded_among_many_ids() {
    let limit = Bucket::new(units(1_000_000), units(1), minute(), Discipline::Burst).unwrap();
    let mut key = Key::default();
    let ttl = period("1h").span();
    for id in 0..1000_u64 {
        // Each charge creates a low-water mark of its own.
        let steps = step_counter::count(|| {
            key.make(&limit, seconds(id / 100), Call::Charge(units(3), Some((&id.to_be_bytes(), ttl))));
        });
        assert!(steps <= 40, "{steps} steps to record a call");
    }
    // Settled in mixed order, in part or in full. Amortized, because low-water marks are merged when they meet.
    let mut sum = 0;
    for step in 0..1000_u64 {
        let id = step * 387 % 1000;
        sum += step_counter::count(|| {
            key.make(&limit, seconds(10), Call::Settle(&id.to_be_bytes(), units(step % 4)));
        });
    }
    assert!(sum <= 60_000, "{sum} steps to settle 1000 ids");
    assert!(key.settlement.is_idle());
}
