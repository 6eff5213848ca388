//! The one [`Global`] of this process.

use crate::server::Global;
use std::sync::OnceLock;

struct Shared(OnceLock<Global>);

// SAFETY: `OnceLock` makes it once, whatever the threads. After that it is reached through `global` alone, whose
// callers hold the server's lock: one thread at a time, and what one has written the next one sees.
unsafe impl Sync for Shared {}

static GLOBAL: Shared = Shared(OnceLock::new());

/// The state of the server.
///
/// # Safety
/// The caller holds the server's lock for `'a`: it was called by the server, which calls commands, events, timers and
/// the callbacks of types with that lock held, but `free`, which it may call from a thread in the background.
#[inline(always)]
pub unsafe fn global<'a>() -> &'a Global {
    GLOBAL.0.get_or_init(Global::default)
}
