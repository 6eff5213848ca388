//! What a key remembers, to be changed in place and committed.

use ratelimit_core::{Timestamp, Usage};
use std::ptr::NonNull;

/// What a key remembers, as long as it stays there.
pub enum Value<U> {
    /// In the key.
    There(NonNull<U>),
    /// Nothing used: the key is missing.
    Missing(U),
}

impl<U: Usage> Value<U> {
    /// The usage.
    #[inline(always)]
    pub fn get(&self) -> &U {
        match self {
            // SAFETY: a value is a `U`, in a key of the server that is open, or that nobody can have changed since it
            // was closed: whoever holds a value borrows the call, so that nobody else runs.
            Value::There(value) => unsafe { value.as_ref() },
            Value::Missing(unused) => unused,
        }
    }

    /// The usage, to be changed.
    #[inline(always)]
    pub fn get_mut(&mut self) -> &mut U {
        match self {
            // SAFETY: as in `get`, and `self` is borrowed for it alone.
            Value::There(value) => unsafe { value.as_mut() },
            Value::Missing(unused) => unused,
        }
    }

    /// Whether there is no key.
    #[inline(always)]
    pub fn is_missing(&self) -> bool {
        matches!(self, Value::Missing(_))
    }
}

/// A key whose usage can be changed in place, and then committed, once. One that is dropped without was not changed.
pub trait Writable {
    /// What it remembers.
    type Usage: Usage;

    /// What it remembers; of a missing one, nothing used.
    fn usage_mut(&mut self) -> &mut Self::Usage;

    /// Whether others may have changed it since the call has evaluated it.
    fn is_overtaken(&self) -> bool {
        false
    }

    /// Sees to all that a change of the usage entails: it is propagated; a key whose usage is back to nothing is
    /// deleted; else it is there, with the expiry that `expiry` makes of the present one, in milliseconds since the
    /// epoch.
    fn commit(self, expiry: impl FnOnce(Option<u64>) -> u64, now: Timestamp);
}
