//! Keys that all hold a usage of the kind that a call expects, found one after another for a call that has done nothing
//! else yet.
//!
//! Each is closed before the next is opened. What was found stays as it is until the commit: nobody else runs when a key
//! is opened that is there. When one is missing, others may have run, and the call takes the slow path.

use super::super::api::call;
use super::super::debug_readback::Readback;
use super::super::{effect_demand, native_type};
use super::handle::{Handle, WRITE};
use super::plain::{FastCall, announce_taken};
use ratelimit_core::expiry::Expiry;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::{Timestamp, Usage};
use redis_module::raw;
use std::ptr::NonNull;

/// How many keys a call may have.
pub const MOST_PLAIN_KEYS: usize = 8;

/// The keys that were found, of a call of which nobody wants to hear more than its events.
pub struct PlainKeys<'c, 'a, U> {
    call: &'c FastCall<'a>,
    found: [Option<FoundKey<U>>; MOST_PLAIN_KEYS],
    count: usize,
}

/// A key that was found, and closed.
struct FoundKey<U> {
    string: *mut raw::RedisModuleString,
    value: NonNull<U>,
    /// When the key expires, in milliseconds since the epoch; `None` if it never does.
    expires_at: Option<u64>,
}

impl<'c, 'a, U: Usage> PlainKeys<'c, 'a, U> {
    /// A call whose keys, of these names, are still to be found. `None`: somebody wants to hear of its effect, or the
    /// server only asks which words are keys.
    #[inline(always)]
    pub fn of(call: &'c FastCall<'a>, names: impl Iterator<Item = KeyName>) -> Option<PlainKeys<'c, 'a, U>> {
        if call.is_asked_for_keys() {
            return None;
        }
        for string in names.filter_map(|name| call.string(name)) {
            Handle::expire_first(call.context(), string);
        }
        if effect_demand::any() {
            return None;
        }
        Some(PlainKeys { call, found: [const { None }; MOST_PLAIN_KEYS], count: 0 })
    }

    /// What one more key remembers. `None`: it holds anything else, or comes twice, or there is no room for it; then
    /// nothing that was found before may be used.
    #[inline(always)]
    pub fn find(&mut self, name: KeyName, now: Timestamp) -> Option<&U> {
        let room = self.found.get(self.count)?;
        debug_assert!(room.is_none(), "a key was missing");
        let string = self.call.string(name)?;
        let handle = Handle::open_string(self.call.context(), string, WRITE);
        let value = if native_type::is::<U>(handle.native()) { NonNull::new(handle.value().cast::<U>()) } else { None };
        let (value, expires_at) = (value?, handle.expires_at(now));
        drop(handle);
        if self.found.iter().flatten().any(|found| found.value == value) {
            return None;
        }
        *self.found.get_mut(self.count)? = Some(FoundKey { string, value, expires_at });
        self.count = self.count.saturating_add(1);
        // SAFETY: the value is a `U`, in a key that was there a moment ago, and nobody else has run since.
        Some(unsafe { &*value.as_ptr() })
    }

    /// Changes what the keys remember, and sees to all that this entails, as the slow path does (`Key::commit`).
    /// `changes` has one of each, in order: what it remembers then, and within what it may expire.
    #[inline(always)]
    pub fn commit(self, changes: impl Iterator<Item = (U, Expiry)>, now: Timestamp) {
        let PlainKeys { call, mut found, .. } = self;
        let mut moved = false;
        for (found, (after, expiry)) in found.iter_mut().flatten().zip(changes) {
            // SAFETY: the value is a `U`, in a key that is there: nobody else has run since it was found.
            let usage = unsafe { found.value.as_mut() };
            let before = Readback::of(usage);
            *usage = after;
            before.check_change(usage);
            usage.forget_effect();
            // From here on it is the new expiry; `None` if the present one stays.
            found.expires_at = expiry.to_be_given(found.expires_at);
            moved |= found.expires_at.is_some();
        }
        let ctx = call.context();
        // Nobody listens; the server counts a change by it (see `Changes::propagate`).
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplicateVerbatim(ctx)) };
        if moved {
            for (string, at) in found.iter().flatten().filter_map(|found| Some((found.string, found.expires_at?))) {
                // It is there: nobody else has run.
                Handle::open_string(ctx, string, WRITE).set_expiry(at, now);
            }
        }
        for FoundKey { string, .. } in found.iter().flatten() {
            // SAFETY: `ctx` and the string are those of the current call. No handle is open.
            unsafe { announce_taken(ctx, *string) };
        }
    }
}
