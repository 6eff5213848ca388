//! The door between the server and Rust: nothing that panics gets out of it.
//!
//! A panic that reached the server would abort it, and every client with it. So each entry point runs inside
//! `catch_unwind`; a command answers an error, a callback of a type answers that it failed.

use super::api::call;
use super::global::global;
use crate::server::Global;
use redis_module::raw;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A place where a call would be cut short if it could panic: tests of a debug build have it panic there
/// ([`panic_at`]).
#[inline(always)]
pub fn panic_test_point() {
    #[cfg(debug_assertions)]
    if PANIC_IN.load(Relaxed) > 0 && PANIC_IN.fetch_sub(1, Relaxed) == 1 {
        panic_at(Some(0));
    }
}

#[cfg(debug_assertions)]
static PANIC_IN: AtomicU64 = AtomicU64::new(0);

/// After how many points from here it panics, 0 for at once; `None`, never.
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
