//! What the server's side tells the room above it where calls wait (`src/waiting/`), and the timer that it keeps for
//! that room.

use super::Redis;
use super::api::api;
use super::guard;
use super::server_entry::ServerEntry;
use crate::reply::Reply;
use crate::server::queues::ClientHandle;
use crate::server::queues::outbox::Answer;
use crate::server::queues::schedule::TimerId;
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// What is told to the room where calls wait.
#[derive(Clone, Copy)]
pub struct WaitingRoom {
    /// Its timer has come due.
    pub timer_is_due: fn(ServerEntry),
    /// Something has happened to a key, in a database.
    pub key_changed: fn(ServerEntry, c_int, &[u8]),
    /// Something may have happened to every key: FLUSHALL, SWAPDB, a load.
    pub all_keys_changed: fn(ServerEntry),
    /// The server's cron event, some ten times a second.
    pub cron: fn(ServerEntry),
    /// A client that waited is gone.
    pub client_gone: fn(ServerEntry, ClientHandle),
    /// CLIENT UNBLOCK, in a context of the waiting call: what the client is answered at once, after which it is handed
    /// back. `None` if it has been handed back before.
    pub client_unblocked: fn(&mut Redis, ClientHandle) -> Option<Result<Reply, Error>>,
    /// An answer was not sent.
    pub answer_lost: fn(ServerEntry, Answer),
}

static ROOM: OnceLock<WaitingRoom> = OnceLock::new();

/// Learns whom to tell.
pub fn open(room: WaitingRoom) {
    // Set once: a module whose load has come this far is never unloaded.
    ROOM.get_or_init(|| room);
}

/// The room where calls wait.
pub(super) fn room() -> Option<&'static WaitingRoom> {
    ROOM.get()
}

/// Tells the room something. What panics there is cut short alone.
///
/// # Safety
/// `ctx` is that of an entry from the server, which holds its lock.
pub(super) unsafe fn tell(ctx: *mut raw::RedisModuleCtx, what: impl FnOnce(&WaitingRoom, ServerEntry)) {
    if let Some(room) = room() {
        // SAFETY: the caller's promise.
        guard::callback((), || what(room, unsafe { ServerEntry::new(ctx) }));
    }
}

/// Arms a timer that is due after so many milliseconds.
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

unsafe extern "C" fn due(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: a timer runs with the server's lock held.
    unsafe { tell(ctx, |room, entry| (room.timer_is_due)(entry)) };
}
