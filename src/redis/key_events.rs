//! Subscription to keyspace events, for calls that wait for room in a key.

use super::api::{self, OK, api};
use super::guard;
use super::server_entry::ServerEntry;
use super::server_entry::module_state;
use super::waiting_callbacks::call_waiting;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// Classes of keyspace events that can make room, on servers that do not announce the end of keys: the classes of all
/// events that can delete or replace a key, and that of this module.
const EVENTS: c_int = OWN_EVENTS
    | raw::REDISMODULE_NOTIFY_GENERIC
    | raw::REDISMODULE_NOTIFY_STRING
    | raw::REDISMODULE_NOTIFY_LIST
    | raw::REDISMODULE_NOTIFY_SET
    | raw::REDISMODULE_NOTIFY_ZSET
    | raw::REDISMODULE_NOTIFY_EXPIRED
    | raw::REDISMODULE_NOTIFY_EVICTED;

/// Class of this module's events: a key was changed and still exists.
const OWN_EVENTS: c_int = raw::REDISMODULE_NOTIFY_MODULE;

/// Subscribes to keyspace events. This cannot be undone, and each event costs the server a call.
///
/// Redis 7.2 and later, and Valkey, announce each key that is deleted or replaced, which are fewer events.
/// Subscribing has a side effect on Valkey before 9.1: a client that runs MOVE, or COPY with DB, is left in the other
/// database.
pub fn subscribe(entry: ServerEntry) {
    if entry.state.schedule.is_subscribed.replace(true) {
        return;
    }
    // SAFETY: the entry's own context.
    let announces_key_ends = api!(RedisModule_GetKeyNameFromModuleKey).is_some()
        && unsafe { api::subscribe(entry.ctx, raw::REDISMODULE_EVENT_KEY, on_key_end) };
    if let Some(subscribe) = api!(RedisModule_SubscribeToKeyspaceEvents) {
        // SAFETY: the entry's own context; the callback is a plain function.
        unsafe { subscribe(entry.ctx, if announces_key_ends { OWN_EVENTS } else { EVENTS }, Some(on_keyspace_event)) };
    }
}

guard::entry_point! {
    /// Handles a keyspace event.
    unsafe fn on_keyspace_event(
        ctx: *mut raw::RedisModuleCtx,
        _kind: c_int,
        _event: *const c_char,
        name: *mut raw::RedisModuleString,
    ) -> c_int, or OK => {
        // SAFETY: the server announces events with its lock held; `ctx` is that of the event, and the name is live.
        unsafe {
            if module_state().queues.has_waiters() {
                mark_changed(ctx, api!(RedisModule_GetSelectedDb).map(|db| db(ctx)), name);
            }
        }
        OK
    }
}

guard::entry_point! {
    /// Handles the deletion or replacement of a key.
    unsafe fn on_key_end(
        ctx: *mut raw::RedisModuleCtx,
        _event: raw::RedisModuleEvent,
        _subevent: u64,
        data: *mut c_void,
    ) {
        // SAFETY: the server announces events with its lock held. It passes an open key, whose name lives as long as
        // the key is open.
        unsafe {
            if module_state().queues.has_waiters() {
                let Some(info) = data.cast::<raw::RedisModuleKeyInfo>().as_ref() else { return };
                let db = api!(RedisModule_GetDbIdFromModuleKey).map(|db| db(info.key));
                let name = api!(RedisModule_GetKeyNameFromModuleKey).map_or(null_mut(), |get| get(info.key).cast_mut());
                mark_changed(ctx, db, name);
            }
        }
    }
}

/// Reports a change of a key to `src/waiting/`. Ignores a null name.
///
/// # Safety
/// `ctx` is that of an event, and `name` null or a live string.
unsafe fn mark_changed(ctx: *mut raw::RedisModuleCtx, db: Option<c_int>, name: *mut raw::RedisModuleString) {
    if !name.is_null() {
        // SAFETY: the caller guarantees that `ctx` is that of an event and that `name` is null or live.
        unsafe {
            call_waiting(ctx, |callbacks, entry| (callbacks.key_changed)(entry, db.unwrap_or(0), guard::bytes(name)));
        };
    }
}
