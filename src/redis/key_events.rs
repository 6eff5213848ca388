//! Hearing of what happens to keys, for those who wait for room in one.

use super::api::{self, OK, api};
use super::global::global;
use super::guard;
use super::server_entry::ServerEntry;
use super::waiting_callbacks::tell;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// The kinds of keyspace events that can make room, where the server does not tell of keys that end: whatever can end
/// or replace one, and ours.
const EVENTS: c_int = OWN_EVENTS
    | raw::REDISMODULE_NOTIFY_GENERIC
    | raw::REDISMODULE_NOTIFY_STRING
    | raw::REDISMODULE_NOTIFY_LIST
    | raw::REDISMODULE_NOTIFY_SET
    | raw::REDISMODULE_NOTIFY_ZSET
    | raw::REDISMODULE_NOTIFY_EXPIRED
    | raw::REDISMODULE_NOTIFY_EVICTED;

/// The kind of ours: a key goes on, and has changed.
const OWN_EVENTS: c_int = raw::REDISMODULE_NOTIFY_MODULE;

/// Hears of what happens to keys from now on. That cannot be given up again, and each event costs the server a call.
///
/// From Redis 7.2 on, and on Valkey, it is told of each key that ends or is replaced, which are fewer.
/// Subscribing has a side effect on Valkey before 9.1: a client that runs MOVE, or COPY with DB, is left in the other
/// database.
pub fn subscribe(entry: ServerEntry) {
    if entry.global.schedule.subscribed.replace(true) {
        return;
    }
    // SAFETY: the entry's own context.
    let ends = api!(RedisModule_GetKeyNameFromModuleKey).is_some()
        && unsafe { api::subscribe(entry.ctx, raw::REDISMODULE_EVENT_KEY, ended) };
    if let Some(subscribe) = api!(RedisModule_SubscribeToKeyspaceEvents) {
        // SAFETY: the entry's own context; the callback is a plain function.
        unsafe { subscribe(entry.ctx, if ends { OWN_EVENTS } else { EVENTS }, Some(happened)) };
    }
}

guard::entry_point! {
    /// Hears of a keyspace event.
    unsafe fn happened(
        ctx: *mut raw::RedisModuleCtx,
        _kind: c_int,
        _event: *const c_char,
        name: *mut raw::RedisModuleString,
    ) -> c_int, or OK => {
        // SAFETY: the server tells of keys with its lock held. The event's own context, and the name of the key.
        unsafe {
            if global().queues.any() {
                changed(ctx, api!(RedisModule_GetSelectedDb).map(|db| db(ctx)), name);
            }
        }
        OK
    }
}

guard::entry_point! {
    /// Hears that a key has ended or has been replaced.
    unsafe fn ended(ctx: *mut raw::RedisModuleCtx, _event: raw::RedisModuleEvent, _subevent: u64, data: *mut c_void) {
        // SAFETY: the server tells of keys with its lock held. With such an event it passes an open key, whose name
        // lives as long.
        unsafe {
            if global().queues.any() {
                let Some(info) = data.cast::<raw::RedisModuleKeyInfo>().as_ref() else { return };
                let db = api!(RedisModule_GetDbIdFromModuleKey).map(|db| db(info.key));
                let name = api!(RedisModule_GetKeyNameFromModuleKey).map_or(null_mut(), |of| of(info.key).cast_mut());
                changed(ctx, db, name);
            }
        }
    }
}

/// # Safety
/// `ctx` is that of an event, and `name` null or a live string.
unsafe fn changed(ctx: *mut raw::RedisModuleCtx, db: Option<c_int>, name: *mut raw::RedisModuleString) {
    if !name.is_null() {
        // SAFETY: the caller guarantees the contract.
        unsafe { tell(ctx, |callbacks, entry| (callbacks.key_changed)(entry, db.unwrap_or(0), guard::bytes(name))) };
    }
}
