//! Single [`Global`] of this process.

use crate::server::Global;
use std::sync::OnceLock;

struct Shared(OnceLock<Global>);

// SAFETY: `OnceLock` creates it once, from any thread. Afterwards it is accessed only through `global`, whose callers
// hold the server's lock, so one thread at a time accesses it and sees the writes of the previous one.
unsafe impl Sync for Shared {}

static GLOBAL: Shared = Shared(OnceLock::new());

/// Returns the state of the module.
///
/// # Safety
/// The caller holds the server's lock for `'a`. The server holds it when it calls commands, events, timers and the
/// callbacks of types, except `free`, which it may call from a background thread.
#[inline(always)]
pub unsafe fn global<'a>() -> &'a Global {
    GLOBAL.0.get_or_init(Global::default)
}
