//! Policies in a cluster: a change on one primary holds everywhere within about a second.
//!
//! A record that a command has changed is sent to every other primary at once, on the cluster's own bus. That has no
//! acknowledgement and does not send again. So each primary sends its digest, a number for each group of names, every
//! so many seconds, and early once it has heard another one. A primary that differs in a group asks the sender for it,
//! and is sent the group's records. Merging is the same in any order and any number of times (`policy/` of the core), so
//! this ends in one table. The core also decides when a digest is sent, and who is asked (`policy/gossip.rs`).
//!
//! Replicas are told by replication, as of any other change, what has become of the policy. Nothing is sent to them
//! here, since a message costs 2,269 bytes of the server's beside its own. It has at most 64 KiB.
//!
//! No server is busy for long in one go. What is asked for is sent in pieces, and what comes is kept, once for each
//! name, and taken over in pieces: [`AT_ONCE`] records a turn. While the server has paused writes nothing may be
//! propagated, so what comes then is kept until later. A server that has not taken over what it was sent, or waits for
//! an answer, asks nobody, and one node is asked at a time.

use super::api::{OK, api, has_flag, server_is};
use super::clock::now;
use super::global::global;
use super::{guard, policy_lifetime as kept};
use crate::server::Global;
use crate::server::peers::Node;
use crate::server::policy_table::AT_ONCE;
use crate::server::settings::POLICY_GOSSIP;
use ratelimit_core::policy::{EarlyDigest, GROUPS, Merged};
use redis_module::raw;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::time::Duration;

/// Records, each behind its length.
const RECORDS: u8 = 1;
/// A number for each group of names.
const DIGEST: u8 = 2;
/// A bit for each group that is asked for.
const ASK: u8 = 3;

/// How the first byte of a message says that it is of this form. Others are left alone.
const FORM: u8 = 1;

/// The most that a message has, in bytes.
const MAX_MESSAGE: usize = 65_536;

/// Time from one decision about a digest to the next.
const EVERY: Duration = Duration::from_secs(1);

/// Length of a turn, whose work is limited.
const TURN: Duration = Duration::from_millis(5);

/// Nodes that are sent a piece of an answer in one turn.
const ANSWERS_AT_ONCE: usize = 4;

/// Takes part, if this is a node of a cluster.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn join(ctx: *mut raw::RedisModuleCtx) {
    let (Some(receive), Some(_), Some(_)) = (
        api!(RedisModule_RegisterClusterMessageReceiver),
        api!(RedisModule_SendClusterMessage),
        api!(RedisModule_CreateTimer),
    ) else {
        return;
    };
    if !server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) {
        return;
    }
    // SAFETY: the caller's promise; the callbacks are plain functions.
    unsafe {
        receive(ctx, RECORDS, Some(received));
        receive(ctx, DIGEST, Some(received));
        receive(ctx, ASK, Some(received));
        start_timer(ctx, EVERY, tick);
    }
}

/// Whether this node sends and applies: a primary that has its data.
fn takes_part() -> bool {
    POLICY_GOSSIP.get() != 0
        && server_is(raw::REDISMODULE_CTX_FLAGS_MASTER)
        && !server_is(raw::REDISMODULE_CTX_FLAGS_LOADING)
}

/// What tells this node from others in a stamp.
pub fn node() -> u64 {
    // SAFETY: on the server's thread. It is null outside a cluster, else a string of 40 letters.
    let id = api!(RedisModule_GetMyClusterID).map_or(null(), |id| unsafe { id() });
    // SAFETY: likewise.
    let id = unsafe { node_id(id) };
    let digits = id.as_ref().and_then(|id| std::str::from_utf8(id.get(..16)?).ok());
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// # Safety
/// `id` is null, or has the length of an id.
unsafe fn node_id(id: *const c_char) -> Option<Node> {
    // SAFETY: the caller's promise.
    (!id.is_null()).then(|| unsafe { id.cast::<Node>().read_unaligned() })
}

/// How many primaries, of those heard of lately, have other policies.
pub fn differing(global: &Global) -> usize {
    global.peers.differing(global.policies.digest())
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
    // SAFETY: the server has listed so many ids.
    let listed = unsafe { std::slice::from_raw_parts(ids, count) };
    let is_other_primary = |id: &CString| {
        let mut flags = 0;
        // SAFETY: as above, and a live id; the server fills in only what is not null.
        let found = unsafe { info(ctx, id.as_ptr(), null_mut(), null_mut(), null_mut(), &raw mut flags) } == OK;
        found && has_flag(flags, raw::REDISMODULE_NODE_MASTER) && !has_flag(flags, raw::REDISMODULE_NODE_MYSELF)
    };
    // SAFETY: each has the length of an id.
    let ids_of_nodes = listed.iter().filter_map(|id| CString::new(unsafe { node_id(*id) }?).ok());
    let primaries = ids_of_nodes.filter(is_other_primary).collect();
    // SAFETY: the list is freed once and not used after.
    unsafe { free(ids) };
    primaries
}

/// Sends records to every other primary.
///
/// # Safety
/// `ctx` is live.
pub unsafe fn announce(ctx: *mut raw::RedisModuleCtx, records: &[Vec<u8>]) {
    if server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) && takes_part() {
        // SAFETY: the caller guarantees that `ctx` is live.
        for id in unsafe { other_primaries(ctx) } {
            // SAFETY: as above.
            unsafe { send_records(ctx, &id, records) };
        }
    }
}

/// Sends this node's digest to the other primaries, unless it knows no policies.
///
/// # Safety
/// `ctx` is live.
unsafe fn send_digest(global: &Global, ctx: *mut raw::RedisModuleCtx, primaries: &[CString]) {
    if !global.policies.is_empty() {
        let body = global.policies.digests().map(u64::to_le_bytes);
        for id in primaries {
            // SAFETY: the caller guarantees that `ctx` is live.
            unsafe { send(ctx, id, DIGEST, body.as_flattened()) };
        }
    }
}

/// Sends records, in as many messages as they need; returns whether the node is there.
///
/// # Safety
/// `ctx` is live.
unsafe fn send_records(ctx: *mut raw::RedisModuleCtx, to: &CStr, records: &[Vec<u8>]) -> bool {
    let (mut message, mut is_there) = (Vec::new(), true);
    for record in records {
        let Ok(length) = u32::try_from(record.len()) else { continue };
        let size = record.len().saturating_add(size_of::<u32>());
        if message.len().saturating_add(size) > MAX_MESSAGE.saturating_sub(1) {
            // SAFETY: the caller guarantees that `ctx` is live.
            is_there &= unsafe { send(ctx, to, RECORDS, &message) };
            message.clear();
        }
        message.extend_from_slice(&length.to_le_bytes());
        message.extend_from_slice(record);
    }
    if !message.is_empty() {
        // SAFETY: the caller guarantees that `ctx` is live.
        is_there &= unsafe { send(ctx, to, RECORDS, &message) };
    }
    is_there
}

/// Sends a message; returns whether the node is there.
///
/// # Safety
/// `ctx` is live.
unsafe fn send(ctx: *mut raw::RedisModuleCtx, to: &CStr, kind: u8, body: &[u8]) -> bool {
    let message = [&[FORM], body].concat();
    let (Some(send), Ok(length)) = (api!(RedisModule_SendClusterMessage), u32::try_from(message.len())) else {
        return false;
    };
    // SAFETY: the caller guarantees that `ctx` is live; the server copies the id and the bytes.
    unsafe { send(ctx, to.as_ptr(), kind, message.as_ptr().cast(), length) == OK }
}

/// Callback of a timer.
type Timer = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void);

/// Starts a timer.
///
/// # Safety
/// `ctx` is live.
unsafe fn start_timer(ctx: *mut raw::RedisModuleCtx, delay: Duration, callback: Timer) {
    if let (Some(create), Ok(delay)) = (api!(RedisModule_CreateTimer), delay.as_millis().try_into()) {
        // SAFETY: the caller guarantees that `ctx` is live; the callback is a plain function.
        unsafe { create(ctx, delay, Some(callback), null_mut()) };
    }
}

guard::entry_point! {
    /// Does what a primary does about once a second.
    unsafe fn tick(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
        // SAFETY: a timer runs with the server's lock held.
        let global = unsafe { global() };
        let run = || {
            global.policies.tick(now());
            if !takes_part() {
                // A replica is sent what it needs by its primary.
                global.policies.drop_kept();
                global.peers.reset();
                return;
            }
            // SAFETY: the timer's own context.
            unsafe {
                work(global, ctx);
                let others = other_primaries(ctx);
                if global.peers.is_digest_due(others.len().saturating_add(1)) {
                    send_digest(global, ctx, &others);
                }
            }
        };
        // Even if it panics, there is a next time.
        guard::catch_panic((), run);
        // SAFETY: the timer's own context.
        unsafe { start_timer(ctx, EVERY, tick) };
    }
}

guard::entry_point! {
    /// Sends an early digest, if it is still needed.
    unsafe fn early(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
        // SAFETY: a timer runs with the server's lock held.
        let global = unsafe { global() };
        if !takes_part() {
            global.peers.reset();
            return;
        }
        // SAFETY: the timer's own context.
        unsafe {
            match global.peers.early(global.policies.keeps_any()) {
                EarlyDigest::Send => send_digest(global, ctx, &other_primaries(ctx)),
                EarlyDigest::Wait(left) => start_timer(ctx, left, early),
                EarlyDigest::Cancelled => {}
            }
        }
    }
}

guard::entry_point! {
    /// Does a turn of the work that is limited.
    unsafe fn turn(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
        // SAFETY: a timer runs with the server's lock held.
        let global = unsafe { global() };
        global.peers.armed.set(false);
        if takes_part() {
            // SAFETY: the timer's own context.
            unsafe {
                answer(global, ctx);
                work(global, ctx);
            }
        }
    }
}

/// Has the next turn begin soon.
///
/// # Safety
/// `ctx` is live.
unsafe fn begin_turn_soon(global: &Global, ctx: *mut raw::RedisModuleCtx) {
    if !global.peers.armed.replace(true) {
        global.peers.budget.set(AT_ONCE);
        // SAFETY: the caller guarantees that `ctx` is live.
        unsafe { start_timer(ctx, TURN, turn) };
    }
}

/// Sends a piece of what they have asked for to some of those that have.
///
/// # Safety
/// `ctx` is live.
unsafe fn answer(global: &Global, ctx: *mut raw::RedisModuleCtx) {
    for _ in 0..ANSWERS_AT_ONCE {
        let Some((node, mut walk)) = global.peers.next_answer() else { return };
        let records = global.policies.piece(&mut walk, now());
        let Ok(id) = CString::new(node) else { continue };
        // SAFETY: the caller guarantees that `ctx` is live.
        if unsafe { send_records(ctx, &id, &records) } {
            global.peers.go_on_answering(node, walk);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { begin_turn_soon(global, ctx) };
}

/// Takes over what is kept, as much of it as this turn may, if it can be propagated.
///
/// # Safety
/// `ctx` is live.
unsafe fn work(global: &Global, ctx: *mut raw::RedisModuleCtx) {
    if !global.policies.keeps_any() || !kept::may_propagate() {
        return;
    }
    // SAFETY: the caller's promise. What this turn may take over is set with its end.
    unsafe { begin_turn_soon(global, ctx) };
    while let Some(budget) = global.peers.budget.get().checked_sub(1) {
        let Some((name, merged)) = global.policies.merge_kept(now()) else { return };
        global.peers.budget.set(budget);
        if merged == Merged::Changed
            && let Some(record) = global.policies.record(&name, now())
        {
            // As it now is: a replica compares nothing. SAFETY: the caller's promise.
            unsafe { kept::propagate_record(ctx, &record) };
        }
    }
}

guard::entry_point! {
    /// Receives a message of another node.
    unsafe fn received(
        ctx: *mut raw::RedisModuleCtx,
        sender: *const c_char,
        kind: u8,
        payload: *const u8,
        length: u32,
    ) {
        // SAFETY: the server passes messages on with its lock held.
        let global = unsafe { global() };
        if !takes_part() || payload.is_null() {
            return;
        }
        // SAFETY: the server passes so many bytes, and the id of a node.
        let (message, id) =
            unsafe { (std::slice::from_raw_parts(payload, usize::try_from(length).unwrap_or(0)), node_id(sender)) };
        let (Some((&FORM, body)), Some(id)) = (message.split_first(), id) else { return };
        // What the server passes goes on behind the id. Redis 7.0 takes an id to end where a string does.
        let Ok(sender) = CString::new(id) else { return };
        // SAFETY: the receiver's own context.
        unsafe {
            match kind {
                RECORDS => {
                    global.peers.hear_records(id);
                    for_each_record(body, |record| global.policies.keep(record, now()));
                    work(global, ctx);
                }
                DIGEST => compare(global, ctx, &sender, id, body),
                ASK => {
                    let Ok(groups) = body.try_into().map(u64::from_le_bytes) else { return };
                    global.peers.answer(id, groups);
                    begin_turn_soon(global, ctx);
                }
                _ => {}
            }
        }
    }
}

/// The records of a message. One that is cut short ends it.
fn for_each_record(mut body: &[u8], mut take: impl FnMut(&[u8])) {
    while let Some((length, rest)) = body.split_first_chunk() {
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some((record, rest)) = rest.split_at_checked(length) else { break };
        take(record);
        body = rest;
    }
}

/// Compares a digest with this node's own, and asks for what differs.
///
/// # Safety
/// `ctx` is live.
unsafe fn compare(global: &Global, ctx: *mut raw::RedisModuleCtx, sender: &CStr, id: Node, body: &[u8]) {
    let (numbers, []) = body.as_chunks() else { return };
    let Ok(theirs) = <[[u8; 8]; GROUPS]>::try_from(numbers) else { return };
    // A node that has not taken over what it was sent would only be sent it again.
    let can_take = !global.policies.keeps_any() && kept::may_propagate();
    let theirs = theirs.map(u64::from_le_bytes);
    let heard = global.peers.hear_digest(id, &theirs, &global.policies.digests(), can_take);
    // SAFETY: the caller guarantees that `ctx` is live.
    unsafe {
        if let Some(delay) = heard.early {
            start_timer(ctx, delay, early);
        }
        if let Some(groups) = heard.ask {
            send(ctx, sender, ASK, &groups.to_le_bytes());
        }
    }
}
