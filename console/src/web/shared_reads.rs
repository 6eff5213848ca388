//! Results of reads that all viewers share, so that the calls to the servers do not grow with the number of viewers.

use super::clock::now_ms;
use super::failure::Failure;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

/// Default maximum number of stored results. Reads beyond it are not shared.
const MAX_RESULTS: usize = 64;

/// Last results of reads, by their parameters.
pub struct SharedReads<K, T> {
    results: Mutex<HashMap<K, Entry<T>>>,
    max_results: usize,
}

/// Last result for a key, locked during a read.
type Entry<T> = Arc<AsyncMutex<Option<LastRead<T>>>>;

/// Result of a read.
struct LastRead<T> {
    /// Beginning of the read, in milliseconds since the Unix epoch.
    started_ms: u64,
    lifetime_ms: u64,
    finished: Instant,
    result: Result<Arc<T>, Failure>,
}

impl<T> LastRead<T> {
    /// Returns `true` for a success that is younger than its lifetime. Failures are not kept.
    fn is_fresh(&self) -> bool {
        self.result.is_ok() && now_ms().checked_sub(self.started_ms).is_some_and(|age| age < self.lifetime_ms)
    }
}

impl<K, T> Default for SharedReads<K, T> {
    fn default() -> SharedReads<K, T> {
        SharedReads::new(MAX_RESULTS)
    }
}

impl<K, T> SharedReads<K, T> {
    /// Creates an empty store for a number of results.
    #[must_use]
    pub fn new(max_results: usize) -> SharedReads<K, T> {
        SharedReads { results: Mutex::default(), max_results }
    }
}

impl<K: Eq + Hash, T> SharedReads<K, T> {
    /// Returns the last result for `key` while it is younger than the lifetime it was stored with, otherwise the result
    /// of `read`, which is stored for `lifetime_ms`. Requests that arrive during a read share its result or failure.
    ///
    /// # Errors
    /// Returns the errors of `read`.
    pub async fn get<F>(&self, key: K, lifetime_ms: u64, read: F) -> Result<Arc<T>, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let requested = Instant::now();
        let Some(entry) = self.entry(key) else { return read.await.map(Arc::new) };
        let mut entry = entry.lock().await;
        if let Some(last) = entry.as_ref().filter(|last| last.is_fresh() || last.finished > requested) {
            return last.result.clone();
        }
        let started_ms = now_ms();
        let result = read.await.map(Arc::new);
        *entry = Some(LastRead { started_ms, lifetime_ms, finished: Instant::now(), result: result.clone() });
        result
    }

    /// Returns the entry of a key, or `None` if the store is full.
    fn entry(&self, key: K) -> Option<Entry<T>> {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        // A locked entry is being read.
        results.retain(|_, entry| entry.try_lock().map_or(true, |last| last.as_ref().is_some_and(LastRead::is_fresh)));
        if results.len() >= self.max_results && !results.contains_key(&key) {
            return None;
        }
        Some(Arc::clone(results.entry(key).or_default()))
    }

    /// Drops all results, those of reads in flight too, because a change has made them outdated.
    pub fn forget(&self) {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, MAX_RESULTS, SharedReads};
    use futures_util::future::join_all;
    use std::sync::atomic::{AtomicU64, Ordering};

    const LONG: u64 = u64::MAX;

    #[derive(Default)]
    struct Reads {
        shared: SharedReads<u64, u64>,
        count: AtomicU64,
    }

    impl Reads {
        /// Returns the number of reads up to the shared one.
        async fn read(&self, key: u64, lifetime_ms: u64) -> Result<u64, String> {
            self.get(key, lifetime_ms, Ok).await
        }

        /// Shares a read that fails.
        async fn fail(&self, key: u64, lifetime_ms: u64) -> Result<u64, String> {
            self.get(key, lifetime_ms, |count| Err(Failure::Away(count.to_string()))).await
        }

        async fn get(
            &self,
            key: u64,
            lifetime_ms: u64,
            result: impl FnOnce(u64) -> Result<u64, Failure>,
        ) -> Result<u64, String> {
            let read = async {
                tokio::task::yield_now().await;
                result(self.count.fetch_add(1, Ordering::Relaxed) + 1)
            };
            let shared = self.shared.get(key, lifetime_ms, read).await;
            shared.map(|count| *count).map_err(|failure| failure.message().to_owned())
        }
    }

    #[tokio::test]
    async fn result_is_shared_until_its_lifetime_ends_or_it_is_forgotten() {
        let reads = Reads::default();
        let first = join_all((0..5).map(|_| reads.read(1, LONG))).await;
        assert_eq!(first, vec![Ok(1); 5]);
        assert_eq!(reads.read(1, LONG).await, Ok(1));
        assert_eq!(reads.read(2, 0).await, Ok(2), "another key");
        assert_eq!(reads.read(2, 0).await, Ok(3), "too old at once");
        reads.shared.forget();
        assert_eq!(reads.read(1, LONG).await, Ok(4));
    }

    #[tokio::test(start_paused = true)]
    async fn failure_is_shared_only_with_requests_that_waited_for_it() {
        let reads = Reads::default();
        let first = join_all((0..5).map(|_| reads.fail(1, LONG))).await;
        assert!(first.iter().all(Result::is_err));
        let last = reads.count.load(Ordering::Relaxed);
        tokio::time::advance(std::time::Duration::from_millis(1)).await;
        assert_eq!(reads.read(1, LONG).await, Ok(last + 1));
    }

    #[tokio::test]
    async fn read_in_flight_is_forgotten_too() {
        let reads = Reads::default();
        let forget = async { reads.shared.forget() };
        let (during, ()) = tokio::join!(reads.read(1, LONG), forget);
        assert_eq!((during, reads.read(1, LONG).await), (Ok(1), Ok(2)));
    }

    #[tokio::test]
    async fn number_of_results_is_bounded() {
        let reads = Reads::default();
        for key in 0..=MAX_RESULTS as u64 {
            assert_eq!(reads.read(key, LONG).await, Ok(key + 1));
        }
        assert_eq!(reads.read(0, LONG).await, Ok(1));
        assert_eq!(reads.read(MAX_RESULTS as u64, LONG).await, Ok(MAX_RESULTS as u64 + 2), "not stored");
    }
}
