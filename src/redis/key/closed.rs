//! A key that a call over several has evaluated and closed, to open the next. What is changed in it is recorded,
//! propagated as one, and only then is the key itself seen to.

use super::super::Redis;
use super::super::current_call::Event;
use super::super::debug_readback::Readback;
use super::super::native_type;
use super::contents::Contents;
use super::open::OpenKey;
use super::takeover::make;
use super::value::{Value, Writable};
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::{Timestamp, Usage};
use redis_module::raw;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::thread::panicking;

/// A key as it was found by a call that has opened others since. It is closed.
pub struct ClosedKey<'a> {
    /// Where it stands among the words of the call.
    pub(super) name: KeyName,
    /// The type of its value, if a module has defined it; null of any other.
    pub(super) native: *mut raw::RedisModuleType,
    /// The value, if a module has defined its type; null of any other.
    pub(super) value: *mut c_void,
    /// Whether there was no key.
    pub(super) missing: bool,
    /// In milliseconds since the epoch; asked only of a key that will be changed.
    pub(super) expires_at: PresentExpiry,
    /// The turn of the call in which it was closed: what is here holds until the next.
    pub(super) turn: u32,
    /// The call: what is here cannot outlive it.
    pub(super) call: PhantomData<&'a ()>,
}

impl ClosedKey<'_> {
    /// Where it stands among the words of the call.
    pub fn name(&self) -> KeyName {
        self.name
    }

    /// Whether there was no key.
    pub fn is_missing(&self) -> bool {
        self.missing
    }
}

impl<'a> OpenKey<'_, 'a> {
    /// Closes it, to be resumed after others have been opened; one that is to be changed with its expiry.
    #[inline(always)]
    pub fn close(self, to_change: bool, now: Timestamp) -> ClosedKey<'a> {
        let Contents { handle, native, value, missing } = self.contents;
        let expires_at = PresentExpiry::of(if to_change && !missing { handle.expires_at(now) } else { None });
        ClosedKey { name: self.name, native, value, missing, expires_at, turn: self.redis.turn, call: PhantomData }
    }
}

impl<'a> Redis<'a> {
    /// Whether nobody else can have run since a key was closed.
    pub fn still_holds(&self, key: &ClosedKey<'a>) -> bool {
        self.turn == key.turn
    }

    /// Goes on with a closed key, which is opened once more if others may have changed it since. `None` if it holds
    /// anything but a `U` now.
    #[inline(always)]
    pub fn resume<U: Usage>(&mut self, key: &ClosedKey<'a>, now: Timestamp) -> Option<ResumedKey<'_, 'a, U>> {
        let overtaken = !key.missing && !self.still_holds(key);
        let anew;
        let key = if overtaken {
            anew = self.open(key.name).ok()?.close(true, now);
            &anew
        } else {
            key
        };
        let value = if native_type::is::<U>(key.native) {
            Value::There(NonNull::new(key.value.cast())?)
        } else if key.missing {
            Value::Missing(U::default())
        } else {
            return None;
        };
        let before = Readback::of(value.get());
        Some(ResumedKey { redis: self, name: key.name, expires_at: key.expires_at, overtaken, value, before })
    }
}

/// When a key expires, in milliseconds since the epoch; 0 if it does not. An `Option` without a value leaves that
/// undefined, and code that the compiler has look at it first is an error to memcheck.
#[derive(Clone, Copy)]
pub struct PresentExpiry(u64);

impl PresentExpiry {
    fn of(expires_at: Option<u64>) -> PresentExpiry {
        PresentExpiry(expires_at.unwrap_or(0))
    }

    fn get(self) -> Option<u64> {
        (self.0 != 0).then_some(self.0)
    }
}

/// A closed key that the call goes on with. Its change is recorded, which is the last thing that is done with what was
/// found in it: nobody can have changed that, since no other code has run, and ours says when it deletes.
pub struct ResumedKey<'r, 'a, U: Usage> {
    redis: &'r mut Redis<'a>,
    name: KeyName,
    expires_at: PresentExpiry,
    overtaken: bool,
    value: Value<U>,
    before: Readback<U>,
}

impl<U: Usage> Writable for ResumedKey<'_, '_, U> {
    type Usage = U;

    #[inline(always)]
    fn usage_mut(&mut self) -> &mut U {
        self.value.get_mut()
    }

    #[inline(always)]
    fn is_overtaken(&self) -> bool {
        self.overtaken
    }

    /// The change is recorded: it will be propagated together with those of other keys, and then the key is seen to.
    #[inline(always)]
    fn commit(mut self, expiry: impl FnOnce(Option<u64>) -> u64, now: Timestamp) {
        let (name, present) = (self.name, self.expires_at.get());
        if self.value.get().is_unused() {
            if !self.value.is_missing() {
                // Others may charge it before it goes: what this has changed is no part of that.
                self.usage_mut().forget_effect();
                self.redis.record_deletion::<U>(name);
            }
            return;
        }
        let expires_at = expiry(present);
        self.redis.changes.change(name, self.value.get_mut(), expires_at, &self.before);
        if let Value::Missing(usage) = &mut self.value {
            let usage = std::mem::take(usage);
            self.redis.later(move |redis| make(redis, name, usage, expires_at, now));
            return;
        }
        self.redis.happened(name, Event::Taken);
        if present != Some(expires_at) {
            self.redis.first(move |redis| {
                if let Ok(key) = redis.open_as::<U>(name) {
                    key.expire(expires_at, now);
                }
            });
        }
    }
}

impl<U: Usage> Drop for ResumedKey<'_, '_, U> {
    /// A panic may have cut a change short: whatever has become of what the key remembers is propagated.
    fn drop(&mut self) {
        if panicking() && !self.value.is_missing() {
            self.redis.record_whole(self.name, self.value.get_mut(), self.expires_at.get());
        }
    }
}
