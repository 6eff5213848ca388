//! Responses that their peer does not take: with the flow control of HTTP/2, no write is pending then.

use super::PATIENCE;
use slab::Slab;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time of a response that waits for the gateway, and not for its peer.
const NEVER: u64 = u64::MAX;
/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Responses of one connection that are under way.
pub struct Stalls {
    began: Instant,
    /// Milliseconds from `began` until each response last waited for its peer.
    since: Mutex<Slab<Arc<AtomicU64>>>,
}

impl Stalls {
    /// Creates the list of a connection.
    pub fn new() -> Arc<Stalls> {
        Arc::new(Stalls { began: Instant::now(), since: Mutex::default() })
    }

    /// Adds a response, which waits for its peer from now on.
    pub fn watch(self: &Arc<Stalls>) -> Progress {
        let since = Arc::new(AtomicU64::new(self.now()));
        let place = self.since.lock().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(&since));
        Progress { stalls: Arc::clone(self), place, since }
    }

    /// Completes once the peer has not taken anything of a response for too long.
    pub async fn stalled(&self) {
        let patience = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
        loop {
            sleep(INTERVAL).await;
            let due = self.now().saturating_sub(patience);
            let since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
            if since.iter().any(|(_, since)| since.load(Ordering::Relaxed) < due) {
                return;
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NEVER)
    }
}

/// Progress of one response.
pub struct Progress {
    stalls: Arc<Stalls>,
    place: usize,
    since: Arc<AtomicU64>,
}

impl Progress {
    /// Records that the peer is to take something from now on.
    pub fn waits_for_peer(&self) {
        self.since.store(self.stalls.now(), Ordering::Relaxed);
    }

    /// Records that there is nothing to take.
    pub fn waits_for_gateway(&self) {
        self.since.store(NEVER, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stalls.since.lock().unwrap_or_else(PoisonError::into_inner).try_remove(self.place);
    }
}
