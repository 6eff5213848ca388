//! The denials of the last minutes.

use super::*;

/// What a test does to a sketch.
#[derive(Clone, Debug)]
enum Step {
    Deny(u8),
    Resize(usize),
    Clear,
}

fn steps(resizes: bool) -> impl Strategy<Value = Vec<Step>> {
    // Few keys that are denied often, and many that are not.
    let deny = prop_oneof![0..4_u8, 0..12_u8, any::<u8>()].prop_map(Step::Deny);
    let step = if resizes {
        prop_oneof![60 => deny, 2 => (0..20_usize).prop_map(Step::Resize), 1 => Just(Step::Clear)].boxed()
    } else {
        deny.boxed()
    };
    vec(step, 0..300)
}

/// What one more denial does, as the paper has it. Of several that were denied least it leaves open which goes.
fn check_step(before: &Identity, after: &Identity, most: usize, floor: u64, name: &[u8]) {
    let mut expected = before.clone();
    if let Some((denied, _)) = expected.get_mut(name) {
        *denied += 1;
    } else if before.len() < most {
        expected.insert(name.into(), (floor + 1, floor));
    } else if let Some(least) = before.values().map(|(denied, _)| *denied).min() {
        let gone: Vec<_> = before.keys().filter(|name| !after.contains_key(*name)).collect();
        assert_eq!(gone.len(), 1, "one goes");
        assert_eq!(expected.remove(gone[0]).unwrap().0, least, "it is one of those that were denied least");
        expected.insert(name.into(), (least + 1, least));
    }
    assert_eq!(*after, expected);
}

/// What must hold after any denials, of which there is an exact count.
fn check_bounds(top: &SpaceSaving, known: &Identity, exact: &BTreeMap<Vec<u8>, u64>) {
    for (name, (denied, error)) in known {
        let truth = exact.get(name).copied().unwrap_or(0);
        assert!(denied - error <= truth && truth <= *denied, "{name:?}: {denied} less {error}, really {truth}");
        assert!(*denied >= top.floor());
    }
    for (name, truth) in exact {
        assert!(known.contains_key(name) || *truth <= top.floor(), "{name:?}: {truth}");
    }
    assert!(known.len() <= top.most());
}

/// What was denied of late.
fn recent(top: &mut SpaceSaving, minutes: u64, now: Timestamp) -> Vec<(String, u64)> {
    let heavy = top.heaviest_since(usize::MAX, minutes, now);
    assert!(heavy.iter().all(|heavy| heavy.error == 0 && heavy.denied > 0));
    heavy.iter().map(|heavy| (String::from_utf8_lossy(heavy.name).into_owned(), heavy.denied)).collect()
}

#[test]
fn the_denials_of_the_last_minutes_are_told_the_running_one_too() {
    let at = |seconds: u64| Timestamp::from_micros(1_700_000_040_000_000 + seconds * 1_000_000).unwrap();
    let mut top = SpaceSaving::new(8);
    for (second, name) in [(0, "a"), (59, "a"), (60, "b"), (61, "a"), (150, "b")] {
        top.record(name.as_bytes(), None, at(second));
    }
    let told = |counts: &[(&str, u64)]| -> Vec<(String, u64)> {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    assert_eq!(recent(&mut top, 1, at(150)), told(&[("b", 1)]));
    assert_eq!(recent(&mut top, 2, at(150)), told(&[("b", 2), ("a", 1)]));
    assert_eq!(recent(&mut top, 3, at(150)), told(&[("a", 3), ("b", 2)]));
    assert_eq!(recent(&mut top, 1, at(180)), []);
    assert_eq!(recent(&mut top, 60, at(3599)), told(&[("a", 3), ("b", 2)]));
    assert_eq!(recent(&mut top, 60, at(3600)), told(&[("b", 2), ("a", 1)]));
    assert_eq!(recent(&mut top, 60, at(7200)), []);
    assert_eq!(names(&top, 9), ["a", "b"], "in all they were denied all the same");
    assert_eq!(top.heaviest_since(1, 60, at(7200)), []);
    top.record(b"a", None, at(7200));
    assert_eq!(recent(&mut top, 60, at(7200)), told(&[("a", 1)]), "what was there an hour ago is gone");
}

#[test]
fn a_key_that_had_lost_its_place_begins_at_0_of_late() {
    let mut top = SpaceSaving::new(1);
    record(&mut top, "aaab");
    assert_eq!(of(&top, "b"), Some((4, 3)));
    assert_eq!(recent(&mut top, 60, Timestamp::EPOCH), [("b".to_owned(), 1)]);
    record(&mut top, "a");
    assert_eq!(recent(&mut top, 60, Timestamp::EPOCH), [("a".to_owned(), 1)]);
    top.resize(2);
    assert_eq!(recent(&mut top, 60, Timestamp::EPOCH), [("a".to_owned(), 1)], "whoever keeps it goes on");
    top.clear();
    assert_eq!(recent(&mut top, 60, Timestamp::EPOCH), []);
}

proptest! {
    #[test]
    fn an_item_of_a_key_counts_as_a_key_does(hash in hash(), denials in vec((0..3_u8, 0..6_u8), 0..200)) {
        let (mut of_items, mut of_keys) = (SpaceSaving::hashed_by(hash, 5), SpaceSaving::hashed_by(fixed_hash(), 5));
        for (name, item) in denials {
            let bytes = [item];
            let item = (name > 0).then(|| if item % 2 == 0 { &[][..] } else { &bytes });
            let joined = [&[name][..], &[u8::from(item.is_some())], item.unwrap_or_default()].concat();
            of_items.record(&[name], item, Timestamp::EPOCH);
            deny(&mut of_keys, &joined);
        }
        let joined = |heavy: &Heavy| {
            [heavy.name, &[u8::from(heavy.item.is_some())], heavy.item.unwrap_or_default()].concat()
        };
        let heavy = of_items.heaviest(usize::MAX);
        let told: Identity = heavy.iter().map(|heavy| (joined(heavy), (heavy.denied, heavy.error))).collect();
        prop_assert_eq!(told, known(&of_keys));
    }
}

proptest! {
    #[test]
    fn of_late_is_never_too_high_and_exact_while_there_is_room(
        steps in vec((prop_oneof![0..20_i64, -90..200_i64, -9000..9000_i64], 0..6_u8), 0..200),
        most in 1..8_usize,
        minutes in 1..=60_u64,
    ) {
        let (mut top, mut second) = (SpaceSaving::hashed_by(fixed_hash(), most), 1_700_000_000_i64);
        // Each with the minute that it was in, counted up: a clock gone back begins another.
        let (mut denials, mut minute, mut shown) = (Vec::<(u8, i64)>::new(), 0_i64, second / 60);
        for (passed, name) in steps {
            second += passed;
            minute += if second / 60 < shown { 1 } else { second / 60 - shown };
            shown = second / 60;
            let now = Timestamp::from_micros(u64::try_from(second).unwrap() * 1_000_000).unwrap();
            top.record(&[name], None, now);
            denials.push((name, minute));
            let told = recent(&mut top, minutes, now);
            for name in 0..6_u8 {
                let truth = denials.iter().filter(|(denied, at)| *denied == name && minute - at < i64::try_from(minutes).unwrap());
                let truth = u64::try_from(truth.count()).unwrap();
                let told = told.iter().find(|(told, _)| told.as_bytes() == [name]).map_or(0, |(_, count)| *count);
                prop_assert!(told <= truth, "{}: {} of {}", name, told, truth);
                prop_assert!(told == truth || most < 6);
            }
        }
    }

    #[test]
    fn each_denial_does_what_the_paper_says(steps in steps(true), hash in hash(), most in 0..20_usize) {
        let mut top = SpaceSaving::hashed_by(hash, most);
        let mut exact: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for step in steps {
            let (before, floor) = (known(&top), top.floor());
            match step {
                Step::Deny(name) => {
                    // Of different lengths.
                    let name = vec![name; usize::from(name % 7)];
                    deny(&mut top, &name);
                    check_step(&before, &known(&top), top.most(), floor, &name);
                    if top.most() > 0 {
                        *exact.entry(name).or_default() += 1;
                    }
                }
                Step::Resize(most) => {
                    let heaviest: Vec<_> = top.heaviest(most).into_iter().map(|heavy| heavy.name.to_vec()).collect();
                    top.resize(most);
                    prop_assert_eq!(top.most(), most);
                    let kept = known(&top);
                    prop_assert!(kept.iter().all(|(name, counts)| before.get(name) == Some(counts)));
                    prop_assert!(kept.len() == heaviest.len() && heaviest.iter().all(|name| kept.contains_key(name)));
                }
                Step::Clear => {
                    top.clear();
                    exact.clear();
                }
            }
            check_bounds(&top, &known(&top), &exact);
        }
    }

    #[test]
    fn who_is_denied_more_than_its_share_is_found(steps in steps(false), hash in hash(), most in 1..20_usize) {
        let mut top = SpaceSaving::hashed_by(hash, most);
        let mut exact: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for (step, denials) in steps.into_iter().zip(1_u64..) {
            let Step::Deny(name) = step else { continue };
            deny(&mut top, &[name]);
            *exact.entry(vec![name]).or_default() += 1;
            let known = known(&top);
            let room = u64::try_from(most).unwrap();
            prop_assert_eq!(known.values().map(|(denied, _)| denied).sum::<u64>(), denials, "the counts add up");
            prop_assert!(top.floor() <= denials / room);
            for (name, truth) in &exact {
                prop_assert!(*truth <= denials / room || known.contains_key(name));
            }
            if exact.len() <= most {
                prop_assert!(known.iter().all(|(name, counts)| *counts == (exact[name], 0)), "and are exact");
            }
        }
    }
}
