//! Keys that hold something else, into the place of which a limiter comes: strings that redis-cell left behind, and
//! limiters of another kind.

use super::super::Redis;
use super::super::api::{OK, call};
use super::super::current_call::Event;
use super::contents::{Contents, ForeignType, Stored};
use super::handle::{Handle, READ, WRITE};
use super::value::Writable;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::{Timestamp, Usage};

/// A string in a key, as redis-cell leaves one: short, and with an expiry.
pub struct ShortString {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// In milliseconds from now.
    pub expires_in_ms: u64,
}

/// The string in a key, if it is of at most `most` bytes and the key expires. Nothing of any other is touched: the
/// module API's own way to a string's bytes would store an integer or a short string anew.
pub fn short_string(redis: &mut Redis, name: KeyName, most: usize) -> Option<ShortString> {
    let contents = Contents::open(redis, name, READ).ok()?;
    let is_short = contents.stored() == Stored::Foreign(ForeignType::String) && contents.handle.length() <= most;
    let expires_in_ms = if is_short { contents.handle.expires_in_ms() } else { None };
    drop(contents);
    redis.other_modules_may_run();
    let (expires_in_ms, name) = (expires_in_ms?, redis.string(name).ok()?);
    // SAFETY: `ctx` and the string are those of the current call, and no handle is open. The reply is freed once,
    // and its bytes are copied before.
    let bytes = unsafe {
        let reply = call!(RedisModule_Call(redis.ctx, c"GET".as_ptr(), c"s".as_ptr(), name));
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

/// Puts a usage into the place of whatever a key holds; of nothing used, the key is deleted. Both are
/// propagated. Whether it could: a server that has no DEL by that name cannot propagate it.
pub fn replace<U: Usage>(redis: &mut Redis, name: KeyName, mut usage: U, expires_at: u64, now: Timestamp) -> bool {
    let Ok(string) = redis.string(name) else { return false };
    // SAFETY: `ctx` and the string are those of the current call.
    if unsafe { call!(RedisModule_Replicate(redis.ctx, c"DEL".as_ptr(), c"s".as_ptr(), string)) } != OK {
        return false;
    }
    // All of it is propagated: what the call has changed is a part of that, and no part of the next call's change.
    usage.forget_effect();
    if !usage.is_unused() {
        // The whole: of a key that has to be made once more, what has changed was propagated before.
        redis.changes.whole(name, &usage, expires_at);
        redis.propagate();
    }
    put(redis, name, usage, expires_at, now);
    true
}

/// Puts a usage into the place of what a key holds. It has been propagated what becomes of the key.
pub(in crate::redis) fn put<U: Usage>(redis: &mut Redis, name: KeyName, usage: U, expires_at: u64, now: Timestamp) {
    if let Ok(handle) = Handle::open(redis, name, WRITE) {
        redis.other_modules_may_run();
        // SAFETY: the handle is open for writing.
        unsafe { call!(RedisModule_DeleteKey(handle.0)) };
    }
    redis.happened(name, Event::Deleted);
    if !usage.is_unused() {
        make_if_missing(redis, name, usage, expires_at, now);
    }
}

/// Makes a key that has been propagated.
pub(super) fn make<U: Usage>(redis: &mut Redis, name: KeyName, usage: U, expires_at: u64, now: Timestamp) {
    if let Some(usage) = make_if_missing(redis, name, usage, expires_at, now) {
        // Others have put something there since, and have propagated it, perhaps behind this.
        replace(redis, name, usage, expires_at, now);
    }
}

/// Makes a key that has been propagated, or gives the usage back if there is one.
fn make_if_missing<U: Usage>(redis: &mut Redis, name: KeyName, usage: U, expires_at: u64, now: Timestamp) -> Option<U> {
    match redis.open_as::<U>(name) {
        Ok(mut key) if key.is_missing() => {
            *key.usage_mut() = usage;
            key.set(expires_at, now);
            None
        }
        _ => Some(usage),
    }
}
