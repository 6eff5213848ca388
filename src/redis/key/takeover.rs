//! Replacement of the value of a key: of a string of redis-cell, of a limiter of another kind, and of a plain usage by
//! a composite one.

use super::super::api::{OK, call};
use super::super::current_call::Event;
use super::super::{Redis, guard};
use super::contents::{Contents, Handle, READ, Stored, WRITE};
use super::open::{Key, Writable};
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::{PlainUsage, Timestamp, Usage};

/// String in a key as redis-cell writes it: short, and with an expiry.
pub struct ShortString {
    /// Bytes of the string.
    pub bytes: Vec<u8>,
    /// Remaining time to live in milliseconds.
    pub expires_in_ms: u64,
}

/// Returns the string in a key, if it has at most `max_length` bytes and the key expires. Read by `GET`, as the module
/// API's `StringDMA` would convert the encoding of an integer or a short string in the key.
pub fn short_string(redis: &mut Redis, index: KeyIndex, max_length: usize) -> Option<ShortString> {
    let contents = Contents::open(redis, index, READ).ok()?;
    let is_short = contents.stored() == Stored::STRING && contents.handle.length() <= max_length;
    let expires_in_ms = if is_short { contents.handle.expires_in_ms() } else { None };
    drop(contents);
    redis.other_modules_may_run();
    let (expires_in_ms, name) = (expires_in_ms?, redis.string(index).ok()?);
    // SAFETY: `ctx` and the string are those of the current call, and no handle is open. The reply is freed once,
    // and its bytes are copied before.
    let bytes = unsafe {
        let reply = call!(RedisModule_Call(redis.ctx, c"GET".as_ptr(), c"s".as_ptr(), name));
        if reply.is_null() {
            // The server has no GET, or has it under another name.
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

/// Replaces the value of a key by a usage, or deletes the key if the usage is unused, and propagates that. Returns
/// `false`, without a change, if it cannot be propagated because the server has no command named DEL.
pub fn replace<U: Usage>(redis: &mut Redis, index: KeyIndex, mut usage: U, expires_at: u64, now: Timestamp) -> bool {
    let Ok(string) = redis.string(index) else { return false };
    // SAFETY: `ctx` and the string are those of the current call.
    if unsafe { call!(RedisModule_Replicate(redis.ctx, c"DEL".as_ptr(), c"s".as_ptr(), string)) } != OK {
        return false;
    }
    // The whole usage is propagated, so the call's change must not be part of the next call's effect.
    usage.discard_effect();
    if !usage.is_unused() {
        // The whole usage: its change may have been propagated already (`create_key`).
        redis.effects.record_whole(index, &usage, expires_at);
        redis.propagate();
    }
    replace_propagated(redis, index, usage, expires_at, now);
    true
}

/// Replaces the value of a key by a usage. The caller has already propagated the replacement.
pub(in crate::redis) fn replace_propagated<U: Usage>(
    redis: &mut Redis,
    index: KeyIndex,
    usage: U,
    expires_at: u64,
    now: Timestamp,
) {
    if let Ok(handle) = Handle::open(redis, index, WRITE) {
        redis.other_modules_may_run();
        // SAFETY: the handle is open for writing.
        unsafe { call!(RedisModule_DeleteKey(handle.0)) };
    }
    redis.queue_event(index, Event::Deleted);
    if !usage.is_unused() {
        create_if_missing(redis, index, usage, expires_at, now);
    }
}

/// Creates a key whose creation has been propagated. Replaces a value that other modules have stored in it since.
pub(super) fn create_key<U: Usage>(redis: &mut Redis, index: KeyIndex, usage: U, expires_at: u64, now: Timestamp) {
    if let Some(usage) = create_if_missing(redis, index, usage, expires_at, now) {
        // Other modules have stored a value in the key since, and may have propagated it after this usage.
        replace(redis, index, usage, expires_at, now);
    }
}

/// Creates a key whose creation has been propagated, or returns the usage if the key exists.
fn create_if_missing<U: Usage>(
    redis: &mut Redis,
    index: KeyIndex,
    usage: U,
    expires_at: u64,
    now: Timestamp,
) -> Option<U> {
    match redis.open_as::<U>(index) {
        Ok(mut key) if key.is_missing() => {
            *key.usage_mut() = usage;
            key.set(expires_at, now);
            None
        }
        _ => Some(usage),
    }
}

impl<U: PlainUsage> Key<'_, '_, U> {
    /// Converts the key to a composite one and applies `change` to it; returns the result of `change`. The usage is
    /// moved, not copied, and only the change is propagated, so that the cost does not depend on the size of the usage.
    pub fn convert<T>(mut self, now: Timestamp, change: impl FnOnce(&mut CompositeUsage) -> T) -> T {
        let (plain_expiry, before) = (self.expires_at(now), std::mem::take(&mut self.before));
        let (mut composite, result) = CompositeUsage::convert(self.usage_mut(), plain_expiry, now, |composite| {
            let result = change(composite);
            before.check_conversion(composite, plain_expiry);
            guard::panic_test_point();
            result
        });
        let expires_at = Expiry::of(now, composite.reset(now)).after_charge(None, false);
        let (redis, index) = self.close();
        redis.effects.record_conversion::<U>(index, &mut composite, plain_expiry, expires_at);
        redis.propagate();
        replace_propagated(redis, index, composite, expires_at, now);
        result
    }
}
