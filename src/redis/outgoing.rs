//! Outgoing effects, to replicas and the AOF (see the core's `effect.rs` for the format).
//!
//! A *consumer* of effects is a replica or the AOF. Building an effect and passing it to a server without consumers
//! costs as much as a third of a call (2800 of some 9000 instructions, on Redis 7.0). Omitting it whenever no replica
//! is online would be wrong: effects are also needed by a replica during its first sync, and by one that will resume
//! from the backlog. Effects are omitted only if no consumer can have attached:
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
//! So effects may be propagated that no consumer receives. They are not counted as propagated
//! ([`effects_are_received`]).

use super::api::{OK, call, info_number, server_is};
use super::debug_round_trip::{RoundTripCheck, check_stored};
use crate::server::stats;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::effect::EncodedText;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::{PlainUsage, Usage};
use redis_module::raw;
use smallvec::SmallVec;
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Command that propagates effects.
pub const COMMAND: &CStr = c"RL.EFFECT";

/// Effects that a call has recorded and not propagated yet.
#[derive(Default)]
pub struct RecordedEffects {
    /// `true` if a key was changed without making an effect, as no consumer would receive it. The server must still
    /// count the change.
    uncounted_change: bool,
    /// Each effect with its key. Calls on one key propagate theirs at once and record none.
    recorded: SmallVec<[(KeyIndex, EncodedText); 8]>,
}

impl RecordedEffects {
    /// Records the last change of `usage`, in the key at `index`, which expires at `expires_at` after it. Debug builds
    /// check the change with `check`.
    #[inline(always)]
    pub fn record_change<U: Usage>(
        &mut self,
        index: KeyIndex,
        usage: &mut U,
        expires_at: u64,
        check: &RoundTripCheck<U>,
    ) {
        check.check_change(usage);
        self.record(index, take_effect(usage, |usage| EncodedText::of_change(usage, expires_at)));
    }

    /// Records the conversion of the plain key at `index`, whose expiry was `plain_expiry`, to `components`, which
    /// expire at `expires_at`.
    pub fn record_conversion<U: PlainUsage>(
        &mut self,
        index: KeyIndex,
        components: &mut CompositeUsage,
        plain_expiry: Option<u64>,
        expires_at: u64,
    ) {
        if components.is_unused() {
            // Otherwise the next call would propagate this change once more.
            components.discard_effect();
            return self.record_deletion::<U>(index);
        }
        let encode = |usage: &mut _| EncodedText::of_conversion::<U, _>(plain_expiry, usage, expires_at);
        self.record(index, take_effect(components, encode));
    }

    /// Records the whole `usage`, in the key at `index`, which expires at `expires_at`.
    pub fn record_whole<U: Usage>(&mut self, index: KeyIndex, usage: &U, expires_at: u64) {
        check_stored(usage);
        self.record(index, effects_are_needed().then(|| EncodedText::of_whole(usage, expires_at)));
    }

    /// Records the deletion of the key at `index`, which held a `U`.
    pub fn record_deletion<U: Usage>(&mut self, index: KeyIndex) {
        self.record(index, effects_are_needed().then(EncodedText::deletion::<U>));
    }

    /// Records an effect, or a change without one.
    #[inline(always)]
    fn record(&mut self, index: KeyIndex, effect: Option<EncodedText>) {
        match effect {
            Some(text) => self.recorded.push((index, text)),
            None => self.uncounted_change = true,
        }
    }

    /// Propagates everything recorded to replicas and the AOF, as one command.
    ///
    /// # Safety
    /// `ctx` and `argv` are those of the current call.
    #[inline(always)]
    pub unsafe fn propagate(&mut self, ctx: *mut raw::RedisModuleCtx, argv: &[*mut raw::RedisModuleString]) {
        if std::mem::take(&mut self.uncounted_change) {
            // SAFETY: the caller guarantees that `ctx` is that of the current call.
            unsafe { count_change(ctx) };
        }
        if !self.recorded.is_empty() {
            // SAFETY: the caller guarantees that `ctx` and `argv` are those of the current call.
            unsafe { self.propagate_recorded(ctx, argv) };
        }
    }

    /// # Safety
    /// `ctx` and `argv` are those of the current call.
    #[inline(never)]
    unsafe fn propagate_recorded(&mut self, ctx: *mut raw::RedisModuleCtx, argv: &[*mut raw::RedisModuleString]) {
        let recorded = std::mem::take(&mut self.recorded);
        let keys = recorded.iter().filter_map(|(index, text)| Some((argv.get(index.0).copied()?, text.as_bytes())));
        let mut words = SmallVec::<[*mut raw::RedisModuleString; 16]>::new();
        // SAFETY: the caller guarantees that the context and the names are those of the current call. The server copies
        // what it is given; strings made here are freed here.
        let status = unsafe {
            for (name, text) in keys {
                words.push(name);
                words.push(call!(RedisModule_CreateString(ctx, text.as_ptr().cast(), text.len())));
            }
            let status =
                call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), c"v".as_ptr(), words.as_mut_ptr(), words.len()));
            for text in words.into_iter().skip(1).step_by(2) {
                call!(RedisModule_FreeString(ctx, text));
            }
            status
        };
        count_propagated(status);
    }
}

/// Propagates at once the last change of `usage`, in the key `name`, which expires at `expires_at` after it. Debug
/// builds check the change with `check`.
///
/// # Safety
/// `ctx` and `name` are those of the current call.
#[inline(always)]
pub unsafe fn propagate_change<U: Usage>(
    ctx: *mut raw::RedisModuleCtx,
    name: *mut raw::RedisModuleString,
    usage: &mut U,
    expires_at: u64,
    check: &RoundTripCheck<U>,
) {
    check.check_change(usage);
    let effect = take_effect(usage, |usage| EncodedText::of_change(usage, expires_at));
    // SAFETY: the caller guarantees that `ctx` and `name` are those of the current call; the server copies the text.
    unsafe {
        let Some(text) = effect.as_ref().map(EncodedText::as_bytes) else { return count_change(ctx) };
        let (start, length) = (text.as_ptr().cast::<c_char>(), text.len());
        count_propagated(call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), c"sb".as_ptr(), name, start, length)));
    }
}

/// Encodes the effect of the last change of `usage` with `encode`. If no consumer would receive it, discards it and
/// returns `None`.
#[inline(always)]
fn take_effect<U: Usage>(usage: &mut U, encode: impl FnOnce(&mut U) -> EncodedText) -> Option<EncodedText> {
    if effects_are_needed() {
        return Some(encode(usage));
    }
    usage.discard_effect();
    None
}

/// Increases the server's count of changes, by which it decides when to save. Replicating the call does that; without a
/// consumer, nothing receives it.
///
/// # Safety
/// `ctx` is that of the current call.
#[inline(always)]
unsafe fn count_change(ctx: *mut raw::RedisModuleCtx) {
    // SAFETY: the caller guarantees that `ctx` is that of the current call.
    unsafe { call!(RedisModule_ReplicateVerbatim(ctx)) };
}

fn count_propagated(status: c_int) {
    if status == OK && effects_are_received() {
        stats::EFFECTS_PROPAGATED.count();
    }
}

/// Known state of the demand for effects.
static STATE: AtomicU8 = AtomicU8::new(CONSUMER);

/// A consumer receives effects, or the server cannot be queried.
const CONSUMER: u8 = 0;
/// No consumer: effects are omitted.
const NO_CONSUMER: u8 = 1;
/// The server has to be queried at the next change.
const UNKNOWN: u8 = 2;
/// No consumer, but effects are propagated during [`with_effects`].
const FORCED: u8 = 3;
/// No consumer yet, but one may attach at any time, so effects are propagated.
const POSSIBLE: u8 = 4;

/// Returns `true` if effects are to be propagated: a consumer receives them, or one may attach at any time.
#[inline(always)]
pub fn effects_are_needed() -> bool {
    match STATE.load(Relaxed) {
        NO_CONSUMER => false,
        UNKNOWN => query_server(),
        _ => true,
    }
}

/// Returns `true` if a replica or the AOF receives the effects that are propagated.
fn effects_are_received() -> bool {
    match STATE.load(Relaxed) {
        CONSUMER => true,
        // An AOF that was just switched on is found here, since its fork has already set this state.
        POSSIBLE => server_is(raw::REDISMODULE_CTX_FLAGS_AOF),
        _ => false,
    }
}

/// Runs `run` with its effects propagated, even without a consumer.
pub fn with_effects<T>(run: impl FnOnce() -> T) -> T {
    if !effects_are_needed() {
        STATE.store(FORCED, Relaxed);
    }
    let result = run();
    // The state is different if a consumer has attached meanwhile; that state must stay.
    if STATE.load(Relaxed) == FORCED {
        STATE.store(NO_CONSUMER, Relaxed);
    }
    result
}

/// Queries the server and stores the new state. Returns `true` if effects are needed.
#[cold]
fn query_server() -> bool {
    let may_attach = server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) || server_is(raw::REDISMODULE_CTX_FLAGS_SLAVE);
    let state = queried_state(may_attach);
    STATE.store(state, Relaxed);
    state != NO_CONSUMER
}

/// Queries the server and returns the new state. `may_attach` is `true` if a consumer may attach without an
/// announcement.
fn queried_state(may_attach: bool) -> u8 {
    match (has_consumer(), may_attach) {
        (true, _) => CONSUMER,
        (false, true) => POSSIBLE,
        (false, false) => NO_CONSUMER,
    }
}

/// Events that may change the demand and for which the SDK has no handlers. Changes of the role and loads are the other
/// events.
pub const DEMAND_EVENTS: [u64; 2] = [raw::REDISMODULE_EVENT_FORK_CHILD, raw::REDISMODULE_EVENT_REPLICA_CHANGE];

/// Enables queries of the server. `announces_all` is `true` if it announces every event that may change the demand.
pub fn enable_demand_queries(announces_all: bool) {
    if announces_all {
        STATE.store(UNKNOWN, Relaxed);
    }
}

/// Handles an event that may change the demand: the server is queried at the next change.
pub fn on_demand_change() {
    STATE.store(UNKNOWN, Relaxed);
}

/// Handles the fork of a child: a consumer may attach until the child exits.
pub fn on_fork() {
    STATE.store(queried_state(true), Relaxed);
}

/// Returns `true` if the AOF is on, or if this is a primary with a replica in any state or a backlog. (A replica
/// propagates the stream of its primary, and no changes of its own.)
fn has_consumer() -> bool {
    let is_zero = |name| info_number(c"replication", name) == Some(0);
    server_is(raw::REDISMODULE_CTX_FLAGS_AOF)
        || (!server_is(raw::REDISMODULE_CTX_FLAGS_SLAVE)
            && ![c"connected_slaves", c"repl_backlog_active"].into_iter().all(is_zero))
}
