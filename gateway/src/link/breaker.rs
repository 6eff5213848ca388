//! Stops asking who does not answer.

use std::sync::atomic::{AtomicU32, Ordering};

/// After this many calls in a row without a reply, no call waits any more until the server has answered a probe.
const MOST: u32 = 3;

/// Counts failures in a row.
#[derive(Default)]
pub struct Breaker {
    failures: AtomicU32,
}

impl Breaker {
    /// Whether nobody waits for the server.
    pub fn is_open(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= MOST
    }

    /// Whether the last call had no reply.
    pub fn has_failed(&self) -> bool {
        self.failures.load(Ordering::Relaxed) != 0
    }

    /// A call had no reply; whether an outage begins with it.
    pub fn failed(&self) -> bool {
        let more = |failures: u32| Some(failures.saturating_add(1));
        self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) == Ok(MOST - 1)
    }

    /// A call had a reply; whether an outage ends with it.
    pub fn succeeded(&self) -> bool {
        // Most calls find nothing to change, and a store would take the line from the other cores.
        self.failures.load(Ordering::Relaxed) != 0 && self.failures.swap(0, Ordering::Relaxed) >= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::Breaker;

    #[test]
    fn three_in_a_row_begin_an_outage_and_a_reply_ends_it() {
        let breaker = Breaker::default();
        assert_eq!([breaker.failed(), breaker.failed()], [false; 2]);
        assert!(!breaker.succeeded(), "two failures are no outage");
        assert_eq!(
            [breaker.failed(), breaker.failed(), breaker.failed(), breaker.failed()],
            [false, false, true, false]
        );
        assert!(breaker.is_open());
        assert!(breaker.succeeded() && !breaker.is_open() && !breaker.succeeded());
    }
}
