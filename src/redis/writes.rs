//! Whether the server would carry out a write that a client sends now. It asks that of each call, but not of a timer.
//!
//! It refuses writes while too few replicas are there (`min-replicas-to-write`), and after a snapshot or the AOF could not
//! be written. From Redis 7.2 on, and on Valkey, a call can be tried without being carried out. Before that, INFO and
//! CONFIG tell.

use super::api::{api, call, config, in_info, info_number, server_is};
use super::dry_run::{Tried, try_call};
use super::{guard, slots};
use redis_module::{Context, raw};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::Arc;

/// Whether the server carries out writes now.
///
/// # Safety
/// `ctx` is that of a timer or of an event.
pub unsafe fn are_taken(ctx: *mut raw::RedisModuleCtx) -> bool {
    // SAFETY: the caller's promise. A write without a key, of which not even the arguments are read.
    let tried = unsafe {
        try_call(|| call!(RedisModule_Call(ctx, super::policies::COMMAND.as_ptr(), c"SDc".as_ptr(), c"".as_ptr())))
    };
    match tried {
        Tried::Passed => true,
        // A call that names no key is refused with EPERM only where every call is, which says nothing of writes.
        // SAFETY: the caller's promise.
        Tried::Unknown | Tried::Refused(libc::EPERM) => unsafe { is_as_it_should_be(ctx) },
        Tried::Refused(_) => false,
    }
}

/// Whether nothing is the matter for which the server refuses writes.
///
/// # Safety
/// `ctx` is that of a timer or of an event.
unsafe fn is_as_it_should_be(ctx: *mut raw::RedisModuleCtx) -> bool {
    // SAFETY: the caller's promise.
    let config = |name| unsafe { config(ctx, name) };
    // Of a replica that takes writes the server asks none of this.
    if server_is(raw::REDISMODULE_CTX_FLAGS_SLAVE) {
        return true;
    }
    let (saved, aof) = last_writes();
    // Where CONFIG is not to be had, what the server does unless it is told otherwise.
    if !aof
        || !saved
            && config("stop-writes-on-bgsave-error").as_deref() != Some("no")
            && config("save").as_deref() != Some("")
    {
        return false;
    }
    if server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) && slots::is_down(&Context::new(ctx)) {
        return false;
    }
    // There is none if it does not matter.
    match info_number(c"replication", c"min_slaves_good_slaves") {
        Some(good) => good >= config("min-replicas-to-write").and_then(|least| least.parse().ok()).unwrap_or(1),
        None => true,
    }
}

/// Whether the last snapshot could be written, and the AOF.
fn last_writes() -> (bool, bool) {
    let Some(field) = api!(RedisModule_ServerInfoGetFieldC) else { return (true, true) };
    let read = |info| {
        let is = |name: &CStr, value: &CStr| {
            // SAFETY: the data is there as long as it is read, and the text with it.
            unsafe {
                let text = field(info, name.as_ptr());
                !text.is_null() && CStr::from_ptr(text) == value
            }
        };
        let aof_failed = is(c"aof_enabled", c"1") && is(c"aof_last_write_status", c"err");
        Some((!is(c"rdb_last_bgsave_status", c"err"), !aof_failed))
    };
    in_info(c"persistence", read).unwrap_or((true, true))
}

/// The name of the user of the current call; `None` before Redis 7.0, which does not tell.
///
/// # Safety
/// `ctx` is that of the current call.
pub unsafe fn user_of(ctx: *mut raw::RedisModuleCtx) -> Option<Arc<[u8]>> {
    // SAFETY: the caller's promise; the string is freed once.
    unsafe {
        let user = api!(RedisModule_GetCurrentUserName)?(ctx);
        if user.is_null() {
            return None;
        }
        let name = Arc::from(guard::bytes(user));
        call!(RedisModule_FreeString(ctx, user));
        Some(name)
    }
}

/// Whether a user may run RL.ACQUIRE on a key. A user that there is no more may: the server closes its connections by
/// itself, and a module's own users have no name.
///
/// # Safety
/// The string is live.
pub unsafe fn may_acquire(user: &[u8], key: *mut raw::RedisModuleString) -> bool {
    let (Some(find), Some(free), Some(check)) = (
        api!(RedisModule_GetModuleUserFromUserName),
        api!(RedisModule_FreeModuleUser),
        api!(RedisModule_ACLCheckCommandPermissions),
    ) else {
        return true;
    };
    // SAFETY: strings of our own, which are freed once; the caller's promise.
    unsafe {
        let string = |bytes: &[u8]| call!(RedisModule_CreateString(null_mut(), bytes.as_ptr().cast(), bytes.len()));
        let name = string(user);
        let found = find(name);
        let passes = found.is_null() || {
            // Numbers and a holder, such as a call has.
            let [command, one, another, holder] = [&b"RL.ACQUIRE"[..], b"1", b"1", b"me"].map(string);
            let mut argv = [command, key, one, another, holder];
            let length = std::ffi::c_int::try_from(argv.len()).unwrap_or(0);
            let passes = check(found, argv.as_mut_ptr(), length) == super::api::OK;
            for string in [command, one, another, holder] {
                call!(RedisModule_FreeString(null_mut(), string));
            }
            free(found);
            passes
        };
        call!(RedisModule_FreeString(null_mut(), name));
        passes
    }
}
