//! The boundary between the server and Rust, which no panic crosses.
//!
//! A panic that reached the server would abort it. So every function that the server calls is defined by
//! [`entry_point!`](crate::redis::guard::entry_point), whose body runs inside `catch_unwind`. A command that panics
//! before its reply has begun also replies an error (`dispatch.rs`).

use super::api::{call, warn};
use redis_module::raw;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Marks a place at which a panic would interrupt a change. Tests of a debug build provoke a panic ([`panic_at`]).
#[inline(always)]
pub fn panic_test_point() {
    #[cfg(debug_assertions)]
    if POINTS_UNTIL_PANIC.load(Relaxed) > 0 && POINTS_UNTIL_PANIC.fetch_sub(1, Relaxed) == 1 {
        panic_at(Some(0));
    }
}

/// Marks the place after a reply, at which a panic must not reply again.
#[inline(always)]
pub fn panic_test_point_after_reply() {
    #[cfg(debug_assertions)]
    if PANIC_AFTER_REPLY.swap(false, Relaxed) {
        panic_at(Some(0));
    }
}

/// Number of test points until a panic; 0 for no panic.
#[cfg(debug_assertions)]
static POINTS_UNTIL_PANIC: AtomicU64 = AtomicU64::new(0);

/// Request to panic after the next reply.
#[cfg(debug_assertions)]
pub static PANIC_AFTER_REPLY: AtomicBool = AtomicBool::new(false);

/// Panics at once if `points` is 0, else at the test point of that number in later calls; `None` cancels the panic.
#[cfg(debug_assertions)]
pub fn panic_at(points: Option<u64>) {
    assert!(points != Some(0), "on purpose");
    POINTS_UNTIL_PANIC.store(points.unwrap_or(0), Relaxed);
}

/// Returns the strings that the server passes.
///
/// # Safety
/// All `length` strings of `argv` live for `'a`.
pub unsafe fn strings<'a>(argv: *mut *mut raw::RedisModuleString, length: c_int) -> &'a [*mut raw::RedisModuleString] {
    let length = usize::try_from(length).unwrap_or(0);
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees that `length` strings live for `'a`.
    unsafe { std::slice::from_raw_parts(argv, length) }
}

/// Returns the bytes of a server's string.
///
/// # Safety
/// `string` is live, and not changed, for `'a`.
pub unsafe fn bytes<'a>(string: *const raw::RedisModuleString) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: the caller guarantees that the string is live; the server returns a pointer to `length` bytes.
    unsafe {
        let start: *const c_char = call!(RedisModule_StringPtrLen(string, &raw mut length));
        std::slice::from_raw_parts(start.cast(), length)
    }
}

/// Defines a function that the server calls: `unsafe fn name(arguments) -> result, or failed => { body }`. If the body
/// panics, the function returns `failed`, or nothing if it has no result.
///
/// Only the server may call the function, with the arguments that the module API specifies.
macro_rules! entry_point {
    ($(#[$attribute:meta])* $visible:vis unsafe fn $name:ident $(<$generic:ident: $bound:path>)? (
        $($argument:ident: $argument_type:ty),* $(,)?
    ) $body:block) => {
        $crate::redis::guard::entry_point! {
            $(#[$attribute])*
            $visible unsafe fn $name $(<$generic: $bound>)? ($($argument: $argument_type),*) -> (), or () => $body
        }
    };
    ($(#[$attribute:meta])* $visible:vis unsafe fn $name:ident $(<$generic:ident: $bound:path>)? (
        $($argument:ident: $argument_type:ty),* $(,)?
    ) -> $result:ty, or $failed:expr => $body:block) => {
        $(#[$attribute])*
        $visible unsafe extern "C" fn $name $(<$generic: $bound>)? ($($argument: $argument_type),*) -> $result {
            $crate::redis::guard::catch_panic($failed, || $body)
        }
    };
}
pub(crate) use entry_point;

/// Defines a handler of a server event, by an attribute of `redis-module-macros`:
/// `attribute fn name(context, event: type) { body }`. The SDK calls it from a function for C of its own, so a panic is
/// caught here.
macro_rules! event_handler {
    ($(#[$doc:meta])* $attribute:ident fn $name:ident($context:ident, $event:ident: $type:ty) $body:block) => {
        $(#[$doc])*
        #[redis_module_macros::$attribute]
        fn $name($context: &redis_module::Context, $event: $type) {
            $crate::redis::guard::catch_panic((), || $body);
        }
    };
}
pub(crate) use event_handler;

/// Runs `run`; if it panics, returns `failed`.
#[inline(always)]
pub fn catch_panic<T>(failed: T, run: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(failed)
}

/// Logs each panic as one line of the server's log.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        warn(&panic.to_string().replace('\0', ""));
    }));
}

#[cfg(test)]
mod tests {
    use std::fs::{read_dir, read_to_string};
    use std::path::Path;

    /// Returns the lines that define a function for C or an event handler, of all sources in a folder.
    fn entry_points(folder: &Path) -> Vec<String> {
        let entries = read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let lines_of = |path: &Path| -> Vec<String> {
            let text = read_to_string(path).unwrap();
            let (linkage, handler) = ("extern \"", "_event_handler]");
            let defines = |line: &&str| {
                line.split_once(linkage).is_some_and(|(_, rest)| rest.contains(" fn "))
                    || line.trim_start().starts_with("#[") && (line.contains(handler) || line.contains("_macros::"))
            };
            text.lines().filter(defines).map(|line| format!("{}: {}", path.display(), line.trim())).collect()
        };
        entries.flat_map(|path| if path.is_dir() { entry_points(&path) } else { lines_of(&path) }).collect()
    }

    #[test]
    fn entry_points_are_defined_by_macros_that_catch_panics() {
        let definitions = entry_points(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        let is_in_macro = |line: &String| line.contains("$visible unsafe extern") || line.contains("$attribute]");
        assert!(
            definitions.len() == 2 && definitions.iter().all(is_in_macro),
            "not by a macro of guard.rs: {definitions:#?}"
        );
    }
}
