//! The door between the server and Rust: nothing that panics gets out of it.
//!
//! A panic that reached the server would abort it, and every client with it. So each entry point runs inside
//! `catch_unwind`; a command answers an error, a callback of a type answers that it failed.

use super::api::{OK, call};
use super::command::Access;
use super::{Redis, global::global};
use crate::reply::Reply;
use crate::server::Global;
use crate::server::stats::CommandStats;
use ratelimit_core::wire::args::{Args, Words};
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
        && redis.is_asked_for_keys()
    {
        callback((), || redis.answer_keys(Args::new(&words), access));
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
            redis.reply(&reply);
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
    redis.reply_error(&error);
    stats.errors.count();
    OK
}

/// A place where a call would be cut short if it could panic: tests of a debug build have it panic there
/// ([`panic_at`]).
#[inline(always)]
pub fn point() {
    #[cfg(debug_assertions)]
    if PANIC_IN.load(Relaxed) > 0 && PANIC_IN.fetch_sub(1, Relaxed) == 1 {
        panic_at(Some(0));
    }
}

#[cfg(debug_assertions)]
static PANIC_IN: AtomicU64 = AtomicU64::new(0);

/// Panics so many points from here, or at once; `None`, never.
#[cfg(debug_assertions)]
pub fn panic_at(points: Option<u64>) {
    assert!(points != Some(0), "on purpose");
    PANIC_IN.store(points.unwrap_or(0), Relaxed);
}

/// The strings that the server passes.
///
/// # Safety
/// They live, all `length` of them, for `'a`.
pub unsafe fn strings<'a>(argv: *mut *mut raw::RedisModuleString, length: c_int) -> &'a [*mut raw::RedisModuleString] {
    let length = usize::try_from(length).unwrap_or(0);
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(argv, length) }
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

/// The bytes of a server's string.
///
/// # Safety
/// `string` is live, and not changed, for `'a`.
pub unsafe fn bytes<'a>(string: *const raw::RedisModuleString) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: the caller's promise; the server returns a pointer to `length` bytes.
    unsafe {
        let start: *const c_char = call!(RedisModule_StringPtrLen(string, &raw mut length));
        std::slice::from_raw_parts(start.cast(), length)
    }
}

/// Runs a callback of a type; if it panics, answers `failed`.
pub fn callback<T>(failed: T, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(failed)
}

/// Runs a callback that needs the state of the server; if it panics, answers `failed`.
///
/// # Safety
/// The server calls it with its lock held.
pub unsafe fn entry<T>(failed: T, run: impl FnOnce(&Global) -> T) -> T {
    // SAFETY: the caller's promise.
    callback(failed, || run(unsafe { global() }))
}

/// Makes a panic one line in the server's log.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = std::ffi::CString::new(panic.to_string().replace('\0', "")).unwrap_or_default();
        // SAFETY: a null context is allowed, and the formats are constants.
        unsafe { call!(RedisModule_Log(std::ptr::null_mut(), c"warning".as_ptr(), c"%s".as_ptr(), text.as_ptr())) };
    }));
}
