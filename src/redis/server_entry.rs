//! Entry from the server into the module (a call of a command, a timer, an event, or a disconnected client), and the
//! state of the module.

use super::api::{api, call};
use crate::server::ModuleState;
use redis_module::raw;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Single [`ModuleState`] of this process.
struct Shared(OnceLock<ModuleState>);

// SAFETY: `OnceLock` creates the state once, from any thread. Afterwards it is accessed only through `module_state`,
// whose callers hold the server's lock, so one thread at a time accesses it and sees the writes of the previous one.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(OnceLock::new());

/// Returns the state of the module.
///
/// # Safety
/// The caller holds the server's lock for `'a`. The server holds it when it calls commands, events, timers and the
/// callbacks of types, except `free`, which it may call from a background thread.
#[inline(always)]
pub unsafe fn module_state<'a>() -> &'a ModuleState {
    STATE.0.get_or_init(ModuleState::default)
}

/// Entry from the server. While it lasts, the server's lock is held and the context is live.
#[derive(Clone, Copy)]
pub struct ServerEntry<'a> {
    /// The server's context.
    pub(super) ctx: *mut raw::RedisModuleCtx,
    /// State of the module outside of keys.
    pub state: &'a ModuleState,
}

/// Runs `run` with the name of a key as a string of the server, in the key's database. Returns `None` if the server
/// cannot select a database for a module.
pub(super) fn with_name<T>(
    entry: ServerEntry,
    db: c_int,
    name: &[u8],
    run: impl FnOnce(*mut raw::RedisModuleString) -> T,
) -> Option<T> {
    let select = api!(RedisModule_SelectDb)?;
    // SAFETY: the entry's own context; the string is freed when nothing uses it any more.
    unsafe {
        select(entry.ctx, db);
        let name = call!(RedisModule_CreateString(null_mut(), name.as_ptr().cast(), name.len()));
        let result = run(name);
        call!(RedisModule_FreeString(null_mut(), name));
        Some(result)
    }
}
