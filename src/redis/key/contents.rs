//! Contents of an open key, of any type.

use super::super::Redis;
use super::super::native_type;
use super::handle::Handle;
use super::value::Value;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Timestamp, Usage, UsageKind};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};

/// Type of the value that a key stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Missing key.
    Missing,
    /// Usage of one limit.
    Plain(UsageKind),
    /// Usages of several limits, idempotency keys and a ban.
    Composite,
    /// Value of a type that this module does not define.
    Foreign(ForeignType),
}

/// Type of a value that this module does not define.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignType {
    /// A string.
    String,
    /// A list.
    List,
    /// A hash.
    Hash,
    /// A set.
    Set,
    /// A sorted set.
    SortedSet,
    /// A stream.
    Stream,
    /// Type of another module, or one that this version does not know.
    Other,
}

impl Stored {
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
            Stored::Foreign(ForeignType::String) => "string",
            Stored::Foreign(ForeignType::List) => "list",
            Stored::Foreign(ForeignType::Hash) => "hash",
            Stored::Foreign(ForeignType::Set) => "set",
            Stored::Foreign(ForeignType::SortedSet) => "zset",
            Stored::Foreign(ForeignType::Stream) => "stream",
            Stored::Foreign(ForeignType::Other) => "another module's type",
        }
    }
}

impl ForeignType {
    /// Returns the type with this number of the module API (`REDISMODULE_KEYTYPE_*`).
    fn of(key_type: c_int) -> ForeignType {
        match isize::try_from(key_type).unwrap_or_default() {
            raw::REDISMODULE_KEYTYPE_STRING => ForeignType::String,
            raw::REDISMODULE_KEYTYPE_LIST => ForeignType::List,
            raw::REDISMODULE_KEYTYPE_HASH => ForeignType::Hash,
            raw::REDISMODULE_KEYTYPE_SET => ForeignType::Set,
            raw::REDISMODULE_KEYTYPE_ZSET => ForeignType::SortedSet,
            raw::REDISMODULE_KEYTYPE_STREAM => ForeignType::Stream,
            _ => ForeignType::Other,
        }
    }
}

/// Contents of a key, valid while the key is open.
pub struct Contents {
    /// Server's handle of the key.
    pub(super) handle: Handle,
    /// Type of the value if a module has defined it; otherwise null.
    pub(super) native: *mut raw::RedisModuleType,
    /// Value if a module has defined its type; otherwise null.
    pub(super) value: *mut c_void,
    /// `true` if the key is missing.
    pub(super) missing: bool,
}

impl Contents {
    /// Opens a key. The server deletes a key that has expired. Other modules may run if the key is missing.
    #[inline(always)]
    pub(super) fn open(redis: &mut Redis, index: KeyIndex, mode: u32) -> Result<Contents, Error> {
        let handle = Handle::open(redis, index, mode)?;
        let native = handle.native();
        if !native.is_null() {
            let value = handle.value();
            return Ok(Contents { handle, native, value, missing: false });
        }
        let missing = handle.is_missing();
        if missing {
            redis.other_modules_may_run();
        }
        Ok(Contents { handle, native, value: null_mut(), missing })
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
            None => Stored::Foreign(ForeignType::of(self.handle.key_type())),
        }
    }

    /// Returns the usage, or an unused one if the key is missing. Returns `None` if the key holds anything but a `U`.
    #[inline(always)]
    pub fn usage<U: Usage>(&self) -> Option<View<'_, U>> {
        Some(View { value: self.value()?, contents: PhantomData })
    }

    /// Returns the usage if the key exists and holds a `U`.
    #[inline(always)]
    pub fn present<U: Usage>(&self) -> Option<&U> {
        // SAFETY: as in `Value::get`. The key is open for as long as `self` exists.
        native_type::is::<U>(self.native).then(|| unsafe { self.value.cast::<U>().as_ref() })?
    }

    /// Returns the same as `usage`, for a caller that keeps the key open.
    #[inline(always)]
    pub(super) fn value<U: Usage>(&self) -> Option<Value<U>> {
        if native_type::is::<U>(self.native) {
            NonNull::new(self.value.cast()).map(Value::Present)
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
    contents: Contents,
    call: PhantomData<&'r mut ()>,
}

impl PeekedKey<'_> {
    /// Creates a key with these contents.
    pub(super) fn of(contents: Contents) -> Self {
        PeekedKey { contents, call: PhantomData }
    }

    /// Returns the contents of the key.
    #[inline(always)]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the latest instant at which the key will have recovered; `None` if it never expires.
    pub fn recovers_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.contents.handle.expires_at(now).map(Expiry::latest_recovery)
    }

    /// Returns the usage, or an error if the key holds anything but a `U`.
    pub fn usage<U: Usage>(&self) -> Result<View<'_, U>, Error> {
        self.contents.usage().ok_or_else(|| self.contents.stored().wrong_type(U::KIND.name()))
    }
}
