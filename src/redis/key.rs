//! The keys of one call.
//!
//! Other modules hear of keyspace events at once, inside the call, and may then change or delete any key. So no handle
//! of a key is open, and nothing that was found in one is used, while others may run; the types see to it:
//!
//! * an open key ([`OpenKey`], [`Key`], [`PeekedKey`]) borrows the call, and so closes before the call can open the next
//!   one, or announce anything to those who subscribe to events;
//! * a key that was closed again ([`ClosedKey`]) shows what was found in it only as long as nobody else can have run
//!   since, which the call counts ([`Redis::others_may_run`]). Others run when a key is opened and found missing (it may
//!   have expired just now), when one is made or deleted (the server announces that itself), and when events are
//!   announced.
//!
//! A key is opened once, whatever its type: [`Stored`] says what it is. A usage is changed in place, in an open key or
//! in one that was closed, and then committed: the two have that in common ([`Writable`]).
//!
//! A change is made known in the order in which it happened: first to replicas and the AOF, and only then to
//! those who might change more. (Redis 6.2 propagates at once what another module does, and what a call has
//! propagated only when it is over: there it is the other way round.)

mod closed;
mod conversion;
mod handle;
mod stored;
mod takeover;

use super::Redis;
use super::api::{OK, call};
use super::before::{Before, check_stored};
use super::native_type;
use handle::{Handle, WRITE};
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Timestamp, Usage};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::thread::panicking;

pub use closed::{ClosedKey, ResumedKey};
pub use stored::{Contents, ForeignType, PeekedKey, Stored};

/// What a key remembers, as long as it stays there.
enum Value<U> {
    /// In the key.
    There(NonNull<U>),
    /// Nothing used: the key is missing.
    Missing(U),
}

impl<U: Usage> Value<U> {
    #[inline(always)]
    fn get(&self) -> &U {
        match self {
            // SAFETY: a value is a `U`, in a key of the server that is open, or that nobody can have changed since it was
            // closed: whoever holds a value borrows the call, so that nobody else runs.
            Value::There(value) => unsafe { value.as_ref() },
            Value::Missing(unused) => unused,
        }
    }

    #[inline(always)]
    fn get_mut(&mut self) -> &mut U {
        match self {
            // SAFETY: as in `get`, and `self` is borrowed for it alone.
            Value::There(value) => unsafe { value.as_mut() },
            Value::Missing(unused) => unused,
        }
    }

    #[inline(always)]
    fn is_missing(&self) -> bool {
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

    /// Sees to all that a change of the usage entails: it is propagated; a key whose usage is back to nothing is deleted;
    /// else it is there, with the expiry that `expiry` makes of the present one, in milliseconds since the epoch.
    fn commit(self, expiry: impl FnOnce(Option<u64>) -> u64, now: Timestamp);
}

/// An open key of whatever type, to look at and perhaps to change.
pub struct OpenKey<'r, 'a> {
    redis: &'r mut Redis<'a>,
    name: KeyName,
    contents: Contents,
}

impl<'r, 'a> OpenKey<'r, 'a> {
    /// What is in it.
    #[inline(always)]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The call, which can be asked of, but open no other key, and propagate or announce nothing.
    #[inline(always)]
    pub fn call(&self) -> &Redis<'a> {
        self.redis
    }

    /// Records that the key stood in the way of the call, and has it announced when nothing is open any more.
    pub fn denied(&mut self, now: Timestamp) {
        self.redis.denied(self.name, now);
    }

    /// The same as a key of `U`s, if it is one or is missing; else it stays as it is.
    #[inline(always)]
    pub fn typed<U: Usage>(self) -> Result<Key<'r, 'a, U>, Self> {
        match self.contents.value::<U>() {
            Some(value) => Ok(Key { before: Before::of(value.get()), open: self, value }),
            None => Err(self),
        }
    }

    #[inline(always)]
    fn happened(&mut self, event: Event) {
        self.redis.happened(self.name, event);
    }

    /// Closes it, to be resumed after others have been opened; one that is to be changed with its expiry.
    #[inline(always)]
    pub fn close(self, to_change: bool, now: Timestamp) -> ClosedKey {
        let Contents { handle, native, value, missing } = self.contents;
        let expires_at = if to_change && !missing { handle.expires_at(now) } else { None };
        ClosedKey { name: self.name, native, value, missing, expires_at, turn: self.redis.turn }
    }
}

/// An open key that holds a `U`, or is missing. What it remembers is changed in place, or, of a missing one, beside it;
/// then it is committed, or, of what was propagated before, `set`, `expire` or `remove`.
pub struct Key<'r, 'a, U: Usage> {
    open: OpenKey<'r, 'a>,
    value: Value<U>,
    before: Before<U>,
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
        redis.changes.change(*name, self.value.get_mut(), expires_at, &self.before);
        redis.propagate();
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
    pub(super) fn set(mut self, expires_at: u64, now: Timestamp) {
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
    fn close(&mut self) -> (&mut Redis<'a>, KeyName) {
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
    pub(super) fn remove(&mut self) {
        if self.is_missing() {
            return;
        }
        self.value = Value::Missing(U::default());
        // Later servers tell modules of the deletion, inside of it.
        self.redis.others_may_run();
        // SAFETY: the handle is open for writing. It holds nothing any more, whoever runs.
        unsafe { call!(RedisModule_DeleteKey(self.contents.handle.0)) };
        self.happened(Event::Deleted);
    }

    /// Gives the key its expiry; a missing one is made first.
    fn set_expiry(&mut self, at: u64, now: Timestamp) {
        if !self.is_missing() {
            return self.contents.handle.set_expiry(at, now);
        }
        let value = native_type::into_raw(std::mem::take(self.usage_mut()));
        // The server tells modules of a new key, inside of it.
        self.redis.others_may_run();
        let native = native_type::of::<U>().pointer();
        // SAFETY: the handle is open for writing, and the value is of the type that is named.
        let made = unsafe { call!(RedisModule_ModuleTypeSetValue(self.contents.handle.0, native, value.cast())) } == OK;
        if !made {
            // SAFETY: the server did not take it, so it is still ours.
            drop(unsafe { native_type::from_raw(value) });
            return;
        }
        // Whoever heard of it may have put something else into its place, and the expiry of a key that is not there
        // ends the server: so what is there now is asked once more. (Servers that tell of a new key before they hold it
        // themselves end if it is deleted then, whoever makes it.)
        let Ok(handle) = Handle::open(self.redis, self.name, WRITE) else { return };
        if native_type::is::<U>(handle.native()) && handle.value() == value.cast() && handle.expires_in_ms().is_none() {
            handle.set_expiry(at, now);
        }
        self.contents.handle = handle;
    }
}

impl<U: Usage> Drop for Key<'_, '_, U> {
    /// A panic may have cut a change short: whatever has become of what the key remembers is propagated.
    fn drop(&mut self) {
        if panicking() && !self.is_missing() {
            let expires_at = self.contents.handle.expires_at(super::now());
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

    /// The same of a key that is to hold a `U`. `Err` if it holds anything else.
    pub(super) fn open_as<U: Usage>(&mut self, name: KeyName) -> Result<Key<'_, 'a, U>, Error> {
        self.open(name)?.typed().map_err(|key| key.contents().stored().wrong_type(U::KIND.name()))
    }

    /// Says that others may have run, and may have changed what was found in any key.
    pub(super) fn others_may_run(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }
}

/// What happened to a key, for those who watch it, cache it or subscribe to its events.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was charged, or given back to, or moved back with the clock.
    Taken,
    /// It is gone.
    Deleted,
    /// It stood in the way of a call, which changed nothing.
    Denied,
}
