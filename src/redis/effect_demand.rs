//! Demand for effects: consumers are replicas, the AOF, and any that may attach at any time.
//!
//! Building an effect and passing it to a server without consumers costs as much as a third of a call (2800 of some
//! 9000 instructions, on Redis 7.0). Omitting it whenever no replica is online would be wrong: a replica during its
//! first sync needs it, and so does one that will resume from the backlog. Effects are omitted only if no consumer can
//! have attached:
//!
//! * at the first change after the start, the module queries the server: there is no cluster, no AOF, no replica in any
//!   state and no backlog, and the server is not a replica itself;
//! * a new consumer (a replica by a full sync, or an AOF that is switched on) begins from a snapshot, and a snapshot is
//!   taken by a fork, which the server announces at once. From then on effects are propagated until the child has
//!   exited, and the server is queried again;
//! * the server is also queried again when a replica attaches or detaches, when the server changes its role, and when
//!   it has loaded its data (a restarted primary can restore a backlog that replicas resume from, without a fork).
//!
//! If the server cannot be queried, or does not announce these events, effects are always propagated.
//!
//! So effects may be propagated that no consumer receives. They are not counted as propagated ([`hear`]).

use super::api::{info_number, server_is};
use redis_module::raw;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Known state of the demand for effects.
static STATE: AtomicU8 = AtomicU8::new(SOMEBODY);

const SOMEBODY: u8 = 0;
const NOBODY: u8 = 1;
const TO_BE_ASKED: u8 = 2;
/// No consumer, but the effects of one change are propagated.
const AS_IF_SOMEBODY: u8 = 3;
/// No consumer yet, but one may attach at any time, so effects are propagated.
const IN_CASE: u8 = 4;

/// Returns `true` if effects are to be propagated.
#[inline(always)]
pub fn any() -> bool {
    match STATE.load(Relaxed) {
        NOBODY => false,
        TO_BE_ASKED => ask(),
        _ => true,
    }
}

/// Returns `true` if a replica or the AOF receives the effects that are propagated.
pub fn hear() -> bool {
    match STATE.load(Relaxed) {
        SOMEBODY => true,
        // Switching the AOF on forks a child; the AOF is on only after that fork has been announced.
        IN_CASE => server_is(raw::REDISMODULE_CTX_FLAGS_AOF),
        _ => false,
    }
}

/// Runs `run` with its effects propagated, even without a consumer.
pub fn as_if_somebody_listened<T>(run: impl FnOnce() -> T) -> T {
    if !any() {
        STATE.store(AS_IF_SOMEBODY, Relaxed);
    }
    let done = run();
    // The state is different if a consumer has attached meanwhile; that state must stay.
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

/// Queries the server and returns the new state. `may_begin` is `true` if a consumer may attach without an
/// announcement.
fn state(may_begin: bool) -> u8 {
    match (somebody_listens(), may_begin) {
        (true, _) => SOMEBODY,
        (false, true) => IN_CASE,
        (false, false) => NOBODY,
    }
}

/// Events that may change the demand and for which the SDK has no handlers. Changes of the role and loads are the other
/// events.
pub const RAW_EVENTS: [u64; 2] = [raw::REDISMODULE_EVENT_FORK_CHILD, raw::REDISMODULE_EVENT_REPLICA_CHANGE];

/// Enables queries of the server if it announces `all` events that may change the demand.
pub fn watched(all: bool) {
    if all {
        STATE.store(TO_BE_ASKED, Relaxed);
    }
}

/// Handles an event that may change the demand. `forked` is `true` if the server has forked a child; otherwise the
/// server is queried at the next change.
pub fn changed(forked: bool) {
    STATE.store(if forked { state(true) } else { TO_BE_ASKED }, Relaxed);
}

/// Returns `true` if the AOF is on, or if this is a primary with a replica in any state or a backlog. (A replica
/// propagates the stream of its primary, and no changes of its own.)
fn somebody_listens() -> bool {
    let nobody = |name| info_number(c"replication", name) == Some(0);
    server_is(raw::REDISMODULE_CTX_FLAGS_AOF)
        || (!server_is(raw::REDISMODULE_CTX_FLAGS_SLAVE)
            && ![c"connected_slaves", c"repl_backlog_active"].into_iter().all(nobody))
}
