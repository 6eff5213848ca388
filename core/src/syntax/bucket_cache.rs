//! Cache of recently parsed buckets, keyed by their words.
//!
//! Most calls repeat the words of one of a few buckets. Looking a bucket up takes a third of the instructions of
//! parsing it.

use crate::algorithm::bucket::{Bucket, Discipline};
use crate::wire::short_bytes::{MAX_SHORT, halves};
use std::cell::Cell;

/// Direct-mapped cache of parsed buckets. An evicted bucket is parsed again.
#[derive(Clone, Debug, Default)]
pub struct BucketCache([Cell<Option<(BucketWords, Bucket)>>; ENTRIES]);

/// Number of entries: enough for eight tenants with different limits.
const ENTRIES: usize = 8;

/// Key of an entry: the words of capacity, refill and period with their lengths, and the discipline.
#[derive(Clone, Copy, Debug)]
struct BucketWords {
    /// Each word as two numbers.
    texts: [u64; 6],
    /// Length of each word in a byte, and the discipline in the next byte.
    lengths: u64,
}

impl PartialEq for BucketWords {
    /// Compares number by number. A derived comparison would call `memcmp`.
    #[inline(always)]
    fn eq(&self, other: &BucketWords) -> bool {
        let difference = |difference: u64, (one, another): (&u64, &u64)| difference | (one ^ another);
        self.texts.iter().zip(&other.texts).fold(self.lengths ^ other.lengths, difference) == 0
    }
}

impl BucketCache {
    /// Returns the cached bucket of these words, or `None` if it is not cached.
    #[inline(always)]
    pub fn get(&self, words: [Option<&[u8]>; 3], discipline: Discipline) -> Option<Bucket> {
        let words = BucketWords::of(words, discipline)?;
        self.entry(&words)?.get().filter(|(cached, _)| *cached == words).map(|(_, bucket)| bucket)
    }

    /// Returns the bucket of these words. If it is not cached, calls `parse` and caches the result.
    ///
    /// # Errors
    /// Returns the error of `parse`.
    #[inline(always)]
    pub fn get_or_parse<E>(
        &self,
        words: [Option<&[u8]>; 3],
        discipline: Discipline,
        parse: impl FnOnce() -> Result<Bucket, E>,
    ) -> Result<Bucket, E> {
        let Some((words, entry)) =
            BucketWords::of(words, discipline).and_then(|words| Some((words, self.entry(&words)?)))
        else {
            return parse();
        };
        match entry.get() {
            Some((cached, bucket)) if cached == words => Ok(bucket),
            _ => {
                let bucket = parse()?.prepared();
                entry.set(Some((words, bucket)));
                Ok(bucket)
            }
        }
    }

    /// Returns the only entry that can hold the bucket of these words.
    #[inline(always)]
    fn entry(&self, words: &BucketWords) -> Option<&Cell<Option<(BucketWords, Bucket)>>> {
        // Fibonacci hashing. Digits differ in their low bits, and the product carries them into its highest bits.
        let hash = words.texts.iter().fold(words.lengths, |hash, text| hash.rotate_left(11) ^ text);
        self.0.get(usize::try_from(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61).ok()?)
    }
}

impl BucketWords {
    /// Creates the key of three words. Returns `None` if a word is missing, empty or longer than [`MAX_SHORT`].
    #[inline(always)]
    fn of(words: [Option<&[u8]>; 3], discipline: Discipline) -> Option<BucketWords> {
        let [capacity, refill, period] = words;
        let (capacity, refill, period) = (capacity?, refill?, period?);
        let longest = capacity.len().max(refill.len()).max(period.len());
        if longest > MAX_SHORT {
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

    /// Looks up words, which are parsed to a bucket of `capacity`. Returns the bucket, and `true` if it was not cached.
    fn get_or_parse(cache: &BucketCache, words: [&str; 3], discipline: Discipline, capacity: u64) -> (String, bool) {
        let is_parsed = Cell::new(false);
        let bucket = cache.get_or_parse(words.map(|word| Some(word.as_bytes())), discipline, || {
            is_parsed.set(true);
            Ok::<_, ()>(bucket(capacity, discipline))
        });
        (bucket.unwrap().to_string(), is_parsed.get())
    }

    #[test]
    fn cached_words_are_parsed_once_and_distinguished_from_similar_ones() {
        let similar = ["1", "11", "111", "1111", "11111", "1111111", "11111111", "111111111", "1111111111111111"];
        for (capacity, refill) in similar.iter().flat_map(|capacity| similar.map(|refill| (*capacity, refill))) {
            let cache = BucketCache::default();
            let words = [capacity, refill, "1s"];
            let (first, is_parsed) = get_or_parse(&cache, words, Discipline::Burst, 7_000_000);
            assert!(is_parsed);
            assert_eq!(get_or_parse(&cache, words, Discipline::Burst, 1), (first, false));
            for other in
                similar.iter().flat_map(|one| [[*one, refill, "1s"], [capacity, *one, "1s"], [capacity, refill, *one]])
            {
                let cache = cache.clone();
                assert_eq!(get_or_parse(&cache, other, Discipline::Burst, 1).1, other != words, "{other:?} {words:?}");
            }
        }
    }

    #[test]
    fn swapped_words_are_a_cache_miss() {
        let numbers: Vec<String> = (10..40).map(|number: u32| number.to_string()).collect();
        for (capacity, refill) in numbers.iter().flat_map(|one| numbers.iter().map(move |other| (one, other))) {
            let cache = BucketCache::default();
            get_or_parse(&cache, [capacity, refill, "1s"], Discipline::Burst, 1);
            assert_eq!(get_or_parse(&cache, [refill, capacity, "1s"], Discipline::Burst, 1).1, capacity != refill);
        }
    }

    #[test]
    fn lookup_returns_only_a_parsed_bucket() {
        let (cache, words) = (BucketCache::default(), ["5", "5", "1s"]);
        let get = |words: [&str; 3]| cache.get(words.map(|word| Some(word.as_bytes())), Discipline::Burst);
        assert_eq!(get(words).map(|bucket| bucket.to_string()), None);
        get_or_parse(&cache, words, Discipline::Burst, 5_000_000);
        assert_eq!(get(words).map(|bucket| bucket.to_string()), Some("TOKENBUCKET 5 5 1s".to_owned()));
        let others = (0..1000).map(|capacity: u32| get([&capacity.to_string(), "5", "1s"]).is_some());
        assert_eq!(others.filter(|is_cached| *is_cached).count(), 1);
    }

    #[test]
    fn discipline_is_part_of_the_cache_key() {
        let cache = BucketCache::default();
        assert!(get_or_parse(&cache, ["5", "5", "1s"], Discipline::Burst, 5_000_000).1);
        let queue = get_or_parse(&cache, ["5", "5", "1s"], Discipline::Queue, 5_000_000);
        assert_eq!(queue, ("LEAKYBUCKET 5 5 1s".to_owned(), true));
    }

    #[test]
    fn long_or_missing_words_are_not_cached() {
        let cache = BucketCache::default();
        for _ in 0..2 {
            assert!(get_or_parse(&cache, ["5", "5.000000000000000", "1s"], Discipline::Burst, 5_000_000).1);
            assert!(get_or_parse(&cache, ["5", "", "1s"], Discipline::Burst, 5_000_000).1);
        }
        assert_eq!(cache.get_or_parse([Some(b"5"), None, None], Discipline::Burst, || Err(7)).unwrap_err(), 7);
    }

    #[test]
    fn rejected_words_are_not_cached() {
        let cache = BucketCache::default();
        let words = || [Some(&b"0"[..]), Some(&b"0"[..]), Some(&b"1s"[..])];
        for _ in 0..2 {
            assert_eq!(cache.get_or_parse(words(), Discipline::Burst, || Err(7)).unwrap_err(), 7);
        }
    }
}
