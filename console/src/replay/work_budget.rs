//! Bound on the work of a replay: the number of lines read and of calls evaluated.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of lines and calls that a replay may still read or evaluate. Clones share the number.
#[derive(Clone, Debug)]
pub struct WorkBudget(Arc<AtomicU64>);

/// Unbounded work.
impl Default for WorkBudget {
    fn default() -> WorkBudget {
        WorkBudget::new(u64::MAX)
    }
}

impl WorkBudget {
    #[must_use]
    pub fn new(budget: u64) -> WorkBudget {
        WorkBudget(Arc::new(AtomicU64::new(budget)))
    }

    /// Subtracts work from the budget.
    ///
    /// # Errors
    /// If the budget is exhausted.
    pub fn spend(&self, work: u64) -> io::Result<()> {
        // Only one thread spends. The exchange fails only after a cancellation, which has set the budget to 0.
        let budget = self.0.load(Ordering::Relaxed);
        let rest = budget.checked_sub(work).ok_or_else(|| io::Error::other(EXHAUSTED))?;
        let _ = self.0.compare_exchange(budget, rest, Ordering::Relaxed, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a guard that ends the work when it is dropped.
    pub fn cancel_on_drop(&self) -> CancelGuard {
        CancelGuard(self.clone())
    }

    #[cfg(test)]
    pub fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Error of a replay whose budget is exhausted.
const EXHAUSTED: &str = "this log and limit take more work than the page does: use ratelimit-console replay";

/// Guard that ends the work when it is dropped.
#[derive(Debug)]
pub struct CancelGuard(WorkBudget);

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Relaxed);
    }
}
