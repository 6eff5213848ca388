//! Active defragmentation: the server has each value moved to where memory is used better, so that it can give back
//! pages that hold little.
//!
//! The server knows of one block at a time whether it lies well (`RedisModule_DefragAlloc`). The block of the value
//! itself is moved by that. What the value holds beside itself has pointers of its own (maps, tables, names), which
//! only their owners can change: so a usage is read anew from what is written of it, as a replica reads it, and every
//! block that this asks for gets a place that the server approves of. A sketch renews its pieces one by one instead,
//! and goes on in the next call where the server's time is up.
//!
//! Left where they are: blocks so large that the allocator gives each of them pages of its own, and tables so large
//! that reading them would be a pause.

use super::api::{OK, api};
use super::memory;
use ratelimit_core::{Usage, readable};
use redis_module::raw;
use std::ffi::{c_int, c_ulong};

/// Bytes that one callback may read anew: some milliseconds of work.
const MOST_BYTES: usize = 512 * 1024;

/// The largest block that shares its pages with others, in jemalloc.
const LARGEST_SHARED: usize = 14 * 1024;

/// Moves a value, and what it holds, to better places. Whether the server is to call again.
///
/// # Safety
/// `ctx` is the server's handle, for the length of its callback; `value` is the place that holds the only pointer to a
/// block of its allocator.
pub unsafe fn move_value<U: Usage>(ctx: *mut raw::RedisModuleDefragCtx, value: *mut *mut U) -> c_int {
    // SAFETY: the caller's promise. A usage may be moved as bytes, as any value in Rust.
    unsafe {
        let from = cursor(ctx);
        if let Some(defrag) = api!(RedisModule_DefragAlloc).filter(|_| from == 0) {
            let moved = defrag(ctx, (*value).cast());
            if !moved.is_null() {
                *value = moved.cast();
            }
        }
        let Some(usage) = (*value).as_mut() else { return 0 };
        if U::HAS_PIECES {
            let mut may_go_on = || api!(RedisModule_DefragShouldStop).is_none_or(|stops| stops(ctx) == 0);
            let next = memory::in_better_places(ctx, || usage.renew_pieces(from, &mut may_go_on));
            return c_int::from(next.is_some_and(|next| is_kept(ctx, next)));
        }
        if is_worthwhile(usage) {
            let text = readable::written(usage);
            if let Some(anew) = memory::in_better_places(ctx, || readable::read_back(&text)) {
                *usage = anew;
            }
        }
        0
    }
}

/// Returns `true` if a usage holds blocks that are to be moved.
fn is_worthwhile<U: Usage>(usage: &U) -> bool {
    let (blocks, bytes) = (usage.effort().max(1), usage.heap_size());
    (1..=MOST_BYTES).contains(&bytes) && bytes.checked_div(blocks).is_some_and(|mean| mean <= LARGEST_SHARED)
}

/// Returns the cursor at which the previous callback for this value stopped; 0 in the first callback.
///
/// # Safety
/// `ctx` is live.
unsafe fn cursor(ctx: *mut raw::RedisModuleDefragCtx) -> usize {
    let mut cursor: c_ulong = 0;
    // SAFETY: the caller guarantees that `ctx` is live. The server stores no cursor for a value of few blocks, as it
    // calls back once.
    let is_there = api!(RedisModule_DefragCursorGet).is_some_and(|get| unsafe { get(ctx, &raw mut cursor) } == OK);
    if is_there { usize::try_from(cursor).unwrap_or(0) } else { 0 }
}

/// Stores the cursor at which the next callback for this value resumes. Returns `true` if the server stores it.
///
/// # Safety
/// `ctx` is live.
unsafe fn is_kept(ctx: *mut raw::RedisModuleDefragCtx, next: usize) -> bool {
    let next = c_ulong::try_from(next).unwrap_or(0);
    // SAFETY: the caller guarantees that `ctx` is live.
    api!(RedisModule_DefragCursorSet).is_some_and(|set| unsafe { set(ctx, next) } == OK)
}
