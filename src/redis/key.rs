//! A key of the server that holds a usage, open for one call.

use super::api::{OK, api, call};
use super::effect::Changes;
use super::native_type;
use crate::effect::LATEST_EXPIRY;
use crate::error::Error;
use crate::limiter::{Kind, Span, Timestamp, Usage};
use redis_module::raw;
use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;

/// `REDISMODULE_KEYTYPE_EMPTY` and `REDISMODULE_KEYTYPE_STRING`, in the type that the server answers with.
const KEYTYPE_EMPTY: c_int = 0;
const KEYTYPE_STRING: c_int = 1;

/// What a key is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only to look: allowed on a read-only replica.
    Look,
    /// To look and perhaps to change.
    Change,
}

/// A key that holds a usage of the kind that it was opened for, or nothing. Closed when dropped.
///
/// Keys of several kinds stand side by side in one call, so the kind is no part of the type; asked for a usage of
/// another kind, a key has none.
pub struct Key<'a> {
    ctx: *mut raw::RedisModuleCtx,
    name: *mut raw::RedisModuleString,
    /// Null for a missing key that was opened only to look.
    handle: *mut raw::RedisModuleKey,
    kind: Kind,
    /// The value in the key, of that kind; null if it has none.
    value: *mut c_void,
    call: PhantomData<&'a ()>,
}

impl<'a> Key<'a> {
    /// # Safety
    /// `ctx` and `name` are those of a call that outlives the key, and no other handle for the same key is used to
    /// change it meanwhile.
    // With the kind known at compile time nothing is left of asking for it: 2 of 100 instructions of a call.
    #[inline(always)]
    pub unsafe fn open(
        ctx: *mut raw::RedisModuleCtx,
        name: *mut raw::RedisModuleString,
        kind: Kind,
        access: Access,
    ) -> Result<Self, Error> {
        let mode = match access {
            Access::Look => raw::REDISMODULE_READ,
            Access::Change => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: the caller's promise. A null handle is asked for its type like any other.
        unsafe {
            let handle = call!(RedisModule_OpenKey(ctx, name, mode.cast_signed()));
            let mut key = Key { ctx, name, handle, kind, value: std::ptr::null_mut(), call: PhantomData };
            let found = call!(RedisModule_ModuleTypeGetType(handle));
            if !found.is_null() && found == native_type::of(kind) {
                key.value = call!(RedisModule_ModuleTypeGetValue(handle));
            } else {
                let key_type = call!(RedisModule_KeyType(handle));
                if key_type != KEYTYPE_EMPTY {
                    let holds = native_type::name(key_type, found);
                    return Err(Error::WrongType { holds, needs: kind.name() });
                }
            }
            Ok(key)
        }
    }

    /// The kind of limiter that it was opened for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What the key remembers; `None` if there is no key.
    pub fn usage<U: Usage>(&self) -> Option<&U> {
        // SAFETY: the value is of the key's kind, as made by `native_type`, and lives in the key as long as it is open;
        // nobody else runs meanwhile.
        unsafe { self.value_of::<U>().as_ref() }
    }

    /// The same, to change it. Call [`Key::written`] after.
    pub fn usage_mut<U: Usage>(&mut self) -> Option<&mut U> {
        // SAFETY: as in `usage`, and `self` is borrowed for it alone.
        unsafe { self.value_of::<U>().as_mut() }
    }

    /// Null if it is of another kind.
    fn value_of<U: Usage>(&self) -> *mut U {
        if self.kind == U::KIND { self.value.cast() } else { std::ptr::null_mut() }
    }

    /// Puts `usage`, of the key's kind, into the key, which is missing. Call [`Key::written`] after.
    pub fn create<U: Usage>(&mut self, usage: U) {
        let value = native_type::into_raw(usage);
        // SAFETY: the handle is open for writing, and the value is of the type that is named.
        let set = unsafe { call!(RedisModule_ModuleTypeSetValue(self.handle, native_type::of(U::KIND), value.cast())) };
        if set == OK {
            self.value = value.cast();
            self.kind = U::KIND;
        } else {
            // SAFETY: the server did not take it, so it is still ours.
            drop(unsafe { native_type::from_raw(value) });
        }
    }

    /// Sees to all that a charge of the usage entails: the key's time to live, whoever watches or caches the key, and
    /// subscribers; a key whose usage is back to nothing is deleted. Adds it to the changes of the call.
    pub fn written<U: Usage>(&mut self, now: Timestamp, reset: Span, changes: &mut Changes<'a>) {
        let expiry = Expiry::of(now, reset);
        let present = self.expires_at(now);
        let kept = present.filter(|at| expiry.allows(*at));
        self.settle::<U>(present, kept.unwrap_or(expiry.latest), now, changes);
    }

    /// The same after a change that only moved the usage back by so much, with the clock. The key's expiry moves along:
    /// how long the usage is remembered is for the limit to say that it was last charged under.
    pub fn moved_back<U: Usage>(&mut self, now: Timestamp, span: Span, reset: Span, changes: &mut Changes<'a>) {
        let present = self.expires_at(now);
        let moved = present.map(|at| at.saturating_sub(span.floor_millis()));
        // One that somebody else has set, by EXPIRE or RESTORE, says nothing of any limit: moved, it may lie in the past,
        // or it is so far off that no effect can say it. It gives way to what this call's limit says.
        let moved = moved.filter(|at| (now.floor_millis().saturating_add(1)..=LATEST_EXPIRY).contains(at));
        self.settle::<U>(present, moved.unwrap_or(Expiry::of(now, reset).latest), now, changes);
    }

    fn settle<U: Usage>(&mut self, present: Option<u64>, expires_at: u64, now: Timestamp, changes: &mut Changes<'a>) {
        let name = self.name;
        let Some(usage) = self.usage_mut::<U>().filter(|usage| !usage.is_unused()) else {
            self.delete();
            // SAFETY: both are of the call that `'a` stands for.
            return unsafe { changes.deletion::<U>(name) };
        };
        // SAFETY: likewise.
        unsafe { changes.change(name, usage, expires_at) };
        if present != Some(expires_at) {
            self.set_expiry(expires_at, now);
        }
        self.changed(raw::REDISMODULE_NOTIFY_MODULE, c"rl.take");
    }

    /// Changes the usage, or that of a key never seen, as an effect says, with the expiry that it says.
    pub fn apply<U: Usage>(&mut self, change: impl FnOnce(&mut U), expires_at: u64, now: Timestamp) {
        if let Some(usage) = self.usage_mut() {
            change(usage);
        } else {
            let mut usage = U::default();
            change(&mut usage);
            self.create(usage);
        }
        if self.usage::<U>().is_none_or(Usage::is_unused) {
            self.delete();
            return;
        }
        self.set_expiry(expires_at, now);
        self.changed(raw::REDISMODULE_NOTIFY_MODULE, c"rl.take");
    }

    /// Deletes the key, if there is one.
    pub fn delete(&mut self) {
        if std::mem::replace(&mut self.value, std::ptr::null_mut()).is_null() {
            return;
        }
        // SAFETY: the handle is open for writing.
        unsafe { call!(RedisModule_DeleteKey(self.handle)) };
        self.changed(raw::REDISMODULE_NOTIFY_GENERIC, c"del");
    }

    /// Tells subscribers that a call was denied, which changes nothing.
    pub fn denied(&self) {
        self.notify(raw::REDISMODULE_NOTIFY_MODULE, c"rl.denied");
    }

    fn changed(&self, class: c_int, event: &'static CStr) {
        // SAFETY: context and name are those of the current call.
        unsafe { call!(RedisModule_SignalModifiedKey(self.ctx, self.name)) };
        self.notify(class, event);
    }

    fn notify(&self, class: c_int, event: &'static CStr) {
        // SAFETY: context and name are those of the current call; the event's name is a constant.
        unsafe { call!(RedisModule_NotifyKeyspaceEvent(self.ctx, class, event.as_ptr(), self.name)) };
    }

    /// When the key expires, in milliseconds since the epoch; `None` if it never does.
    fn expires_at(&self, now: Timestamp) -> Option<u64> {
        // SAFETY: the handle is open.
        unsafe {
            match api!(RedisModule_GetAbsExpire) {
                Some(get) => u64::try_from(get(self.handle)).ok(),
                // Relative to a clock that may have moved since `now`: good to a millisecond or two.
                None => u64::try_from(call!(RedisModule_GetExpire(self.handle)))
                    .ok()
                    .map(|left| left.saturating_add(now.ceil_millis())),
            }
        }
    }

    fn set_expiry(&mut self, at: u64, now: Timestamp) {
        let at = i64::try_from(at).unwrap_or(i64::MAX);
        // SAFETY: the handle is open for writing.
        unsafe {
            if let Some(set) = api!(RedisModule_SetAbsExpire) {
                set(self.handle, at);
            } else {
                let now = i64::try_from(now.ceil_millis()).unwrap_or(i64::MAX);
                call!(RedisModule_SetExpire(self.handle, at.saturating_sub(now).max(1)));
            }
        }
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed nowhere else; null is allowed.
        unsafe { call!(RedisModule_CloseKey(self.handle)) };
    }
}

/// When a key may expire, in milliseconds since the epoch: not before its usage has recovered, and at most an eighth
/// of that time and a second later. Within that room it is left alone, since setting it costs as much as the
/// arithmetic of a call; when it must move, it moves as far as it may, to have to move again as late as possible.
struct Expiry {
    earliest: u64,
    latest: u64,
}

impl Expiry {
    /// A little less than the second that it may be late: a clock that goes back moves it by whole milliseconds.
    const SLACK: Span = Span::SECOND.minus(Span::MICROSECOND.times(50_000));

    fn of(now: Timestamp, reset: Span) -> Expiry {
        let recovered = now.plus(reset);
        let latest = recovered.plus(reset.eighth()).plus(Expiry::SLACK);
        Expiry { earliest: recovered.ceil_millis(), latest: latest.floor_millis() }
    }

    fn allows(&self, at: u64) -> bool {
        self.earliest <= at && at <= self.latest
    }
}

/// A string in a key, and when the key expires.
pub struct StringValue {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// In milliseconds from now; `None` if it never does.
    pub expires_in_ms: Option<u64>,
}

/// The string in a key; `None` if it holds anything else or nothing.
///
/// # Safety
/// `ctx` and `name` are those of the current call.
pub unsafe fn string_value(ctx: *mut raw::RedisModuleCtx, name: *mut raw::RedisModuleString) -> Option<StringValue> {
    // SAFETY: the caller's promise; the server's bytes are copied before the key is closed.
    unsafe {
        let handle = call!(RedisModule_OpenKey(ctx, name, raw::REDISMODULE_READ.cast_signed()));
        let mut value = None;
        if call!(RedisModule_KeyType(handle)) == KEYTYPE_STRING {
            let mut length = 0;
            let start = call!(RedisModule_StringDMA(handle, &raw mut length, raw::REDISMODULE_READ.cast_signed()));
            let bytes = std::slice::from_raw_parts(start.cast::<u8>(), length).to_vec();
            let expires_in_ms = u64::try_from(call!(RedisModule_GetExpire(handle))).ok();
            value = Some(StringValue { bytes, expires_in_ms });
        }
        call!(RedisModule_CloseKey(handle));
        value
    }
}

/// Deletes a key, whatever it holds, and tells replicas and the AOF.
///
/// # Safety
/// `ctx` and `name` are those of the current call, and no handle for the key is open.
pub unsafe fn delete_foreign(ctx: *mut raw::RedisModuleCtx, name: *mut raw::RedisModuleString) {
    // SAFETY: the caller's promise.
    unsafe {
        let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE).cast_signed();
        let handle = call!(RedisModule_OpenKey(ctx, name, mode));
        call!(RedisModule_DeleteKey(handle));
        call!(RedisModule_CloseKey(handle));
        call!(RedisModule_SignalModifiedKey(ctx, name));
        call!(RedisModule_NotifyKeyspaceEvent(ctx, raw::REDISMODULE_NOTIFY_GENERIC, c"del".as_ptr(), name));
        call!(RedisModule_Replicate(ctx, c"DEL".as_ptr(), c"s".as_ptr(), name));
    }
}
