//! Server's handle of a key, and the queries through it.

use super::super::api::{OK, api, call};
use super::super::{Redis, native_type};
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Timestamp, Usage};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Mode of a handle that only reads; allowed on a read-only replica.
pub(super) const READ: u32 = raw::REDISMODULE_READ;
/// Mode of a handle that may write.
pub(super) const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

/// Server's handle of a key. Closed when dropped.
pub(in crate::redis) struct Handle(pub(super) *mut raw::RedisModuleKey);

impl Handle {
    /// Opens a key of a call. Other modules may run meanwhile if the key is missing or has expired.
    ///
    /// # Errors
    /// The call has no such word.
    #[inline(always)]
    pub(super) fn open(redis: &Redis, index: KeyIndex, mode: u32) -> Result<Handle, Error> {
        let string = redis.string(index)?;
        // SAFETY: `ctx` and the string are those of the current call.
        Ok(Handle(unsafe { call!(RedisModule_OpenKey(redis.ctx, string, mode.cast_signed())) }))
    }

    /// Makes the server delete an expired key before a call on several keys evaluates any of them.
    ///
    /// # Errors
    /// The call has no such word.
    ///
    /// Redis 6.2 looks a key up again after it has notified other modules of its expiry. If a module has put another
    /// value there meanwhile (for example by renaming a key that was evaluated before), that value is found although a
    /// module has run. No key expires later in the call: the server's clock stands still until the call ends.
    #[inline(always)]
    pub(super) fn delete_if_expired(redis: &Redis, index: KeyIndex) -> Result<(), Error> {
        let looks_up_again = api!(RedisModule_KeyExists).is_none();
        if looks_up_again { Handle::open(redis, index, WRITE).map(drop) } else { Ok(()) }
    }

    /// Returns a closed handle, of no key.
    pub(super) fn closed() -> Handle {
        Handle(null_mut())
    }

    /// Returns the type of the value if a module has defined it; otherwise null.
    #[inline(always)]
    pub(super) fn native(&self) -> *mut raw::RedisModuleType {
        // SAFETY: the handle is open or null, and the server accepts null.
        unsafe { call!(RedisModule_ModuleTypeGetType(self.0)) }
    }

    /// Returns the value, whose type a module has defined.
    #[inline(always)]
    pub(super) fn value(&self) -> *mut c_void {
        // SAFETY: as in `native`.
        unsafe { call!(RedisModule_ModuleTypeGetValue(self.0)) }
    }

    /// Returns the server's number of the value's type.
    #[inline(always)]
    pub(super) fn key_type(&self) -> c_int {
        // SAFETY: as in `native`.
        unsafe { call!(RedisModule_KeyType(self.0)) }
    }

    /// Returns the length of the value; of a string, in bytes.
    pub(super) fn length(&self) -> usize {
        // SAFETY: as in `native`.
        unsafe { call!(RedisModule_ValueLength(self.0)) }
    }

    /// Returns the expiry in milliseconds since the epoch; `None` if the key never expires.
    #[inline(always)]
    pub(super) fn expires_at(&self, now: Timestamp) -> Option<u64> {
        // SAFETY: the handle is open.
        unsafe {
            match api!(RedisModule_GetAbsExpire) {
                Some(get) => u64::try_from(get(self.0)).ok(),
                // Relative to a clock that may have moved since `now`: good to a millisecond or two.
                None => self.expires_in_ms().map(|left| left.saturating_add(now.ceil_millis())),
            }
        }
    }

    /// Returns the remaining time to live in milliseconds; `None` if the key never expires.
    pub(super) fn expires_in_ms(&self) -> Option<u64> {
        // SAFETY: the handle is open.
        u64::try_from(unsafe { call!(RedisModule_GetExpire(self.0)) }).ok()
    }

    /// Returns `true` if the key is missing.
    #[inline(always)]
    pub(super) fn is_missing(&self) -> bool {
        const EMPTY: c_int = 0;
        self.key_type() == EMPTY
    }

    /// Creates the missing key with `usage` and sets its expiry. Other modules may run meanwhile; returns a handle of
    /// the key as it is afterwards.
    #[inline(always)]
    pub(super) fn make_key<U: Usage>(
        self,
        redis: &Redis,
        index: KeyIndex,
        usage: U,
        at: u64,
        now: Timestamp,
    ) -> Handle {
        let value = native_type::into_raw(usage);
        let native = native_type::of::<U>();
        // The server notifies modules while it creates the key.
        // SAFETY: the handle is open for writing, and the value is of the type that is named.
        let made = unsafe { call!(RedisModule_ModuleTypeSetValue(self.0, native, value.cast())) } == OK;
        if !made {
            // SAFETY: the server did not take ownership of `value`.
            drop(unsafe { native_type::from_raw(value) });
            return self;
        }
        // A notified module may have replaced or deleted the key, and the server crashes if the expiry of a missing key
        // is set: so the key is opened again. (Servers that notify before they have stored the key crash if a module
        // deletes it then, for any module that creates keys.)
        let Ok(handle) = Handle::open(redis, index, WRITE) else { return self };
        // The previous handle is closed first: Valkey 9 moves a key when its expiry is set, and reads the key when a
        // handle is closed.
        drop(self);
        if native_type::is::<U>(handle.native()) && handle.value() == value.cast() && handle.expires_in_ms().is_none() {
            handle.set_expiry(at, now);
        }
        handle
    }

    /// Sets the expiry of an existing key. The handle must be open for writing.
    pub(super) fn set_expiry(&self, at: u64, now: Timestamp) {
        let at = i64::try_from(at).unwrap_or(i64::MAX);
        // SAFETY: the handle is open, and the key exists.
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
        // SAFETY: the handle was opened by `open` and is closed only here; null is allowed.
        unsafe { call!(RedisModule_CloseKey(self.0)) };
    }
}
