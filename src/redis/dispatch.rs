//! The entry of a command: its words are read, its handler runs, and its reply is sent.

use super::Redis;
use super::api::{OK, api, call};
use super::command::Access;
use super::guard::{bytes, callback, strings};
use crate::reply::Reply;
use crate::server::stats::CommandStats;
use ratelimit_core::wire::args::{Args, Words};
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A command: reads its words, does what it does to keys, and says what is to be replied.
pub type Handler = fn(&mut Redis, Args) -> Result<Reply, Error>;

/// Runs a command; `asked_for_keys` says what it does to its keys if the server has to ask each call for them.
///
/// # Safety
/// `ctx`, `argv` and `length` are those that the server has called a command with.
pub unsafe fn enter(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    length: c_int,
    arity: c_int,
    asked_for_keys: Option<Access>,
    stats: &'static CommandStats,
    handler: Handler,
) -> c_int {
    // SAFETY: the caller's promise.
    let argv = unsafe { strings(argv, length) };
    // SAFETY: likewise.
    let words = unsafe { Strings::new(argv) };
    // SAFETY: likewise.
    let mut redis = unsafe { Redis::new(ctx, argv, stats) };
    if let Some(access) = asked_for_keys
        && is_asked_for_keys(&redis)
    {
        callback((), || answer_keys(&redis, Args::new(&words), access));
        return OK;
    }
    let answered = catch_unwind(AssertUnwindSafe(|| {
        if length < arity.saturating_abs() || (arity > 0 && length > arity) {
            // Redis 6.2 knows no arity of a module's commands.
            return Err(Error::WrongArity);
        }
        let answer = handler(&mut redis, Args::new(&words));
        redis.finish();
        answer
    }));
    stats.calls.count();
    let error = match answered {
        // The reply is complete before it begins, and nothing of it can panic.
        Ok(Ok(reply)) => {
            redis.replies().reply(&reply);
            return OK;
        }
        Ok(Err(error)) => error,
        Err(_) => {
            // What has been changed by then is propagated all the same, and what was propagated is done.
            let mut finish = || catch_unwind(AssertUnwindSafe(|| redis.finish()));
            drop(finish().or_else(|_| finish()));
            Error::Internal
        }
    };
    redis.replies().error(&error);
    stats.errors.count();
    OK
}

/// Whether the server only asks which arguments of this call are keys.
fn is_asked_for_keys(redis: &Redis) -> bool {
    // SAFETY: `ctx` is that of the current call.
    unsafe { call!(RedisModule_IsKeysPositionRequest(redis.ctx)) != 0 }
}

/// Answers which arguments are keys, of a call with numbered ones. There is nobody to send an error to.
fn answer_keys(redis: &Redis, mut args: Args, access: Access) {
    let flags = access.key_flags().cast_signed();
    for name in args.numbered_keys().into_iter().flatten() {
        let place = c_int::try_from(name.0).unwrap_or(0);
        // SAFETY: `ctx` is that of the current call, which asks for keys.
        unsafe {
            match api!(RedisModule_KeyAtPosWithFlags) {
                // Without flags a call that only reads would need the right to write.
                Some(answer) => answer(redis.ctx, place, flags),
                None => call!(RedisModule_KeyAtPos(redis.ctx, place)),
            }
        }
    }
}

/// The words of a call, as the server holds them.
struct Strings<'a>(&'a [*mut raw::RedisModuleString]);

impl<'a> Strings<'a> {
    /// # Safety
    /// They live, and are not changed, for `'a`.
    unsafe fn new(strings: &'a [*mut raw::RedisModuleString]) -> Strings<'a> {
        Strings(strings)
    }
}

impl Words for Strings<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn word(&self, place: usize) -> Option<&[u8]> {
        // SAFETY: `new`.
        self.0.get(place).map(|string| unsafe { bytes(*string) })
    }
}
