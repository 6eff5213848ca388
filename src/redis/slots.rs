//! Whether a key is still this node's, and whose it is else. The server asks that of each call, but not of clients that a
//! module has blocked, nor of a timer: what that writes to a slot that has moved away would have two owners.

use super::api::{api, call, server_is, valkey_version};
use ratelimit_core::error::Error;
use redis_module::{Context, RedisValue, raw};

/// What a client is to be told of a key that this node does not serve; `None` if it does.
///
/// # Safety
/// `ctx` is live, and no call's.
pub unsafe fn elsewhere(ctx: *mut raw::RedisModuleCtx, name: *mut raw::RedisModuleString) -> Option<Error> {
    if !server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) {
        return None;
    }
    // SAFETY: the caller's promise; the reply is freed once.
    unsafe {
        let reply = call!(RedisModule_Call(ctx, c"EXISTS".as_ptr(), c"s".as_ptr(), name));
        if !reply.is_null() {
            call!(RedisModule_FreeCallReply(reply));
            return None;
        }
    }
    let text = match std::io::Error::last_os_error().raw_os_error() {
        // By that name the server has none, so it says nothing of the key.
        Some(libc::ENOENT) => return None,
        // SAFETY: the caller's promise; the string is live.
        Some(libc::EPERM) => moved(&Context::new(ctx), unsafe { super::guard::bytes(name) })
            // Whoever asks again learns where the key is from the server itself.
            .unwrap_or_else(|| "TRYAGAIN the key's slot is on its way to another node".to_owned()),
        _ => "CLUSTERDOWN The cluster is down".to_owned(),
    };
    Some(Error::Redirected(text))
}

/// `MOVED slot host:port`; `None` if the slot is this node's, or nobody's, or the server cannot be asked.
fn moved(ctx: &Context, name: &[u8]) -> Option<String> {
    // Before, it looks for the address of the client that asks, and ends if that is a module's timer.
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

/// Of a string, however the SDK has read it.
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
