//! The callbacks by which the server's side tells `src/waiting/`, which is above it, what happens to waiting calls; and
//! the timer that it keeps for them.

use super::Redis;
use super::api::api;
use super::guard;
use super::server_entry::ServerEntry;
use crate::reply::Reply;
use crate::server::queues::schedule::TimerId;
use crate::server::queues::{Answer, BlockedClient, ClientId};
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Functions of `src/waiting/` for events of the server.
#[derive(Clone, Copy)]
pub struct WaitingCallbacks {
    /// Called when its timer is due.
    pub timer_is_due: fn(ServerEntry),
    /// Something has happened to a key, in a database.
    pub key_changed: fn(ServerEntry, c_int, &[u8]),
    /// Something may have happened to every key: FLUSHALL, SWAPDB, a load.
    pub all_keys_changed: fn(ServerEntry),
    /// The server's cron event, some ten times a second.
    pub cron: fn(ServerEntry),
    /// A client that waited is gone.
    pub client_gone: fn(ServerEntry, ClientId),
    /// CLIENT UNBLOCK, in a context of the waiting call: returns the client and its reply, which is sent before the
    /// client is handed back. `None` if it has been handed back before.
    pub client_unblocked: fn(&mut Redis, ClientId) -> Option<UnblockedClient>,
    /// An answer was not sent.
    pub answer_lost: fn(ServerEntry, Answer),
}

/// Client that CLIENT UNBLOCK unblocks, and its reply.
pub type UnblockedClient = (BlockedClient, Result<Reply, Error>);

static CALLBACKS: OnceLock<WaitingCallbacks> = OnceLock::new();

/// Registers the callbacks that events are told to.
pub fn register(callbacks: WaitingCallbacks) {
    // Set once: a module whose load has come this far is never unloaded.
    CALLBACKS.get_or_init(|| callbacks);
}

/// The callbacks, once they are registered.
pub(super) fn callbacks() -> Option<&'static WaitingCallbacks> {
    CALLBACKS.get()
}

/// Calls one of the callbacks.
///
/// # Safety
/// `ctx` is that of an entry from the server, which holds its lock.
pub(super) unsafe fn tell(ctx: *mut raw::RedisModuleCtx, what: impl FnOnce(&WaitingCallbacks, ServerEntry)) {
    if let Some(callbacks) = callbacks() {
        // SAFETY: the caller guarantees the context and the lock.
        what(callbacks, unsafe { ServerEntry::new(ctx) });
    }
}

/// Arms a timer that is due after `wait` milliseconds.
pub fn set_timer(entry: ServerEntry, wait: i64) -> Option<TimerId> {
    // SAFETY: a context of the module's; the callback is a plain function.
    api!(RedisModule_CreateTimer).map(|create| unsafe { create(entry.ctx, wait, Some(due), null_mut()) })
}

/// Disarms a timer that was not due yet.
pub fn stop_timer(entry: ServerEntry, timer: TimerId) {
    if let Some(stop) = api!(RedisModule_StopTimer) {
        // SAFETY: a context of the module's. The server knows of none that is over, and returns an error then.
        unsafe { stop(entry.ctx, timer, null_mut()) };
    }
}

guard::entry_point! {
    /// Serves calls that wait, as their timer has come due.
    unsafe fn due(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
        // SAFETY: a timer runs with the server's lock held.
        unsafe { tell(ctx, |callbacks, entry| (callbacks.timer_is_due)(entry)) };
    }
}
