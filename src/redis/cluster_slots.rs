//! Ownership of keys in a cluster. The server checks it for each call, but not for clients that a module has blocked,
//! nor for a timer: what that writes to a slot that has moved away would have two owners.

use super::Redis;
use super::api::{api, call, server_is, valkey_version};
use super::dry_run::{Tried, try_call};
use super::server_entry::{ServerEntry, with_name};
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use redis_module::{Context, RedisValue, raw};
use std::ffi::c_int;

/// Place where a key is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPlace {
    /// This node.
    Here,
    /// Another node, or both for a while.
    Elsewhere,
    /// No node: the cluster is down, or down for writes.
    Down,
    /// The server does not say: it refuses every call of a module (see [`refuses_every_call`]).
    Unknown,
}

/// Returns `true` if this server is a node of a cluster.
pub fn are_used() -> bool {
    server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
}

/// Returns the place where a key is served, for a timer or an event.
pub fn place_of(entry: ServerEntry, db: c_int, name: &[u8]) -> Option<SlotPlace> {
    // SAFETY: the entry's own context; the string lives as long as it is asked for.
    with_name(entry, db, name, |name| unsafe { place(entry.ctx, name) })
}

/// Returns the error for a client whose key this node does not serve; `None` if it does. The key is that of a timer's
/// work.
pub fn redirection(redis: &Redis, name: KeyName) -> Option<Error> {
    let name = redis.string(name).ok()?;
    // SAFETY: the context and the string are those of what is being done.
    unsafe { elsewhere(redis.ctx, name) }
}

/// Returns the place where a key is served.
///
/// # Safety
/// `ctx` is live, and no call's; `name` is a live string.
unsafe fn place(ctx: *mut raw::RedisModuleCtx, name: *mut raw::RedisModuleString) -> SlotPlace {
    if !are_used() {
        return SlotPlace::Here;
    }
    // Numbers and a holder, such as a call has; they are not read.
    let [one, holder] = [c"1".as_ptr(), c"me".as_ptr()];
    // SAFETY: the caller guarantees it (see the function's contract).
    let tried = unsafe {
        let acquire =
            || call!(RedisModule_Call(ctx, c"RL.ACQUIRE".as_ptr(), c"Dsccc".as_ptr(), name, one, one, holder));
        match try_call(acquire) {
            Tried::Unknown => try_call(|| call!(RedisModule_Call(ctx, c"EXISTS".as_ptr(), c"s".as_ptr(), name))),
            tried => tried,
        }
    };
    match tried {
        // SAFETY: the caller guarantees it (see the function's contract).
        Tried::Refused(libc::EPERM) if unsafe { refuses_every_call(ctx) } => SlotPlace::Unknown,
        Tried::Refused(libc::EPERM) => SlotPlace::Elsewhere,
        Tried::Refused(libc::ENETDOWN | libc::EROFS) => SlotPlace::Down,
        // By that name the server may have no command, so it says nothing of the key.
        Tried::Passed | Tried::Unknown | Tried::Refused(_) => SlotPlace::Here,
    }
}

/// Returns `true` if the server refuses even a call that names no key. Valkey 9.1 runs the calls of scripts and of
/// modules by a few clients of its own, and never forgets of such a client that a call of it once named keys of several
/// slots.
///
/// # Safety
/// `ctx` is live, and no call's.
unsafe fn refuses_every_call(ctx: *mut raw::RedisModuleCtx) -> bool {
    // SAFETY: the caller guarantees it (see the function's contract).
    let tried = unsafe { try_call(|| call!(RedisModule_Call(ctx, c"PING".as_ptr(), c"D".as_ptr()))) };
    matches!(tried, Tried::Refused(libc::EPERM))
}

/// Returns the error for a client whose key this node does not serve; `None` if it does.
///
/// # Safety
/// `ctx` is live, and no call's; `name` is a live string.
unsafe fn elsewhere(ctx: *mut raw::RedisModuleCtx, name: *mut raw::RedisModuleString) -> Option<Error> {
    // SAFETY: the caller guarantees it (see the function's contract).
    let text = match unsafe { place(ctx, name) } {
        SlotPlace::Here => return None,
        // SAFETY: the caller guarantees it (see the function's contract).
        SlotPlace::Elsewhere => moved(&Context::new(ctx), unsafe { super::guard::bytes(name) })
            // Whoever asks again learns where the key is from the server itself.
            .unwrap_or_else(|| "TRYAGAIN the key's slot is on its way to another node".to_owned()),
        SlotPlace::Down => "CLUSTERDOWN The cluster is down".to_owned(),
        // The server knows where the key is when the client asks again, and a call that finds room is granted at once.
        SlotPlace::Unknown => {
            "TRYAGAIN the server refuses the calls of modules, after a script that crossed slots".to_owned()
        }
    };
    Some(Error::Redirected(text))
}

/// Returns `true` if this node takes no writes though it serves its slots for reading, as far as the cluster's state
/// tells.
pub fn is_down(ctx: &Context) -> bool {
    let Ok(state) = ctx.call("CLUSTER", &["INFO"]) else { return false };
    text(&state).is_some_and(|state| state.starts_with(b"cluster_state:fail"))
}

/// `MOVED slot host:port`; `None` if the slot is this node's, or nobody's, or the server cannot be asked.
fn moved(ctx: &Context, name: &[u8]) -> Option<String> {
    // Before 9.1, CLUSTER SLOTS looks for the address of the client that asks, and crashes if that is a module's timer.
    const ANSWERS_TIMERS: (u32, u32) = (9, 1);
    if valkey_version().is_some_and(|version| version < ANSWERS_TIMERS) {
        return None;
    }
    let Ok(RedisValue::Integer(slot)) = ctx.call("CLUSTER", &[b"KEYSLOT".as_slice(), name]) else { return None };
    let Ok(RedisValue::Array(ranges)) = ctx.call("CLUSTER", &["SLOTS"]) else { return None };
    let node = ranges.iter().find_map(|range| match range {
        RedisValue::Array(range) => match range.as_slice() {
            [RedisValue::Integer(first), RedisValue::Integer(last), RedisValue::Array(node), ..]
                if (*first..=*last).contains(&slot) =>
            {
                Some(node)
            }
            _ => None,
        },
        _ => None,
    })?;
    match node.as_slice() {
        [host, RedisValue::Integer(port), id, ..] if text(id)? != own_id()? => {
            Some(format!("MOVED {slot} {}:{port}", String::from_utf8_lossy(text(host)?)))
        }
        _ => None,
    }
}

/// The bytes of a string, however the SDK has read it.
fn text(value: &RedisValue) -> Option<&[u8]> {
    match value {
        RedisValue::SimpleString(text) | RedisValue::BulkString(text) => Some(text.as_bytes()),
        RedisValue::StringBuffer(text) => Some(text),
        // A node whose address is not known: the client is to go on where it is.
        RedisValue::Null => Some(b""),
        _ => None,
    }
}

/// This node's id.
fn own_id() -> Option<&'static [u8]> {
    const LENGTH: usize = 40;
    // SAFETY: on the server's thread. It is null outside a cluster, else a string of 40 letters that stays.
    let id = unsafe { api!(RedisModule_GetMyClusterID)?() };
    // SAFETY: likewise.
    (!id.is_null()).then(|| unsafe { std::slice::from_raw_parts(id.cast(), LENGTH) })
}
