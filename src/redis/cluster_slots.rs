//! Ownership of keys in a cluster. The server checks it for each call, but not for clients that a module has blocked,
//! nor for a timer: a key that a timer writes in a slot that was migrated would have two owners.

use super::Redis;
use super::api::{DryRun, call, dry_run, own_node_id, server_is, valkey_version};
use super::server_entry::{ServerEntry, with_name};
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use redis_module::{Context, RedisValue, raw};
use std::ffi::c_int;

/// Owner of the slot of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOwner {
    /// This node.
    ThisNode,
    /// Another node, or this one and another while the slot is migrated.
    OtherNode,
    /// No node: the cluster is down, or down for writes.
    Down,
    /// Unknown, as the server rejects every call of a module (see [`rejects_all_calls`]).
    Unknown,
}

/// Returns `true` if this server is a node of a cluster.
pub fn is_cluster() -> bool {
    server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
}

/// Returns the owner of the slot of a key, for a timer or an event.
pub fn owner_of(entry: ServerEntry, db: c_int, name: &[u8]) -> Option<SlotOwner> {
    // SAFETY: the context is that of the entry; the string is live during the call.
    with_name(entry, db, name, |name| unsafe { owner(entry.ctx, name) })
}

/// Returns the error for a client whose key this node does not serve; `None` if this node serves the key. To be called
/// in the work of a timer.
pub fn redirection(redis: &Redis, index: KeyIndex) -> Option<Error> {
    let name = redis.string(index).ok()?;
    // SAFETY: the context and the string are those of the current work, which is not that of a call.
    let text = match unsafe { owner(redis.ctx, name) } {
        SlotOwner::ThisNode => return None,
        SlotOwner::OtherNode => moved_error(&Context::new(redis.ctx), redis.key_bytes(index))
            // A client that retries is redirected by the server itself.
            .unwrap_or_else(|| "TRYAGAIN the key's slot is on its way to another node".to_owned()),
        SlotOwner::Down => "CLUSTERDOWN The cluster is down".to_owned(),
        // The server redirects a client that retries, and a call that finds room is granted at once.
        SlotOwner::Unknown => {
            "TRYAGAIN the server refuses the calls of modules, after a script that crossed slots".to_owned()
        }
    };
    Some(Error::Redirected(text))
}

/// Returns the owner of the slot of a key.
///
/// # Safety
/// `ctx` is live and not that of a call; `name` is a live string.
unsafe fn owner(ctx: *mut raw::RedisModuleCtx, name: *mut raw::RedisModuleString) -> SlotOwner {
    if !is_cluster() {
        return SlotOwner::ThisNode;
    }
    // Valid arguments of the call; the server does not read them.
    let [one, holder] = [c"1".as_ptr(), c"me".as_ptr()];
    // SAFETY: the caller guarantees that `ctx` is live and not that of a call, and that `name` is live.
    let outcome = unsafe {
        let acquire =
            || call!(RedisModule_Call(ctx, c"RL.ACQUIRE".as_ptr(), c"Dsccc".as_ptr(), name, one, one, holder));
        match dry_run(acquire) {
            DryRun::Unknown => dry_run(|| call!(RedisModule_Call(ctx, c"EXISTS".as_ptr(), c"s".as_ptr(), name))),
            outcome => outcome,
        }
    };
    match outcome {
        // SAFETY: the caller guarantees that `ctx` is live and not that of a call.
        DryRun::Rejected(libc::EPERM) if unsafe { rejects_all_calls(ctx) } => SlotOwner::Unknown,
        DryRun::Rejected(libc::EPERM) => SlotOwner::OtherNode,
        DryRun::Rejected(libc::ENETDOWN | libc::EROFS) => SlotOwner::Down,
        // The server may have no command of that name; that error does not concern the key.
        DryRun::Accepted | DryRun::Unknown | DryRun::Rejected(_) => SlotOwner::ThisNode,
    }
}

/// Returns `true` if the server refuses even a call that names no key. Valkey 9.1 runs the calls of scripts and
/// modules with a few internal clients. Once a call has named keys of several slots, its internal client is marked for
/// that, and the mark is never removed.
///
/// # Safety
/// `ctx` is live and not that of a call.
unsafe fn rejects_all_calls(ctx: *mut raw::RedisModuleCtx) -> bool {
    // SAFETY: the caller guarantees that `ctx` is live and not that of a call.
    let outcome = unsafe { dry_run(|| call!(RedisModule_Call(ctx, c"PING".as_ptr(), c"D".as_ptr()))) };
    matches!(outcome, DryRun::Rejected(libc::EPERM))
}

/// Returns `true` if this node rejects writes although it serves its slots for reading, according to the state of the
/// cluster.
pub fn is_down(ctx: &Context) -> bool {
    let Ok(state) = ctx.call("CLUSTER", &["INFO"]) else { return false };
    text(&state).is_some_and(|state| state.starts_with(b"cluster_state:fail"))
}

/// Returns the error `MOVED slot host:port`; `None` if this node or no node owns the slot, or the server cannot be
/// queried.
fn moved_error(ctx: &Context, name: &[u8]) -> Option<String> {
    // Before Valkey 9.1, CLUSTER SLOTS reads the address of the calling client, and crashes if the caller is a module's
    // timer.
    const FIRST_SAFE_VERSION: (u32, u32) = (9, 1);
    if valkey_version().is_some_and(|version| version < FIRST_SAFE_VERSION) {
        return None;
    }
    let Ok(RedisValue::Integer(slot)) = ctx.call("CLUSTER", &[b"KEYSLOT".as_slice(), name]) else { return None };
    let Ok(RedisValue::Array(ranges)) = ctx.call("CLUSTER", &["SLOTS"]) else { return None };
    let node = ranges.iter().find_map(|range| {
        let RedisValue::Array(range) = range else { return None };
        let [RedisValue::Integer(first), RedisValue::Integer(last), RedisValue::Array(node), ..] = range.as_slice()
        else {
            return None;
        };
        (*first..=*last).contains(&slot).then_some(node)
    })?;
    let [host, RedisValue::Integer(port), id, ..] = node.as_slice() else { return None };
    let location = format!("MOVED {slot} {}:{port}", String::from_utf8_lossy(text(host)?));
    (text(id)? != own_node_id()?).then_some(location)
}

/// Returns the bytes of a string, for each variant in which the SDK returns one.
fn text(value: &RedisValue) -> Option<&[u8]> {
    match value {
        RedisValue::SimpleString(text) | RedisValue::BulkString(text) => Some(text.as_bytes()),
        RedisValue::StringBuffer(text) => Some(text),
        // A node with unknown address: the client uses the address that it is connected to.
        RedisValue::Null => Some(b""),
        _ => None,
    }
}
