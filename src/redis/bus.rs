//! Exchange of policies in a cluster: a change on one primary reaches all others within about a second.
//!
//! A record that a command has changed is sent to every other primary at once, on the cluster bus, which has no
//! acknowledgements and no retransmission. So each primary also sends its digest, a number for each group of names,
//! every few seconds. In a large cluster, it sends its digest earlier after it has received one that differs. A primary
//! that differs in a group requests the records of the group from the sender. Merging is commutative and idempotent
//! (`policy/` of the core), so the tables converge. The core also decides when a digest is sent and which node is asked
//! (`policy/gossip.rs`).
//!
//! Replicas receive changes of policies by replication, like any other change. Nothing is sent to them here, since the
//! server adds 2,269 bytes to each message. A message has at most 64 KiB.
//!
//! The work is done in rounds of a timer, so that it never blocks the server for long. In each round, a few batches of
//! requested records are sent. Received records are buffered, one per name, and at most [`BATCH_SIZE`] of them are
//! merged before the next round. While writes are paused nothing may be propagated, so received records stay in the
//! buffer. A server whose buffer is not empty, or that waits for an answer, sends no requests, and only one node is
//! asked at a time.

use super::api::{OK, api, has_flag, now, own_node_id, server_is, start_timer};
use super::server_entry::module_state;
use super::{guard, policy_persistence};
use crate::server::ModuleState;
use crate::server::peers::{Node, random};
use crate::server::policy_table::BATCH_SIZE;
use crate::server::settings::POLICY_GOSSIP;
use ratelimit_core::policy::{EarlyDigest, GROUPS, MergeOutcome, Table};
use redis_module::raw;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::time::Duration;

/// Message of records, each preceded by its length.
const RECORDS: u8 = 1;
/// Message of a digest: a number for each group of names.
const DIGEST: u8 = 2;
/// Request for groups of names: a bit for each group.
const REQUEST: u8 = 3;

/// First byte of a message: version of the format. Messages of other versions are ignored.
const FORMAT_VERSION: u8 = 1;

/// Maximum size of a message in bytes.
const MAX_MESSAGE: usize = 65_536;

/// Interval between decisions about sending a digest.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between rounds of work, each of which is bounded.
const ROUND_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum number of batches that are sent in one round. A node that has requested many records is sent one batch of
/// them at a time, and then the next node is served.
const BATCHES_PER_ROUND: usize = 4;

/// Starts the exchange if this is a node of a cluster.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn join(ctx: *mut raw::RedisModuleCtx) {
    let (Some(register), Some(_), Some(_)) = (
        api!(RedisModule_RegisterClusterMessageReceiver),
        api!(RedisModule_SendClusterMessage),
        api!(RedisModule_CreateTimer),
    ) else {
        return;
    };
    if !server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) {
        return;
    }
    // SAFETY: the caller guarantees that `ctx` is that of the module's load; the callbacks are plain functions.
    unsafe {
        register(ctx, RECORDS, Some(on_message));
        register(ctx, DIGEST, Some(on_message));
        register(ctx, REQUEST, Some(on_message));
        start_timer(ctx, TICK_INTERVAL, tick);
    }
}

/// Returns `true` if this node sends and merges records: it is a primary that has loaded its data, and the setting
/// `policy-gossip` is on.
fn is_participant() -> bool {
    POLICY_GOSSIP.get() != 0
        && server_is(raw::REDISMODULE_CTX_FLAGS_MASTER)
        && !server_is(raw::REDISMODULE_CTX_FLAGS_LOADING)
}

/// Returns the number of this node in stamps: the first 16 digits of its id, or 0 outside a cluster.
pub fn stamp_node() -> u64 {
    let digits = own_node_id().and_then(|id| std::str::from_utf8(id.get(..16)?).ok());
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// Copies the id of a node; returns `None` if the pointer is null.
///
/// # Safety
/// `id` is null, or points to as many bytes as an id has.
unsafe fn node_id(id: *const c_char) -> Option<Node> {
    // SAFETY: the caller guarantees that `id` is null or points to as many bytes as an id has.
    (!id.is_null()).then(|| unsafe { id.cast::<Node>().read_unaligned() })
}

/// Returns the ids of the other primaries that this node knows.
///
/// # Safety
/// `ctx` is live.
unsafe fn other_primaries(ctx: *mut raw::RedisModuleCtx) -> Vec<CString> {
    let (Some(list), Some(free), Some(info)) = (
        api!(RedisModule_GetClusterNodesList),
        api!(RedisModule_FreeClusterNodesList),
        api!(RedisModule_GetClusterNodeInfo),
    ) else {
        return Vec::new();
    };
    let mut count = 0;
    // SAFETY: the caller guarantees that `ctx` is live.
    let ids = unsafe { list(ctx, &raw mut count) };
    if ids.is_null() {
        return Vec::new();
    }
    // SAFETY: the server's list has `count` elements.
    let id_pointers = unsafe { std::slice::from_raw_parts(ids, count) };
    let is_other_primary = |id: &CString| {
        let mut flags = 0;
        // SAFETY: the caller guarantees that `ctx` is live, and the id is live; the server fills in only non-null
        // pointers.
        let is_known = unsafe { info(ctx, id.as_ptr(), null_mut(), null_mut(), null_mut(), &raw mut flags) } == OK;
        is_known && has_flag(flags, raw::REDISMODULE_NODE_MASTER) && !has_flag(flags, raw::REDISMODULE_NODE_MYSELF)
    };
    // SAFETY: each element points to the id of a node.
    let ids_of_nodes = id_pointers.iter().filter_map(|id| CString::new(unsafe { node_id(*id) }?).ok());
    let primaries = ids_of_nodes.filter(is_other_primary).collect();
    // SAFETY: the list is freed once and not used after.
    unsafe { free(ids) };
    primaries
}

/// Sends records to every other primary.
///
/// # Safety
/// `ctx` is live.
pub unsafe fn send_to_primaries(ctx: *mut raw::RedisModuleCtx, records: &[Vec<u8>]) {
    if server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) && is_participant() {
        // SAFETY: the caller guarantees that `ctx` is live.
        for id in unsafe { other_primaries(ctx) } {
            // SAFETY: the caller guarantees that `ctx` is live.
            unsafe { send_records(ctx, &id, records) };
        }
    }
}

/// Sends this node's digest to the other primaries, unless it knows no policies.
///
/// # Safety
/// `ctx` is live.
unsafe fn send_digest(state: &ModuleState, ctx: *mut raw::RedisModuleCtx, primaries: &[CString]) {
    if !state.policies.is_empty() {
        let body = state.policies.with(|table| table.digests().map(u64::to_le_bytes));
        for id in primaries {
            // SAFETY: the caller guarantees that `ctx` is live.
            unsafe { send(ctx, id, DIGEST, body.as_flattened()) };
        }
    }
}

/// Sends records in as many messages as needed. Returns `true` if the node is connected.
///
/// # Safety
/// `ctx` is live.
unsafe fn send_records(ctx: *mut raw::RedisModuleCtx, node: &CStr, records: &[Vec<u8>]) -> bool {
    let (mut message, mut connected) = (Vec::new(), true);
    for record in records {
        let Ok(length) = u32::try_from(record.len()) else { continue };
        let size = record.len().saturating_add(size_of::<u32>());
        if message.len().saturating_add(size) > MAX_MESSAGE.saturating_sub(1) {
            // SAFETY: the caller guarantees that `ctx` is live.
            connected &= unsafe { send(ctx, node, RECORDS, &message) };
            message.clear();
        }
        message.extend_from_slice(&length.to_le_bytes());
        message.extend_from_slice(record);
    }
    if !message.is_empty() {
        // SAFETY: the caller guarantees that `ctx` is live.
        connected &= unsafe { send(ctx, node, RECORDS, &message) };
    }
    connected
}

/// Sends a message. Returns `true` if the node is connected.
///
/// # Safety
/// `ctx` is live.
unsafe fn send(ctx: *mut raw::RedisModuleCtx, node: &CStr, kind: u8, body: &[u8]) -> bool {
    let message = [&[FORMAT_VERSION], body].concat();
    let (Some(send), Ok(length)) = (api!(RedisModule_SendClusterMessage), u32::try_from(message.len())) else {
        return false;
    };
    // SAFETY: the caller guarantees that `ctx` is live; the server copies the id and the bytes.
    unsafe { send(ctx, node.as_ptr(), kind, message.as_ptr().cast(), length) == OK }
}

guard::entry_point! {
    /// Merges buffered records and sends a digest if one is due, about once a second.
    unsafe fn tick(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
        // SAFETY: a timer runs with the server's lock held.
        let state = unsafe { module_state() };
        let run = || {
            state.policies.tick(now());
            if !is_participant() {
                // A replica receives policies from its primary.
                state.policies.with(Table::clear_buffer);
                state.peers.reset();
                return;
            }
            // SAFETY: the timer's own context.
            unsafe {
                merge_buffered(state, ctx);
                let others = other_primaries(ctx);
                let primaries = others.len().saturating_add(1);
                if state.peers.with(|gossip, now| gossip.is_digest_due(primaries, now, random())) {
                    send_digest(state, ctx, &others);
                }
            }
        };
        // The timer is started again even after a panic.
        guard::catch_panic((), run);
        // SAFETY: the timer's own context.
        unsafe { start_timer(ctx, TICK_INTERVAL, tick) };
    }
}

guard::entry_point! {
    /// Sends an early digest, if it is still needed.
    unsafe fn send_early_digest(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
        // SAFETY: a timer runs with the server's lock held.
        let state = unsafe { module_state() };
        if !is_participant() {
            state.peers.reset();
            return;
        }
        // SAFETY: the timer's own context.
        unsafe {
            match state.peers.with(|gossip, now| gossip.decide_early_digest(state.policies.has_buffered(), now)) {
                EarlyDigest::Send => send_digest(state, ctx, &other_primaries(ctx)),
                EarlyDigest::Wait(delay) => drop(start_timer(ctx, delay, send_early_digest)),
                EarlyDigest::Cancelled => {}
            }
        }
    }
}

guard::entry_point! {
    /// Runs a round: answers requests and merges buffered records.
    unsafe fn run_round(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
        // SAFETY: a timer runs with the server's lock held.
        let state = unsafe { module_state() };
        state.peers.is_round_scheduled.set(false);
        if is_participant() {
            // SAFETY: the timer's own context.
            unsafe {
                send_answers(state, ctx);
                merge_buffered(state, ctx);
            }
        }
    }
}

/// Starts the timer of the next round, if it is not running.
///
/// # Safety
/// `ctx` is live.
unsafe fn schedule_round(state: &ModuleState, ctx: *mut raw::RedisModuleCtx) {
    if !state.peers.is_round_scheduled.replace(true) {
        state.peers.merge_budget.set(BATCH_SIZE);
        // SAFETY: the caller guarantees that `ctx` is live.
        unsafe { start_timer(ctx, ROUND_INTERVAL, run_round) };
    }
}

/// Sends batches of requested records, [`BATCHES_PER_ROUND`] at most.
///
/// # Safety
/// `ctx` is live.
unsafe fn send_answers(state: &ModuleState, ctx: *mut raw::RedisModuleCtx) {
    for _ in 0..BATCHES_PER_ROUND {
        let Some((node, mut walk)) = state.peers.with(|gossip, _| gossip.next_answer()) else { return };
        let records = state.policies.next_batch(&mut walk, now());
        let Ok(id) = CString::new(node) else { continue };
        // SAFETY: the caller guarantees that `ctx` is live.
        if unsafe { send_records(ctx, &id, &records) } {
            state.peers.with(|gossip, _| gossip.requeue_answer(node, walk));
        }
    }
    // SAFETY: the caller guarantees that `ctx` is live.
    unsafe { schedule_round(state, ctx) };
}

/// Merges buffered records if they can be propagated, at most [`BATCH_SIZE`] before the next round.
///
/// # Safety
/// `ctx` is live.
unsafe fn merge_buffered(state: &ModuleState, ctx: *mut raw::RedisModuleCtx) {
    if !state.policies.has_buffered() || !policy_persistence::may_propagate() {
        return;
    }
    // Also sets the number of records that may be merged before that round.
    // SAFETY: the caller guarantees that `ctx` is live.
    unsafe { schedule_round(state, ctx) };
    while let Some(budget) = state.peers.merge_budget.get().checked_sub(1) {
        let Some((name, merged)) = state.policies.with(|table| table.merge_buffered(now())) else { return };
        state.peers.merge_budget.set(budget);
        if merged == MergeOutcome::Changed
            && let Some(record) = state.policies.record(&name, now())
        {
            // The merged record, not the received one: a replica does not compare stamps.
            // SAFETY: the caller guarantees that `ctx` is live.
            unsafe { policy_persistence::propagate_record(ctx, &record) };
        }
    }
}

guard::entry_point! {
    /// Handles a message of another node.
    unsafe fn on_message(
        ctx: *mut raw::RedisModuleCtx,
        sender: *const c_char,
        kind: u8,
        payload: *const u8,
        length: u32,
    ) {
        // SAFETY: the server calls receivers with its lock held.
        let state = unsafe { module_state() };
        if !is_participant() || payload.is_null() {
            return;
        }
        // SAFETY: the server passes `length` bytes and the id of a node.
        let (message, id) =
            unsafe { (std::slice::from_raw_parts(payload, usize::try_from(length).unwrap_or(0)), node_id(sender)) };
        let (Some((&FORMAT_VERSION, body)), Some(id)) = (message.split_first(), id) else { return };
        // The id is not null-terminated in the server's memory, but Redis 7.0 expects a null-terminated id.
        let Ok(sender) = CString::new(id) else { return };
        // SAFETY: the receiver's own context.
        unsafe {
            match kind {
                RECORDS => {
                    state.peers.with(|gossip, now| gossip.receive_records(id, now));
                    state.policies.with(|table| {
                        for_each_record(body, |record| {
                            table.buffer(record, now());
                        });
                    });
                    merge_buffered(state, ctx);
                }
                DIGEST => compare_digest(state, ctx, &sender, id, body),
                REQUEST => {
                    let Ok(groups) = body.try_into().map(u64::from_le_bytes) else { return };
                    state.peers.with(|gossip, _| gossip.answer(id, groups));
                    schedule_round(state, ctx);
                }
                _ => {}
            }
        }
    }
}

/// Calls `handle` with each record of a message. Stops at a truncated record.
fn for_each_record(mut body: &[u8], mut handle: impl FnMut(&[u8])) {
    while let Some((length, rest)) = body.split_first_chunk() {
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some((record, rest)) = rest.split_at_checked(length) else { break };
        handle(record);
        body = rest;
    }
}

/// Compares a digest with that of this node, and requests the groups that differ.
///
/// # Safety
/// `ctx` is live.
unsafe fn compare_digest(state: &ModuleState, ctx: *mut raw::RedisModuleCtx, sender: &CStr, id: Node, body: &[u8]) {
    let (numbers, []) = body.as_chunks() else { return };
    let Ok(peer_digests) = <[[u8; 8]; GROUPS]>::try_from(numbers) else { return };
    // A node with records in its buffer would only be sent the same records again.
    let can_merge = !state.policies.has_buffered() && policy_persistence::may_propagate();
    let peer_digests = peer_digests.map(u64::from_le_bytes);
    let own_digests = state.policies.with(|table| *table.digests());
    let outcome = state
        .peers
        .with(|gossip, now| gossip.receive_digest(id, &peer_digests, &own_digests, can_merge, now, random()));
    // SAFETY: the caller guarantees that `ctx` is live.
    unsafe {
        if let Some(delay) = outcome.early_digest {
            start_timer(ctx, delay, send_early_digest);
        }
        if let Some(groups) = outcome.request_groups {
            send(ctx, sender, REQUEST, &groups.to_le_bytes());
        }
    }
}
