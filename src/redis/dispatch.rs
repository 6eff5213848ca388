//! Entry point of a command: reads its words, runs its handler, and sends the reply.

use super::Redis;
use super::api::{OK, api, call};
use super::command::Access;
use super::guard::{bytes, panic_test_point_after_reply, strings};
use crate::reply::Reply;
use crate::server::stats::CommandStats;
use ratelimit_core::wire::args::{Args, Words};
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Properties of a command that its calls need.
#[derive(Clone, Copy)]
pub struct CommandProperties {
    /// Number of words, including the command's name; negative for a lower bound.
    pub arity: c_int,
    /// Access of a call to its keys, if the server has to ask each call for them.
    pub getkeys_access: Option<Access>,
    /// Counters of the calls.
    pub stats: &'static CommandStats,
}

/// Runs a command: calls `handler` with its words and sends the reply.
///
/// Inlined into each command, so that the compiler optimizes parsing, decision and reply together.
///
/// # Safety
/// `ctx`, `argv` and `length` are those with which the server has called the command.
#[inline(always)]
pub unsafe fn enter(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    length: c_int,
    CommandProperties { arity, getkeys_access, stats }: CommandProperties,
    handler: impl for<'a> FnOnce(&mut Redis<'a>, Args<'a>) -> Result<Reply, Error>,
) -> c_int {
    // SAFETY: the caller guarantees that the words live as long as this call.
    let argv = unsafe { strings(argv, length) };
    let words = Strings(argv);
    // SAFETY: the caller guarantees that `ctx` and `argv` are those of this call.
    let mut redis = unsafe { Redis::new(ctx, argv, stats) };
    if let Some(access) = getkeys_access
        && redis.is_key_position_request()
    {
        answer_keys(&redis, Args::new(&words), access);
        return OK;
    }
    let answer = catch_unwind(AssertUnwindSafe(|| {
        // Redis 6.2 does not check the arity of a module's commands.
        let is_arity_wrong = length < arity.saturating_abs() || (arity > 0 && length > arity);
        let answer = if is_arity_wrong { Err(Error::WrongArity) } else { handler(&mut redis, Args::new(&words)) };
        redis.finish();
        answer
    }));
    stats.calls.count();
    match answer {
        // Outside of `catch_unwind`: a panic from here on must not reply again. The caller's entry point catches it.
        Ok(Ok(reply)) => {
            redis.replies().reply(reply);
            panic_test_point_after_reply();
        }
        Ok(Err(error)) => reject(&redis, &error),
        Err(_) => {
            finish_after_panic(&mut redis);
            reject(&redis, &Error::Internal);
        }
    }
    OK
}

/// Sends an error, and counts it.
#[cold]
#[inline(never)]
fn reject(redis: &Redis, error: &Error) {
    redis.replies().error(error);
    redis.stats.errors.count();
}

/// Propagates and announces what a call had changed before it panicked. A second attempt continues after the action or
/// the event at which the first one panicked.
#[cold]
#[inline(never)]
fn finish_after_panic(redis: &mut Redis) {
    let mut finish = || catch_unwind(AssertUnwindSafe(|| redis.finish()));
    drop(finish().or_else(|_| finish()));
}

/// Reports which arguments of a call with numbered keys are keys. Errors are ignored, as no client waits for a reply.
fn answer_keys(redis: &Redis, mut args: Args, access: Access) {
    let flags = access.key_flags().cast_signed();
    for index in args.numbered_keys().into_iter().flatten() {
        let position = c_int::try_from(index.0).unwrap_or(0);
        // SAFETY: `ctx` is that of the current call, which asks for keys.
        unsafe {
            match api!(RedisModule_KeyAtPosWithFlags) {
                // Without flags, a user would need write permission for a call that only reads.
                Some(answer) => answer(redis.ctx, position, flags),
                None => call!(RedisModule_KeyAtPos(redis.ctx, position)),
            }
        }
    }
}

/// Words of a call, as the server's strings, which live and are not changed for `'a`.
struct Strings<'a>(&'a [*mut raw::RedisModuleString]);

impl Words for Strings<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn word(&self, index: usize) -> Option<&[u8]> {
        // SAFETY: the strings live, unchanged, for `'a`.
        self.0.get(index).map(|string| unsafe { bytes(*string) })
    }
}
