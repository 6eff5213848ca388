//! Usage of a key, changed in place and committed.

use ratelimit_core::{Timestamp, Usage};
use std::ptr::NonNull;

/// Pointer to the usage in an open key, or the new usage of a missing key.
pub enum Value<U> {
    /// Usage in the key.
    Present(NonNull<U>),
    /// New usage of a missing key.
    Missing(U),
}

impl<U: Usage> Value<U> {
    /// Returns the usage.
    #[inline(always)]
    pub fn get(&self) -> &U {
        match self {
            // SAFETY: the pointer is to a `U` in a key of the server. The key is open, or no other module has run since
            // it was closed: the holder of a `Value` borrows the call, so no other code runs.
            Value::Present(value) => unsafe { value.as_ref() },
            Value::Missing(unused) => unused,
        }
    }

    /// Returns the usage for changing it.
    #[inline(always)]
    pub fn get_mut(&mut self) -> &mut U {
        match self {
            // SAFETY: as in `get`, and `self` is borrowed exclusively.
            Value::Present(value) => unsafe { value.as_mut() },
            Value::Missing(unused) => unused,
        }
    }

    /// Returns `true` if the key is missing.
    #[inline(always)]
    pub fn is_missing(&self) -> bool {
        matches!(self, Value::Missing(_))
    }
}

/// Key whose usage can be changed in place and then committed once. A key dropped without a commit is unchanged.
pub trait Writable {
    /// Type of the usage.
    type Usage: Usage;

    /// Returns the usage for changing it; of a missing key, an unused one.
    fn usage_mut(&mut self) -> &mut Self::Usage;

    /// Returns `true` if other modules may have changed the key since the call evaluated it.
    fn may_have_changed(&self) -> bool {
        false
    }

    /// Propagates the change and applies it to the key. A key whose usage is now unused is deleted; any other exists
    /// with the expiry that `expiry` computes from its current one, in milliseconds since the epoch.
    fn commit(self, expiry: impl FnOnce(Option<u64>) -> u64, now: Timestamp);
}
