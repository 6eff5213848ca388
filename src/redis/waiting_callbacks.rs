//! Callbacks from the interface to the server to `src/waiting/`, which is above it, and the timer of waiting calls.

use super::Redis;
use super::api::{api, start_timer};
use super::guard;
use super::server_entry::{ServerEntry, module_state};
use crate::reply::Reply;
use crate::server::queues::schedule::TimerId;
use crate::server::queues::{BlockedClient, ClientId, WaiterAnswer};
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::Duration;

/// Functions of `src/waiting/` for events of the server.
#[derive(Clone, Copy)]
pub struct WaitingCallbacks {
    /// Called when the timer is due.
    pub timer_is_due: fn(ServerEntry),
    /// Called when a key of a database has changed.
    pub key_changed: fn(ServerEntry, c_int, &[u8]),
    /// Called when every key may have changed: FLUSHALL, SWAPDB or a load.
    pub all_keys_changed: fn(ServerEntry),
    /// Called at the server's cron event, about ten times a second.
    pub cron: fn(ServerEntry),
    /// Called when a waiting client has disconnected.
    pub client_disconnected: fn(ServerEntry, ClientId),
    /// Called at CLIENT UNBLOCK, in a context of the waiting call. Returns the client and the reply that is to be sent
    /// before the client is handed back; `None` if the client has been handed back already.
    pub client_unblocked: fn(&mut Redis, ClientId) -> Option<UnblockedClient>,
    /// Called when an answer could not be sent.
    pub answer_lost: fn(ServerEntry, WaiterAnswer),
}

/// Client that CLIENT UNBLOCK unblocks, and its reply.
pub type UnblockedClient = (BlockedClient, Result<Reply, Error>);

static CALLBACKS: OnceLock<WaitingCallbacks> = OnceLock::new();

/// Registers the callbacks.
pub fn register(callbacks: WaitingCallbacks) {
    // Set once, because the module is never unloaded after this step of the load.
    CALLBACKS.get_or_init(|| callbacks);
}

/// Returns the callbacks; `None` before they are registered.
pub(super) fn callbacks() -> Option<&'static WaitingCallbacks> {
    CALLBACKS.get()
}

/// Runs `call` with the callbacks, if they are registered.
///
/// # Safety
/// `ctx` is that of an entry from the server, which holds its lock.
pub(super) unsafe fn call_waiting(ctx: *mut raw::RedisModuleCtx, call: impl FnOnce(&WaitingCallbacks, ServerEntry)) {
    if let Some(callbacks) = callbacks() {
        // SAFETY: the caller guarantees that `ctx` is that of an entry from the server, which holds its lock.
        call(callbacks, ServerEntry { ctx, state: unsafe { module_state() } });
    }
}

/// Arms a timer that is due after `delay`.
pub fn set_timer(entry: ServerEntry, delay: Duration) -> Option<TimerId> {
    // SAFETY: the entry's own context.
    unsafe { start_timer(entry.ctx, delay, on_timer) }
}

/// Disarms a timer that was not due yet.
pub fn stop_timer(entry: ServerEntry, timer: TimerId) {
    if let Some(stop) = api!(RedisModule_StopTimer) {
        // SAFETY: the context is one of this module. The server returns an error for a timer that no longer exists.
        unsafe { stop(entry.ctx, timer, null_mut()) };
    }
}

guard::entry_point! {
    /// Serves waiting calls when their timer is due.
    unsafe fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
        // SAFETY: a timer runs with the server's lock held.
        unsafe { call_waiting(ctx, |callbacks, entry| (callbacks.timer_is_due)(entry)) };
    }
}
