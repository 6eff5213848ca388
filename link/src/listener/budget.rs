//! Byte budget of the requests in flight: one for a listener, and a share of it for each connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Semaphore;

/// Bytes that all requests in flight at one listener may hold.
const LISTENER_BYTES: usize = 64 << 20;

/// Budget of one connection, and of the listener that it belongs to.
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

    /// Creates the budget of a connection, which gets `bytes` of the listener's.
    pub fn new(listener: Arc<Semaphore>, bytes: usize) -> Budget {
        Budget { listener, connection: Arc::new(Semaphore::new(bytes)) }
    }

    /// Takes the first `bytes` of a request, or returns `None` if there is no room for them.
    pub fn charge(&self, bytes: usize) -> Option<Arc<Charge>> {
        let charge = Charge { budget: self.clone(), bytes: AtomicUsize::new(0), exhausted: AtomicBool::new(false) };
        charge.take(bytes).then(|| Arc::new(charge))
    }
}

/// Bytes that a request holds, given back when it is dropped.
pub struct Charge {
    budget: Budget,
    bytes: AtomicUsize,
    exhausted: AtomicBool,
}

impl Charge {
    /// Takes `bytes` more. Returns `false` if there is no room for them.
    pub fn take(&self, bytes: usize) -> bool {
        let taken = u32::try_from(bytes).ok().and_then(|count| {
            let connection = self.budget.connection.try_acquire_many(count).ok()?;
            let listener = self.budget.listener.try_acquire_many(count).ok()?;
            connection.forget();
            listener.forget();
            Some(self.bytes.fetch_add(bytes, Ordering::Relaxed))
        });
        if taken.is_none() {
            self.exhausted.store(true, Ordering::Relaxed);
        }
        taken.is_some()
    }

    /// Returns `true` if there was no room for a part of the request.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted.load(Ordering::Relaxed)
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
    fn requests_take_from_the_connection_and_the_listener_and_give_back() {
        let listener = Arc::new(Semaphore::new(100));
        let [first, second] = [80, 80].map(|bytes| Budget::new(Arc::clone(&listener), bytes));
        let charge = first.charge(60).unwrap();
        assert!(charge.take(20) && !charge.is_exhausted());
        assert!(!charge.take(1) && charge.is_exhausted(), "the connection has no room");
        assert!(first.charge(1).is_none());
        let other = second.charge(20).unwrap();
        assert!(!other.take(1), "the listener has no room");
        drop(charge);
        assert!(other.take(60));
        drop(other);
        assert_eq!(listener.available_permits(), 100);
    }
}
