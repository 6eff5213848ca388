//! The server's handle of a key, and what the server says of the key through it.

use super::super::api::{OK, api, call};
use super::super::{Redis, native_type};
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Timestamp, Usage};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// For a handle that only reads: allowed on a read-only replica.
pub(super) const READ: u32 = raw::REDISMODULE_READ;
/// For a handle that may write.
pub(super) const WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

/// The server's handle of a key. Closed when dropped.
pub(in crate::redis) struct Handle(pub(super) *mut raw::RedisModuleKey);

impl Handle {
    /// Opens a key of a call. Other modules may run meanwhile if the key is missing or has expired.
    ///
    /// # Errors
    /// The call has no such word.
    #[inline(always)]
    pub(super) fn open(redis: &Redis, name: KeyName, mode: u32) -> Result<Handle, Error> {
        let string = redis.string(name)?;
        // SAFETY: `ctx` and the string are those of the current call.
        Ok(Handle(unsafe { call!(RedisModule_OpenKey(redis.ctx, string, mode.cast_signed())) }))
    }

    /// Has the server delete a key that has expired, before a call on several keys evaluates any of them.
    ///
    /// # Errors
    /// The call has no such word.
    ///
    /// Redis 6.2 looks a key up once more after it has told other modules that it has expired. What one of them has put
    /// into its place, by a rename perhaps of a key that was looked at before, is then found as if nobody had run. No
    /// key expires later in the call: the server's clock stands still until the call ends.
    #[inline(always)]
    pub(super) fn expire_first(redis: &Redis, name: KeyName) -> Result<(), Error> {
        let looks_up_again = api!(RedisModule_KeyExists).is_none();
        if looks_up_again { Handle::open(redis, name, WRITE).map(drop) } else { Ok(()) }
    }

    /// A handle of no key, which is closed.
    pub(super) fn closed() -> Handle {
        Handle(null_mut())
    }

    /// The type of the value, if a module has defined it; null of any other.
    #[inline(always)]
    pub(super) fn native(&self) -> *mut raw::RedisModuleType {
        // SAFETY: the handle is open; a null one is asked for its type like any other.
        unsafe { call!(RedisModule_ModuleTypeGetType(self.0)) }
    }

    /// The value, of a type that a module has defined.
    #[inline(always)]
    pub(super) fn value(&self) -> *mut c_void {
        // SAFETY: as above.
        unsafe { call!(RedisModule_ModuleTypeGetValue(self.0)) }
    }

    /// The server's number of the value's type.
    #[inline(always)]
    pub(super) fn key_type(&self) -> c_int {
        // SAFETY: as above.
        unsafe { call!(RedisModule_KeyType(self.0)) }
    }

    /// The length of the value: of a string, in bytes.
    pub(super) fn length(&self) -> usize {
        // SAFETY: as above.
        unsafe { call!(RedisModule_ValueLength(self.0)) }
    }

    /// When the key expires, in milliseconds since the epoch; `None` if it never does.
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

    /// In how many milliseconds the key expires; `None` if it never does.
    pub(super) fn expires_in_ms(&self) -> Option<u64> {
        // SAFETY: the handle is open.
        u64::try_from(unsafe { call!(RedisModule_GetExpire(self.0)) }).ok()
    }

    /// Whether there is no key.
    #[inline(always)]
    pub(super) fn is_missing(&self) -> bool {
        const EMPTY: c_int = 0;
        self.key_type() == EMPTY
    }

    /// Creates the missing key, which holds `usage`, and gives it its expiry. Other modules may run meanwhile; the
    /// returned handle is that of whatever is there then.
    #[inline(always)]
    pub(super) fn make_key<U: Usage>(self, redis: &Redis, name: KeyName, usage: U, at: u64, now: Timestamp) -> Handle {
        let value = native_type::into_raw(usage);
        let native = native_type::of::<U>().pointer();
        // The server tells modules of a new key, inside of it.
        // SAFETY: the handle is open for writing, and the value is of the type that is named.
        let made = unsafe { call!(RedisModule_ModuleTypeSetValue(self.0, native, value.cast())) } == OK;
        if !made {
            // SAFETY: the server did not take it, so it is still ours.
            drop(unsafe { native_type::from_raw(value) });
            return self;
        }
        // Whoever heard of it may have put something else into its place, and the expiry of a key that is not there
        // ends the server: so what is there now is asked once more. (Servers that tell of a new key before they hold it
        // themselves end if it is deleted then, whoever makes it.)
        let Ok(handle) = Handle::open(redis, name, WRITE) else { return self };
        // The handle from before is closed first: Valkey 9 moves a key that gets an expiry, and looks at the key when a
        // handle is closed.
        drop(self);
        if native_type::is::<U>(handle.native()) && handle.value() == value.cast() && handle.expires_in_ms().is_none() {
            handle.set_expiry(at, now);
        }
        handle
    }

    /// For a handle that is open for writing.
    pub(super) fn set_expiry(&self, at: u64, now: Timestamp) {
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
