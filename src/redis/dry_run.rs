//! Dry runs of calls, which Redis 7.2 and later, and Valkey, support.

use super::api::call;
use redis_module::raw;

/// Outcome of a dry run.
pub enum DryRun {
    /// The call would have been executed.
    Accepted,
    /// The call would have been rejected, with this `errno`.
    Rejected(i32),
    /// The server does not support dry runs.
    Unknown,
}

/// Runs a call with the flag `D`, which servers without it treat as an invalid format.
///
/// # Safety
/// `run` calls `RedisModule_Call`, on the server's thread.
pub unsafe fn dry_run(run: impl FnOnce() -> *mut raw::RedisModuleCallReply) -> DryRun {
    // SAFETY: the error number is that of this thread. It is reset first, as the server does not set it on success.
    unsafe { *libc::__errno_location() = 0 };
    let reply = run();
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    if !reply.is_null() {
        // SAFETY: the reply is freed once.
        unsafe { call!(RedisModule_FreeCallReply(reply)) };
    }
    match number {
        0 => DryRun::Accepted,
        libc::EBADF => DryRun::Unknown,
        number => DryRun::Rejected(number),
    }
}
