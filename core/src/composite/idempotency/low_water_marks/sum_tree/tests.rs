use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

proptest! {
    #[test]
    fn sums_are_what_they_are_summed_from(changes in vec((any::<Index>(), any::<u64>(), 0..4u8), 1..100)) {
        let (mut sums, mut numbers) = (Sums::default(), Vec::<MarkSum>::new());
        for (which, number, what) in changes {
            let number = MarkSum { delta: number, live: number.rotate_left(7) };
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
                prop_assert_eq!(sums.up_to(count), numbers[..count].iter().copied().fold(MarkSum::default(), MarkSum::plus));
            }
            prop_assert_eq!(sums.len(), numbers.len());
            prop_assert_eq!(Sums::of(numbers.clone()).0, &sums.0[..]);
        }
    }

    #[test]
    fn the_place_of_a_low_is_where_the_differences_come_to_it(deltas in vec(0..4_u64, 0..70), low in 0..150_u64) {
        let sums = Sums::of(deltas.iter().map(|delta| MarkSum { delta: *delta, live: 1 }).collect());
        let naive = (0..deltas.len()).position(|index| deltas[..=index].iter().sum::<u64>() >= low);
        let place = naive.unwrap_or(deltas.len());
        prop_assert_eq!(sums.until(low), (place, sums.up_to(place)));
    }
}
