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
    // Some keys are denied often, max_entries are not.
    let deny = prop_oneof![0..4_u8, 0..12_u8, any::<u8>()].prop_map(Step::Deny);
    let step = if resizes {
        prop_oneof![60 => deny, 2 => (0..20_usize).prop_map(Step::Resize), 1 => Just(Step::Clear)].boxed()
    } else {
        deny.boxed()
    };
    vec(step, 0..300)
}

/// Asserts that a denial of `name` changed the counts as in the paper. The paper leaves open which of several least
/// denied keys is replaced.
fn check_step(before: &CountsByName, after: &CountsByName, max_entries: usize, floor: u64, name: &[u8]) {
    let mut expected = before.clone();
    if let Some((denied, _)) = expected.get_mut(name) {
        *denied += 1;
    } else if before.len() < max_entries {
        expected.insert(name.into(), (floor + 1, floor));
    } else if let Some(least) = before.values().map(|(denied, _)| *denied).min() {
        let replaced: Vec<_> = before.keys().filter(|name| !after.contains_key(*name)).collect();
        assert_eq!(replaced.len(), 1, "one key is replaced");
        assert_eq!(expected.remove(replaced[0]).unwrap().0, least, "one of the least denied keys is replaced");
        expected.insert(name.into(), (least + 1, least));
    }
    assert_eq!(*after, expected);
}

/// Asserts the bounds of the module's documentation, given the exact counts.
fn check_bounds(sketch: &SpaceSaving, counts: &CountsByName, exact: &BTreeMap<Vec<u8>, u64>) {
    for (name, (denied, error)) in counts {
        let exact_count = exact.get(name).copied().unwrap_or(0);
        assert!(
            denied - error <= exact_count && exact_count <= *denied,
            "{name:?}: {exact_count} denials are not between {denied} - {error} and {denied}"
        );
        assert!(*denied >= sketch.floor());
    }
    for (name, exact_count) in exact {
        assert!(counts.contains_key(name) || *exact_count <= sketch.floor(), "{name:?}: {exact_count}");
    }
    assert!(counts.len() <= sketch.max_entries());
}

/// Returns the names and the numbers of denials in the last minutes.
fn recent(sketch: &mut SpaceSaving, minutes: u64, now: Timestamp) -> Vec<(String, u64)> {
    let heavy = sketch.heaviest_since(usize::MAX, minutes, now);
    assert!(heavy.iter().all(|heavy| heavy.error == 0 && heavy.denied > 0));
    heavy.iter().map(|heavy| (String::from_utf8_lossy(heavy.name).into_owned(), heavy.denied)).collect()
}

#[test]
fn last_minutes_include_the_current_one() {
    let at = |seconds: u64| Timestamp::from_micros(1_700_000_040_000_000 + seconds * 1_000_000).unwrap();
    let mut sketch = SpaceSaving::new(8);
    for (second, name) in [(0, "a"), (59, "a"), (60, "b"), (61, "a"), (150, "b")] {
        sketch.record(name.as_bytes(), None, None, at(second));
    }
    let rows = |counts: &[(&str, u64)]| -> Vec<(String, u64)> {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    assert_eq!(recent(&mut sketch, 1, at(150)), rows(&[("b", 1)]));
    assert_eq!(recent(&mut sketch, 2, at(150)), rows(&[("b", 2), ("a", 1)]));
    assert_eq!(recent(&mut sketch, 3, at(150)), rows(&[("a", 3), ("b", 2)]));
    assert_eq!(recent(&mut sketch, 1, at(180)), []);
    assert_eq!(recent(&mut sketch, 60, at(3599)), rows(&[("a", 3), ("b", 2)]));
    assert_eq!(recent(&mut sketch, 60, at(3600)), rows(&[("b", 2), ("a", 1)]));
    assert_eq!(recent(&mut sketch, 60, at(7200)), []);
    assert_eq!(names(&sketch, 9), ["a", "b"], "total counts are unchanged");
    assert_eq!(sketch.heaviest_since(1, 60, at(7200)), []);
    sketch.record(b"a", None, None, at(7200));
    assert_eq!(recent(&mut sketch, 60, at(7200)), rows(&[("a", 1)]), "denials of an hour ago are cleared");
}

#[test]
fn key_that_takes_over_an_entry_starts_at_zero() {
    let mut sketch = SpaceSaving::new(1);
    record(&mut sketch, "aaab");
    assert_eq!(count_and_error(&sketch, "b"), Some((4, 3)));
    assert_eq!(recent(&mut sketch, 60, Timestamp::EPOCH), [("b".to_owned(), 1)]);
    record(&mut sketch, "a");
    assert_eq!(recent(&mut sketch, 60, Timestamp::EPOCH), [("a".to_owned(), 1)]);
    sketch.resize(2);
    assert_eq!(recent(&mut sketch, 60, Timestamp::EPOCH), [("a".to_owned(), 1)], "a kept key keeps its counts");
    sketch.clear();
    assert_eq!(recent(&mut sketch, 60, Timestamp::EPOCH), []);
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
        let counted: CountsByName = heavy.iter().map(|heavy| (joined(heavy), (heavy.denied, heavy.error))).collect();
        prop_assert_eq!(counted, counts_by_name(&of_keys));
    }
}

proptest! {
    #[test]
    fn last_minutes_are_never_overestimated_and_exact_below_the_maximum(
        steps in vec((prop_oneof![0..20_i64, -90..200_i64, -9000..9000_i64], 0..6_u8), 0..200),
        max_entries in 1..8_usize,
        minutes in 1..=60_u64,
    ) {
        let (mut sketch, mut second) = (SpaceSaving::hashed_by(fixed_hash(), max_entries), 1_700_000_000_i64);
        // Each denial with its minute. A clock that moves backwards begins a new minute.
        let (mut denials, mut minute, mut clock_minute) = (Vec::<(u8, i64)>::new(), 0_i64, second / 60);
        for (passed, name) in steps {
            second += passed;
            minute += if second / 60 < clock_minute { 1 } else { second / 60 - clock_minute };
            clock_minute = second / 60;
            let now = Timestamp::from_micros(u64::try_from(second).unwrap() * 1_000_000).unwrap();
            sketch.record(&[name], None, None, now);
            denials.push((name, minute));
            let recent_denials = recent(&mut sketch, minutes, now);
            for name in 0..6_u8 {
                let exact_count = denials.iter().filter(|(denied, at)| *denied == name && minute - at < i64::try_from(minutes).unwrap());
                let exact_count = u64::try_from(exact_count.count()).unwrap();
                let counted = recent_denials.iter().find(|(key, _)| key.as_bytes() == [name]).map_or(0, |(_, count)| *count);
                prop_assert!(counted <= exact_count, "{}: {} of {}", name, counted, exact_count);
                prop_assert!(counted == exact_count || max_entries < 6);
            }
        }
    }

    #[test]
    fn each_denial_changes_the_counts_as_in_the_paper(steps in steps(true), hash in hash(), max_entries in 0..20_usize) {
        let mut sketch = SpaceSaving::hashed_by(hash, max_entries);
        let mut exact: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for step in steps {
            let (before, floor) = (counts_by_name(&sketch), sketch.floor());
            match step {
                Step::Deny(name) => {
                    // Names have different lengths.
                    let name = vec![name; usize::from(name % 7)];
                    deny(&mut sketch, &name);
                    check_step(&before, &counts_by_name(&sketch), sketch.max_entries(), floor, &name);
                    if sketch.max_entries() > 0 {
                        *exact.entry(name).or_default() += 1;
                    }
                }
                Step::Resize(max_entries) => {
                    let heaviest = sketch.heaviest(max_entries);
                    let heaviest: Vec<_> = heaviest.into_iter().map(|heavy| heavy.name.to_vec()).collect();
                    sketch.resize(max_entries);
                    prop_assert_eq!(sketch.max_entries(), max_entries);
                    let kept = counts_by_name(&sketch);
                    prop_assert!(kept.iter().all(|(name, counts)| before.get(name) == Some(counts)));
                    prop_assert!(kept.len() == heaviest.len() && heaviest.iter().all(|name| kept.contains_key(name)));
                }
                Step::Clear => {
                    sketch.clear();
                    exact.clear();
                }
            }
            check_bounds(&sketch, &counts_by_name(&sketch), &exact);
        }
    }

    #[test]
    fn key_denied_more_than_its_share_is_found(steps in steps(false), hash in hash(), max_entries in 1..20_usize) {
        let mut sketch = SpaceSaving::hashed_by(hash, max_entries);
        let mut exact: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for (step, denials) in steps.into_iter().zip(1_u64..) {
            let Step::Deny(name) = step else { continue };
            deny(&mut sketch, &[name]);
            *exact.entry(vec![name]).or_default() += 1;
            let counts = counts_by_name(&sketch);
            let share = denials / u64::try_from(max_entries).unwrap();
            prop_assert_eq!(counts.values().map(|(denied, _)| denied).sum::<u64>(), denials, "the counts add up");
            prop_assert!(sketch.floor() <= share);
            for (name, exact_count) in &exact {
                prop_assert!(*exact_count <= share || counts.contains_key(name));
            }
            if exact.len() <= max_entries {
                prop_assert!(counts.iter().all(|(name, count)| *count == (exact[name], 0)), "counts are exact");
            }
        }
    }
}
