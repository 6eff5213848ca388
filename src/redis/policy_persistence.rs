//! Persistence and replication of policies: in snapshots, in the AOF, on replicas.
//!
//! A policy is not stored in a key. It is transferred as a record (see `policy/` of the core for the format) of its new
//! state and the time of the change. A replica applies the records of its primary in the order of arrival, and a load
//! applies the records on disk: neither compares stamps.
//!
//! * **Snapshots** contain the records as aux data of the type `rl-policy`, which no key has. Redis 7.2, Valkey 8 and
//!   later save no aux data if there are no policies. Earlier versions write the aux data of a type into every
//!   snapshot, and a server without the module rejects such a snapshot; so these versions have policies only if the
//!   setting `policies` is on.
//! * **A load** of a snapshot results in the policies of the snapshot, even if it has none: they are read into a
//!   separate table, which replaces the current one when the load is complete. A replica with an asynchronous load
//!   keeps its old policies until then. Records in the preamble of an AOF take effect at once, as its commands do.
//! * **A rewritten AOF** with a preamble is a snapshot. Without a preamble it has no place for data outside of keys. So
//!   after the fork the parent propagates every record, to the AOF alone, in batches of a few hundred: they are
//!   appended to the rewritten part, each in its current state. The parent does not do this during the fork: a command
//!   that forks would be treated as a write and be propagated too, and Redis 6.2 turns a new AOF on only after the
//!   fork. While writes are paused nothing can be propagated, so the records wait. The child writes the records with
//!   the first key of this module, in case the parent does not get that far. In a cluster, the child writes none: its
//!   keys may be those of a slot that is migrated to another node.

use super::api::{ERR, OK, api, call, info_number, now, server_is, start_timer, warn};
use super::guard;
use super::rdb::Rdb;
use super::server_entry::module_state;
use crate::server::ModuleState;
use crate::server::fencing::Fencing;
use crate::server::policy_load::{Load, PolicyLoad};
use crate::server::policy_table::MAX_RECORD;
use ratelimit_core::policy::{MergeOutcome, Origin, Walk};
use ratelimit_core::wire::codec::{Decoder, Encoder};
use redis_module::raw;
use redis_module::server_events::LoadingSubevent;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::time::Duration;

/// Command that propagates records.
pub const COMMAND: &CStr = c"RL.POLICYEFFECT";

/// Name of the type whose aux data are the policies.
const NAME: &CStr = c"rl-policy";

/// Version of the encoding of the aux data.
const VERSION: c_int = 1;

/// Version of the type methods from which on the server supports omitting empty aux data.
const AUX_SAVE2: c_int = 5;

/// Returns `true` if this server persists policies: it supports omitting empty aux data, or the setting `policies` is
/// on.
pub fn are_persisted() -> bool {
    omits_empty_aux_data() || crate::server::settings::POLICIES.get() != 0
}

fn omits_empty_aux_data() -> bool {
    // SAFETY: the function has no arguments.
    api!(RedisModule_GetTypeMethodVersion).is_some_and(|version| unsafe { version() } >= AUX_SAVE2)
}

/// Registers the type whose aux data are the policies.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn register(ctx: *mut raw::RedisModuleCtx) -> Result<(), &'static str> {
    let omits_empty = omits_empty_aux_data();
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(load_key),
        free: Some(free_key),
        aux_load: Some(load),
        aux_save: (!omits_empty && are_persisted()).then_some(save),
        aux_save_triggers: c_int::try_from(raw::REDISMODULE_AUX_BEFORE_RDB).unwrap_or(1),
        aux_save2: omits_empty.then_some(save),
        // SAFETY: a plain C struct of optional functions, for which zeros mean "none".
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: the caller guarantees that `ctx` is that of the module's load; the server copies the methods and the
    // name.
    let registered = unsafe { call!(RedisModule_CreateDataType(ctx, NAME.as_ptr(), VERSION, &raw mut methods)) };
    if registered.is_null() {
        return Err("the server refuses the type of policies (is a module with the same type loaded?)");
    }
    Ok(())
}

guard::entry_point! {
    /// Rejects a payload of this type, as no key has it.
    unsafe fn load_key(_io: *mut raw::RedisModuleIO, _version: c_int) -> *mut c_void, or null_mut() => {
        null_mut()
    }
}

guard::entry_point! {
    /// Does nothing, as no key has a value of this type.
    unsafe fn free_key(_value: *mut c_void) {}
}

guard::entry_point! {
    /// Saves policies. Writes nothing if there are none and the server can omit empty aux data.
    unsafe fn save(io: *mut raw::RedisModuleIO, _when: c_int) {
        // SAFETY: the server saves with its lock held; the handle is that of the callback.
        let (records, mut rdb) = unsafe { (records(module_state()), Rdb::new(io)) };
        if !records.is_empty() || !omits_empty_aux_data() {
            Encoder::integer(&mut rdb, u64::try_from(records.len()).unwrap_or(u64::MAX));
            for record in &records {
                Encoder::bytes(&mut rdb, record);
            }
        }
    }
}

/// Returns all records of policies and deletions, and that of the last fencing token.
fn records(state: &ModuleState) -> Vec<Vec<u8>> {
    state.policies.tick(now());
    let mut records: Vec<Vec<u8>> = state.policies.with(|table| table.records(now()).collect());
    records.extend(state.fencing.record());
    records
}

guard::entry_point! {
    /// Loads policies.
    unsafe fn load(io: *mut raw::RedisModuleIO, version: c_int, _when: c_int) -> c_int, or ERR => {
        // SAFETY: the server loads with its lock held; the handle is that of the callback.
        let (state, mut rdb) = unsafe { (module_state(), Rdb::new(io)) };
        let is_read = version == VERSION && read(state, &mut rdb).is_some();
        if is_read { OK } else { ERR }
    }
}

/// Reads records and applies them to the current load. Returns `None` if one of them is malformed.
fn read(state: &ModuleState, from: &mut impl Decoder) -> Option<()> {
    let count = from.integer()?;
    if count > 0 {
        warn_if_not_persisted(&state.policy_load);
    }
    for _ in 0..count {
        // Other code may run while the server waits for more of the snapshot.
        let record = from.bytes(MAX_RECORD)?;
        if let Some(token) = Fencing::parse(&record) {
            state.fencing.observe(token, true, now());
            continue;
        }
        let outcome = match &mut *state.policy_load.load.borrow_mut() {
            Load::Immediate => state.policies.with(|table| table.merge(&record, Origin::Disk, now())),
            Load::Separate { table, origin, .. } => {
                state.policies.with(|current| table.load_record(current, &record, *origin, now()))
            }
        };
        if outcome == MergeOutcome::Malformed {
            return None;
        }
    }
    Some(())
}

/// Logs a warning, once, that policies from elsewhere will not be in the snapshots of this server.
pub fn warn_if_not_persisted(load: &PolicyLoad) {
    if !are_persisted() && !load.has_warned.replace(true) {
        warn(
            "policies have come, and no snapshot of this server will have them: load module ratelimit with 'policies yes'",
        );
    }
}

/// Handles the events of a load: its start, and its outcome.
pub fn load_event(state: &ModuleState, subevent: LoadingSubevent) {
    let load = &mut *state.policy_load.load.borrow_mut();
    match subevent {
        LoadingSubevent::RdbStarted => begin(state, load, Origin::Disk, false),
        LoadingSubevent::ReplStarted => {
            // The event of an asynchronous load comes before this one.
            let is_async = matches!(load, Load::Separate { is_async: true, .. });
            begin(state, load, Origin::Primary, is_async);
        }
        LoadingSubevent::AofStarted | LoadingSubevent::Failed => abort(state, load),
        LoadingSubevent::Ended => {
            if matches!(load, Load::Separate { is_async: false, .. }) {
                finish_load(state, load);
            }
        }
    }
}

/// Handles the events of an asynchronous load, during which the old data stays in use.
pub fn async_load_event(state: &ModuleState, subevent: u64) {
    let load = &mut *state.policy_load.load.borrow_mut();
    match subevent {
        raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_STARTED => begin(state, load, Origin::Primary, true),
        raw::REDISMODULE_SUBEVENT_REPL_ASYNC_LOAD_COMPLETED => finish_load(state, load),
        _ => abort(state, load),
    }
}

fn begin(state: &ModuleState, load: &mut Load, origin: Origin, is_async: bool) {
    abort(state, load);
    *load = Load::Separate { table: Box::new(state.policies.with(|table| table.successor())), origin, is_async };
}

fn abort(state: &ModuleState, load: &mut Load) {
    if let Load::Separate { table, .. } = std::mem::take(load) {
        state.policy_load.discarded_tables.borrow_mut().push(table.discard());
    }
}

fn finish_load(state: &ModuleState, load: &mut Load) {
    if let Load::Separate { table, .. } = std::mem::take(load) {
        let replaced = state.policies.with(|current| std::mem::replace(current, *table));
        state.policy_load.discarded_tables.borrow_mut().push(replaced.discard());
    }
}

/// Handles the cron event: checks the clock, and frees a batch of the tables that were replaced by a load.
pub fn cron(state: &ModuleState) {
    const FREED_AT_ONCE: usize = 200;
    state.policies.tick(now());
    let mut discarded = state.policy_load.discarded_tables.borrow_mut();
    if let Some(last) = discarded.last_mut()
        && !last.free(FREED_AT_ONCE)
    {
        discarded.pop();
    }
}

/// Handles the fork of a child: if it rewrites the AOF, all records are to be propagated to the new AOF.
///
/// # Safety
/// `ctx` is that of the event.
pub unsafe fn on_fork(state: &ModuleState, ctx: *mut raw::RedisModuleCtx) {
    if (state.policies.is_empty() && state.fencing.record().is_none()) || !is_rewriting() {
        return;
    }
    state.policy_load.is_token_pending.set(true);
    state.policy_load.pending_records.set(Walk::ALL);
    // The timer runs before the child can have exited.
    // SAFETY: the caller guarantees that `ctx` is that of the event.
    unsafe { start_timer(ctx, Duration::ZERO, propagate_in_timer) };
}

guard::entry_point! {
    /// Propagates a batch of the pending records to the AOF, in a timer.
    unsafe fn propagate_in_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
        // SAFETY: a timer runs with the server's lock held, in a context of its own.
        unsafe {
            if propagate_pending(module_state(), ctx) {
                start_timer(ctx, Duration::ZERO, propagate_in_timer);
            }
        }
    }
}

fn is_rewriting() -> bool {
    // If the server cannot be queried, propagating the records again is harmless.
    info_number(c"persistence", c"aof_rewrite_in_progress") != Some(0)
}

/// Propagates a batch of the pending records to the AOF, if propagation is allowed. Returns `true` if more can be
/// propagated at once. The cron event calls this too, as timers depend on a clock that may be set back.
///
/// # Safety
/// `ctx` is live, and not that of a command.
pub unsafe fn propagate_pending(state: &ModuleState, ctx: *mut raw::RedisModuleCtx) -> bool {
    let mut pending = state.policy_load.pending_records.get();
    if pending.is_over() || !may_propagate() {
        return false;
    }
    for record in state.policies.next_batch(&mut pending, now()) {
        // SAFETY: the caller guarantees that `ctx` is live; the format takes one string.
        unsafe { propagate(ctx, &record, c"bR") };
    }
    state.policy_load.pending_records.set(pending);
    if pending.is_over()
        && let Some(record) = state.fencing.record().filter(|_| state.policy_load.is_token_pending.take())
    {
        // SAFETY: the caller guarantees that `ctx` is live; the format takes one string.
        unsafe { propagate(ctx, &record, c"bR") };
    }
    !pending.is_over()
}

/// Returns `true` if records may be propagated outside a command. While writes are paused, that would crash the server.
pub fn may_propagate() -> bool {
    // SAFETY: the function has no arguments.
    api!(RedisModule_AvoidReplicaTraffic).is_none_or(|avoid| unsafe { avoid() } == 0)
}

/// # Safety
/// `ctx` is live, and `format` takes one string of bytes.
unsafe fn propagate(ctx: *mut raw::RedisModuleCtx, record: &[u8], format: &CStr) {
    let start = record.as_ptr().cast::<std::ffi::c_char>();
    // SAFETY: the caller guarantees that `ctx` is live and that `format` takes one string; the server copies the bytes.
    unsafe { call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), format.as_ptr(), start, record.len())) };
}

/// Propagates a record to replicas and the AOF.
///
/// # Safety
/// `ctx` is live, and is that of a command unless [`may_propagate`] returns `true`.
pub unsafe fn propagate_record(ctx: *mut raw::RedisModuleCtx, record: &[u8]) {
    // SAFETY: the caller guarantees that `ctx` is live; the format takes one string.
    unsafe { propagate(ctx, record, c"b") };
}

/// Writes every record, before the first key that the child writes to a rewritten AOF. Writes nothing in a cluster.
///
/// # Safety
/// `io` is that of a rewrite.
pub unsafe fn write_to_aof(state: &ModuleState, io: *mut raw::RedisModuleIO) {
    if state.policy_load.has_written_records.replace(true) {
        return;
    }
    if server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) {
        return;
    }
    for record in records(state) {
        let start = record.as_ptr().cast::<std::ffi::c_char>();
        // SAFETY: the caller guarantees that `io` is that of a rewrite; the server copies the bytes.
        unsafe { call!(RedisModule_EmitAOF(io, COMMAND.as_ptr(), c"b".as_ptr(), start, record.len())) };
    }
}
