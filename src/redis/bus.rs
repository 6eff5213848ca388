//! Policies in a cluster: what one primary is told holds everywhere within a second.
//!
//! A record that a command has changed is sent to every node at once, on the cluster's own bus. That has no
//! acknowledgement and does not send again. So about once a second each primary sends its digest, a number for each
//! group of names; whoever differs in a group asks the sender for it, and is sent the group's records. Merging is the
//! same in any order and any number of times (`policy/` of the core), so this ends in one table.
//!
//! Only primaries send, ask and apply; their replicas are told by replication, as of any other change, what has become
//! of the policy. A message has at most 64 KiB.
//!
//! No server is busy for long in one go. What is asked for is sent in pieces, and what comes is kept, once for each
//! name, and taken over in pieces: [`AT_ONCE`] records a turn. While the server has paused writes nothing may be
//! propagated, so what comes then is kept until later. Nobody asks who has not taken over what it was sent, or waits
//! for an answer, and one node is asked at a time (`server/peers.rs`).

use super::api::{OK, api, server_is};
use super::clock::now;
use super::global::global;
use super::{guard, policy_lifetime as kept};
use crate::server::Global;
use crate::server::peers::Node;
use crate::server::policy_table::AT_ONCE;
use crate::server::settings::POLICY_GOSSIP;
use ratelimit_core::policy::Merged;
use redis_module::raw;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};

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

/// How often a digest is sent, in milliseconds.
const EVERY: i64 = 1000;

/// How long a turn takes whose work is limited, in milliseconds.
const TURN: i64 = 5;

/// How many nodes are sent a piece of an answer in one turn.
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
        wait(ctx);
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

/// Sends records to every node.
///
/// # Safety
/// `ctx` is live.
pub unsafe fn announce(ctx: *mut raw::RedisModuleCtx, records: &[Vec<u8>]) {
    if server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) && takes_part() {
        // SAFETY: the caller's promise; null is every node.
        unsafe { send_records(ctx, null(), records) };
    }
}

/// Sends records, in as many messages as they need; whether the node is there.
///
/// # Safety
/// `ctx` is live, `to` an id or null.
unsafe fn send_records(ctx: *mut raw::RedisModuleCtx, to: *const c_char, records: &[Vec<u8>]) -> bool {
    let (mut message, mut is_there) = (Vec::new(), true);
    for record in records {
        let Ok(length) = u32::try_from(record.len()) else { continue };
        let size = record.len().saturating_add(size_of::<u32>());
        if message.len().saturating_add(size) > MAX_MESSAGE.saturating_sub(1) {
            // SAFETY: the caller's promise.
            is_there &= unsafe { send(ctx, to, RECORDS, &message) };
            message.clear();
        }
        message.extend_from_slice(&length.to_le_bytes());
        message.extend_from_slice(record);
    }
    if !message.is_empty() {
        // SAFETY: the caller's promise.
        is_there &= unsafe { send(ctx, to, RECORDS, &message) };
    }
    is_there
}

/// Sends a message; whether the node is there.
///
/// # Safety
/// `ctx` is live, `to` an id or null.
unsafe fn send(ctx: *mut raw::RedisModuleCtx, to: *const c_char, kind: u8, body: &[u8]) -> bool {
    let message = [&[FORM], body].concat();
    let (Some(send), Ok(length)) = (api!(RedisModule_SendClusterMessage), u32::try_from(message.len())) else {
        return false;
    };
    // SAFETY: the caller's promise; the server copies the bytes.
    unsafe { send(ctx, to, kind, message.as_ptr().cast(), length) == OK }
}

/// # Safety
/// `ctx` is live.
unsafe fn wait(ctx: *mut raw::RedisModuleCtx) {
    if let Some(create) = api!(RedisModule_CreateTimer) {
        // SAFETY: the caller's promise; the callback is a plain function.
        unsafe { create(ctx, EVERY, Some(tick), null_mut()) };
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
                return;
            }
            let digests = global.policies.digests();
            let body: Vec<u8> = digests.iter().flat_map(|digest| digest.to_le_bytes()).collect();
            // SAFETY: the timer's own context.
            unsafe {
                work(global, ctx);
                if !global.policies.is_empty() {
                    send(ctx, null(), DIGEST, &body);
                }
            }
        };
        // Even if it panics, there is a next time.
        guard::catch_panic((), run);
        // SAFETY: the timer's own context.
        unsafe { wait(ctx) };
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
    if let Some(create) = api!(RedisModule_CreateTimer)
        && !global.peers.armed.replace(true)
    {
        global.peers.budget.set(AT_ONCE);
        // SAFETY: the caller's promise; the callback is a plain function.
        unsafe { create(ctx, TURN, Some(turn), null_mut()) };
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
        // SAFETY: the caller's promise, and a live id.
        if unsafe { send_records(ctx, id.as_ptr(), &records) } {
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
        let sender = sender.as_ptr();
        // SAFETY: the receiver's own context, and a live id.
        unsafe {
            match kind {
                RECORDS => {
                    global.peers.hear_records(id);
                    for_each_record(body, |record| global.policies.keep(record, now()));
                    work(global, ctx);
                }
                DIGEST => compare(global, ctx, sender, id, body),
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
/// `ctx` is live, and `sender` the id of a node.
unsafe fn compare(global: &Global, ctx: *mut raw::RedisModuleCtx, sender: *const c_char, id: Node, body: &[u8]) {
    let own = global.policies.digests();
    let (theirs, []) = body.as_chunks() else { return };
    if theirs.len() != own.len() {
        return;
    }
    let theirs = theirs.iter().copied().map(u64::from_le_bytes);
    let mut differing = 0_u64;
    for (group, (own, their)) in own.iter().zip(theirs.clone()).enumerate() {
        differing |= u64::from(*own != their).checked_shl(u32::try_from(group).unwrap_or(u32::MAX)).unwrap_or(0);
    }
    global.peers.hear(id, theirs.fold(0, u64::wrapping_add));
    // A node that has not taken over what it was sent would only be sent it again.
    let can_take_it = !global.policies.keeps_any() && kept::may_propagate();
    if differing != 0 && can_take_it && global.peers.is_to_be_asked(id, own.iter().copied().fold(0, u64::wrapping_add))
    {
        // SAFETY: the caller's promise.
        unsafe { send(ctx, sender, ASK, &differing.to_le_bytes()) };
    }
}
