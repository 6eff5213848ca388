use super::*;
use crate::calls::{Fields, millionths};
use crate::effort;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// The lows as plainly as they can be said: of each charge the least since, changed one by one.
#[derive(Default)]
struct Naive {
    /// The number, the low, and whether it is not forgotten.
    charges: Vec<(u64, Option<u64>)>,
    next: u64,
}

impl Naive {
    fn low(&mut self, used: u64) {
        for (_, low) in &mut self.charges {
            *low = Some(low.map_or(used, |low| low.min(used)));
        }
    }

    fn lower(&mut self, number: u64, by: u64) {
        let low = self.charges.iter().find(|(other, _)| *other == number).and_then(|(_, low)| *low);
        let Some(fallen) = low.map(|low| low - by) else { return };
        for (other, low) in &mut self.charges {
            *low = match *low {
                // What was least since a newer one is lower by that; an older one's is no more than this one's.
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
    /// Which one, and so many hundredths of what it can be lowered by.
    Lower(Index, u64),
    Forget(Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Charge),
        4 => (0..=60u64).prop_map(Step::Low),
        2 => (any::<Index>(), prop_oneof![Just(100), 0..=100u64]).prop_map(|(which, part)| Step::Lower(which, part)),
        2 => any::<Index>().prop_map(Step::Forget),
    ];
    vec(step, 1..=120)
}

proptest! {
    #[test]
    fn the_least_since_each_charge_is_known(steps in steps()) {
        let (mut lows, mut naive) = (Lows::default(), Naive::default());
        for step in steps {
            match step {
                Step::Charge => {
                    let number = lows.charge();
                    prop_assert_eq!(number, naive.next);
                    naive.charges.push((number, None));
                    naive.next += 1;
                }
                Step::Low(used) => {
                    lows.low(millionths(used));
                    naive.low(used);
                }
                Step::Lower(which, part) if !naive.charges.is_empty() => {
                    let (number, low) = *which.get(&naive.charges);
                    let by = low.unwrap_or(100) * part / 100;
                    lows.lower(number, millionths(by));
                    naive.lower(number, by);
                }
                Step::Forget(which) if !naive.charges.is_empty() => {
                    let index = which.index(naive.charges.len());
                    lows.forget(naive.charges.remove(index).0);
                    if naive.charges.is_empty() {
                        naive.next = 0;
                    }
                }
                Step::Lower(..) | Step::Forget(_) => {}
            }
            prop_assert_eq!(lows.live(), naive.charges.len());
            let mut encoded = Fields::default();
            lows.encode(&mut encoded);
            let mut decoded = Lows::decode(&mut encoded.clone()).unwrap();
            prop_assert!(naive.charges.iter().all(|(number, _)| decoded.count(*number)) && decoded.is_sound());
            for lows in [&lows, &decoded] {
                for (number, low) in &naive.charges {
                    prop_assert_eq!(lows.least(*number).map(Amount::millionths), *low);
                }
                let mut again = Fields::default();
                lows.encode(&mut again);
                prop_assert_eq!(&again, &encoded);
            }
            // There is never more room than a little for each group.
            prop_assert!(lows.groups.len() <= naive.charges.len());
            prop_assert!(lows.deltas.len() <= 2 * lows.groups.len() + 120);
        }
    }

    #[test]
    fn sums_are_what_they_are_summed_from(changes in vec((any::<Index>(), any::<u64>(), 0..4u8), 1..100)) {
        let (mut sums, mut numbers) = (Sums::default(), Vec::<u64>::new());
        for (which, number, what) in changes {
            match what {
                0 if !numbers.is_empty() => {
                    let index = which.index(numbers.len());
                    numbers[index] = numbers[index].wrapping_add(number);
                    sums.add(index, number);
                }
                1 if !numbers.is_empty() => {
                    numbers.truncate(which.index(numbers.len()));
                    sums.truncate(numbers.len());
                }
                _ => {
                    numbers.push(number);
                    sums.push(number);
                }
            }
            for count in 0..=numbers.len() {
                prop_assert_eq!(sums.up_to(count), numbers[..count].iter().fold(0, |sum, number| number.wrapping_add(sum)));
            }
            prop_assert_eq!(sums.len(), numbers.len());
        }
    }
}

#[test]
fn few_charges_that_outlive_many_need_no_room_for_those() {
    let mut lows = Lows::default();
    let old = lows.charge();
    lows.low(millionths(1));
    for used in 0..10_000 {
        let number = lows.charge();
        lows.low(millionths(2 + used));
        lows.forget(number);
        assert!(lows.deltas.len() <= 20);
    }
    assert_eq!(lows.least(old), Some(millionths(1)));
}

#[test]
fn what_it_holds_is_nodes_of_groups_and_their_differences() {
    let mut lows = Lows::default();
    assert_eq!(lows.heap_size(), 0);
    for used in 1..=7 {
        lows.charge();
        lows.low(millionths(used));
    }
    assert_eq!(lows.heap_size(), 2 * 384 + 8 * lows.deltas.0.capacity());
}

#[test]
fn among_many_lows_each_operation_is_logarithmic() {
    let mut lows = Lows::default();
    for used in 1..=10_000 {
        lows.charge();
        assert!(effort::of(|| lows.low(millionths(10 * used))) <= 100, "{used}");
    }
    for step in 0..5_000_u64 {
        let number = step * 3_877 % 10_000;
        assert!(effort::of(|| lows.least(number)) <= 15);
        assert!(effort::of(|| lows.lower(number, millionths(1))) <= 15);
        assert!(effort::of(|| lows.forget(number)) <= 30);
    }
}
