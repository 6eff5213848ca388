//! Denials in the last minutes.

use super::*;

/// Step of a test.
#[derive(Clone, Debug)]
enum Step {
    Deny(u8),
    Resize(usize),
    Clear,
}

fn steps(resizes: bool) -> impl Strategy<Value = Vec<Step>> {
    // Some keys are denied often, most are not.
    let deny = prop_oneof![0..4_u8, 0..12_u8, any::<u8>()].prop_map(Step::Deny);
    let step = if resizes {
        prop_oneof![60 => deny, 2 => (0..20_usize).prop_map(Step::Resize), 1 => Just(Step::Clear)].boxed()
    } else {
        deny.boxed()
    };
    vec(step, 0..300)
}

/// Asserts that the step matches the paper, which leaves open which of several least denied keys is replaced.
fn check_step(before: &Identity, after: &Identity, most: usize, floor: u64, name: &[u8]) {
    let mut expected = before.clone();
    if let Some((denied, _)) = expected.get_mut(name) {
        *denied += 1;
    } else if before.len() < most {
        expected.insert(name.into(), (floor + 1, floor));
    } else if let Some(least) = before.values().map(|(denied, _)| *denied).min() {
        let gone: Vec<_> = before.keys().filter(|name| !after.contains_key(*name)).collect();
        assert_eq!(gone.len(), 1, "one key is replaced");
        assert_eq!(expected.remove(gone[0]).unwrap().0, least, "it is one of the least denied keys");
        expected.insert(name.into(), (least + 1, least));
    }
    assert_eq!(*after, expected);
}

/// Asserts the bounds that hold after any denials, given the exact counts.
fn check_bounds(top: &SpaceSaving, known: &Identity, exact: &BTreeMap<Vec<u8>, u64>) {
    for (name, (denied, error)) in known {
        let truth = exact.get(name).copied().unwrap_or(0);
        assert!(denied - error <= truth && truth <= *denied, "{name:?}: {denied} less {error}, really {truth}");
        assert!(*denied >= top.floor());
    }
    for (name, truth) in exact {
        assert!(known.contains_key(name) || *truth <= top.floor(), "{name:?}: {truth}");
    }
    assert!(known.len() <= top.max_entries());
}

/// Returns the denials of the last minutes.
fn recent(top: &mut SpaceSaving, minutes: u64, now: Timestamp) -> Vec<(String, u64)> {
    let heavy = top.heaviest_since(usize::MAX, minutes, now);
    assert!(heavy.iter().all(|heavy| heavy.error == 0 && heavy.denied > 0));
    heavy.iter().map(|heavy| (String::from_utf8_lossy(heavy.name).into_owned(), heavy.denied)).collect()
}

#[test]
fn last_minutes_include_the_current_one() {
    let at = |seconds: u64| Timestamp::from_micros(1_700_000_040_000_000 + seconds * 1_000_000).unwrap();
    let mut top = SpaceSaving::new(8);
    for (second, name) in [(0, "a"), (59, "a"), (60, "b"), (61, "a"), (150, "b")] {
        top.record(name.as_bytes(), None, None, at(second));
    }
    let rows = |counts: &[(&str, u64)]| -> Vec<(String, u64)> {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    assert_eq!(recent(&mut top, 1, at(150)), rows(&[("b", 1)]));
    assert_eq!(recent(&mut top, 2, at(150)), rows(&[("b", 2), ("a", 1)]));
    assert_eq!(recent(&mut top, 3, at(150)), rows(&[("a", 3), ("b", 2)]));
    assert_eq!(recent(&mut top, 1, at(180)), []);
    assert_eq!(recent(&mut top, 60, at(3599)), rows(&[("a", 3), ("b", 2)]));
    assert_eq!(recent(&mut top, 60, at(3600)), rows(&[("b", 2), ("a", 1)]));
    assert_eq!(recent(&mut top, 60, at(7200)), []);
    assert_eq!(names(&top, 9), ["a", "b"], "total counts are unchanged");
    assert_eq!(top.heaviest_since(1, 60, at(7200)), []);
    top.record(b"a", None, None, at(7200));
    assert_eq!(recent(&mut top, 60, at(7200)), rows(&[("a", 1)]), "denials of an hour ago are cleared");
}

#[test]
fn key_that_takes_over_an_entry_starts_at_zero() {
    let mut top = SpaceSaving::new(1);
    record(&mut top, "aaab");
    assert_eq!(of(&top, "b"), Some((4, 3)));
    assert_eq!(recent(&mut top, 60, Timestamp::EPOCH), [("b".to_owned(), 1)]);
    record(&mut top, "a");
    assert_eq!(recent(&mut top, 60, Timestamp::EPOCH), [("a".to_owned(), 1)]);
    top.resize(2);
    assert_eq!(recent(&mut top, 60, Timestamp::EPOCH), [("a".to_owned(), 1)], "a kept key keeps its counts");
    top.clear();
    assert_eq!(recent(&mut top, 60, Timestamp::EPOCH), []);
}

proptest! {
    #[test]
    fn items_are_counted_like_keys(hash in hash(), denials in vec((0..3_u8, 0..6_u8), 0..200)) {
        let (mut of_items, mut of_keys) = (SpaceSaving::hashed_by(hash, 5), SpaceSaving::hashed_by(fixed_hash(), 5));
        for (name, item) in denials {
            let bytes = [item];
            let item = (name > 0).then(|| if item % 2 == 0 { &[][..] } else { &bytes });
            let joined = [&[name][..], &[u8::from(item.is_some())], item.unwrap_or_default()].concat();
            of_items.record(&[name], item, None, Timestamp::EPOCH);
            deny(&mut of_keys, &joined);
        }
        let joined = |heavy: &HeavyHitter| {
            [heavy.name, &[u8::from(heavy.item.is_some())], heavy.item.unwrap_or_default()].concat()
        };
        let heavy = of_items.heaviest(usize::MAX);
        let counted: Identity = heavy.iter().map(|heavy| (joined(heavy), (heavy.denied, heavy.error))).collect();
        prop_assert_eq!(counted, known(&of_keys));
    }
}

proptest! {
    #[test]
    fn last_minutes_are_never_overestimated_and_exact_below_the_maximum(
        steps in vec((prop_oneof![0..20_i64, -90..200_i64, -9000..9000_i64], 0..6_u8), 0..200),
        most in 1..8_usize,
        minutes in 1..=60_u64,
    ) {
        let (mut top, mut second) = (SpaceSaving::hashed_by(fixed_hash(), most), 1_700_000_000_i64);
        // Each denial with its minute. A clock that moves backwards begins a new minute.
        let (mut denials, mut minute, mut shown) = (Vec::<(u8, i64)>::new(), 0_i64, second / 60);
        for (passed, name) in steps {
            second += passed;
            minute += if second / 60 < shown { 1 } else { second / 60 - shown };
            shown = second / 60;
            let now = Timestamp::from_micros(u64::try_from(second).unwrap() * 1_000_000).unwrap();
            top.record(&[name], None, None, now);
            denials.push((name, minute));
            let recent_denials = recent(&mut top, minutes, now);
            for name in 0..6_u8 {
                let truth = denials.iter().filter(|(denied, at)| *denied == name && minute - at < i64::try_from(minutes).unwrap());
                let truth = u64::try_from(truth.count()).unwrap();
                let counted = recent_denials.iter().find(|(key, _)| key.as_bytes() == [name]).map_or(0, |(_, count)| *count);
                prop_assert!(counted <= truth, "{}: {} of {}", name, counted, truth);
                prop_assert!(counted == truth || most < 6);
            }
        }
    }

    #[test]
    fn each_denial_matches_the_paper(steps in steps(true), hash in hash(), most in 0..20_usize) {
        let mut top = SpaceSaving::hashed_by(hash, most);
        let mut exact: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for step in steps {
            let (before, floor) = (known(&top), top.floor());
            match step {
                Step::Deny(name) => {
                    // Names have different lengths.
                    let name = vec![name; usize::from(name % 7)];
                    deny(&mut top, &name);
                    check_step(&before, &known(&top), top.max_entries(), floor, &name);
                    if top.max_entries() > 0 {
                        *exact.entry(name).or_default() += 1;
                    }
                }
                Step::Resize(most) => {
                    let heaviest: Vec<_> = top.heaviest(most).into_iter().map(|heavy| heavy.name.to_vec()).collect();
                    top.resize(most);
                    prop_assert_eq!(top.max_entries(), most);
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
    fn key_denied_more_than_its_share_is_found(steps in steps(false), hash in hash(), most in 1..20_usize) {
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
                prop_assert!(known.iter().all(|(name, counts)| *counts == (exact[name], 0)), "counts are exact");
            }
        }
    }
}
