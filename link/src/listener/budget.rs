//! Byte budgets of the requests in flight, for a listener and for each of its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Semaphore;

/// Maximum number of bytes that all requests in flight at one listener may hold.
const LISTENER_BYTES: usize = 64 << 20;

/// Budgets of one connection and of its listener.
#[derive(Clone)]
pub struct Budget {
    listener: Arc<Semaphore>,
    connection: Arc<Semaphore>,
}

impl Budget {
    /// Creates the budget of a listener.
    pub fn listener() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(LISTENER_BYTES))
    }

    /// Creates the budget of a connection, which may hold up to `bytes` of the listener's budget.
    pub fn new(listener: Arc<Semaphore>, bytes: usize) -> Budget {
        Budget { listener, connection: Arc::new(Semaphore::new(bytes)) }
    }

    /// Creates the charge of a request that holds `bytes`. Returns `None` if they exceed a budget.
    pub fn charge(&self, bytes: usize) -> Option<Arc<Charge>> {
        let charge = Charge { budget: self.clone(), bytes: AtomicUsize::new(0), is_exceeded: AtomicBool::new(false) };
        charge.add(bytes).then(|| Arc::new(charge))
    }
}

/// Bytes that a request holds. Dropping the charge returns them to the budgets.
pub struct Charge {
    budget: Budget,
    bytes: AtomicUsize,
    is_exceeded: AtomicBool,
}

impl Charge {
    /// Charges `bytes` more. Returns `false`, and charges nothing, if they exceed a budget.
    pub fn add(&self, bytes: usize) -> bool {
        let charged = u32::try_from(bytes).ok().and_then(|count| {
            let connection = self.budget.connection.try_acquire_many(count).ok()?;
            let listener = self.budget.listener.try_acquire_many(count).ok()?;
            connection.forget();
            listener.forget();
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            Some(())
        });
        if charged.is_none() {
            self.is_exceeded.store(true, Ordering::Relaxed);
        }
        charged.is_some()
    }

    /// Returns `true` if a part of the request exceeded a budget.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.budget.connection.add_permits(bytes);
        self.budget.listener.add_permits(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    #[test]
    fn charge_counts_for_connection_and_listener_until_dropped() {
        let listener = Arc::new(Semaphore::new(100));
        let [first, second] = [80, 80].map(|bytes| Budget::new(Arc::clone(&listener), bytes));
        let charge = first.charge(60).unwrap();
        assert!(charge.add(20) && !charge.is_exceeded());
        assert!(!charge.add(1) && charge.is_exceeded(), "exceeds the budget of the connection");
        assert!(first.charge(1).is_none());
        let other = second.charge(20).unwrap();
        assert!(!other.add(1), "exceeds the budget of the listener");
        drop(charge);
        assert!(other.add(60));
        drop(other);
        assert_eq!(listener.available_permits(), 100);
    }
}
