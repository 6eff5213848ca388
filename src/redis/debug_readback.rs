//! What a key remembered before a call, by which a debug build holds each change of it to what readers accept.
//!
//! An effect that its own reader refuses is a charge that replicas and the AOF lose; a state that its own reader
//! refuses is a snapshot that no server starts from. Neither shows on the server that made it. So a debug build reads
//! back whatever it changes, and panics where that fails, which the guard answers as an internal error; in a release
//! build nothing of this is left.

#[cfg(debug_assertions)]
use super::memory;
use ratelimit_core::Single;
use ratelimit_core::Usage;
use ratelimit_core::composite::CompositeUsage;
#[cfg(debug_assertions)]
use ratelimit_core::effect::Text;
#[cfg(debug_assertions)]
use ratelimit_core::readable::{self, Unreadable};
use std::marker::PhantomData;
#[cfg(debug_assertions)]
use std::thread::panicking;

/// What a key remembered when the call found it; nothing of that in a release build.
pub struct Readback<U> {
    /// None of what is too large to be copied at every call.
    #[cfg(debug_assertions)]
    usage: Option<U>,
    kind: PhantomData<U>,
}

impl<U: Usage> Readback<U> {
    /// What a key remembers before it is changed.
    #[inline(always)]
    pub fn of(usage: &U) -> Readback<U> {
        #[cfg(not(debug_assertions))]
        let _ = usage;
        Readback {
            #[cfg(debug_assertions)]
            usage: is_checked(usage).then(|| memory::uncounted(|| usage.clone())),
            kind: PhantomData,
        }
    }

    /// What is kept here, of which nothing is left.
    pub fn take(&mut self) -> Readback<U> {
        Readback {
            #[cfg(debug_assertions)]
            usage: self.usage.take(),
            kind: PhantomData,
        }
    }

    /// A change has made `after` of it, and its effect has not been taken yet.
    #[inline(always)]
    pub fn check_change(&self, after: &U) {
        #[cfg(not(debug_assertions))]
        let _ = after;
        #[cfg(debug_assertions)]
        if let Some(before) = self.usage.as_ref().filter(|_| is_checked(after)) {
            check(|| {
                let mut after = after.clone();
                readable::propagated(before, &Text::of_change(&mut after, 1), &after)?;
                readable::stored(&after)
            });
        }
    }
}

impl<U: Single> Readback<U> {
    /// A change has made `components` of it, which expired at `plain_expiry`; its effect has not been taken yet.
    #[inline(always)]
    pub fn check_conversion(&self, components: &CompositeUsage, plain_expiry: Option<u64>) {
        #[cfg(not(debug_assertions))]
        let _ = (components, plain_expiry);
        #[cfg(debug_assertions)]
        if let Some(before) = self.usage.as_ref().filter(|_| is_checked(components)) {
            check(|| {
                let mut components = components.clone();
                let effect = Text::of_conversion::<U, _>(plain_expiry, &mut components, 1);
                CompositeUsage::propagated_conversion(before, &effect, &components)?;
                readable::stored(&components)
            });
        }
    }
}

/// Checks a usage that a key is about to hold.
#[inline(always)]
pub fn check_stored<U: Usage>(usage: &U) {
    #[cfg(not(debug_assertions))]
    let _ = usage;
    #[cfg(debug_assertions)]
    if is_checked(usage) {
        check(|| readable::stored(usage));
    }
}

/// Copying and reading what is large would make each call as slow as it is large.
#[cfg(debug_assertions)]
fn is_checked<U: Usage>(usage: &U) -> bool {
    const MOST: usize = 32 * 1024;
    usage.heap_size() <= MOST && !panicking()
}

#[cfg(debug_assertions)]
fn check(read: impl FnOnce() -> Result<(), Unreadable>) {
    let unreadable = memory::uncounted(read).err();
    assert!(unreadable.is_none(), "{}", unreadable.map(|unreadable| unreadable.to_string()).unwrap_or_default());
}
