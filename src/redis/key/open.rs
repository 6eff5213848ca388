//! Open keys: reading, changing and committing them.

use super::super::api::{api, call};
use super::super::current_call::Event;
use super::super::debug_round_trip::{RoundTripCheck, check_stored};
use super::super::{Redis, now};
use super::contents::{Contents, Handle, PeekedKey, READ, Value, WRITE};
use ratelimit_core::expiry::LATEST_EXPIRY;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Timestamp, Usage};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::thread::panicking;

/// Key whose usage can be changed in place. The change must be committed, once.
pub trait Writable {
    /// Type of the usage.
    type Usage: Usage;

    /// Returns the usage for changing it; of a missing key, an unused one.
    fn usage_mut(&mut self) -> &mut Self::Usage;

    /// Returns `true` if other modules may have changed the key since the call evaluated it.
    fn may_have_changed(&self) -> bool {
        false
    }

    /// Propagates the change and applies it to the key. Deletes the key if its usage is now unused; otherwise creates
    /// it if it is missing, and sets the expiry that `expiry` computes from its current one, in milliseconds since the
    /// epoch.
    fn commit(self, expiry: impl FnOnce(Option<u64>) -> u64, now: Timestamp);
}

/// Open key of any type, for reading and writing.
pub struct OpenKey<'r, 'a> {
    /// Call that has opened the key.
    pub(super) redis: &'r mut Redis<'a>,
    /// Position of the key among the words of the call.
    pub(super) index: KeyIndex,
    /// Contents of the key.
    pub(super) contents: Contents,
}

impl<'r, 'a> OpenKey<'r, 'a> {
    /// Returns the contents of the key.
    #[inline(always)]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the server for queries. While the key is open, no other key can be opened, and nothing is propagated or
    /// announced.
    #[inline(always)]
    pub fn redis(&self) -> &Redis<'a> {
        self.redis
    }

    /// Records that the key, or its `item`, denied the call ([`Redis::record_denial`]).
    pub fn record_denial(&mut self, item: Option<&[u8]>, policy: Option<&Rc<[u8]>>, now: Timestamp) {
        self.redis.record_denial(self.index, item, policy, now);
    }

    /// Converts to a key of type `U` if it holds a `U` or is missing; otherwise returns the key unchanged.
    #[inline(always)]
    pub fn typed<U: Usage>(self) -> Result<Key<'r, 'a, U>, Self> {
        match self.contents.value::<U>() {
            Some(value) => Ok(Key { before: RoundTripCheck::of(value.get()), open: self, value }),
            None => Err(self),
        }
    }

    #[inline(always)]
    fn queue_event(&mut self, event: Event) {
        self.redis.queue_event(self.index, event);
    }
}

/// Open key that holds a `U` or is missing. Its usage is changed in place (that of a missing key, in a new value) and
/// then committed. A change that was propagated already is applied by `set`, `expire` or `remove` instead.
pub struct Key<'r, 'a, U: Usage> {
    open: OpenKey<'r, 'a>,
    value: Value<U>,
    /// Copy of the usage at the time the key was opened.
    pub(super) before: RoundTripCheck<U>,
}

impl<'r, 'a, U: Usage> Deref for Key<'r, 'a, U> {
    type Target = OpenKey<'r, 'a>;

    #[inline(always)]
    fn deref(&self) -> &OpenKey<'r, 'a> {
        &self.open
    }
}

impl<U: Usage> DerefMut for Key<'_, '_, U> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.open
    }
}

impl<U: Usage> Writable for Key<'_, '_, U> {
    type Usage = U;

    #[inline(always)]
    fn usage_mut(&mut self) -> &mut U {
        self.value.get_mut()
    }

    #[inline(always)]
    fn commit(mut self, expiry: impl FnOnce(Option<u64>) -> u64, now: Timestamp) {
        if self.usage().is_unused() {
            return self.delete();
        }
        let current_expiry = self.expires_at(now);
        let expires_at = expiry(current_expiry);
        let OpenKey { redis, index, .. } = &mut self.open;
        redis.propagate_change(*index, self.value.get_mut(), expires_at, &self.before);
        if current_expiry != Some(expires_at) || self.is_missing() {
            self.set_expiry(expires_at, now);
        }
        self.queue_event(Event::Taken);
    }
}

impl<'a, U: Usage> Key<'_, 'a, U> {
    /// Returns the usage; of a missing key, an unused one.
    #[inline(always)]
    pub fn usage(&self) -> &U {
        self.value.get()
    }

    /// Returns `true` if the key is missing.
    #[inline(always)]
    pub fn is_missing(&self) -> bool {
        self.value.is_missing()
    }

    /// Returns the expiry in milliseconds since the epoch; `None` if the key is missing or never expires.
    #[inline(always)]
    pub fn expires_at(&self, now: Timestamp) -> Option<u64> {
        if self.is_missing() { None } else { self.contents.handle.expires_at(now) }
    }

    /// Stores the usage and expiry of an effect. The caller has already propagated the effect.
    pub(in crate::redis) fn set(mut self, expires_at: u64, now: Timestamp) {
        if self.usage().is_unused() {
            self.remove();
            return;
        }
        check_stored(self.usage());
        self.set_expiry(expires_at, now);
        self.queue_event(Event::Taken);
    }

    /// Sets the expiry that has been propagated, if the key still exists.
    pub(super) fn expire(self, expires_at: u64, now: Timestamp) {
        if !self.is_missing() {
            self.contents.handle.set_expiry(expires_at, now);
        }
    }

    /// Closes the handle, so that other modules may run, and drops the pointer to the usage.
    pub(super) fn close(&mut self) -> (&mut Redis<'a>, KeyIndex) {
        self.value = Value::Missing(U::default());
        let OpenKey { redis, index, contents } = &mut self.open;
        contents.handle = Handle::null();
        (redis, *index)
    }

    /// Propagates the deletion of the key and deletes it, if it exists.
    fn delete(mut self) {
        if !self.is_missing() {
            let index = self.index;
            self.redis.effects.record_deletion::<U>(index);
            self.redis.propagate();
            self.remove();
        }
    }

    /// Deletes the key, if it exists. The caller has already propagated the deletion.
    pub(in crate::redis) fn remove(&mut self) {
        if self.is_missing() {
            return;
        }
        self.value = Value::Missing(U::default());
        // Newer servers notify modules during the deletion.
        self.redis.other_modules_may_run();
        // SAFETY: the handle is open for writing, and `value` no longer points into the key.
        unsafe { call!(RedisModule_DeleteKey(self.contents.handle.0)) };
        self.queue_event(Event::Deleted);
    }

    /// Sets the expiry of the key; creates a missing key first.
    fn set_expiry(&mut self, expires_at: u64, now: Timestamp) {
        if !self.is_missing() {
            return self.contents.handle.set_expiry(expires_at, now);
        }
        let usage = std::mem::take(self.usage_mut());
        // The server notifies modules while it creates the key.
        self.redis.other_modules_may_run();
        let handle = std::mem::replace(&mut self.contents.handle, Handle::null());
        self.contents.handle = handle.make_key(self.redis, self.index, usage, expires_at, now);
    }
}

impl<U: Usage> Drop for Key<'_, '_, U> {
    /// Records the whole state of the key after a panic, which may have interrupted a change.
    fn drop(&mut self) {
        if panicking() && !self.is_missing() {
            let expires_at = self.contents.handle.expires_at(now());
            let OpenKey { redis, index, .. } = &mut self.open;
            redis.record_whole(*index, self.value.get_mut(), expires_at);
        }
    }
}

impl<'a> Redis<'a> {
    /// Opens a key of any type for reading and writing.
    #[inline(always)]
    pub fn open(&mut self, index: KeyIndex) -> Result<OpenKey<'_, 'a>, Error> {
        let contents = Contents::open(self, index, WRITE)?;
        Ok(OpenKey { redis: self, index, contents })
    }

    /// Makes the server delete an expired key before a call on several keys opens any of them, so that no other module
    /// runs when an existing key is opened.
    ///
    /// Redis 6.2 looks a key up again after it has notified other modules of its expiry. If a module has put another
    /// value there meanwhile (for example by renaming a key that was evaluated before), that value is found although a
    /// module has run. No key expires later in the call: the server's clock stands still until the call ends.
    #[inline(always)]
    pub fn delete_if_expired(&mut self, index: KeyIndex) -> Result<(), Error> {
        let looks_up_again = api!(RedisModule_KeyExists).is_none();
        if looks_up_again { Handle::open(self, index, WRITE).map(drop) } else { Ok(()) }
    }

    /// Opens a key for reading and writing; returns an error if it holds anything but a `U`.
    pub(in crate::redis) fn open_as<U: Usage>(&mut self, index: KeyIndex) -> Result<Key<'_, 'a, U>, Error> {
        self.open(index)?.typed().map_err(|key| key.contents().stored().wrong_type(U::KIND.name()))
    }

    /// Opens a key for reading only.
    #[inline(always)]
    pub fn peek(&mut self, index: KeyIndex) -> Result<PeekedKey<'_>, Error> {
        Ok(PeekedKey { contents: Contents::open(self, index, READ)?, call: PhantomData })
    }

    /// Records the deletion of an unused key. It is propagated, and then the key is deleted if it is still unused.
    pub(super) fn record_deletion<U: Usage>(&mut self, index: KeyIndex) {
        self.effects.record_deletion::<U>(index);
        self.after_propagation(move |redis| {
            // Other modules may have charged the key since, and have propagated that.
            if let Ok(mut key) = redis.open_as::<U>(index)
                && key.usage().is_unused()
            {
                key.remove();
            }
        });
    }

    /// Records the whole state of a key after a panic, as the change itself is unknown.
    #[cold]
    pub(super) fn record_whole<U: Usage>(&mut self, index: KeyIndex, usage: &mut U, expires_at: Option<u64>) {
        // The whole state includes the interrupted change, so the next call must not propagate or apply it again.
        usage.discard_effect();
        if usage.is_unused() {
            self.record_deletion::<U>(index);
        } else {
            self.effects.record_whole(index, usage, expires_at.unwrap_or(LATEST_EXPIRY));
        }
    }
}
