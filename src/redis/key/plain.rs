//! A key that holds a usage of the kind that a call expects, opened for a call that has done nothing else yet.
//!
//! It is the everyday case, and here with nothing around it that a call of another kind may need. Any other key is left
//! open for the [`Redis`](crate::redis::Redis) of the call, which goes on with it.

use super::super::api::call;
use super::super::current_call::{DENIED, TAKEN, is_out_of_memory};
use super::super::debug_readback::Readback;
use super::super::effect_demand;
use super::super::replies::Replies;
use super::super::{guard, native_type};
use super::handle::{Handle, WRITE};
use crate::server::Global;
use crate::server::settings::DENIAL_EVENTS;
use crate::server::stats::CommandStats;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::{Timestamp, Usage};
use redis_module::raw;
use std::cell::Cell;
use std::ffi::CStr;
use std::ptr::NonNull;
use std::rc::Rc;

/// A call of a command as it begins, while the fast path may still serve it. Once the slow path takes over it is a
/// [`Redis`](crate::redis::Redis).
pub struct FastCall<'a> {
    ctx: *mut raw::RedisModuleCtx,
    argv: &'a [*mut raw::RedisModuleString],
    /// What this server knows beside its keys.
    pub global: &'a Global,
    /// Where calls of this command are counted.
    pub stats: &'static CommandStats,
    /// The key that was opened, if it is for the slow path.
    pub(super) left_open: Cell<Option<(KeyName, Handle)>>,
}

impl<'a> FastCall<'a> {
    /// # Safety
    /// `ctx` and `argv` are those of a call that lasts at least as long as `'a`, and holds the server's lock.
    #[inline(always)]
    pub(in crate::redis) unsafe fn new(
        ctx: *mut raw::RedisModuleCtx,
        argv: &'a [*mut raw::RedisModuleString],
        global: &'a Global,
        stats: &'static CommandStats,
    ) -> FastCall<'a> {
        FastCall { ctx, argv, global, stats, left_open: Cell::new(None) }
    }

    /// How many words it has.
    #[inline(always)]
    pub fn length(&self) -> usize {
        self.argv.len()
    }

    /// One of its words.
    #[inline(always)]
    pub fn word(&self, place: usize) -> Option<&'a [u8]> {
        // SAFETY: the string is that of the call, and lives as long.
        self.argv.get(place).map(|string| unsafe { guard::bytes(*string) })
    }

    /// Whether the server only asks which of its words are keys.
    #[inline(always)]
    pub(in crate::redis) fn is_asked_for_keys(&self) -> bool {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_IsKeysPositionRequest(self.ctx)) != 0 }
    }

    /// The server's context.
    #[inline(always)]
    pub(super) fn context(&self) -> *mut raw::RedisModuleCtx {
        self.ctx
    }

    /// The server's string of a key's name.
    #[inline(always)]
    pub(super) fn string(&self, name: KeyName) -> Option<*mut raw::RedisModuleString> {
        self.argv.get(name.0).copied()
    }

    /// Where its reply goes.
    #[inline(always)]
    pub fn replies(&self) -> Replies {
        // SAFETY: `ctx` is that of the current call.
        unsafe { Replies::to(self.ctx) }
    }

    /// Opens a key that holds a `U`, if nobody wants to hear of what becomes of it. `None`: the call takes the slow path.
    #[inline(always)]
    pub fn open_plain<U: Usage>(&self, name: KeyName) -> Option<PlainKey<'_, 'a, U>> {
        if effect_demand::any() {
            return None;
        }
        let string = self.string(name)?;
        let handle = Handle::open_string(self.ctx, string, WRITE);
        let value = if native_type::is::<U>(handle.native()) { NonNull::new(handle.value().cast()) } else { None };
        let Some(value) = value else {
            self.left_open.set(Some((name, handle)));
            return None;
        };
        Some(PlainKey { call: self, name, string, handle, value })
    }

    /// The key that was opened for the slow path.
    pub(in crate::redis) fn left_open(self) -> Option<(KeyName, Handle)> {
        self.left_open.into_inner()
    }
}

/// An open key that holds a `U`, in a call of which nobody wants to hear more than its event.
pub struct PlainKey<'c, 'a, U> {
    call: &'c FastCall<'a>,
    name: KeyName,
    string: *mut raw::RedisModuleString,
    handle: Handle,
    value: NonNull<U>,
}

impl<U: Usage> PlainKey<'_, '_, U> {
    /// What the key remembers.
    #[inline(always)]
    pub fn usage(&self) -> &U {
        // SAFETY: the value is a `U`, in a key that is open, and nobody else runs meanwhile.
        unsafe { self.value.as_ref() }
    }

    /// Returns `true` if the server is out of memory, so that no key may grow.
    #[cold]
    pub fn out_of_memory(&self) -> bool {
        // SAFETY: `ctx` is that of the current call.
        unsafe { is_out_of_memory(self.call.ctx) }
    }

    /// Leaves the key to the slow path.
    #[cold]
    pub fn leave(self) {
        self.call.left_open.set(Some((self.name, self.handle)));
    }

    /// Changes what the key remembers, and sees to all that this entails, as the slow path does (`Key::commit`).
    /// `change` says within what the key may expire, and leaves it something to remember.
    #[inline(always)]
    pub fn commit<T>(mut self, change: impl FnOnce(&mut U) -> (Expiry, T), now: Timestamp) -> T {
        let before = Readback::of(self.usage());
        // SAFETY: as above, and `self` is borrowed for it alone.
        let (expiry, told) = change(unsafe { self.value.as_mut() });
        self.changed(&before, expiry, now);
        told
    }

    /// Has the key remember `after`, which is something, as [`commit`](PlainKey::commit) does.
    #[inline(always)]
    pub fn replace(mut self, after: U, expiry: Expiry, now: Timestamp) {
        let before = Readback::of(self.usage());
        // SAFETY: as above.
        *unsafe { self.value.as_mut() } = after;
        self.changed(&before, expiry, now);
    }

    #[inline(always)]
    fn changed(mut self, before: &Readback<U>, expiry: Expiry, now: Timestamp) {
        // SAFETY: as above.
        let usage = unsafe { self.value.as_mut() };
        before.check_change(usage);
        usage.forget_effect();
        let (ctx, string) = (self.call.ctx, self.string);
        // Nobody listens; the server counts a change by it (see `Changes::propagate`).
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplicateVerbatim(ctx)) };
        if let Some(at) = expiry.to_be_given(self.handle.expires_at(now)) {
            self.handle.set_expiry(at, now);
        }
        drop(self.handle);
        // SAFETY: `ctx` and the string are those of the current call. No handle is open any more.
        unsafe { announce_taken(ctx, string) };
    }

    /// Records that the key, or an item of it, stood in the way of the call, and by which policy, if one has ruled.
    #[inline(always)]
    pub fn denied(self, item: Option<&[u8]>, policy: Option<&Rc<[u8]>>, now: Timestamp) {
        drop(self.handle);
        // SAFETY: the string is that of the call, and lives as long.
        self.call.global.heavy_hitters.record_ruled(unsafe { guard::bytes(self.string) }, item, policy, now);
        if DENIAL_EVENTS.get() != 0 {
            // SAFETY: `ctx` and the string are those of the current call. No handle is open any more.
            unsafe { notify(self.call.ctx, DENIED, self.string) };
        }
    }
}

/// Says that a key was written, to those who watch or cache it, and to those who subscribe to its events.
///
/// # Safety
/// `ctx` and `name` are those of the current call.
#[inline(always)]
pub(super) unsafe fn announce_taken(ctx: *mut raw::RedisModuleCtx, name: *mut raw::RedisModuleString) {
    // SAFETY: the caller's promise.
    unsafe {
        call!(RedisModule_SignalModifiedKey(ctx, name));
        notify(ctx, TAKEN, name);
    }
}

/// # Safety
/// `ctx` and `name` are those of the current call.
#[inline(always)]
unsafe fn notify(ctx: *mut raw::RedisModuleCtx, event: &'static CStr, name: *mut raw::RedisModuleString) {
    // SAFETY: the caller's promise; the event's name is a constant.
    unsafe {
        call!(RedisModule_NotifyKeyspaceEvent(ctx, raw::REDISMODULE_NOTIFY_MODULE, event.as_ptr(), name));
    }
}
