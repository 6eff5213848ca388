//! An open key: what is in it, its change, and its commit.

use super::super::api::call;
use super::super::current_call::Event;
use super::super::debug_readback::{Readback, check_stored};
use super::super::{Redis, now};
use super::contents::{Contents, PeekedKey};
use super::handle::{Handle, READ, WRITE};
use super::value::{Value, Writable};
use ratelimit_core::expiry::LATEST_EXPIRY;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Timestamp, Usage};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::thread::panicking;

/// An open key of whatever type, to look at and perhaps to change.
pub struct OpenKey<'r, 'a> {
    /// The call that has opened it.
    pub(super) redis: &'r mut Redis<'a>,
    /// Its name.
    pub(super) name: KeyName,
    /// What is in it.
    pub(super) contents: Contents,
}

impl<'r, 'a> OpenKey<'r, 'a> {
    /// What is in it.
    #[inline(always)]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The server, to ask of. While the key is open, no other can be opened, and nothing is propagated or announced.
    #[inline(always)]
    pub fn redis(&self) -> &Redis<'a> {
        self.redis
    }

    /// Records that the key, or an item of it, denied the call ([`Redis::denied`]).
    pub fn denied(&mut self, item: Option<&[u8]>, policy: Option<&Rc<[u8]>>, now: Timestamp) {
        self.redis.denied(self.name, item, policy, now);
    }

    /// The key as one of `U`s, if it is one or is missing; else it stays as it is.
    #[inline(always)]
    pub fn typed<U: Usage>(self) -> Result<Key<'r, 'a, U>, Self> {
        match self.contents.value::<U>() {
            Some(value) => Ok(Key { before: Readback::of(value.get()), open: self, value }),
            None => Err(self),
        }
    }

    #[inline(always)]
    fn happened(&mut self, event: Event) {
        self.redis.happened(self.name, event);
    }
}

/// An open key that holds a `U`, or is missing. What it remembers is changed in place, or, of a missing one, beside it;
/// then it is committed; a change that was propagated already is applied by `set`, `expire` or `remove` instead.
pub struct Key<'r, 'a, U: Usage> {
    open: OpenKey<'r, 'a>,
    value: Value<U>,
    /// What it remembered when it was opened.
    pub(super) before: Readback<U>,
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
        let present = self.expires_at(now);
        let expires_at = expiry(present);
        let OpenKey { redis, name, .. } = &mut self.open;
        redis.propagate_change(*name, self.value.get_mut(), expires_at, &self.before);
        if present != Some(expires_at) || self.is_missing() {
            self.set_expiry(expires_at, now);
        }
        self.happened(Event::Taken);
    }
}

impl<'a, U: Usage> Key<'_, 'a, U> {
    /// What the key remembers; of a missing one, nothing used.
    #[inline(always)]
    pub fn usage(&self) -> &U {
        self.value.get()
    }

    /// Whether there is no key.
    #[inline(always)]
    pub fn is_missing(&self) -> bool {
        self.value.is_missing()
    }

    /// When the key expires, in milliseconds since the epoch; `None` if it is missing, or never does.
    #[inline(always)]
    pub fn expires_at(&self, now: Timestamp) -> Option<u64> {
        if self.is_missing() { None } else { self.contents.handle.expires_at(now) }
    }

    /// Sets the key as an effect has it, with the expiry that it says. Whoever calls has propagated it.
    pub(in crate::redis) fn set(mut self, expires_at: u64, now: Timestamp) {
        if self.usage().is_unused() {
            self.remove();
            return;
        }
        check_stored(self.usage());
        self.set_expiry(expires_at, now);
        self.happened(Event::Taken);
    }

    /// Gives the key the expiry that has been propagated, if it is still there.
    pub(super) fn expire(self, at: u64, now: Timestamp) {
        if !self.is_missing() {
            self.contents.handle.set_expiry(at, now);
        }
    }

    /// Closes the handle, so that others may run: what the key remembers is not looked at any more.
    pub(super) fn close(&mut self) -> (&mut Redis<'a>, KeyName) {
        self.value = Value::Missing(U::default());
        let OpenKey { redis, name, contents } = &mut self.open;
        contents.handle = Handle::closed();
        (redis, *name)
    }

    /// Deletes the key, if there is one, and propagates it.
    fn delete(mut self) {
        if !self.is_missing() {
            let name = self.name;
            self.redis.changes.deletion::<U>(name);
            self.redis.propagate();
            self.remove();
        }
    }

    /// Deletes the key, if there is one. Whoever calls has propagated it.
    pub(in crate::redis) fn remove(&mut self) {
        if self.is_missing() {
            return;
        }
        self.value = Value::Missing(U::default());
        // Later servers tell modules of the deletion, inside of it.
        self.redis.other_modules_may_run();
        // SAFETY: the handle is open for writing. It holds nothing any more, whoever runs.
        unsafe { call!(RedisModule_DeleteKey(self.contents.handle.0)) };
        self.happened(Event::Deleted);
    }

    /// Gives the key its expiry; a missing one is made first.
    fn set_expiry(&mut self, at: u64, now: Timestamp) {
        if !self.is_missing() {
            return self.contents.handle.set_expiry(at, now);
        }
        let usage = std::mem::take(self.usage_mut());
        // The server tells modules of a new key, inside of it.
        self.redis.other_modules_may_run();
        let handle = std::mem::replace(&mut self.contents.handle, Handle::closed());
        self.contents.handle = handle.make_key(self.redis, self.name, usage, at, now);
    }
}

impl<U: Usage> Drop for Key<'_, '_, U> {
    /// A panic may have cut a change short: whatever has become of what the key remembers is propagated.
    fn drop(&mut self) {
        if panicking() && !self.is_missing() {
            let expires_at = self.contents.handle.expires_at(now());
            let OpenKey { redis, name, .. } = &mut self.open;
            redis.record_whole(*name, self.value.get_mut(), expires_at);
        }
    }
}

impl<'a> Redis<'a> {
    /// Opens a key of whatever type, to look at it and perhaps to change it.
    #[inline(always)]
    pub fn open(&mut self, name: KeyName) -> Result<OpenKey<'_, 'a>, Error> {
        let contents = Contents::open(self, name, WRITE)?;
        Ok(OpenKey { redis: self, name, contents })
    }

    /// Has the server delete a key of a call on several that has expired, before any of them is opened: so nobody else
    /// runs when one is opened that is there.
    pub fn expire_first(&mut self, name: KeyName) -> Result<(), Error> {
        Handle::expire_first(self, name)
    }

    /// Opens a key that is to hold a `U`. `Err` if it holds anything else.
    pub(in crate::redis) fn open_as<U: Usage>(&mut self, name: KeyName) -> Result<Key<'_, 'a, U>, Error> {
        self.open(name)?.typed().map_err(|key| key.contents().stored().wrong_type(U::KIND.name()))
    }

    /// Opens a key to look at it.
    #[inline(always)]
    pub fn peek(&mut self, name: KeyName) -> Result<PeekedKey<'_>, Error> {
        Contents::open(self, name, READ).map(PeekedKey::of)
    }

    /// Records that nothing is used of a key any more: it will be propagated, and then the key goes.
    pub(super) fn record_deletion<U: Usage>(&mut self, name: KeyName) {
        self.changes.deletion::<U>(name);
        self.later(move |redis| {
            // Others may have charged it since, and have propagated it.
            if let Ok(mut key) = redis.open_as::<U>(name)
                && key.usage().is_unused()
            {
                key.remove();
            }
        });
    }

    /// Records all that a key remembers, after a panic: nobody knows what has changed.
    #[cold]
    pub(super) fn record_whole<U: Usage>(&mut self, name: KeyName, usage: &mut U, expires_at: Option<u64>) {
        // What the call had changed by then is a component of it: the next call must not propagate, or do, it once
        // more.
        usage.forget_effect();
        if usage.is_unused() {
            self.record_deletion::<U>(name);
        } else {
            self.changes.whole(name, usage, expires_at.unwrap_or(LATEST_EXPIRY));
        }
    }
}
