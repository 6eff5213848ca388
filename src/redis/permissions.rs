//! Permissions of a waiting call, which the server checks for each call of a client, but not for a timer: those of the
//! user of the call, and the permission to write.
//!
//! The server rejects writes while it has too few replicas (`min-replicas-to-write`), and after a snapshot or the AOF
//! could not be written. Redis 7.2 and later, and Valkey, can check a call without executing it. On earlier servers the
//! module reads INFO and CONFIG.

use super::api::{DryRun, OK, api, call, config, dry_run, info_number, info_text, server_is};
use super::server_entry::ServerEntry;
use super::{Redis, cluster_slots, guard, policy_persistence};
use ratelimit_core::wire::args::KeyIndex;
use redis_module::{Context, raw};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

/// Returns the name of the user of the current call; `None` before Redis 7.0, which does not report it.
///
/// # Safety
/// `ctx` is that of the current call.
pub(super) unsafe fn user_of(ctx: *mut raw::RedisModuleCtx) -> Option<Arc<[u8]>> {
    // SAFETY: the caller guarantees that `ctx` is that of the current call; the string is freed once.
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

/// Returns `true` if a user may run RL.ACQUIRE on a key, or if there is no user of that name: the server closes the
/// connections of a deleted user, and users created by a module have no name.
pub fn may_acquire(redis: &Redis, user_name: &[u8], key: KeyIndex) -> bool {
    let Ok(key) = redis.string(key) else { return true };
    let (Some(find), Some(free), Some(check)) = (
        api!(RedisModule_GetModuleUserFromUserName),
        api!(RedisModule_FreeModuleUser),
        api!(RedisModule_ACLCheckCommandPermissions),
    ) else {
        return true;
    };
    // SAFETY: the strings created here are freed once; the string of the key is one of the current call.
    unsafe {
        let string = |bytes: &[u8]| call!(RedisModule_CreateString(null_mut(), bytes.as_ptr().cast(), bytes.len()));
        let name = string(user_name);
        let user = find(name);
        let passes = user.is_null() || {
            // Valid arguments of the call.
            let [command, limit, ttl, holder] = [&b"RL.ACQUIRE"[..], b"1", b"1", b"me"].map(string);
            let mut argv = [command, key, limit, ttl, holder];
            let length = c_int::try_from(argv.len()).unwrap_or(0);
            let passes = check(user, argv.as_mut_ptr(), length) == OK;
            for string in [command, limit, ttl, holder] {
                call!(RedisModule_FreeString(null_mut(), string));
            }
            free(user);
            passes
        };
        call!(RedisModule_FreeString(null_mut(), name));
        passes
    }
}

/// Returns `true` if this server may propagate writes now.
pub fn may_propagate_now() -> bool {
    const EXCLUDED_STATES: [u32; 2] = [raw::REDISMODULE_CTX_FLAGS_LOADING, raw::REDISMODULE_CTX_FLAGS_READONLY];
    policy_persistence::may_propagate() && !EXCLUDED_STATES.into_iter().any(server_is)
}

/// Returns `true` if the server now accepts writes of a timer or an event.
pub fn accepts_writes(entry: ServerEntry) -> bool {
    let ctx = entry.ctx;
    // SAFETY: the context is that of the entry. The call is a write without a key, whose arguments are not read.
    let outcome = unsafe {
        dry_run(|| call!(RedisModule_Call(ctx, policy_persistence::COMMAND.as_ptr(), c"SDc".as_ptr(), c"".as_ptr())))
    };
    match outcome {
        DryRun::Accepted => true,
        // A call without keys is rejected with EPERM only if every call is, which does not depend on writes.
        // SAFETY: the context is that of the entry.
        DryRun::Unknown | DryRun::Rejected(libc::EPERM) => unsafe { has_no_write_failure(ctx) },
        DryRun::Rejected(_) => false,
    }
}

/// Returns `true` if INFO and CONFIG show no reason for the server to reject writes.
///
/// # Safety
/// `ctx` is that of a timer or of an event.
unsafe fn has_no_write_failure(ctx: *mut raw::RedisModuleCtx) -> bool {
    // SAFETY: the caller guarantees that `ctx` is that of a timer or of an event.
    let config = |name| unsafe { config(ctx, name) };
    // On a writable replica the server checks none of this.
    if server_is(raw::REDISMODULE_CTX_FLAGS_SLAVE) {
        return true;
    }
    let persistence_is = |field, value| info_text(c"persistence", field).as_deref() == Some(value);
    let aof_failed = persistence_is(c"aof_enabled", "1") && persistence_is(c"aof_last_write_status", "err");
    let snapshot_failed = persistence_is(c"rdb_last_bgsave_status", "err");
    // If CONFIG is not available, the server's default applies.
    if aof_failed
        || snapshot_failed
            && config("stop-writes-on-bgsave-error").as_deref() != Some("no")
            && config("save").as_deref() != Some("")
    {
        return false;
    }
    if server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) && cluster_slots::is_down(&Context::new(ctx)) {
        return false;
    }
    // The field is missing if `min-replicas-to-write` is off.
    match info_number(c"replication", c"min_slaves_good_slaves") {
        Some(good_replicas) => {
            good_replicas >= config("min-replicas-to-write").and_then(|minimum| minimum.parse().ok()).unwrap_or(1)
        }
        None => true,
    }
}
