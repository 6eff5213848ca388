//! The entry of a command: its words are read, its handler runs, and its reply is sent.

use super::Redis;
use super::api::{OK, api, call};
use super::command::Access;
use super::global::global;
use super::guard::{bytes, panic_test_point_after_reply, strings};
use super::key::FastCall;
use crate::reply::Reply;
use crate::server::stats::CommandStats;
use ratelimit_core::wire::args::{Args, Words};
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What all calls of a command have in common.
#[derive(Clone, Copy)]
pub struct Calls {
    /// The number of words, the command's name included; negative for at least as many.
    pub arity: c_int,
    /// What a call does to its keys, if the server has to ask each call for them.
    pub asked_for_keys: Option<Access>,
    /// Where they are counted.
    pub stats: &'static CommandStats,
}

/// Runs a command: by `fast_path`, if that serves the call and has replied, else by `handler`.
///
/// It is inlined into each command, so that the compiler makes of reading, deciding and replying one piece.
///
/// # Safety
/// `ctx`, `argv` and `length` are those that the server has called a command with.
#[inline(always)]
pub unsafe fn enter(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    length: c_int,
    Calls { arity, asked_for_keys, stats }: Calls,
    fast_path: impl FnOnce(&FastCall) -> bool,
    handler: impl for<'a> FnOnce(&mut Redis<'a>, Args<'a>) -> Result<Reply, Error>,
) -> c_int {
    // SAFETY: the caller's promise.
    let argv = unsafe { strings(argv, length) };
    // SAFETY: likewise.
    let call = unsafe { FastCall::new(ctx, argv, global(), stats) };
    match catch_unwind(AssertUnwindSafe(|| fast_path(&call))) {
        Ok(false) => {}
        answered => {
            stats.calls.count();
            if answered.is_err() {
                call.replies().error(&Error::Internal);
                stats.errors.count();
            }
            return OK;
        }
    }
    let is_asked = asked_for_keys.filter(|_| call.is_asked_for_keys());
    // SAFETY: likewise.
    let words = unsafe { Strings::new(argv) };
    // SAFETY: likewise.
    let mut redis = unsafe { Redis::on_slow_path(ctx, argv, call) };
    if let Some(access) = is_asked {
        answer_keys(&redis, Args::new(&words), access);
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
        // Outside of `catch_unwind`: a panic from here on must not reply again. The entry point catches it.
        Ok(Ok(reply)) => {
            redis.replies().reply(&reply);
            panic_test_point_after_reply();
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
