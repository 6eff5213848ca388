//! Demand for effects: a replica or the AOF receives them, or one may attach at any time.
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
//! So effects may be propagated that no consumer receives. They are not counted as propagated ([`is_received`]).

use super::api::{info_number, server_is};
use redis_module::raw;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Known state of the demand for effects.
static STATE: AtomicU8 = AtomicU8::new(CONSUMER);

/// A consumer receives effects, or the server cannot be queried.
const CONSUMER: u8 = 0;
/// No consumer: effects are omitted.
const NO_CONSUMER: u8 = 1;
/// The server has to be queried at the next change.
const UNKNOWN: u8 = 2;
/// No consumer, but the effects of one change are propagated.
const FORCED: u8 = 3;
/// No consumer yet, but one may attach at any time, so effects are propagated.
const POSSIBLE: u8 = 4;

/// Returns `true` if effects are to be propagated.
#[inline(always)]
pub fn exists() -> bool {
    match STATE.load(Relaxed) {
        NO_CONSUMER => false,
        UNKNOWN => query(),
        _ => true,
    }
}

/// Returns `true` if a replica or the AOF receives the effects that are propagated.
pub fn is_received() -> bool {
    match STATE.load(Relaxed) {
        CONSUMER => true,
        // An AOF that was just switched on is found here, since its fork has already set this state.
        POSSIBLE => server_is(raw::REDISMODULE_CTX_FLAGS_AOF),
        _ => false,
    }
}

/// Runs `run` with its effects propagated, even without a consumer.
pub fn with_effects<T>(run: impl FnOnce() -> T) -> T {
    if !exists() {
        STATE.store(FORCED, Relaxed);
    }
    let result = run();
    // The state is different if a consumer has attached meanwhile; that state must stay.
    if STATE.load(Relaxed) == FORCED {
        STATE.store(NO_CONSUMER, Relaxed);
    }
    result
}

#[cold]
fn query() -> bool {
    let may_attach = server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) || server_is(raw::REDISMODULE_CTX_FLAGS_SLAVE);
    let state = state(may_attach);
    STATE.store(state, Relaxed);
    state != NO_CONSUMER
}

/// Queries the server and returns the new state. `may_attach` is `true` if a consumer may attach without an
/// announcement.
fn state(may_attach: bool) -> u8 {
    match (has_consumer(), may_attach) {
        (true, _) => CONSUMER,
        (false, true) => POSSIBLE,
        (false, false) => NO_CONSUMER,
    }
}

/// Events that may change the demand and for which the SDK has no handlers. Changes of the role and loads are the other
/// events.
pub const RAW_EVENTS: [u64; 2] = [raw::REDISMODULE_EVENT_FORK_CHILD, raw::REDISMODULE_EVENT_REPLICA_CHANGE];

/// Enables queries of the server. `announces_all` is `true` if it announces every event that may change the demand.
pub fn enable_queries(announces_all: bool) {
    if announces_all {
        STATE.store(UNKNOWN, Relaxed);
    }
}

/// Handles an event that may change the demand. `forked` is `true` if the server has forked a child; otherwise the
/// server is queried at the next change.
pub fn on_change(forked: bool) {
    STATE.store(if forked { state(true) } else { UNKNOWN }, Relaxed);
}

/// Returns `true` if the AOF is on, or if this is a primary with a replica in any state or a backlog. (A replica
/// propagates the stream of its primary, and no changes of its own.)
fn has_consumer() -> bool {
    let is_zero = |name| info_number(c"replication", name) == Some(0);
    server_is(raw::REDISMODULE_CTX_FLAGS_AOF)
        || (!server_is(raw::REDISMODULE_CTX_FLAGS_SLAVE)
            && ![c"connected_slaves", c"repl_backlog_active"].into_iter().all(is_zero))
}
