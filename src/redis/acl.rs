//! Permissions of the user of a waiting call: the server checks them for each call, but not for a timer.

use super::Redis;
use super::api::{OK, api, call};
use super::guard;
use ratelimit_core::wire::args::KeyIndex;
use redis_module::raw;
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

/// Returns `true` if a user may run RL.ACQUIRE on a key. A deleted user may, as the server closes its connections, and
/// users created by a module have no name.
pub fn may_acquire(redis: &Redis, user: &[u8], key: KeyIndex) -> bool {
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
        let name = string(user);
        let found = find(name);
        let passes = found.is_null() || {
            // Valid arguments of the call.
            let [command, one, another, holder] = [&b"RL.ACQUIRE"[..], b"1", b"1", b"me"].map(string);
            let mut argv = [command, key, one, another, holder];
            let length = c_int::try_from(argv.len()).unwrap_or(0);
            let passes = check(found, argv.as_mut_ptr(), length) == OK;
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
