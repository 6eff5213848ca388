use super::*;
use crate::testing::calls::millionths;
use crate::testing::encoded_fields::EncodedFields;
use crate::testing::step_counter;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Low-water marks that are changed one by one.
#[derive(Default)]
struct Naive {
    /// Number of each charge that has not been removed, and its mark.
    charges: Vec<(u64, Option<u64>)>,
    next: u64,
}

impl Naive {
    fn lower_all(&mut self, used: u64) {
        for (_, mark) in &mut self.charges {
            *mark = Some(mark.map_or(used, |mark| mark.min(used)));
        }
    }

    fn settle(&mut self, number: u64, reduction: u64) {
        let mark = self.charges.iter().find(|(other, _)| *other == number).and_then(|(_, mark)| *mark);
        let Some(reduced) = mark.map(|mark| mark - reduction) else { return };
        for (other, mark) in &mut self.charges {
            *mark = match *mark {
                // The marks of newer charges fall by the reduction. The marks of older charges do not exceed the
                // reduced mark.
                Some(mark) if *other >= number => Some(mark - reduction),
                Some(mark) => Some(mark.min(reduced)),
                None => None,
            };
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Charge,
    /// Lowers all marks to this usage.
    LowerAll(u64),
    /// Adds this many charges, each with a higher mark than the previous one.
    AddRising(u64),
    /// Settles a charge, by a percentage of its mark.
    Settle(Index, u64),
    Forget(Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Charge),
        4 => (0..=60u64).prop_map(Step::LowerAll),
        1 => (0..=20u64).prop_map(Step::AddRising),
        2 => (any::<Index>(), prop_oneof![Just(100), 0..=100u64]).prop_map(|(charge, percent)| Step::Settle(charge, percent)),
        2 => any::<Index>().prop_map(Step::Forget),
    ];
    vec(step, 1..=120)
}

proptest! {
    #[test]
    fn mark_is_the_lowest_usage_since_the_charge(steps in steps()) {
        let (mut marks, mut naive) = (LowWaterMarks::default(), Naive::default());
        for step in steps {
            match step {
                Step::Charge => {
                    let number = marks.charge().unwrap();
                    prop_assert_eq!(number, naive.next);
                    naive.charges.push((number, None));
                    naive.next += 1;
                }
                Step::AddRising(charges) => {
                    for used in 61..61 + charges {
                        naive.charges.push((marks.charge().unwrap(), None));
                        naive.next += 1;
                        marks.lower_all(millionths(used));
                        naive.lower_all(used);
                    }
                }
                Step::LowerAll(used) => {
                    marks.lower_all(millionths(used));
                    naive.lower_all(used);
                }
                Step::Settle(charge, percent) if !naive.charges.is_empty() => {
                    let (number, mark) = *charge.get(&naive.charges);
                    let reduction = mark.unwrap_or(100) * percent / 100;
                    marks.settle(number, millionths(reduction));
                    naive.settle(number, reduction);
                }
                Step::Forget(charge) if !naive.charges.is_empty() => {
                    let index = charge.index(naive.charges.len());
                    marks.forget(naive.charges.remove(index).0);
                    if naive.charges.is_empty() {
                        naive.next = 0;
                    }
                }
                Step::Settle(..) | Step::Forget(_) => {}
            }
            prop_assert_eq!(marks.charge_count, naive.charges.len());
            let mut encoded = EncodedFields::default();
            marks.encode(&mut encoded);
            let mut decoded = LowWaterMarks::decode(&mut encoded.clone()).unwrap();
            prop_assert!(naive.charges.iter().all(|(number, _)| decoded.count_charge(*number)) && decoded.is_sound());
            for marks in [&marks, &decoded] {
                for (number, mark) in &naive.charges {
                    prop_assert_eq!(marks.mark_of(*number).map(Amount::millionths), *mark);
                }
                let mut fields = EncodedFields::default();
                marks.encode(&mut fields);
                prop_assert_eq!(&fields, &encoded);
            }
            let mut packed = EncodedFields::default();
            marks.encode(&mut packed);
            marks.encode_counts(&mut packed);
            let mut fields = packed.clone();
            let mut unpacked = LowWaterMarks::decode(&mut fields).unwrap();
            unpacked.decode_counts(&mut fields).unwrap();
            for marks in [&decoded, &unpacked] {
                let mut fields = EncodedFields::default();
                marks.encode(&mut fields);
                marks.encode_counts(&mut fields);
                prop_assert_eq!(&fields, &packed);
            }
            prop_assert!(marks.groups.iter().all(|group| group.charge_count > 0));
            prop_assert!(marks.groups.len() <= naive.charges.len());
            let sum: u64 = marks.groups.iter().map(|group| group.delta).sum();
            prop_assert_eq!(marks.newest_mark, sum);
        }
    }
}

#[test]
fn removed_charges_take_no_memory() {
    let mut marks = LowWaterMarks::default();
    let oldest = marks.charge().unwrap();
    marks.lower_all(millionths(1));
    for used in 0..10_000 {
        let number = marks.charge().unwrap();
        marks.lower_all(millionths(2 + used));
        marks.forget(number);
        assert!(marks.groups.len() <= 1);
    }
    assert_eq!(marks.mark_of(oldest), Some(millionths(1)));
}

#[test]
fn charges_are_numbered_up_to_the_last_decodable_number() {
    let mut marks = LowWaterMarks {
        next: LowWaterMarks::NUMBER_LIMIT - 1,
        first_unmarked: LowWaterMarks::NUMBER_LIMIT - 1,
        ..LowWaterMarks::default()
    };
    assert_eq!(marks.charge(), Some(LowWaterMarks::NUMBER_LIMIT - 1));
    assert_eq!((marks.charge(), marks.charge_count), (None, 1));
    let mut fields = EncodedFields::default();
    marks.encode(&mut fields);
    let mut decoded = LowWaterMarks::decode(&mut fields).unwrap();
    assert!(decoded.count_charge(LowWaterMarks::NUMBER_LIMIT - 1) && decoded.is_sound());
}

#[test]
fn group_takes_about_24_bytes() {
    let mut marks = LowWaterMarks::default();
    assert_eq!(marks.heap_size(), 0);
    for used in 1..=10_000 {
        marks.charge().unwrap();
        marks.lower_all(millionths(used));
        let (groups, size) = (usize::try_from(used).unwrap(), marks.heap_size());
        assert!((24 * groups..=27 * groups + 100).contains(&size), "{size} bytes for {groups} groups");
    }
}

#[test]
fn lowering_visits_each_higher_mark_once() {
    let mut marks = LowWaterMarks::default();
    for used in 1..=10_000 {
        marks.charge();
        marks.lower_all(millionths(10 * used));
    }
    for (used, steps) in [(50_000, 5_001), (50_000, 1), (0, 5_000)] {
        assert_eq!(step_counter::count(|| marks.lower_all(millionths(used))), steps);
        assert_eq!(marks.mark_of(9_999), Some(millionths(used)));
        assert_eq!(marks.mark_of(0), Some(millionths(used.min(10))));
    }
}

#[test]
fn settled_and_removed_charges_visit_each_mark_once() {
    let mut marks = LowWaterMarks::default();
    for used in 1..=10_000 {
        marks.charge().unwrap();
        assert!(step_counter::count(|| marks.lower_all(millionths(10 * used))) <= 1, "{used}");
    }
    let full_size = marks.heap_size();
    let mut steps = 0;
    for step in 0..9_900_u64 {
        let number = step * 3_877 % 10_000;
        steps += step_counter::count(|| marks.settle(number, millionths(1)));
        steps += step_counter::count(|| marks.forget(number));
    }
    assert!(steps <= 10_000, "{steps}");
    assert!(marks.heap_size() < full_size / 10);
}
