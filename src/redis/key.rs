//! The keys of one call.
//!
//! Other modules hear of keyspace events at once, inside the call, and may then change or delete any key. So no handle
//! of a key is open, and nothing that was found in one is used, while others may run; the types see to it:
//!
//! * an open key ([`Peeked`], [`Key`]) borrows the call, and so closes before the call can open the next one, or tell
//!   those who subscribe to events of anything;
//! * a key that was closed again ([`Found`]) shows what was found in it only as long as nobody else can have run since,
//!   which the call counts ([`Redis::others_may_run`]). Others run when a key is opened and found missing (it may have
//!   expired just now), when one is made or deleted (the server tells of that itself), and when events are told.
//!
//! What is told of a change is told in the order in which it happened: first to replicas and the AOF, and only then to
//! those who might change more. (Redis 6.2 tells replicas at once what another module does, and what a call has told
//! them only when it is over: there it is the other way round.)

use super::Redis;
use super::api::{OK, api, call};
use super::native_type::{self, Native};
use ratelimit_core::args::KeyName;
use ratelimit_core::error::Error;
use ratelimit_core::expiry::{Expiry, LATEST_EXPIRY, StepBack};
use ratelimit_core::{Timestamp, Usage};
use redis_module::raw;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use std::thread::panicking;

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
/// the key is told what has become of it, once: [`Key::charged`], [`Key::moved_back`], or, of what replicas were told
/// before, `set`, `expire` or `remove`. One that is dropped untold was not changed.
pub struct Key<'r, 'a, U: Usage> {
    redis: &'r mut Redis<'a>,
    handle: Handle,
    name: KeyName,
    value: Value<U>,
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

    /// The call, which can be asked of, but open no other key and tell nobody anything.
    pub fn call(&self) -> &Redis<'a> {
        self.redis
    }

    /// Has it told, when nothing is open any more, that the key stood in the way of the call.
    pub fn denied(&mut self) {
        self.redis.denied(self.name);
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
        let expires_at = if self.is_missing() { None } else { self.handle.expires_at(now) };
        Found { expires_at, ..self.close() }
    }

    /// Sees to all that a charge entails, before which the usage may have `moved` back with the clock: a key whose usage is
    /// back to nothing is deleted; else it is there, and expires when it may. Replicas and the AOF are told.
    pub fn charged(mut self, now: Timestamp, expiry: Expiry, moved: bool) {
        if self.usage().is_unused() {
            return self.delete();
        }
        let present = if self.is_missing() { None } else { self.handle.expires_at(now) };
        let expires_at = expiry.after_charge(present, moved);
        self.tell_and_set(present, expires_at, now);
    }

    /// The same of a change that only moved the usage back, with the clock.
    pub fn moved_back(mut self, step: &StepBack) {
        if self.usage().is_unused() {
            return self.delete();
        }
        let present = self.handle.expires_at(step.now);
        self.tell_and_set(present, step.expiry(present), step.now);
    }

    fn tell_and_set(&mut self, present: Option<u64>, expires_at: u64, now: Timestamp) {
        self.redis.changes.change(self.name, self.value.get_mut(), expires_at);
        self.redis.propagate();
        if present != Some(expires_at) || self.is_missing() {
            self.set_expiry(expires_at, now);
        }
        self.redis.happened(self.name, Event::Taken);
    }

    /// Sets the key as an effect has it, with the expiry that it says. Whoever calls has told replicas of it.
    pub(super) fn set(mut self, expires_at: u64, now: Timestamp) {
        if self.usage().is_unused() {
            self.remove();
            return;
        }
        self.set_expiry(expires_at, now);
        self.redis.happened(self.name, Event::Taken);
    }

    /// Gives the key the expiry that replicas have been told of, if it is still there.
    pub(super) fn expire(self, at: u64, now: Timestamp) {
        if !self.is_missing() {
            self.handle.set_expiry(at, now);
        }
    }

    /// Deletes the key, if there is one, and tells replicas and the AOF.
    fn delete(mut self) {
        if !self.is_missing() {
            self.redis.changes.deletion::<U>(self.name);
            self.redis.propagate();
            self.remove();
        }
    }

    /// Deletes the key, if there is one. Whoever calls has told replicas of it.
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
        // Whoever heard of it may have put something else into its place, and the expiry of a key that is not there ends
        // the server: so what is there now is asked once more. (Servers that tell of a new key before they hold it
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
    /// A panic may have cut a change short: whatever has become of what the key remembers is told.
    fn drop(&mut self) {
        if panicking() && !self.is_missing() {
            let expires_at = self.handle.expires_at(super::now());
            self.redis.record_whole(self.name, self.value.get(), expires_at);
        }
    }
}

/// A key as it was found by a call that has opened others since. It is closed.
#[derive(Clone, Copy)]
pub struct Found {
    name: KeyName,
    /// The type by which it was asked.
    native: Native,
    /// The value of that type; null for a missing key.
    value: *mut std::ffi::c_void,
    /// In milliseconds since the epoch; asked only of a key that will be changed.
    expires_at: Option<u64>,
    turn: u32,
}

impl Found {
    /// Its name.
    pub fn name(&self) -> KeyName {
        self.name
    }

    /// Whether there was no key.
    pub fn is_missing(&self) -> bool {
        self.value.is_null()
    }

    /// When it expires, as [`Key::close_to_change`] has found.
    pub fn expires_at(&self) -> Option<u64> {
        self.expires_at
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
        Ok(Key { redis: self, handle, name, value: unsafe { Value::new(value) } })
    }

    /// Says that others may have run, and may have changed what was found in any key.
    pub(super) fn others_may_run(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }

    /// Whether nobody else can have run since it was found.
    pub fn still_holds(&self, found: &Found) -> bool {
        self.turn == found.turn
    }

    /// What a key that was found remembers, to change it. `None` if it was missing, is no `U`, or may have changed since.
    pub fn change<U: Usage>(&mut self, found: &Found) -> Option<Changing<'_, 'a, U>> {
        let sound = self.still_holds(found) && found.native == native_type::of::<U>();
        let value = NonNull::new(found.value.cast()).filter(|_| sound)?;
        Some(Changing { redis: self, found: *found, value })
    }

    /// The same key again, if others may have changed it since.
    pub fn find_again<U: Usage>(&mut self, found: &Found, now: Timestamp) -> Result<Found, Error> {
        if found.is_missing() || self.still_holds(found) {
            return Ok(*found);
        }
        Ok(self.open::<U>(found.name)?.close_to_change(now))
    }

    /// Records what a missing key is to remember: replicas and the AOF will be told of it, and then the key is made.
    pub fn record_new<U: Usage>(&mut self, found: &Found, mut usage: U, expires_at: u64, now: Timestamp) {
        let name = found.name;
        self.changes.change(name, &mut usage, expires_at);
        self.later(move |redis| redis.make(name, usage, expires_at, now));
    }

    /// Records that nothing is used of a key any more: replicas and the AOF will be told, and then the key goes.
    fn record_deletion<U: Usage>(&mut self, name: KeyName) {
        self.changes.deletion::<U>(name);
        self.later(move |redis| {
            // Others may have charged it since, and have told so.
            if let Ok(mut key) = redis.open::<U>(name)
                && key.usage().is_unused()
            {
                key.remove();
            }
        });
    }

    /// Records all that a key remembers, after a panic: nobody knows what has changed.
    #[cold]
    fn record_whole<U: Usage>(&mut self, name: KeyName, usage: &U, expires_at: Option<u64>) {
        if usage.is_unused() {
            self.record_deletion::<U>(name);
        } else {
            self.changes.whole(name, usage, expires_at.unwrap_or(LATEST_EXPIRY));
        }
    }

    /// Makes a key that replicas have been told of.
    fn make<U: Usage>(&mut self, name: KeyName, usage: U, expires_at: u64, now: Timestamp) {
        if let Some(usage) = self.make_if_missing(name, usage, expires_at, now) {
            // Others have put something there since, and have told replicas so, perhaps behind this.
            self.replace(name, usage, expires_at, now);
        }
    }

    /// Makes a key that replicas have been told of, or gives the usage back if there is one.
    fn make_if_missing<U: Usage>(&mut self, name: KeyName, usage: U, expires_at: u64, now: Timestamp) -> Option<U> {
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
}

impl<U: Usage> Deref for Changing<'_, '_, U> {
    type Target = U;

    fn deref(&self) -> &U {
        // SAFETY: the value is a `U`, and lives in a key of the server that nobody can have changed since it was found: no
        // other code has run, and ours says when it deletes. The call is borrowed, so that it stays so.
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
    /// Records it: replicas and the AOF will be told of it, and then the key is seen to.
    pub fn record(mut self, expires_at: u64, now: Timestamp) {
        let name = self.found.name;
        if self.is_unused() {
            return self.redis.record_deletion::<U>(name);
        }
        // SAFETY: as in `deref_mut`.
        self.redis.changes.change(name, unsafe { self.value.as_mut() }, expires_at);
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
    /// As of a [`Key`].
    fn drop(&mut self) {
        if panicking() {
            // SAFETY: as in `deref`.
            let usage = unsafe { self.value.as_ref() };
            self.redis.record_whole(self.found.name, usage, self.found.expires_at);
        }
    }
}

/// A string in a key, as redis-cell leaves one: short, and with an expiry.
pub struct ShortString {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// In milliseconds from now.
    pub expires_in_ms: u64,
}

impl Redis<'_> {
    /// The string in a key, if it is of at most `most` bytes and the key expires. Nothing of any other is touched: the
    /// module API's own way to a string's bytes would store an integer or a short string anew.
    pub fn short_string(&mut self, name: KeyName, most: usize) -> Option<ShortString> {
        let handle = Handle::open(self, name, READ).ok()?;
        // SAFETY: the handle is open; a null one is asked like any other.
        let is_short = unsafe {
            call!(RedisModule_KeyType(handle.0)) == KEYTYPE_STRING && call!(RedisModule_ValueLength(handle.0)) <= most
        };
        let expires_in_ms = if is_short { handle.expires_in_ms() } else { None };
        drop(handle);
        self.others_may_run();
        let (expires_in_ms, name) = (expires_in_ms?, self.string(name).ok()?);
        // SAFETY: `ctx` and the string are those of the current call, and no handle is open. The reply is freed once, and
        // its bytes are copied before.
        let bytes = unsafe {
            let reply = call!(RedisModule_Call(self.ctx, c"GET".as_ptr(), c"s".as_ptr(), name));
            if reply.is_null() {
                // The server has no GET, or by another name.
                return None;
            }
            let mut length = 0;
            let start = call!(RedisModule_CallReplyStringPtr(reply, &raw mut length));
            let bytes = (!start.is_null()).then(|| std::slice::from_raw_parts(start.cast::<u8>(), length).to_vec());
            call!(RedisModule_FreeCallReply(reply));
            bytes
        };
        Some(ShortString { bytes: bytes?, expires_in_ms })
    }

    /// Puts a usage into the place of whatever a key holds; of nothing used, the key is deleted. Replicas and the AOF are
    /// told of both. Whether it could: a server that has no DEL by that name cannot tell them.
    pub fn replace<U: Usage>(&mut self, name: KeyName, usage: U, expires_at: u64, now: Timestamp) -> bool {
        let Ok(string) = self.string(name) else { return false };
        // SAFETY: `ctx` and the string are those of the current call.
        if unsafe { call!(RedisModule_Replicate(self.ctx, c"DEL".as_ptr(), c"s".as_ptr(), string)) } != OK {
            return false;
        }
        if !usage.is_unused() {
            // The whole: of a key that has to be made once more, what has changed was told before.
            self.changes.whole(name, &usage, expires_at);
            self.propagate();
        }
        if let Ok(handle) = Handle::open(self, name, WRITE) {
            self.others_may_run();
            // SAFETY: the handle is open for writing.
            unsafe { call!(RedisModule_DeleteKey(handle.0)) };
        }
        self.happened(name, Event::Deleted);
        if !usage.is_unused() {
            self.make_if_missing(name, usage, expires_at, now);
        }
        true
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
