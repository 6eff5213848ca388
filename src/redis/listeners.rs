//! Whether anybody can want effects.
//!
//! Building an effect and handing it to a server that has nobody to pass it on to costs as much as a third of a call
//! (2800 of some 9000 instructions, on Redis 7.0). Leaving it out whenever no replica is online would be wrong: one in
//! the middle of its first sync needs it, and so does one that will resume from the backlog. What makes it safe is to
//! know that nobody can *ever have begun* to listen:
//!
//! * no cluster, no AOF, not a replica itself, no replica in any state, no backlog: the server is asked at the first
//!   change after it has started;
//! * whoever begins to listen, a replica by a full sync or an AOF that is switched on, begins from a snapshot, and a
//!   snapshot is taken by a fork, which the server announces at once. From then on effects go out until the child is
//!   gone, and it is asked again;
//! * it is also asked again when a replica comes or goes, when the server changes its role, and when it has loaded its
//!   data (a restarted primary can bring a backlog along that replicas resume from, without any fork).
//!
//! Where the server cannot be asked or does not announce it, effects always go out.

use super::api::{call, has_flag, info_number};
use redis_module::raw;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Whether somebody listens, as far as is known.
static STATE: AtomicU8 = AtomicU8::new(SOMEBODY);

const SOMEBODY: u8 = 0;
const NOBODY: u8 = 1;
const TO_BE_ASKED: u8 = 2;
/// Nobody listens, but effects go out.
const AS_IF_SOMEBODY: u8 = 3;

/// Whether effects go out.
#[inline(always)]
pub fn any() -> bool {
    match STATE.load(Relaxed) {
        NOBODY => false,
        TO_BE_ASKED => ask(),
        _ => true,
    }
}

/// Has effects go out of what `run` changes, even if nobody listens.
pub fn as_if_somebody_listened<T>(run: impl FnOnce() -> T) -> T {
    if !any() {
        STATE.store(AS_IF_SOMEBODY, Relaxed);
    }
    let done = run();
    // Whoever has begun to listen meanwhile goes on doing so.
    if STATE.load(Relaxed) == AS_IF_SOMEBODY {
        STATE.store(NOBODY, Relaxed);
    }
    done
}

#[cold]
fn ask() -> bool {
    let listening = somebody_listens();
    STATE.store(if listening { SOMEBODY } else { NOBODY }, Relaxed);
    listening
}

/// The events after which the answer may be another.
pub const EVENTS: [u64; 4] = [
    raw::REDISMODULE_EVENT_FORK_CHILD,
    raw::REDISMODULE_EVENT_REPLICA_CHANGE,
    raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
    raw::REDISMODULE_EVENT_LOADING,
];

/// The server will announce `all` of them, so that it can be asked.
pub fn watched(all: bool) {
    if all {
        STATE.store(TO_BE_ASKED, Relaxed);
    }
}

/// One of them has come: the server has `forked` a child, or is to be asked again.
pub fn changed(forked: bool) {
    STATE.store(if forked { SOMEBODY } else { TO_BE_ASKED }, Relaxed);
}

/// Asks the server.
fn somebody_listens() -> bool {
    let listening =
        [raw::REDISMODULE_CTX_FLAGS_CLUSTER, raw::REDISMODULE_CTX_FLAGS_AOF, raw::REDISMODULE_CTX_FLAGS_SLAVE];
    // SAFETY: on the server's thread; a null context is allowed.
    let flags = unsafe { call!(RedisModule_GetContextFlags(null_mut())) };
    let nobody = |name| info_number(c"replication", name) == Some(0);
    listening.into_iter().any(|flag| has_flag(flags, flag))
        || ![c"connected_slaves", c"repl_backlog_active"].into_iter().all(nobody)
}
