//! A key between two looks at it: of a call over several, which opens one after another. What is changed in it is
//! recorded, propagated as one, and only then is the key itself seen to.

use super::super::Redis;
use super::super::before::Before;
use super::super::native_type::{self, Native};
use super::Event;
use ratelimit_core::args::KeyName;
use ratelimit_core::effect::Nobody;
use ratelimit_core::error::Error;
use ratelimit_core::expiry::LATEST_EXPIRY;
use ratelimit_core::{Timestamp, Usage};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::thread::panicking;

/// A key as it was found by a call that has opened others since. It is closed.
#[derive(Clone, Copy)]
pub struct Found {
    /// Where it stands among the words of the call.
    pub(super) name: KeyName,
    /// The type by which it was asked.
    pub(super) native: Native,
    /// The value of that type; null for a missing key.
    pub(super) value: *mut std::ffi::c_void,
    /// In milliseconds since the epoch; asked only of a key that will be changed.
    pub(super) expires_at: Option<u64>,
    /// The turn of the call in which it was found: what is here holds until the next.
    pub(super) turn: u32,
}

impl Found {
    /// Whether there was no key.
    pub fn is_missing(&self) -> bool {
        self.value.is_null()
    }

    /// When it expires, as [`Key::close_to_change`](super::Key::close_to_change) has found.
    pub fn expires_at(&self) -> Option<u64> {
        self.expires_at
    }
}

impl<'a> Redis<'a> {
    /// Whether nobody else can have run since it was found.
    pub fn still_holds(&self, found: &Found) -> bool {
        self.turn == found.turn
    }

    /// What a key that was found remembers, to change it. `None` if it was missing, is no `U`, or may have changed
    /// since.
    pub fn change<U: Usage>(&mut self, found: &Found) -> Option<Changing<'_, 'a, U>> {
        let sound = self.still_holds(found) && found.native == native_type::of::<U>();
        let value = NonNull::new(found.value.cast()).filter(|_| sound)?;
        // SAFETY: as of one that is changing.
        let before = Before::of(unsafe { value.as_ref() });
        Some(Changing { redis: self, found: *found, value, before })
    }

    /// The same key again, if others may have changed it since.
    pub fn find_again<U: Usage>(&mut self, found: &Found, now: Timestamp) -> Result<Found, Error> {
        if found.is_missing() || self.still_holds(found) {
            return Ok(*found);
        }
        Ok(self.open::<U>(found.name)?.close_to_change(now))
    }

    /// Records what a missing key is to remember: it will be propagated, and then the key is made.
    pub fn record_new<U: Usage>(&mut self, found: &Found, mut usage: U, expires_at: u64, now: Timestamp) {
        let name = found.name;
        self.changes.change(name, &mut usage, expires_at, &Before::of(&U::default()));
        self.later(move |redis| redis.make(name, usage, expires_at, now));
    }

    /// Records that nothing is used of a key any more: it will be propagated, and then the key goes.
    fn record_deletion<U: Usage>(&mut self, name: KeyName) {
        self.changes.deletion::<U>(name);
        self.later(move |redis| {
            // Others may have charged it since, and have propagated it.
            if let Ok(mut key) = redis.open::<U>(name)
                && key.usage().is_unused()
            {
                key.remove();
            }
        });
    }

    /// Records all that a key remembers, after a panic: nobody knows what has changed.
    #[cold]
    pub(super) fn record_whole<U: Usage>(&mut self, name: KeyName, usage: &mut U, expires_at: Option<u64>) {
        // What the call had changed by then is a part of it: the next call must not propagate, or do, it once more.
        usage.encode_effect(&mut Nobody);
        if usage.is_unused() {
            self.record_deletion::<U>(name);
        } else {
            self.changes.whole(name, usage, expires_at.unwrap_or(LATEST_EXPIRY));
        }
    }

    /// Makes a key that has been propagated.
    fn make<U: Usage>(&mut self, name: KeyName, usage: U, expires_at: u64, now: Timestamp) {
        if let Some(usage) = self.make_if_missing(name, usage, expires_at, now) {
            // Others have put something there since, and have propagated it, perhaps behind this.
            self.replace(name, usage, expires_at, now);
        }
    }

    /// Makes a key that has been propagated, or gives the usage back if there is one.
    pub(super) fn make_if_missing<U: Usage>(
        &mut self,
        name: KeyName,
        usage: U,
        expires_at: u64,
        now: Timestamp,
    ) -> Option<U> {
        match self.open::<U>(name) {
            Ok(mut key) if key.is_missing() => {
                *key.usage_mut() = usage;
                key.set(expires_at, now);
                None
            }
            _ => Some(usage),
        }
    }
}

/// A change of what a closed key remembers, which is the last thing that is done with what was found in it.
pub struct Changing<'r, 'a, U: Usage> {
    redis: &'r mut Redis<'a>,
    found: Found,
    value: NonNull<U>,
    before: Before<U>,
}

impl<U: Usage> Deref for Changing<'_, '_, U> {
    type Target = U;

    fn deref(&self) -> &U {
        // SAFETY: the value is a `U`, and lives in a key of the server that nobody can have changed since it was found:
        // no other code has run, and ours says when it deletes. The call is borrowed, so that it stays so.
        unsafe { self.value.as_ref() }
    }
}

impl<U: Usage> DerefMut for Changing<'_, '_, U> {
    fn deref_mut(&mut self) -> &mut U {
        // SAFETY: as in `deref`, and `self` is borrowed for it alone.
        unsafe { self.value.as_mut() }
    }
}

impl<U: Usage> Changing<'_, '_, U> {
    /// Records it: it will be propagated, and then the key is seen to.
    pub fn record(mut self, expires_at: u64, now: Timestamp) {
        let name = self.found.name;
        if self.is_unused() {
            // Others may charge it before it goes: what this has changed is no part of that.
            self.encode_effect(&mut Nobody);
            return self.redis.record_deletion::<U>(name);
        }
        // SAFETY: as in `deref_mut`.
        self.redis.changes.change(name, unsafe { self.value.as_mut() }, expires_at, &self.before);
        self.redis.happened(name, Event::Taken);
        if self.found.expires_at != Some(expires_at) {
            self.redis.first(move |redis| {
                if let Ok(key) = redis.open::<U>(name) {
                    key.expire(expires_at, now);
                }
            });
        }
    }
}

impl<U: Usage> Drop for Changing<'_, '_, U> {
    /// As of a [`Key`](super::Key).
    fn drop(&mut self) {
        if panicking() {
            // SAFETY: as in `deref_mut`.
            let usage = unsafe { self.value.as_mut() };
            self.redis.record_whole(self.found.name, usage, self.found.expires_at);
        }
    }
}
