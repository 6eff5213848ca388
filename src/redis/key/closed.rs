//! Closed keys. A call on several keys evaluates and closes each before it opens the next. Their changes are recorded
//! and propagated as one command. After that, missing keys are created, expiries set and unused keys deleted.

use super::super::Redis;
use super::super::current_call::Event;
use super::super::debug_round_trip::RoundTripCheck;
use super::super::native_type;
use super::contents::{Contents, Value};
use super::open::{OpenKey, Writable};
use super::takeover::create_key;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::{Timestamp, Usage};
use redis_module::raw;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::thread::panicking;

/// Closed key, with the state in which the call found it. The call may have opened other keys since.
pub struct ClosedKey<'a> {
    /// Position of the key among the words of the call.
    pub index: KeyIndex,
    /// Type of the value if a module has defined it; otherwise null.
    pub(super) native: *mut raw::RedisModuleType,
    /// Pointer to the value if a module has defined its type; otherwise null.
    pub(super) value_pointer: *mut c_void,
    /// `true` if the key was missing.
    pub missing: bool,
    /// Expiry of the key. Fetched only if the call may change the key.
    pub(super) expires_at: OptionalExpiry,
    /// Generation ([`Redis::generation`]) in which the key was closed. In a later generation of the call, the pointers
    /// here may dangle.
    pub(super) generation: u32,
    /// Ties the closed key to its call, which it must not outlive.
    pub(super) call: PhantomData<&'a ()>,
}

impl<'a> OpenKey<'_, 'a> {
    /// Closes the key, to be resumed after other keys have been opened. `may_change` is `true` if the call may change
    /// the key. Only then is its expiry fetched.
    #[inline(always)]
    pub fn close(self, may_change: bool, now: Timestamp) -> ClosedKey<'a> {
        let Contents { handle, native, value_pointer, missing } = self.contents;
        let expires_at = OptionalExpiry::of(if may_change && !missing { handle.expires_at(now) } else { None });
        ClosedKey {
            index: self.index,
            native,
            value_pointer,
            missing,
            expires_at,
            generation: self.redis.generation,
            call: PhantomData,
        }
    }
}

impl<'a> Redis<'a> {
    /// Returns `true` if no other module can have run since the key was closed.
    pub fn is_current(&self, key: &ClosedKey<'a>) -> bool {
        self.generation == key.generation
    }

    /// Resumes a closed key; opens it again if other modules may have changed it since. Returns `None` if it now holds
    /// anything but a `U`.
    #[inline(always)]
    pub fn resume<U: Usage>(&mut self, key: &ClosedKey<'a>, now: Timestamp) -> Option<ResumedKey<'_, 'a, U>> {
        // A key that was missing is looked up again only when it is created, by `create_key`.
        let was_reopened = !key.missing && !self.is_current(key);
        let reopened_key;
        let key = if was_reopened {
            reopened_key = self.open(key.index).ok()?.close(true, now);
            &reopened_key
        } else {
            key
        };
        let value = if native_type::is::<U>(key.native) {
            Value::Present(NonNull::new(key.value_pointer.cast())?)
        } else if key.missing {
            Value::Missing(U::default())
        } else {
            return None;
        };
        let before = RoundTripCheck::of(value.get());
        Some(ResumedKey { redis: self, index: key.index, expires_at: key.expires_at, was_reopened, value, before })
    }
}

/// Expiry of a key in milliseconds since the epoch; 0 for a key that is missing or never expires, and for an expiry
/// that was not fetched. Not an `Option<u64>`: the compiler may read its payload before its discriminant, and memcheck
/// reports that for a `None`.
#[derive(Clone, Copy)]
pub struct OptionalExpiry(u64);

impl OptionalExpiry {
    fn of(expires_at: Option<u64>) -> OptionalExpiry {
        OptionalExpiry(expires_at.unwrap_or(0))
    }

    fn get(self) -> Option<u64> {
        (self.0 != 0).then_some(self.0)
    }
}

/// Closed key that the call has resumed to record a change of it. The pointer in `value` is used only until the change
/// is recorded. Until then it is valid: no other module has run since the key was closed or opened again, and a
/// deletion by this module starts a new generation.
pub struct ResumedKey<'r, 'a, U: Usage> {
    redis: &'r mut Redis<'a>,
    index: KeyIndex,
    expires_at: OptionalExpiry,
    was_reopened: bool,
    value: Value<U>,
    before: RoundTripCheck<U>,
}

impl<U: Usage> Writable for ResumedKey<'_, '_, U> {
    type Usage = U;

    #[inline(always)]
    fn usage_mut(&mut self) -> &mut U {
        self.value.get_mut()
    }

    #[inline(always)]
    fn may_have_changed(&self) -> bool {
        self.was_reopened
    }

    /// Records the change. It is propagated together with those of other keys; then the key is created, or its expiry
    /// set, or the key deleted.
    #[inline(always)]
    fn commit(mut self, expiry: impl FnOnce(Option<u64>) -> u64, now: Timestamp) {
        let (index, current_expiry) = (self.index, self.expires_at.get());
        if self.value.get().is_unused() {
            if !self.value.is_missing() {
                // Between the propagation of the deletion and the deletion itself, another module may charge the key.
                // The effect of its charge must not include this change.
                self.usage_mut().discard_effect();
                self.redis.record_deletion::<U>(index);
            }
            return;
        }
        let expires_at = expiry(current_expiry);
        self.redis.effects.record_change(index, self.value.get_mut(), expires_at, &self.before);
        if let Value::Missing(usage) = &mut self.value {
            let usage = std::mem::take(usage);
            self.redis.after_propagation(move |redis| create_key(redis, index, usage, expires_at, now));
            return;
        }
        self.redis.queue_event(index, Event::Taken);
        if current_expiry != Some(expires_at) {
            self.redis.first_after_propagation(move |redis| {
                if let Ok(key) = redis.open_as::<U>(index) {
                    key.expire(expires_at, now);
                }
            });
        }
    }
}

impl<U: Usage> Drop for ResumedKey<'_, '_, U> {
    /// Records the whole state of the key after a panic, which may have interrupted a change.
    fn drop(&mut self) {
        if panicking() && !self.value.is_missing() {
            self.redis.record_whole(self.index, self.value.get_mut(), self.expires_at.get());
        }
    }
}
