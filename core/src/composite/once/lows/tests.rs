use super::*;
use crate::testing::calls::{Fields, millionths};
use crate::testing::effort;
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
                    let number = lows.charge().unwrap();
                    prop_assert_eq!(number, naive.next);
                    naive.charges.push((number, None));
                    naive.next += 1;
                }
                Step::Rise(charges) => {
                    for used in 61..61 + charges {
                        naive.charges.push((lows.charge().unwrap(), None));
                        naive.next += 1;
                        lows.low(millionths(used));
                        naive.low(used);
                    }
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
            prop_assert!(lows.sums.len() <= 2 * lows.groups.len() + 120);
            prop_assert_eq!(lows.firsts.len(), lows.sums.len());
            prop_assert_eq!(lows.sums.sum().live + u64_of(lows.open_live), u64_of(lows.live()));
        }
    }

    #[test]
    fn sums_are_what_they_are_summed_from(changes in vec((any::<Index>(), any::<u64>(), 0..4u8), 1..100)) {
        let (mut sums, mut numbers) = (Sums::default(), Vec::<Sum>::new());
        for (which, number, what) in changes {
            let number = Sum { delta: number, live: number.rotate_left(7) };
            match what {
                0 if !numbers.is_empty() => {
                    let index = which.index(numbers.len());
                    numbers[index] = numbers[index].plus(number);
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
                prop_assert_eq!(sums.up_to(count), numbers[..count].iter().copied().fold(Sum::default(), Sum::plus));
            }
            prop_assert_eq!(sums.len(), numbers.len());
            prop_assert_eq!(Sums::of(numbers.clone()).0, &sums.0[..]);
        }
    }

    #[test]
    fn the_place_of_a_low_is_where_the_differences_come_to_it(deltas in vec(0..4_u64, 0..70), low in 0..150_u64) {
        let sums = Sums::of(deltas.iter().map(|delta| Sum { delta: *delta, live: 1 }).collect());
        let naive = (0..deltas.len()).position(|index| deltas[..=index].iter().sum::<u64>() >= low);
        let place = naive.unwrap_or(deltas.len());
        prop_assert_eq!(sums.until(low), (place, sums.up_to(place)));
    }
}

#[test]
fn few_charges_that_outlive_many_need_no_room_for_those() {
    let mut lows = Lows::default();
    let old = lows.charge().unwrap();
    lows.low(millionths(1));
    for used in 0..10_000 {
        let number = lows.charge().unwrap();
        lows.low(millionths(2 + used));
        lows.forget(number);
        assert!(lows.sums.len() <= 20);
    }
    assert_eq!(lows.least(old), Some(millionths(1)));
}

#[test]
fn charges_are_counted_up_to_the_last_number_that_can_be_read() {
    let last = Lows { next: Lows::LAST - 1, open: Lows::LAST - 1, ..Lows::default() };
    let mut lows = last;
    assert_eq!(lows.charge(), Some(Lows::LAST - 1));
    assert_eq!((lows.charge(), lows.live()), (None, 1));
    let mut written = Fields::default();
    lows.encode(&mut written);
    let mut read = Lows::decode(&mut written).unwrap();
    assert!(read.count(Lows::LAST - 1) && read.is_sound());
}

#[test]
fn what_it_holds_is_nodes_of_groups_and_their_differences() {
    let mut lows = Lows::default();
    assert_eq!(lows.heap_size(), 0);
    for used in 1..=7 {
        lows.charge().unwrap();
        lows.low(millionths(used));
    }
    assert_eq!(lows.heap_size(), 2 * 384 + 16 * lows.sums.0.capacity() + 8 * lows.firsts.capacity());
}

#[test]
fn a_low_below_many_others_ends_them_at_once() {
    for left in [0, 5_000] {
        let mut lows = Lows::default();
        for used in 1..=10_000 {
            lows.charge();
            lows.low(millionths(10 * used));
        }
        assert!(effort::of(|| lows.low(millionths(10 * left))) <= 100);
        assert_eq!(lows.least(9_999), Some(millionths(10 * left)));
        assert_eq!(lows.least(0), Some(millionths((10 * left).min(10))));
        let held = lows.heap_size();
        assert!(lows.clone().heap_size() < held, "a copy has none of what is to be freed");
        for _ in 0..=10_000 / 16 {
            assert!(effort::of(|| lows.low(millionths(10 * left))) <= 100);
        }
        assert!(lows.spent.0.is_empty());
        assert!(lows.heap_size() < held);
    }
}

#[test]
fn among_many_lows_each_operation_is_logarithmic() {
    let mut lows = Lows::default();
    for used in 1..=10_000 {
        lows.charge().unwrap();
        assert!(effort::of(|| lows.low(millionths(10 * used))) <= 100, "{used}");
    }
    for step in 0..5_000_u64 {
        let number = step * 3_877 % 10_000;
        assert!(effort::of(|| lows.least(number)) <= 15);
        assert!(effort::of(|| lows.lower(number, millionths(1))) <= 15);
        assert!(effort::of(|| lows.forget(number)) <= 30);
    }
}
