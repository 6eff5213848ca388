use super::*;
use crate::testing::calls::millionths;
use crate::testing::encoded_fields::EncodedFields;
use crate::testing::step_counter;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Low-water mark of each charge, changed one by one.
#[derive(Default)]
struct Naive {
    /// Number of each charge that has not been removed, with its mark.
    charges: Vec<(u64, Option<u64>)>,
    next: u64,
}

impl Naive {
    fn lower_all(&mut self, used: u64) {
        for (_, low) in &mut self.charges {
            *low = Some(low.map_or(used, |low| low.min(used)));
        }
    }

    fn settle(&mut self, number: u64, by: u64) {
        let low = self.charges.iter().find(|(other, _)| *other == number).and_then(|(_, low)| *low);
        let Some(fallen) = low.map(|low| low - by) else { return };
        for (other, low) in &mut self.charges {
            *low = match *low {
                // The marks of newer charges fall by the reduction. Those of older ones are at most that of the charge.
                Some(low) if *other >= number => Some(low - by),
                Some(low) => Some(low.min(fallen)),
                None => None,
            };
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Charge,
    Low(u64),
    /// Charges, each with a higher low.
    Rise(u64),
    /// Which one, and so many hundredths of what it can be lowered by.
    Lower(Index, u64),
    Forget(Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Charge),
        4 => (0..=60u64).prop_map(Step::Low),
        // Many lows that rise, one after another.
        1 => (0..=20u64).prop_map(Step::Rise),
        2 => (any::<Index>(), prop_oneof![Just(100), 0..=100u64]).prop_map(|(which, component)| Step::Lower(which, component)),
        2 => any::<Index>().prop_map(Step::Forget),
    ];
    vec(step, 1..=120)
}

proptest! {
    #[test]
    fn mark_is_the_lowest_usage_since_the_charge(steps in steps()) {
        let (mut low_water_marks, mut naive) = (LowWaterMarks::default(), Naive::default());
        for step in steps {
            match step {
                Step::Charge => {
                    let number = low_water_marks.charge().unwrap();
                    prop_assert_eq!(number, naive.next);
                    naive.charges.push((number, None));
                    naive.next += 1;
                }
                Step::Rise(charges) => {
                    for used in 61..61 + charges {
                        naive.charges.push((low_water_marks.charge().unwrap(), None));
                        naive.next += 1;
                        low_water_marks.lower_all(millionths(used));
                        naive.lower_all(used);
                    }
                }
                Step::Low(used) => {
                    low_water_marks.lower_all(millionths(used));
                    naive.lower_all(used);
                }
                Step::Lower(which, component) if !naive.charges.is_empty() => {
                    let (number, low) = *which.get(&naive.charges);
                    let by = low.unwrap_or(100) * component / 100;
                    low_water_marks.settle(number, millionths(by));
                    naive.settle(number, by);
                }
                Step::Forget(which) if !naive.charges.is_empty() => {
                    let index = which.index(naive.charges.len());
                    low_water_marks.forget(naive.charges.remove(index).0);
                    if naive.charges.is_empty() {
                        naive.next = 0;
                    }
                }
                Step::Lower(..) | Step::Forget(_) => {}
            }
            prop_assert_eq!(low_water_marks.charge_count, naive.charges.len());
            let mut encoded = EncodedFields::default();
            low_water_marks.encode(&mut encoded);
            let mut decoded = LowWaterMarks::decode(&mut encoded.clone()).unwrap();
            prop_assert!(naive.charges.iter().all(|(number, _)| decoded.count(*number)) && decoded.is_sound());
            for low_water_marks in [&low_water_marks, &decoded] {
                for (number, low) in &naive.charges {
                    prop_assert_eq!(low_water_marks.mark_of(*number).map(Amount::millionths), *low);
                }
                let mut again = EncodedFields::default();
                low_water_marks.encode(&mut again);
                prop_assert_eq!(&again, &encoded);
            }
            let mut packed = EncodedFields::default();
            low_water_marks.encode(&mut packed);
            low_water_marks.encode_counts(&mut packed);
            let mut fields = packed.clone();
            let mut unpacked = LowWaterMarks::decode(&mut fields).unwrap();
            unpacked.decode_counts(&mut fields).unwrap();
            for low_water_marks in [&decoded, &unpacked] {
                let mut again = EncodedFields::default();
                low_water_marks.encode(&mut again);
                low_water_marks.encode_counts(&mut again);
                prop_assert_eq!(&again, &packed);
            }
            prop_assert!(low_water_marks.groups.iter().all(|group| group.charge_count > 0));
            prop_assert!(low_water_marks.groups.len() <= naive.charges.len());
            let top: u64 = low_water_marks.groups.iter().map(|group| group.delta).sum();
            prop_assert_eq!(low_water_marks.newest_mark, top);
        }
    }
}

#[test]
fn few_remaining_charges_of_many_take_little_memory() {
    let mut low_water_marks = LowWaterMarks::default();
    let old = low_water_marks.charge().unwrap();
    low_water_marks.lower_all(millionths(1));
    for used in 0..10_000 {
        let number = low_water_marks.charge().unwrap();
        low_water_marks.lower_all(millionths(2 + used));
        low_water_marks.forget(number);
        assert!(low_water_marks.groups.len() <= 1);
    }
    assert_eq!(low_water_marks.mark_of(old), Some(millionths(1)));
}

#[test]
fn charges_are_numbered_up_to_the_last_decodable_number() {
    let last = LowWaterMarks {
        next: LowWaterMarks::LAST - 1,
        first_unmarked: LowWaterMarks::LAST - 1,
        ..LowWaterMarks::default()
    };
    let mut low_water_marks = last;
    assert_eq!(low_water_marks.charge(), Some(LowWaterMarks::LAST - 1));
    assert_eq!((low_water_marks.charge(), low_water_marks.charge_count), (None, 1));
    let mut written = EncodedFields::default();
    low_water_marks.encode(&mut written);
    let mut read = LowWaterMarks::decode(&mut written).unwrap();
    assert!(read.count(LowWaterMarks::LAST - 1) && read.is_sound());
}

#[test]
fn group_takes_little_more_than_its_numbers() {
    let mut low_water_marks = LowWaterMarks::default();
    assert_eq!(low_water_marks.heap_size(), 0);
    for used in 1..=10_000 {
        low_water_marks.charge().unwrap();
        low_water_marks.lower_all(millionths(used));
        let (groups, held) = (usize::try_from(used).unwrap(), low_water_marks.heap_size());
        assert!((24 * groups..=27 * groups + 100).contains(&held), "{held} for {groups}");
    }
}

#[test]
fn low_usage_visits_each_higher_mark_once() {
    let mut low_water_marks = LowWaterMarks::default();
    for used in 1..=10_000 {
        low_water_marks.charge();
        low_water_marks.lower_all(millionths(10 * used));
    }
    for (left, passed) in [(5_000, 5_001), (5_000, 1), (0, 5_000)] {
        assert_eq!(step_counter::count(|| low_water_marks.lower_all(millionths(10 * left))), passed);
        assert_eq!(low_water_marks.mark_of(9_999), Some(millionths(10 * left)));
        assert_eq!(low_water_marks.mark_of(0), Some(millionths((10 * left).min(10))));
    }
}

#[test]
fn settled_and_removed_charges_visit_each_mark_once() {
    let mut low_water_marks = LowWaterMarks::default();
    for used in 1..=10_000 {
        low_water_marks.charge().unwrap();
        assert!(step_counter::count(|| low_water_marks.lower_all(millionths(10 * used))) <= 1, "{used}");
    }
    let held = low_water_marks.heap_size();
    let mut visited = 0;
    for step in 0..9_900_u64 {
        let number = step * 3_877 % 10_000;
        visited += step_counter::count(|| low_water_marks.settle(number, millionths(1)));
        visited += step_counter::count(|| low_water_marks.forget(number));
    }
    assert!(visited <= 10_000, "{visited}");
    assert!(low_water_marks.heap_size() < held / 10);
}
