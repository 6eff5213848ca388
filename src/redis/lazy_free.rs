//! Frees large values on a thread of its own, so that no call waits for it.
//!
//! The server frees a value where it lets go of it: inside DEL, an expiry, FLUSHALL, or the call that replaces it. It
//! leaves that to a background thread only where its settings say so (`lazyfree-lazy-user-del` and its siblings). So
//! what has many blocks is handed over. Two cases are left as they are:
//!
//! * on any other thread than the server's main one: most likely it is in the background already;
//! * where memory is full. A server that evicts measures what each key has freed at once, and would go on to evict
//!   others in the place of one that is freed later.

use super::api::server_is;
use ratelimit_core::Usage;
use redis_module::raw;
use std::any::Any;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, ThreadId};

/// Allocations from which a value is large: some 3,000 leases or ids, in blocks of 2 KB.
const LARGE: usize = 100;

type AnyValue = Box<dyn Any + Send>;

/// The thread that the module was loaded on.
static MAIN: OnceLock<ThreadId> = OnceLock::new();

/// This is the server's main thread: to be told at load.
pub fn loaded() {
    MAIN.get_or_init(|| thread::current().id());
}

/// Frees a value: a large one later.
#[inline]
pub fn free<U: Usage>(value: Box<U>) {
    if value.effort() >= LARGE && may_wait() { hand_over(value) } else { drop(value) }
}

#[cold]
fn may_wait() -> bool {
    MAIN.get() == Some(&thread::current().id()) && !server_is(raw::REDISMODULE_CTX_FLAGS_OOM)
}

#[cold]
fn hand_over(value: AnyValue) {
    /// `None` where no thread can be had. It ends with the process.
    static THREAD: OnceLock<Option<Sender<AnyValue>>> = OnceLock::new();
    let begin = || {
        let (values, received) = channel();
        let thread = thread::Builder::new().name("rl-lazy-free".into());
        thread.spawn(move || free_all(&received)).is_ok().then_some(values)
    };
    match THREAD.get_or_init(begin) {
        // A value that nobody takes is freed here.
        Some(values) => drop(values.send(value)),
        None => drop(value),
    }
}

fn free_all(values: &Receiver<AnyValue>) {
    leave_alarms_to_the_server();
    values.iter().for_each(drop);
}

/// The server's watchdog raises a signal to see what its main thread is doing.
fn leave_alarms_to_the_server() {
    // SAFETY: a set of signals is plain data, which `sigemptyset` makes valid; the mask is this thread's alone.
    unsafe {
        let mut alarms = std::mem::zeroed();
        libc::sigemptyset(&raw mut alarms);
        libc::sigaddset(&raw mut alarms, libc::SIGALRM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const alarms, std::ptr::null_mut());
    }
}
