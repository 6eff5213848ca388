//! Bound on the work of a replay: lines that are read and calls that are decided.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lines and decisions that a replay may still cost. Clones share them.
#[derive(Clone, Debug)]
pub struct Work(Arc<AtomicU64>);

/// Unbounded.
impl Default for Work {
    fn default() -> Work {
        Work::new(u64::MAX)
    }
}

impl Work {
    /// Creates a bound.
    #[must_use]
    pub fn new(most: u64) -> Work {
        Work(Arc::new(AtomicU64::new(most)))
    }

    /// Takes work off the rest.
    ///
    /// # Errors
    /// Too little is left.
    pub fn spend(&self, work: u64) -> io::Result<()> {
        // One thread spends. The exchange fails only after another has cancelled, and then nothing is left.
        let left = self.0.load(Ordering::Relaxed);
        let rest = left.checked_sub(work).ok_or_else(|| io::Error::other(TOO_MUCH))?;
        let _ = self.0.compare_exchange(left, rest, Ordering::Relaxed, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a guard that ends the work when it is dropped.
    pub fn cancel_on_drop(&self) -> Cancel {
        Cancel(self.clone())
    }

    #[cfg(test)]
    pub fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Error of a replay that ends early.
const TOO_MUCH: &str = "this log and limit take more work than the page does: use ratelimit-console replay";

/// Guard that ends the work when it is dropped.
#[derive(Debug)]
pub struct Cancel(Work);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Relaxed);
    }
}
