//! Lazy freeing of large values on a background thread, so that no call waits for it.
//!
//! The server frees a value synchronously inside DEL, an expiry, FLUSHALL, or the call that replaces it, unless its
//! settings (`lazyfree-lazy-user-del` and its siblings) turn on a background thread. So values with many blocks are
//! passed to a thread of the module. There are two exceptions:
//!
//! * on any thread other than the server's main one, as that is most likely a background thread already;
//! * if the server is out of memory. While evicting, it measures what each eviction has freed. If a value were freed
//!   later, the server would see no progress and evict more keys than necessary.

use super::api::server_is;
use ratelimit_core::Usage;
use redis_module::raw;
use std::any::Any;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, ThreadId};

/// Minimum number of allocations of a large value: about 3,000 leases or idempotency keys, in blocks of 2 KB.
const MIN_LARGE_ALLOCATIONS: usize = 100;

type AnyValue = Box<dyn Any + Send>;

/// Thread on which the module was loaded.
static MAIN: OnceLock<ThreadId> = OnceLock::new();

/// Records the current thread as the server's main thread. Called at load.
pub fn record_main_thread() {
    MAIN.get_or_init(|| thread::current().id());
}

/// Frees a value; a large one in the background.
#[inline]
pub fn free<U: Usage>(value: Box<U>) {
    if value.free_effort() >= MIN_LARGE_ALLOCATIONS && may_free_later() { hand_over(value) } else { drop(value) }
}

#[cold]
fn may_free_later() -> bool {
    MAIN.get() == Some(&thread::current().id()) && !server_is(raw::REDISMODULE_CTX_FLAGS_OOM)
}

#[cold]
fn hand_over(value: AnyValue) {
    /// Sender to the thread, which ends with the process; `None` if no thread could be created.
    static THREAD: OnceLock<Option<Sender<AnyValue>>> = OnceLock::new();
    let start_thread = || {
        let (sender, values) = channel();
        let thread = thread::Builder::new().name("rl-lazy-free".into());
        let free_all = move || {
            block_watchdog_signal();
            values.into_iter().for_each(drop);
        };
        thread.spawn(free_all).is_ok().then_some(sender)
    };
    match THREAD.get_or_init(start_thread) {
        // A value that cannot be sent is freed here, by dropping the error.
        Some(sender) => drop(sender.send(value)),
        None => drop(value),
    }
}

/// Blocks the signal by which the server's watchdog interrupts its main thread.
fn block_watchdog_signal() {
    // SAFETY: a set of signals is plain data, which `sigemptyset` initializes; the mask is that of this thread only.
    unsafe {
        let mut alarms = std::mem::zeroed();
        libc::sigemptyset(&raw mut alarms);
        libc::sigaddset(&raw mut alarms, libc::SIGALRM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const alarms, std::ptr::null_mut());
    }
}
