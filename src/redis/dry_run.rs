//! Calls that are tried without being carried out, which servers can from Redis 7.2 on, and Valkey.

use super::api::call;
use redis_module::raw;

/// Outcome of a call that was tried without being carried out.
pub enum Tried {
    /// The call would have been carried out.
    Passed,
    /// The call would have been refused, with that number of an error.
    Refused(i32),
    /// This server can try none.
    Unknown,
}

/// Tries a call with the flag `D`, which servers without it take for a mistake in the format.
///
/// # Safety
/// `run` calls `RedisModule_Call`, on the server's thread.
pub unsafe fn try_call(run: impl FnOnce() -> *mut raw::RedisModuleCallReply) -> Tried {
    // SAFETY: this thread's own error number. The server sets it, but not if all is well.
    unsafe { *libc::__errno_location() = 0 };
    let reply = run();
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    if !reply.is_null() {
        // SAFETY: the reply is freed once.
        unsafe { call!(RedisModule_FreeCallReply(reply)) };
    }
    match number {
        0 => Tried::Passed,
        libc::EBADF => Tried::Unknown,
        number => Tried::Refused(number),
    }
}
