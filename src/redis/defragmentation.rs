//! Active defragmentation: values are moved to fuller pages, so that the allocator can release sparse ones.
//!
//! The server decides about one block at a time (`RedisModule_DefragAlloc`), which moves the block of the value itself.
//! Blocks that the value owns (maps, tables, names) cannot be moved that way, as only their owners can change the
//! pointers to them. So the usage is encoded and decoded again, like on a replica, and each block that this allocates
//! is moved to the place that the server prefers. A sketch renews its pieces one by one instead, and resumes in the
//! next callback when the server's time is up.
//!
//! Blocks so large that the allocator gives each of them its own pages are not moved, nor are tables so large that
//! decoding them would block the server.

use super::api::{OK, api};
use super::memory;
use ratelimit_core::{Usage, round_trip};
use redis_module::raw;
use std::ffi::{c_int, c_ulong};

/// Maximum size in bytes of a usage that a callback decodes again: some milliseconds of work.
const MAX_BYTES: usize = 512 * 1024;

/// Size in bytes of the largest block that shares its pages with others in jemalloc.
const LARGEST_SHARED: usize = 14 * 1024;

/// Moves a value and its blocks to better places. Returns nonzero if the server is to call again.
///
/// # Safety
/// `ctx` is the server's handle, valid during its callback. `value` is the address of the only pointer to a block of
/// the server's allocator.
pub unsafe fn move_value<U: Usage>(ctx: *mut raw::RedisModuleDefragCtx, value: *mut *mut U) -> c_int {
    // SAFETY: the caller guarantees that `ctx` is live and that `value` is the address of the only pointer to the
    // usage. Like any value in Rust, a usage may be moved as bytes.
    unsafe {
        let start = cursor(ctx);
        if let Some(defrag) = api!(RedisModule_DefragAlloc).filter(|_| start == 0) {
            let moved = defrag(ctx, (*value).cast());
            if !moved.is_null() {
                *value = moved.cast();
            }
        }
        let Some(usage) = (*value).as_mut() else { return 0 };
        if U::HAS_PIECES {
            let mut has_time = || api!(RedisModule_DefragShouldStop).is_none_or(|stops| stops(ctx) == 0);
            let next = memory::with_relocation(ctx, || usage.renew_pieces(start, &mut has_time));
            return c_int::from(next.is_some_and(|next| store_cursor(ctx, next)));
        }
        if is_worthwhile(usage) {
            let text = round_trip::encode(usage);
            if let Some(moved) = memory::with_relocation(ctx, || round_trip::decode(&text)) {
                *usage = moved;
            }
        }
        0
    }
}

/// Returns `true` if a usage holds blocks that are to be moved.
fn is_worthwhile<U: Usage>(usage: &U) -> bool {
    let (blocks, bytes) = (usage.free_effort().max(1), usage.heap_size());
    (1..=MAX_BYTES).contains(&bytes) && bytes.checked_div(blocks).is_some_and(|mean| mean <= LARGEST_SHARED)
}

/// Returns the cursor at which the previous callback for this value stopped; 0 in the first callback.
///
/// # Safety
/// `ctx` is live.
unsafe fn cursor(ctx: *mut raw::RedisModuleDefragCtx) -> usize {
    let mut cursor: c_ulong = 0;
    // SAFETY: the caller guarantees that `ctx` is live. The server stores no cursor for a value of few blocks, as it
    // calls back once.
    let has_cursor = api!(RedisModule_DefragCursorGet).is_some_and(|get| unsafe { get(ctx, &raw mut cursor) } == OK);
    if has_cursor { usize::try_from(cursor).unwrap_or(0) } else { 0 }
}

/// Stores the cursor at which the next callback for this value resumes. Returns `true` if the server stores it.
///
/// # Safety
/// `ctx` is live.
unsafe fn store_cursor(ctx: *mut raw::RedisModuleDefragCtx, next: usize) -> bool {
    let next = c_ulong::try_from(next).unwrap_or(0);
    // SAFETY: the caller guarantees that `ctx` is live.
    api!(RedisModule_DefragCursorSet).is_some_and(|set| unsafe { set(ctx, next) } == OK)
}
