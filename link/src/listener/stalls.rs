//! Detection of responses that the peer does not read. Under the flow control of HTTP/2 such a response leaves no write
//! pending, so that write timeouts do not notice it.

use super::IO_TIMEOUT;
use slab::Slab;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Timestamp of a response that does not wait for its peer.
const NOT_WAITING: u64 = u64::MAX;
/// Interval between two checks of a connection.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Responses in flight on one connection.
pub struct Stalls {
    started: Instant,
    /// Milliseconds from `started` until each response began to wait for its peer, or `NOT_WAITING`.
    waiting_since: Mutex<Slab<Arc<AtomicU64>>>,
}

impl Stalls {
    /// Creates an empty list for a connection.
    pub fn new() -> Arc<Stalls> {
        Arc::new(Stalls { started: Instant::now(), waiting_since: Mutex::default() })
    }

    /// Adds a response that waits for its peer from now on.
    pub fn watch(self: &Arc<Stalls>) -> Progress {
        let since = Arc::new(AtomicU64::new(self.now()));
        let index = self.waiting_since.lock().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(&since));
        Progress { stalls: Arc::clone(self), index, since }
    }

    /// Completes once the peer has read nothing of a response for longer than `IO_TIMEOUT`.
    pub async fn stalled(&self) {
        let timeout = u64::try_from(IO_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        loop {
            sleep(CHECK_INTERVAL).await;
            let oldest_allowed = self.now().saturating_sub(timeout);
            let waiting_since = self.waiting_since.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting_since.iter().any(|(_, since)| since.load(Ordering::Relaxed) < oldest_allowed) {
                return;
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(NOT_WAITING)
    }
}

/// Handle that records the progress of one response. Dropping it ends the observation.
pub struct Progress {
    stalls: Arc<Stalls>,
    index: usize,
    since: Arc<AtomicU64>,
}

impl Progress {
    /// Records that the peer has data to read from now on.
    pub fn record_wait_for_peer(&self) {
        self.since.store(self.stalls.now(), Ordering::Relaxed);
    }

    /// Records that the handler has no data ready, so that the peer is not stalled.
    pub fn record_wait_for_handler(&self) {
        self.since.store(NOT_WAITING, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stalls.waiting_since.lock().unwrap_or_else(PoisonError::into_inner).try_remove(self.index);
    }
}
