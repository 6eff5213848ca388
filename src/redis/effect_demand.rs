//! Demand for effects: a replica, the AOF, or one that may begin to listen.
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
//!
//! So effects go out that nobody hears. They are not counted as propagated ([`hear`]).

use super::api::{info_number, server_is};
use redis_module::raw;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// State of the demand for effects, as far as it is known.
static STATE: AtomicU8 = AtomicU8::new(SOMEBODY);

const SOMEBODY: u8 = 0;
const NOBODY: u8 = 1;
const TO_BE_ASKED: u8 = 2;
/// Nobody listens, but the effects of one change go out.
const AS_IF_SOMEBODY: u8 = 3;
/// Nobody listens, but somebody may begin to at any moment: effects go out.
const IN_CASE: u8 = 4;

/// Returns `true` if effects go out.
#[inline(always)]
pub fn any() -> bool {
    match STATE.load(Relaxed) {
        NOBODY => false,
        TO_BE_ASKED => ask(),
        _ => true,
    }
}

/// Returns `true` if somebody hears the effects that go out: a replica, or the AOF.
pub fn hear() -> bool {
    match STATE.load(Relaxed) {
        SOMEBODY => true,
        // An AOF that is switched on begins with a child, and is on only once that has been announced.
        IN_CASE => server_is(raw::REDISMODULE_CTX_FLAGS_AOF),
        _ => false,
    }
}

/// Runs `run` with its effects propagated, even if nobody listens.
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
    let may_begin = server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) || server_is(raw::REDISMODULE_CTX_FLAGS_SLAVE);
    let state = state(may_begin);
    STATE.store(state, Relaxed);
    state != NOBODY
}

/// Asks the server if somebody listens now; if not, somebody `may_begin` to without an announcement.
fn state(may_begin: bool) -> u8 {
    match (somebody_listens(), may_begin) {
        (true, _) => SOMEBODY,
        (false, true) => IN_CASE,
        (false, false) => NOBODY,
    }
}

/// Events after which the answer may be another and that the SDK has no handlers for. Changes of the role and loads are
/// the others.
pub const RAW_EVENTS: [u64; 2] = [raw::REDISMODULE_EVENT_FORK_CHILD, raw::REDISMODULE_EVENT_REPLICA_CHANGE];

/// Notes whether the server will announce all events after which the answer may be another, so that it can be asked.
pub fn watched(all: bool) {
    if all {
        STATE.store(TO_BE_ASKED, Relaxed);
    }
}

/// Handles an event after which the answer may be another: the server has `forked` a child, or is to be asked again.
pub fn changed(forked: bool) {
    STATE.store(if forked { state(true) } else { TO_BE_ASKED }, Relaxed);
}

/// Returns `true` if there is an AOF, or on a primary a replica, in any state, or a backlog. (A replica propagates what
/// its primary sends, and no changes of its own.)
fn somebody_listens() -> bool {
    let nobody = |name| info_number(c"replication", name) == Some(0);
    server_is(raw::REDISMODULE_CTX_FLAGS_AOF)
        || (!server_is(raw::REDISMODULE_CTX_FLAGS_SLAVE)
            && ![c"connected_slaves", c"repl_backlog_active"].into_iter().all(nobody))
}
