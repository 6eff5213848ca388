//! The buckets that were read last, by the words that said them: most calls bring one of a few, word for word, and to
//! recognise it takes a third of the instructions that reading it takes.

use crate::algorithm::bucket::{Bucket, Discipline};
use crate::wire::short_bytes::{MOST_SHORT, halves};
use std::cell::Cell;

/// The buckets that were read last. A bucket whose place another has taken is read again.
#[derive(Clone, Debug)]
pub struct BucketMemo([Cell<Option<(BucketWords, Bucket)>>; PLACES]);

/// The words of eight tenants with limits of their own fit.
const PLACES: usize = 8;

/// Capacity, refill and period as they were written, and which bucket they are of.
#[derive(Clone, Copy, Debug)]
struct BucketWords {
    texts: [u64; 6],
    lengths: u64,
}

impl PartialEq for BucketWords {
    /// Number by number: a derived comparison calls the one for bytes of any length.
    #[inline(always)]
    fn eq(&self, other: &BucketWords) -> bool {
        let differing = |differing: u64, (one, another): (&u64, &u64)| differing | (one ^ another);
        self.texts.iter().zip(&other.texts).fold(self.lengths ^ other.lengths, differing) == 0
    }
}

impl Default for BucketMemo {
    fn default() -> BucketMemo {
        BucketMemo([const { Cell::new(None) }; PLACES])
    }
}

impl BucketMemo {
    /// The bucket that these words say, if it was read before.
    #[inline(always)]
    pub fn known(&self, words: [Option<&[u8]>; 3], discipline: Discipline) -> Option<Bucket> {
        let words = BucketWords::of(words, discipline)?;
        self.place(&words)?.get().filter(|(known, _)| *known == words).map(|(_, bucket)| bucket)
    }

    /// The bucket that these words say; `read` reads it, if they are not recognised.
    ///
    /// # Errors
    /// That of `read`.
    #[inline(always)]
    pub fn find<E>(
        &self,
        words: [Option<&[u8]>; 3],
        discipline: Discipline,
        read: impl FnOnce() -> Result<Bucket, E>,
    ) -> Result<Bucket, E> {
        let Some((words, place)) =
            BucketWords::of(words, discipline).and_then(|words| Some((words, self.place(&words)?)))
        else {
            return read();
        };
        match place.get() {
            Some((known, bucket)) if known == words => Ok(bucket),
            _ => {
                let bucket = read()?.prepared();
                place.set(Some((words, bucket)));
                Ok(bucket)
            }
        }
    }

    #[inline(always)]
    fn place(&self, words: &BucketWords) -> Option<&Cell<Option<(BucketWords, Bucket)>>> {
        // Digits differ in their low halves; the product carries all of them into its highest bits (Fibonacci hashing).
        let mixed = words.texts.iter().fold(words.lengths, |mixed, text| mixed.rotate_left(11) ^ text);
        self.0.get(usize::try_from(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61).ok()?)
    }
}

impl BucketWords {
    #[inline(always)]
    fn of(words: [Option<&[u8]>; 3], discipline: Discipline) -> Option<BucketWords> {
        let [capacity, refill, period] = words;
        let (capacity, refill, period) = (capacity?, refill?, period?);
        let longest = capacity.len().max(refill.len()).max(period.len());
        if longest > MOST_SHORT {
            return None;
        }
        let [(c0, c1), (r0, r1), (p0, p1)] = [halves(capacity)?, halves(refill)?, halves(period)?];
        let length = |word: &[u8]| u64::try_from(word.len()).unwrap_or(0);
        let lengths = length(capacity) | length(refill) << 8 | length(period) << 16;
        let is_queue = u64::from(discipline == Discipline::Queue);
        Some(BucketWords { texts: [c0, c1, r0, r1, p0, p1], lengths: lengths | is_queue << 24 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{Amount, Period, Span};

    fn bucket(capacity: u64, discipline: Discipline) -> Bucket {
        let amount = Amount::from_millionths(capacity).unwrap();
        Bucket::new(amount, amount, Period::new(Span::SECOND).unwrap(), discipline).unwrap()
    }

    /// What the memo says of words, and whether it had them read.
    fn find(memo: &BucketMemo, words: [&str; 3], discipline: Discipline, read: u64) -> (String, bool) {
        let was_read = Cell::new(false);
        let bucket = memo.find(words.map(|word| Some(word.as_bytes())), discipline, || {
            was_read.set(true);
            Ok::<_, ()>(bucket(read, discipline))
        });
        (bucket.unwrap().to_string(), was_read.get())
    }

    #[test]
    fn words_are_read_once_and_others_are_told_from_them() {
        let alike = ["1", "11", "111", "1111", "11111", "1111111", "11111111", "111111111", "1111111111111111"];
        for (capacity, refill) in alike.iter().flat_map(|capacity| alike.map(|refill| (*capacity, refill))) {
            let memo = BucketMemo::default();
            let words = [capacity, refill, "1s"];
            let (first, was_read) = find(&memo, words, Discipline::Burst, 7_000_000);
            assert!(was_read);
            assert_eq!(find(&memo, words, Discipline::Burst, 1), (first, false));
            for other in
                alike.iter().flat_map(|one| [[*one, refill, "1s"], [capacity, *one, "1s"], [capacity, refill, *one]])
            {
                let memo = memo.clone();
                assert_eq!(find(&memo, other, Discipline::Burst, 1).1, other != words, "{other:?} {words:?}");
            }
        }
    }

    #[test]
    fn words_in_another_order_are_others() {
        let numbers: Vec<String> = (10..40).map(|number: u32| number.to_string()).collect();
        for (capacity, refill) in numbers.iter().flat_map(|one| numbers.iter().map(move |other| (one, other))) {
            let memo = BucketMemo::default();
            find(&memo, [capacity, refill, "1s"], Discipline::Burst, 1);
            assert_eq!(find(&memo, [refill, capacity, "1s"], Discipline::Burst, 1).1, capacity != refill);
        }
    }

    #[test]
    fn only_a_bucket_that_was_read_is_known() {
        let (memo, words) = (BucketMemo::default(), ["5", "5", "1s"]);
        let known = |words: [&str; 3]| memo.known(words.map(|word| Some(word.as_bytes())), Discipline::Burst);
        assert_eq!(known(words).map(|bucket| bucket.to_string()), None);
        find(&memo, words, Discipline::Burst, 5_000_000);
        assert_eq!(known(words).map(|bucket| bucket.to_string()), Some("TOKENBUCKET 5 5 1s".to_owned()));
        let others = (0..1000).map(|capacity: u32| known([&capacity.to_string(), "5", "1s"]).is_some());
        assert_eq!(others.filter(|is_known| *is_known).count(), 1);
    }

    #[test]
    fn a_bucket_is_none_of_another_discipline() {
        let memo = BucketMemo::default();
        assert!(find(&memo, ["5", "5", "1s"], Discipline::Burst, 5_000_000).1);
        let queue = find(&memo, ["5", "5", "1s"], Discipline::Queue, 5_000_000);
        assert_eq!(queue, ("LEAKYBUCKET 5 5 1s".to_owned(), true));
    }

    #[test]
    fn words_that_are_too_long_or_missing_are_read_each_time() {
        let memo = BucketMemo::default();
        for _ in 0..2 {
            assert!(find(&memo, ["5", "5.000000000000000", "1s"], Discipline::Burst, 5_000_000).1);
            assert!(find(&memo, ["5", "", "1s"], Discipline::Burst, 5_000_000).1);
        }
        assert_eq!(memo.find([Some(b"5"), None, None], Discipline::Burst, || Err(7)).unwrap_err(), 7);
    }

    #[test]
    fn what_is_refused_is_not_remembered() {
        let memo = BucketMemo::default();
        let words = || [Some(&b"0"[..]), Some(&b"0"[..]), Some(&b"1s"[..])];
        for _ in 0..2 {
            assert_eq!(memo.find(words(), Discipline::Burst, || Err(7)).unwrap_err(), 7);
        }
    }
}
