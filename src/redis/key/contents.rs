//! What an open key stores, of whatever type.

use super::super::Redis;
use super::super::native_type;
use super::handle::Handle;
use super::value::Value;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Kind, Timestamp, Usage};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};

/// What a key stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Nothing: there is no key.
    Missing,
    /// The usage of one limit.
    Plain(Kind),
    /// The usages of several limits, ids, a ban.
    Composite,
    /// A value that is none of ours.
    Foreign(ForeignType),
}

/// The type of a value that is none of ours.
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
    /// A type of another module, or one that this version does not know.
    Other,
}

impl Stored {
    /// The refusal of a call that needs something else.
    #[cold]
    pub fn wrong_type(self, needs: &'static str) -> Error {
        Error::WrongType { holds: self.name(), needs }
    }

    /// The kind of usage, if it is one.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Stored::Plain(kind) => Some(kind),
            Stored::Composite => Some(Kind::Limits),
            Stored::Missing | Stored::Foreign(_) => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Stored::Missing => "nothing",
            Stored::Plain(kind) => kind.name(),
            Stored::Composite => Kind::Limits.name(),
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
    /// The type that the server has this number for.
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

/// What is in a key, as long as it is open.
pub struct Contents {
    /// The server's handle of the key.
    pub(super) handle: Handle,
    /// The type of the value, if a module has defined it; null of any other.
    pub(super) native: *mut raw::RedisModuleType,
    /// The value, if a module has defined its type; null of any other.
    pub(super) value: *mut c_void,
    /// Whether there is no key.
    pub(super) missing: bool,
}

impl Contents {
    /// Opens a key, which may have it expire, so that others run.
    #[inline(always)]
    pub(super) fn open(redis: &mut Redis, name: KeyName, mode: u32) -> Result<Contents, Error> {
        let handle = Handle::open(redis, name, mode)?;
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

    /// Whether there is no key.
    #[inline(always)]
    pub fn is_missing(&self) -> bool {
        self.missing
    }

    /// What it is.
    pub fn stored(&self) -> Stored {
        match native_type::kind(self.native) {
            Some(Kind::Limits) => Stored::Composite,
            Some(kind) => Stored::Plain(kind),
            None if self.missing => Stored::Missing,
            None => Stored::Foreign(ForeignType::of(self.handle.key_type())),
        }
    }

    /// What the key remembers, if it is a `U`; of a missing key, nothing used. `None` if it holds anything else.
    #[inline(always)]
    pub fn usage<U: Usage>(&self) -> Option<View<'_, U>> {
        Some(View { value: self.value()?, contents: PhantomData })
    }

    /// What the key remembers, if it exists and is a `U`.
    #[inline(always)]
    pub fn present<U: Usage>(&self) -> Option<&U> {
        // SAFETY: as in `Value::get`; and the key is open as long as its contents are.
        native_type::is::<U>(self.native).then(|| unsafe { self.value.cast::<U>().as_ref() })?
    }

    /// What the key remembers, as `usage`, for a caller that keeps the key open.
    #[inline(always)]
    pub(super) fn value<U: Usage>(&self) -> Option<Value<U>> {
        if native_type::is::<U>(self.native) {
            NonNull::new(self.value.cast()).map(Value::There)
        } else {
            self.missing.then(|| Value::Missing(U::default()))
        }
    }
}

/// A usage that is looked at in an open key.
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

/// A key that was opened only to look at it: allowed on a read-only replica, and nothing can be made of it.
pub struct PeekedKey<'r> {
    contents: Contents,
    call: PhantomData<&'r mut ()>,
}

impl PeekedKey<'_> {
    /// The key with these contents.
    pub(super) fn of(contents: Contents) -> Self {
        PeekedKey { contents, call: PhantomData }
    }

    /// What is in it.
    #[inline(always)]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the latest instant at which it will have recovered; `None` if it never expires.
    pub fn recovers_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.contents.handle.expires_at(now).map(Expiry::latest_recovery)
    }

    /// What it remembers. `Err` if it holds anything but a `U`.
    pub fn usage<U: Usage>(&self) -> Result<View<'_, U>, Error> {
        self.contents.usage().ok_or_else(|| self.contents.stored().wrong_type(U::KIND.name()))
    }
}
