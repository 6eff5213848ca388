//! Checks of debug builds that the effect and the state of each change can be read back.
//!
//! An effect that its decoder rejects is a charge that replicas and the AOF lose. A state that its decoder rejects is a
//! snapshot that no server can load. Neither shows on the server that wrote it. So a debug build reads back every
//! change, and panics if that fails: the call then replies an internal error. A release build has no such checks.

#![cfg_attr(not(debug_assertions), allow(unused_imports, unused_variables, reason = "a release build checks nothing"))]

use super::memory;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::effect::EncodedText;
use ratelimit_core::round_trip::{self, RoundTripError};
use ratelimit_core::{PlainUsage, Usage};
use std::marker::PhantomData;
use std::thread::panicking;

/// Copy of the usage before a change, for the checks. Empty in a release build.
#[derive(Default)]
pub struct RoundTripCheck<U> {
    /// Copy of the usage; `None` if it is too large to be copied at every call.
    #[cfg(debug_assertions)]
    usage: Option<U>,
    kind: PhantomData<U>,
}

impl<U: Usage> RoundTripCheck<U> {
    /// Copies the usage before it is changed.
    #[inline(always)]
    pub fn of(usage: &U) -> RoundTripCheck<U> {
        RoundTripCheck {
            #[cfg(debug_assertions)]
            usage: is_checked(usage).then(|| memory::uncounted(|| usage.clone())),
            kind: PhantomData,
        }
    }

    /// Checks the change to `after`, whose effect has not been taken yet.
    #[inline(always)]
    pub fn check_change(&self, after: &U) {
        #[cfg(debug_assertions)]
        if let Some(before) = self.usage.as_ref().filter(|_| is_checked(after)) {
            check(|| {
                let mut after = after.clone();
                round_trip::check_effect(before, &EncodedText::of_change(&mut after, 1), &after)?;
                round_trip::check_stored(&after)
            });
        }
    }
}

impl<U: PlainUsage> RoundTripCheck<U> {
    /// Checks the conversion to `components`, whose effect has not been taken yet. The plain key expired at
    /// `plain_expiry`.
    #[inline(always)]
    pub fn check_conversion(&self, components: &CompositeUsage, plain_expiry: Option<u64>) {
        #[cfg(debug_assertions)]
        if let Some(before) = self.usage.as_ref().filter(|_| is_checked(components)) {
            check(|| {
                let mut components = components.clone();
                let effect = EncodedText::of_conversion::<U, _>(plain_expiry, &mut components, 1);
                CompositeUsage::check_conversion(before, &effect, &components)?;
                round_trip::check_stored(&components)
            });
        }
    }
}

/// Checks a usage before it is stored in a key.
#[inline(always)]
pub fn check_stored<U: Usage>(usage: &U) {
    #[cfg(debug_assertions)]
    if is_checked(usage) {
        check(|| round_trip::check_stored(usage));
    }
}

/// Returns `true` if the usage is small enough to be copied and read back at every call, and no panic is unwinding.
#[cfg(debug_assertions)]
fn is_checked<U: Usage>(usage: &U) -> bool {
    // About 300 leases. Filling a table of twice the size takes four times as long, as each call reads it back.
    const MAX_BYTES: usize = 16 * 1024;
    usage.heap_size() <= MAX_BYTES && !panicking()
}

#[cfg(debug_assertions)]
fn check(read: impl FnOnce() -> Result<(), RoundTripError>) {
    let error = memory::uncounted(read).err();
    assert!(error.is_none(), "{}", error.map(|error| error.to_string()).unwrap_or_default());
}
