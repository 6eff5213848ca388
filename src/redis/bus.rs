//! Policies in a cluster: what one primary is told holds everywhere within a second.
//!
//! A record that a command has changed is sent to every node at once, on the cluster's own bus. That has no
//! acknowledgement and does not send again. So about once a second each primary sends its digest, a number for each
//! group of names; whoever differs in a group asks the sender for it, and is sent the group's records. Merging is the
//! same in any order and any number of times (`policy.rs` of the core), so this ends in one table.
//!
//! Only primaries send, ask and apply; their replicas are told by replication, as of any other change. A message has at
//! most 64 KiB. While the server has paused writes nothing may be propagated: what comes then is kept, and applied
//! later.

use super::api::{api, server_is};
use super::{guard, now, policies as kept};
use crate::config::POLICY_GOSSIP;
use crate::policies;
use redis_module::raw;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

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

/// A primary that has not been heard of for so long is not counted among those that differ.
const GONE: Duration = Duration::from_secs(5);

/// A node's id: 40 letters.
type Node = [u8; 40];

/// What is known of the others, and what waits.
#[derive(Default)]
struct Bus {
    /// When each primary last sent its digest, and what that came to.
    peers: HashMap<Node, (Instant, u64)>,
    /// Records that came while nothing could be propagated.
    waiting: Vec<Box<[u8]>>,
}

thread_local! {
    static BUS: RefCell<Bus> = RefCell::default();
}

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
pub fn differing() -> usize {
    let own = policies::digest();
    BUS.with_borrow(|bus| bus.peers.values().filter(|(heard, digest)| heard.elapsed() < GONE && *digest != own).count())
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

/// # Safety
/// `ctx` is live, `to` an id or null.
unsafe fn send_records(ctx: *mut raw::RedisModuleCtx, to: *const c_char, records: &[Vec<u8>]) {
    let mut message = Vec::new();
    for record in records {
        let Ok(length) = u32::try_from(record.len()) else { continue };
        let size = record.len().saturating_add(size_of::<u32>());
        if message.len().saturating_add(size) > MAX_MESSAGE.saturating_sub(1) {
            // SAFETY: the caller's promise.
            unsafe { send(ctx, to, RECORDS, &message) };
            message.clear();
        }
        message.extend_from_slice(&length.to_le_bytes());
        message.extend_from_slice(record);
    }
    if !message.is_empty() {
        // SAFETY: the caller's promise.
        unsafe { send(ctx, to, RECORDS, &message) };
    }
}

/// # Safety
/// `ctx` is live, `to` an id or null.
unsafe fn send(ctx: *mut raw::RedisModuleCtx, to: *const c_char, kind: u8, body: &[u8]) {
    let message = [&[FORM], body].concat();
    if let (Some(send), Ok(length)) = (api!(RedisModule_SendClusterMessage), u32::try_from(message.len())) {
        // SAFETY: the caller's promise; the server copies the bytes. A node that has gone is an error, and no harm.
        unsafe { send(ctx, to, kind, message.as_ptr().cast(), length) };
    }
}

/// # Safety
/// `ctx` is live.
unsafe fn wait(ctx: *mut raw::RedisModuleCtx) {
    if let Some(create) = api!(RedisModule_CreateTimer) {
        // SAFETY: the caller's promise; the callback is a plain function.
        unsafe { create(ctx, EVERY, Some(tick), null_mut()) };
    }
}

unsafe extern "C" fn tick(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    guard::callback((), || {
        policies::forget(now());
        if takes_part() {
            // SAFETY: the timer's own context.
            unsafe { apply(ctx, Vec::new()) };
            let digests = policies::digests();
            let body: Vec<u8> = digests.iter().flat_map(|digest| digest.to_le_bytes()).collect();
            if !policies::is_empty() {
                // SAFETY: likewise.
                unsafe { send(ctx, null(), DIGEST, &body) };
            }
        }
    });
    // Whatever has become of it, there is a next time.
    // SAFETY: the timer's own context.
    unsafe { wait(ctx) };
}

unsafe extern "C" fn received(
    ctx: *mut raw::RedisModuleCtx,
    sender: *const c_char,
    kind: u8,
    payload: *const u8,
    length: u32,
) {
    guard::callback((), || {
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
                RECORDS => apply(ctx, records_in(body)),
                DIGEST => compare(ctx, sender, id, body),
                ASK => {
                    let Ok(groups) = body.try_into().map(u64::from_le_bytes) else { return };
                    send_records(ctx, sender, &policies::records_of(groups));
                }
                _ => {}
            }
        }
    });
}

/// The records of a message. One that is cut short ends it.
fn records_in(mut body: &[u8]) -> Vec<Box<[u8]>> {
    let mut records = Vec::new();
    while let Some((length, rest)) = body.split_first_chunk() {
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some((record, rest)) = rest.split_at_checked(length) else { break };
        records.push(record.into());
        body = rest;
    }
    records
}

/// Applies what has come, and what has waited, if it can be propagated.
///
/// # Safety
/// `ctx` is live.
unsafe fn apply(ctx: *mut raw::RedisModuleCtx, mut records: Vec<Box<[u8]>>) {
    let records = BUS.with_borrow_mut(|bus| {
        bus.waiting.append(&mut records);
        if kept::may_propagate() { std::mem::take(&mut bus.waiting) } else { Vec::new() }
    });
    for record in records {
        if policies::merge(&record, now()) {
            // SAFETY: the caller's promise.
            unsafe { kept::propagate_record(ctx, &record) };
        }
    }
}

/// Compares a digest with this node's own, and asks for what differs.
///
/// # Safety
/// `ctx` is live, and `sender` the id of a node.
unsafe fn compare(ctx: *mut raw::RedisModuleCtx, sender: *const c_char, id: Node, body: &[u8]) {
    let own = policies::digests();
    let (theirs, []) = body.as_chunks() else { return };
    if theirs.len() != own.len() {
        return;
    }
    let theirs = theirs.iter().copied().map(u64::from_le_bytes);
    let mut differing = 0_u64;
    for (group, (own, their)) in own.iter().zip(theirs.clone()).enumerate() {
        differing |= u64::from(*own != their).checked_shl(u32::try_from(group).unwrap_or(u32::MAX)).unwrap_or(0);
    }
    let sum = theirs.fold(0, u64::wrapping_add);
    BUS.with_borrow_mut(|bus| {
        bus.peers.retain(|_, (heard, _)| heard.elapsed() < GONE);
        bus.peers.insert(id, (Instant::now(), sum));
    });
    if differing != 0 {
        // SAFETY: the caller's promise.
        unsafe { send(ctx, sender, ASK, &differing.to_le_bytes()) };
    }
}
