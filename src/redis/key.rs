//! The keys of one call.
//!
//! Other modules hear of keyspace events at once, inside the call, and may then change or delete any key. So no handle
//! of a key is open, and nothing that was found in one is used, while others may run; the types see to it:
//!
//! * an open key ([`Peeked`], [`Key`]) borrows the call, and so closes before the call can open the next one, or
//!   announce anything to those who subscribe to events;
//! * a key that was closed again ([`Found`]) shows what was found in it only as long as nobody else can have run since,
//!   which the call counts ([`Redis::others_may_run`]). Others run when a key is opened and found missing (it may have
//!   expired just now), when one is made or deleted (the server announces that itself), and when events are announced.
//!
//! A change is made known in the order in which it happened: first to replicas and the AOF, and only then to
//! those who might change more. (Redis 6.2 propagates at once what another module does, and what a call has
//! propagated only when it is over: there it is the other way round.)

mod conversion;
mod foreign;
mod found;

use super::Redis;
use super::api::{OK, api, call};
use super::before::{Before, check_stored};
use super::native_type;
use ratelimit_core::args::KeyName;
use ratelimit_core::error::Error;
use ratelimit_core::expiry::{Expiry, StepBack};
use ratelimit_core::{Kind, Timestamp, Usage};
use redis_module::raw;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::thread::panicking;

pub use found::Found;

/// `REDISMODULE_KEYTYPE_EMPTY` and `REDISMODULE_KEYTYPE_STRING`, in the type that the server answers with.
const KEYTYPE_EMPTY: c_int = 0;
const KEYTYPE_STRING: c_int = 1;

/// The server's handle of a key. Closed when dropped.
struct Handle(*mut raw::RedisModuleKey);

impl Handle {
    /// Opens a key. Whether others may have run meanwhile is for the caller to ask, of what it holds.
    fn open(redis: &Redis, name: KeyName, mode: u32) -> Result<Handle, Error> {
        let name = redis.string(name)?;
        // SAFETY: `ctx` and the string are those of the call that `redis` stands for, which outlives the handle.
        Ok(Handle(unsafe { call!(RedisModule_OpenKey(redis.ctx, name, mode.cast_signed())) }))
    }

    /// The value, if it is a `U`; `None` if the key is missing.
    #[inline(always)]
    fn value<U: Usage>(&self) -> Result<Option<NonNull<U>>, Error> {
        // SAFETY: the handle is open; a null one is asked for its type like any other.
        unsafe {
            let found = call!(RedisModule_ModuleTypeGetType(self.0));
            if !found.is_null() && found == native_type::of::<U>().pointer() {
                return Ok(NonNull::new(call!(RedisModule_ModuleTypeGetValue(self.0)).cast()));
            }
            let key_type = call!(RedisModule_KeyType(self.0));
            if key_type == KEYTYPE_EMPTY {
                return Ok(None);
            }
            Err(Error::WrongType { holds: native_type::name(key_type, found), needs: U::KIND.name() })
        }
    }

    /// When the key expires, in milliseconds since the epoch; `None` if it never does.
    fn expires_at(&self, now: Timestamp) -> Option<u64> {
        // SAFETY: the handle is open.
        unsafe {
            match api!(RedisModule_GetAbsExpire) {
                Some(get) => u64::try_from(get(self.0)).ok(),
                // Relative to a clock that may have moved since `now`: good to a millisecond or two.
                None => self.expires_in_ms().map(|left| left.saturating_add(now.ceil_millis())),
            }
        }
    }

    fn expires_in_ms(&self) -> Option<u64> {
        // SAFETY: the handle is open.
        u64::try_from(unsafe { call!(RedisModule_GetExpire(self.0)) }).ok()
    }

    /// For a handle that is open for writing.
    fn set_expiry(&self, at: u64, now: Timestamp) {
        let at = i64::try_from(at).unwrap_or(i64::MAX);
        // SAFETY: the handle is open, of a key that is there.
        unsafe {
            if let Some(set) = api!(RedisModule_SetAbsExpire) {
                set(self.0, at);
            } else {
                let now = i64::try_from(now.ceil_millis()).unwrap_or(i64::MAX);
                call!(RedisModule_SetExpire(self.0, at.saturating_sub(now).max(1)));
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed nowhere else; null is allowed.
        unsafe { call!(RedisModule_CloseKey(self.0)) };
    }
}

/// What an open key remembers.
enum Value<U> {
    /// In the key.
    There(NonNull<U>),
    /// Nothing used: the key is missing.
    Missing(U),
}

impl<U: Usage> Value<U> {
    /// # Safety
    /// A value that is there lives in a key that stays open, and the call borrowed, as long as this.
    #[inline(always)]
    unsafe fn new(value: Option<NonNull<U>>) -> Value<U> {
        value.map_or_else(|| Value::Missing(U::default()), Value::There)
    }

    #[inline(always)]
    fn get(&self) -> &U {
        match self {
            // SAFETY: `new`. Nobody else runs while the call is borrowed.
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
}

/// A key that was opened only to look at it: allowed on a read-only replica, and nothing can be made of it.
pub struct Peeked<'r, U> {
    _handle: Handle,
    value: Value<U>,
    call: PhantomData<&'r ()>,
}

impl<U: Usage> Peeked<'_, U> {
    /// What the key remembers; of a missing one, nothing used.
    pub fn usage(&self) -> &U {
        self.value.get()
    }

    /// Whether there is no key.
    pub fn is_missing(&self) -> bool {
        matches!(self.value, Value::Missing(_))
    }
}

/// An open key, to look at and to change. What it remembers is changed in place, or, of a missing one, beside it; then
/// the key learns what has become of it, once: [`Key::charged`], [`Key::moved_back`], or, of what was propagated
/// before, `set`, `expire` or `remove`. One that is dropped without was not changed.
pub struct Key<'r, 'a, U: Usage> {
    redis: &'r mut Redis<'a>,
    handle: Handle,
    name: KeyName,
    value: Value<U>,
    before: Before<U>,
}

impl<'a, U: Usage> Key<'_, 'a, U> {
    /// What the key remembers; of a missing one, nothing used.
    pub fn usage(&self) -> &U {
        self.value.get()
    }

    /// The same, to change it.
    pub fn usage_mut(&mut self) -> &mut U {
        self.value.get_mut()
    }

    /// Whether there is no key.
    pub fn is_missing(&self) -> bool {
        matches!(self.value, Value::Missing(_))
    }

    /// When the key expires, in milliseconds since the epoch; `None` if it is missing, or never does.
    pub fn expires_at(&self, now: Timestamp) -> Option<u64> {
        if self.is_missing() { None } else { self.handle.expires_at(now) }
    }

    /// The call, which can be asked of, but open no other key, and propagate or announce nothing.
    pub fn call(&self) -> &Redis<'a> {
        self.redis
    }

    /// Records that the key stood in the way of the call, and has it announced when nothing is open any more.
    pub fn denied(&mut self, now: Timestamp) {
        self.redis.denied(self.name, now);
    }

    /// Closes it, to be found again after others have been opened.
    pub fn close(self) -> Found {
        Found {
            name: self.name,
            native: native_type::of::<U>(),
            value: if let Value::There(value) = self.value { value.as_ptr().cast() } else { null_mut() },
            expires_at: None,
            turn: self.redis.turn,
        }
    }

    /// The same with its expiry, of a key that will be changed.
    pub fn close_to_change(self, now: Timestamp) -> Found {
        Found { expires_at: self.expires_at(now), ..self.close() }
    }

    /// Sees to all that a charge entails, before which the usage may have `moved` back with the clock: a key whose
    /// usage is back to nothing is deleted; else it is there, and expires when it may. It is propagated.
    #[inline(always)]
    pub fn charged(mut self, now: Timestamp, expiry: Expiry, moved: bool) {
        if self.usage().is_unused() {
            return self.delete();
        }
        let present = self.expires_at(now);
        let expires_at = expiry.after_charge(present, moved);
        self.propagate_and_set(present, expires_at, now);
    }

    /// The same of a change that only moved the usage back, with the clock.
    pub fn moved_back(mut self, step: &StepBack) {
        if self.usage().is_unused() {
            return self.delete();
        }
        let present = self.handle.expires_at(step.now);
        self.propagate_and_set(present, step.expiry(present), step.now);
    }

    #[inline(always)]
    fn propagate_and_set(&mut self, present: Option<u64>, expires_at: u64, now: Timestamp) {
        self.redis.changes.change(self.name, self.value.get_mut(), expires_at, &self.before);
        self.redis.propagate();
        if present != Some(expires_at) || self.is_missing() {
            self.set_expiry(expires_at, now);
        }
        self.redis.happened(self.name, Event::Taken);
    }

    /// Sets the key as an effect has it, with the expiry that it says. Whoever calls has propagated it.
    pub(super) fn set(mut self, expires_at: u64, now: Timestamp) {
        if self.usage().is_unused() {
            self.remove();
            return;
        }
        check_stored(self.usage());
        self.set_expiry(expires_at, now);
        self.redis.happened(self.name, Event::Taken);
    }

    /// Gives the key the expiry that has been propagated, if it is still there.
    pub(super) fn expire(self, at: u64, now: Timestamp) {
        if !self.is_missing() {
            self.handle.set_expiry(at, now);
        }
    }

    /// Deletes the key, if there is one, and propagates it.
    fn delete(mut self) {
        if !self.is_missing() {
            self.redis.changes.deletion::<U>(self.name);
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
        unsafe { call!(RedisModule_DeleteKey(self.handle.0)) };
        self.redis.happened(self.name, Event::Deleted);
    }

    /// Gives the key its expiry; a missing one is made first.
    fn set_expiry(&mut self, at: u64, now: Timestamp) {
        if !self.is_missing() {
            return self.handle.set_expiry(at, now);
        }
        let value = native_type::into_raw(std::mem::take(self.usage_mut()));
        // The server tells modules of a new key, inside of it.
        self.redis.others_may_run();
        let native = native_type::of::<U>().pointer();
        // SAFETY: the handle is open for writing, and the value is of the type that is named.
        let made = unsafe { call!(RedisModule_ModuleTypeSetValue(self.handle.0, native, value.cast())) } == OK;
        if !made {
            // SAFETY: the server did not take it, so it is still ours.
            drop(unsafe { native_type::from_raw(value) });
            return;
        }
        // Whoever heard of it may have put something else into its place, and the expiry of a key that is not there
        // ends the server: so what is there now is asked once more. (Servers that tell of a new key before they hold it
        // themselves end if it is deleted then, whoever makes it.)
        let Ok(handle) = Handle::open(self.redis, self.name, WRITE) else { return };
        self.handle = handle;
        if self.handle.value::<U>().is_ok_and(|now_there| now_there == NonNull::new(value))
            && self.handle.expires_in_ms().is_none()
        {
            self.handle.set_expiry(at, now);
        }
    }
}

impl<U: Usage> Drop for Key<'_, '_, U> {
    /// A panic may have cut a change short: whatever has become of what the key remembers is propagated.
    fn drop(&mut self) {
        if panicking() && !self.is_missing() {
            let expires_at = self.handle.expires_at(super::now());
            self.redis.record_whole(self.name, self.value.get_mut(), expires_at);
        }
    }
}

const READ: u32 = raw::REDISMODULE_READ;
const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

impl<'a> Redis<'a> {
    /// Opens a key to look at it. `Err` if it holds anything but a `U`.
    pub fn peek<U: Usage>(&mut self, name: KeyName) -> Result<Peeked<'_, U>, Error> {
        let handle = Handle::open(self, name, READ)?;
        let value = handle.value::<U>()?;
        if value.is_none() {
            self.others_may_run();
        }
        // SAFETY: the key is open as long as the value is looked at, and the call borrowed.
        Ok(Peeked { _handle: handle, value: unsafe { Value::new(value) }, call: PhantomData })
    }

    /// Opens a key to look at it and perhaps to change it. `Err` if it holds anything but a `U`.
    #[inline(always)]
    pub fn open<U: Usage>(&mut self, name: KeyName) -> Result<Key<'_, 'a, U>, Error> {
        let handle = Handle::open(self, name, WRITE)?;
        let value = handle.value::<U>()?;
        if value.is_none() {
            self.others_may_run();
        }
        // SAFETY: likewise.
        let value = unsafe { Value::new(value) };
        let before = Before::of(value.get());
        Ok(Key { redis: self, handle, name, value, before })
    }

    /// The kind of limiter that a key holds; `None` if it holds anything else, or nothing.
    pub fn kind(&mut self, name: KeyName) -> Option<Kind> {
        let handle = Handle::open(self, name, READ).ok()?;
        // SAFETY: the handle is open; a null one is asked for its type like any other.
        let kind = native_type::kind(unsafe { call!(RedisModule_ModuleTypeGetType(handle.0)) });
        drop(handle);
        if kind.is_none() {
            self.others_may_run();
        }
        kind
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
