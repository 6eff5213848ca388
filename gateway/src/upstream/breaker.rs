//! Circuit breaker of a server that does not reply.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of consecutive calls without a reply that opens the breaker.
const MAX_FAILURES: u32 = 3;

/// Counter of consecutive failures. While the breaker is open, calls fail at once; a reply to a probe closes it.
#[derive(Default)]
pub struct Breaker {
    failures: AtomicU32,
}

impl Breaker {
    /// Returns `true` if calls must not be sent.
    pub fn is_open(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= MAX_FAILURES
    }

    /// Returns `true` if the last call had no reply.
    pub fn has_failed(&self) -> bool {
        self.failures.load(Ordering::Relaxed) != 0
    }

    /// Counts a call without a reply. Returns `true` if it opens the breaker.
    pub fn record_failure(&self) -> bool {
        let increment = |failures: u32| Some(failures.saturating_add(1));
        self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment) == Ok(MAX_FAILURES - 1)
    }

    /// Resets the counter after a reply. Returns `true` if this closes the breaker.
    pub fn record_success(&self) -> bool {
        // For most calls, the load avoids the store, which would take the cache line from other cores.
        self.failures.load(Ordering::Relaxed) != 0 && self.failures.swap(0, Ordering::Relaxed) >= MAX_FAILURES
    }
}

#[cfg(test)]
mod tests {
    use super::Breaker;

    #[test]
    fn three_consecutive_failures_open_and_a_reply_closes_the_breaker() {
        let breaker = Breaker::default();
        assert_eq!([breaker.record_failure(), breaker.record_failure()], [false; 2]);
        assert!(!breaker.record_success(), "two failures do not open the breaker");
        assert_eq!(
            [breaker.record_failure(), breaker.record_failure(), breaker.record_failure(), breaker.record_failure()],
            [false, false, true, false]
        );
        assert!(breaker.is_open());
        assert!(breaker.record_success() && !breaker.is_open() && !breaker.record_success());
    }
}
