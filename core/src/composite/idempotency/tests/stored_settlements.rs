//! Stored settlements, their effects, and the cost of many ids.

use super::*;

#[test]
fn settlement_without_charges_equals_a_new_one() {
    let limit = StrictWindow::new(units(100), minute());
    let mut key = key_after_calls(&limit, &[(0, "a", 9), (0, "b", 9)]);
    key.call(&limit, seconds(0), Call::Refund(units(1)));
    let mut new = EncodedFields::default();
    Settlement::default().encode(&mut new);
    for (id, is_idle) in [("a", false), ("b", true)] {
        settle(&mut key, &limit, 0, id, 1);
        assert_eq!((key.settlement.is_idle(), key.encoded()[1] == new), (is_idle, is_idle));
    }
    // Refunds are not recorded while there are no charges.
    key.call(&limit, seconds(0), Call::Refund(units(1)));
    assert_eq!(key.encoded()[1], new);
}

#[test]
fn malformed_settlement_is_rejected() {
    let max = Amount::MAX.millionths();
    // The refunded amount, the next number, and the first number without a low-water mark, the number of groups;
    // then the first number of each group and its difference. `numbers` are those of the recorded charges.
    for (settlement, numbers, is_sound) in [
        (&[0, 0, 0, 0][..], &[][..], true),
        (&[0, 1, 0, 0], &[0], true),
        (&[7, 3, 2, 2, 0, 0, 1, 5], &[0, 1, 2], true),
        (&[0, 3, 3, 1, 1, max], &[1, 2], true),
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
        (&[0, 2, 2, 2, 0, max, 1, 1], &[0, 1], false),
        (&[max + 1, 1, 0, 0], &[0], false),
        (&[0, 3, 3, 2, 1, 1, 1, 1], &[1, 2], false),
        (&[0, 1 << 63, 0, 0], &[0], false),
    ] {
        let decoded = Settlement::decode(&mut EncodedFields::integers(settlement.iter().copied()));
        let accepted = decoded.and_then(|mut settlement| {
            let charge = |number: &u64| Charge {
                component: 0,
                cost: units(1),
                number: *number,
                place: None,
                refunded: Amount::ZERO,
            };
            let are_possible = numbers.iter().all(|number| settlement.count_charge(&charge(number)));
            (are_possible && settlement.is_sound()).then_some(settlement)
        });
        assert_eq!(accepted.is_some(), is_sound, "{settlement:?} of {numbers:?}");
        let mut encoded = EncodedFields::default();
        if let Some(accepted) = accepted {
            accepted.encode(&mut encoded);
            assert_eq!(encoded, EncodedFields::integers(settlement.iter().copied()));
        }
    }
}

#[test]
fn impossible_effect_is_rejected() {
    let limit = Bucket::new(units(100), units(60), minute(), Discipline::Burst).unwrap();
    let key = key_after_calls(&limit, &[(0, "a", 4), (0, "b", 5)]);
    let charge = key.ids.find(b"a", seconds(0)).unwrap().charges[0];
    let four = units(4).millionths();
    // The flags of the fields that follow: taken back, low-water mark, refunded.
    for (effect, accepts_with_charge, accepts_without_charge) in [
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
        assert_eq!(
            (accepts(Some(&charge)), accepts(None)),
            (accepts_with_charge, accepts_without_charge),
            "{effect:?}"
        );
    }
    // Without charges, no low-water mark and no refund is propagated.
    let new = Settlement::default();
    assert!(new.accepts_effect(&mut EncodedFields::integers([0]), None));
    assert!(!new.accepts_effect(&mut EncodedFields::integers([2, 1]), None));
    assert!(!new.accepts_effect(&mut EncodedFields::integers([4, 1]), None));
}

#[test]
fn steps_of_a_call_are_bounded_among_many_ids() {
    let limit = Bucket::new(units(1_000_000), units(1), minute(), Discipline::Burst).unwrap();
    let mut key = Key::default();
    let ttl = period("1h").span();
    for id in 0..1000_u64 {
        // Each charge creates a low-water mark of its own.
        let steps = step_counter::count(|| {
            key.call(&limit, seconds(id / 100), Call::Charge(units(3), Some((&id.to_be_bytes(), ttl))));
        });
        assert!(steps <= 40, "{steps} steps to record a call");
    }
    // Settled in mixed order, in part or in full. The steps are added up, because one settlement may merge many groups.
    let mut total_steps = 0;
    for step in 0..1000_u64 {
        let id = step * 387 % 1000;
        total_steps += step_counter::count(|| {
            key.call(&limit, seconds(10), Call::Settle(&id.to_be_bytes(), units(step % 4)));
        });
    }
    assert!(total_steps <= 60_000, "{total_steps} steps to settle 1000 ids");
    assert!(key.settlement.is_idle());
}
