//! Handle of an open key, and the contents of the key, of any type.

use super::super::api::{OK, api, call};
use super::super::{Redis, native_type};
use ratelimit_core::expiry::Expiry;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Timestamp, Usage, UsageKind};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};

/// Mode of a handle that only reads; allowed on a read-only replica.
pub(super) const READ: u32 = raw::REDISMODULE_READ;
/// Mode of a handle that may write.
pub(super) const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

/// Server's handle of a key. Closed when dropped.
pub(in crate::redis) struct Handle(pub(super) *mut raw::RedisModuleKey);

impl Handle {
    /// Opens a key of a call. The server deletes a key that has expired. If the key is missing or has expired, other
    /// modules may run. For a missing key, a handle that only reads is null.
    ///
    /// # Errors
    /// Returns an error if the call has no word of this index.
    #[inline(always)]
    pub(super) fn open(redis: &Redis, index: KeyIndex, mode: u32) -> Result<Handle, Error> {
        let string = redis.string(index)?;
        // SAFETY: `ctx` and the string are those of the current call.
        Ok(Handle(unsafe { call!(RedisModule_OpenKey(redis.ctx, string, mode.cast_signed())) }))
    }

    /// Returns a null handle, which belongs to no key.
    pub(super) fn null() -> Handle {
        Handle(null_mut())
    }

    /// Returns the type of the value if a module has defined it; otherwise null.
    #[inline(always)]
    fn native(&self) -> *mut raw::RedisModuleType {
        // SAFETY: the handle is open or null, and the server accepts null.
        unsafe { call!(RedisModule_ModuleTypeGetType(self.0)) }
    }

    /// Returns the pointer to the value if a module has defined its type; otherwise null.
    #[inline(always)]
    fn value_pointer(&self) -> *mut c_void {
        // SAFETY: the handle is open or null, and the server accepts null.
        unsafe { call!(RedisModule_ModuleTypeGetValue(self.0)) }
    }

    /// Returns the server's number of the value's type.
    #[inline(always)]
    fn key_type(&self) -> c_int {
        // SAFETY: the handle is open or null, and the server accepts null.
        unsafe { call!(RedisModule_KeyType(self.0)) }
    }

    /// Returns the length of the value; of a string, in bytes.
    pub(super) fn length(&self) -> usize {
        // SAFETY: the handle is open or null, and the server accepts null.
        unsafe { call!(RedisModule_ValueLength(self.0)) }
    }

    /// Returns the expiry in milliseconds since the epoch; `None` if the key never expires. The handle must not be
    /// null.
    #[inline(always)]
    pub(super) fn expires_at(&self, now: Timestamp) -> Option<u64> {
        // SAFETY: the handle is open: the callers use it only if the key exists, or after opening it for writing.
        unsafe {
            match api!(RedisModule_GetAbsExpire) {
                Some(get) => u64::try_from(get(self.0)).ok(),
                // Exact to a millisecond or two: the time to live is relative to a clock that has advanced since `now`.
                None => self.expires_in_ms().map(|time_left| time_left.saturating_add(now.ceil_millis())),
            }
        }
    }

    /// Returns the remaining time to live in milliseconds; `None` if the key never expires. The handle must not be
    /// null.
    pub(super) fn expires_in_ms(&self) -> Option<u64> {
        // SAFETY: as in `expires_at`.
        u64::try_from(unsafe { call!(RedisModule_GetExpire(self.0)) }).ok()
    }

    /// Creates the missing key with `usage` and sets its expiry. Other modules may run meanwhile; returns a handle of
    /// the key as it is afterwards.
    #[inline(always)]
    pub(super) fn make_key<U: Usage>(
        self,
        redis: &Redis,
        index: KeyIndex,
        usage: U,
        expires_at: u64,
        now: Timestamp,
    ) -> Handle {
        let value = native_type::into_raw(usage);
        let native = native_type::of::<U>();
        // The server notifies modules while it creates the key.
        // SAFETY: the handle is open for writing, and the value is of the type that is named.
        let is_created = unsafe { call!(RedisModule_ModuleTypeSetValue(self.0, native, value.cast())) } == OK;
        if !is_created {
            // SAFETY: the server did not take ownership of `value`.
            drop(unsafe { native_type::from_raw(value) });
            return self;
        }
        // A notified module may have replaced or deleted the key, and the server crashes if the expiry of a missing key
        // is set: so the key is opened again. Some servers notify before they store the key. They crash if a notified
        // module deletes the key then, which no module that creates keys can prevent.
        let Ok(handle) = Handle::open(redis, index, WRITE) else { return self };
        // The previous handle is closed first: Valkey 9 moves a key when its expiry is set, and reads the key when a
        // handle is closed.
        drop(self);
        if native_type::is::<U>(handle.native())
            && handle.value_pointer() == value.cast()
            && handle.expires_in_ms().is_none()
        {
            handle.set_expiry(expires_at, now);
        }
        handle
    }

    /// Sets the expiry of an existing key. The handle must be open for writing.
    pub(super) fn set_expiry(&self, expires_at: u64, now: Timestamp) {
        let expires_at = i64::try_from(expires_at).unwrap_or(i64::MAX);
        // SAFETY: the handle is open, and the key exists.
        unsafe {
            if let Some(set) = api!(RedisModule_SetAbsExpire) {
                set(self.0, expires_at);
            } else {
                let now = i64::try_from(now.ceil_millis()).unwrap_or(i64::MAX);
                call!(RedisModule_SetExpire(self.0, expires_at.saturating_sub(now).max(1)));
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle was opened by `open` and is closed only here; null is allowed.
        unsafe { call!(RedisModule_CloseKey(self.0)) };
    }
}

/// Type of the value that a key stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Missing key.
    Missing,
    /// Usage of one limit.
    Plain(UsageKind),
    /// Usages of several limits, idempotency keys and a ban.
    Composite,
    /// Value of a type that this module does not define, with the name of the type.
    Foreign(&'static str),
}

impl Stored {
    /// String of the server.
    pub const STRING: Stored = Stored::Foreign("string");

    /// Returns the error of a call that needs another type.
    #[cold]
    pub fn wrong_type(self, needs: &'static str) -> Error {
        Error::WrongType { holds: self.name(), needs }
    }

    /// Returns the kind of the usage, or `None` if the value is not a usage.
    pub fn kind(self) -> Option<UsageKind> {
        match self {
            Stored::Plain(kind) => Some(kind),
            Stored::Composite => Some(UsageKind::Limits),
            Stored::Missing | Stored::Foreign(_) => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Stored::Missing => "nothing",
            Stored::Plain(kind) => kind.name(),
            Stored::Composite => UsageKind::Limits.name(),
            Stored::Foreign(name) => name,
        }
    }

    /// Returns the type with this number of the module API (`REDISMODULE_KEYTYPE_*`), which this module does not
    /// define.
    fn foreign(key_type: c_int) -> Stored {
        match isize::try_from(key_type).unwrap_or_default() {
            raw::REDISMODULE_KEYTYPE_STRING => Stored::STRING,
            raw::REDISMODULE_KEYTYPE_LIST => Stored::Foreign("list"),
            raw::REDISMODULE_KEYTYPE_HASH => Stored::Foreign("hash"),
            raw::REDISMODULE_KEYTYPE_SET => Stored::Foreign("set"),
            raw::REDISMODULE_KEYTYPE_ZSET => Stored::Foreign("zset"),
            raw::REDISMODULE_KEYTYPE_STREAM => Stored::Foreign("stream"),
            // Also a type that this version of the module does not know.
            _ => Stored::Foreign("another module's type"),
        }
    }
}

/// Contents of a key, valid while the key is open.
pub struct Contents {
    /// Server's handle of the key.
    pub(super) handle: Handle,
    /// Type of the value if a module has defined it; otherwise null.
    pub(super) native: *mut raw::RedisModuleType,
    /// Pointer to the value if a module has defined its type; otherwise null.
    pub(super) value_pointer: *mut c_void,
    /// `true` if the key is missing.
    pub(super) missing: bool,
}

impl Contents {
    /// Opens a key, with the effects of [`Handle::open`], and reads the type of its value.
    #[inline(always)]
    pub(super) fn open(redis: &mut Redis, index: KeyIndex, mode: u32) -> Result<Contents, Error> {
        /// Number of the type of a missing key (`REDISMODULE_KEYTYPE_EMPTY`).
        const EMPTY: c_int = 0;
        let handle = Handle::open(redis, index, mode)?;
        let native = handle.native();
        if !native.is_null() {
            let value_pointer = handle.value_pointer();
            return Ok(Contents { handle, native, value_pointer, missing: false });
        }
        let missing = handle.key_type() == EMPTY;
        if missing {
            redis.other_modules_may_run();
        }
        Ok(Contents { handle, native, value_pointer: null_mut(), missing })
    }

    /// Returns `true` if the key is missing.
    #[inline(always)]
    pub fn is_missing(&self) -> bool {
        self.missing
    }

    /// Returns the type of the value.
    pub fn stored(&self) -> Stored {
        match native_type::kind(self.native) {
            Some(UsageKind::Limits) => Stored::Composite,
            Some(kind) => Stored::Plain(kind),
            None if self.missing => Stored::Missing,
            None => Stored::foreign(self.handle.key_type()),
        }
    }

    /// Returns the usage, or an unused one if the key is missing. Returns `None` if the key holds anything but a `U`.
    #[inline(always)]
    pub fn usage<U: Usage>(&self) -> Option<View<'_, U>> {
        Some(View { value: self.value()?, contents: PhantomData })
    }

    /// Returns the usage if the key exists and holds a `U`.
    #[inline(always)]
    pub fn existing_usage<U: Usage>(&self) -> Option<&U> {
        // SAFETY: as in `Value::get`. The key is open for as long as `self` exists.
        native_type::is::<U>(self.native).then(|| unsafe { self.value_pointer.cast::<U>().as_ref() })?
    }

    /// Returns the usage like [`Contents::usage`], for a caller that keeps the key open itself.
    #[inline(always)]
    pub(super) fn value<U: Usage>(&self) -> Option<Value<U>> {
        if native_type::is::<U>(self.native) {
            NonNull::new(self.value_pointer.cast()).map(Value::Present)
        } else {
            self.missing.then(|| Value::Missing(U::default()))
        }
    }
}

/// Read-only access to the usage in an open key.
pub struct View<'k, U> {
    value: Value<U>,
    contents: PhantomData<&'k Contents>,
}

impl<U: Usage> Deref for View<'_, U> {
    type Target = U;

    #[inline(always)]
    fn deref(&self) -> &U {
        self.value.get()
    }
}

/// Key opened for reading only, which is allowed on a read-only replica.
pub struct PeekedKey<'r> {
    pub(super) contents: Contents,
    /// Borrow of the call.
    pub(super) call: PhantomData<&'r mut ()>,
}

impl PeekedKey<'_> {
    /// Returns the contents of the key.
    #[inline(always)]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the instant by which the key has recovered at the latest; `None` if it is missing or never expires.
    pub fn recovers_at(&self, now: Timestamp) -> Option<Timestamp> {
        // The handle of a missing key is null.
        let expires_at = if self.contents.missing { None } else { self.contents.handle.expires_at(now) };
        expires_at.map(Expiry::latest_recovery)
    }

    /// Returns the usage, or an error if the key holds anything but a `U`.
    pub fn usage<U: Usage>(&self) -> Result<View<'_, U>, Error> {
        self.contents.usage().ok_or_else(|| self.contents.stored().wrong_type(U::KIND.name()))
    }
}

/// Pointer to the usage in an open key, or the new usage of a missing key.
pub enum Value<U> {
    /// Usage in the key.
    Present(NonNull<U>),
    /// New usage of a missing key.
    Missing(U),
}

impl<U: Usage> Value<U> {
    /// Returns the usage.
    #[inline(always)]
    pub fn get(&self) -> &U {
        match self {
            // SAFETY: the pointer is to a `U` in a key of the server. The owner of a `Value` either keeps the key open,
            // or borrows the call exclusively, so that nothing lets other modules run.
            Value::Present(value) => unsafe { value.as_ref() },
            Value::Missing(unused) => unused,
        }
    }

    /// Returns the usage for changing it.
    #[inline(always)]
    pub fn get_mut(&mut self) -> &mut U {
        match self {
            // SAFETY: as in `get`, and `self` is borrowed exclusively.
            Value::Present(value) => unsafe { value.as_mut() },
            Value::Missing(unused) => unused,
        }
    }

    /// Returns `true` if the key is missing.
    #[inline(always)]
    pub fn is_missing(&self) -> bool {
        matches!(self, Value::Missing(_))
    }
}
