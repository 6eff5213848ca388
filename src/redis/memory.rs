//! Memory from the server's allocator, so that `used_memory`, maxmemory and MEMORY USAGE count it.

use super::api::{api, call};
use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// Server's allocator. Nothing may be allocated before [`api::fill`](super::api::fill) has returned `Ok`.
pub struct ServerAllocator;

/// Number of allocations; only debug builds count.
#[cfg(debug_assertions)]
pub static ALLOCATIONS: crate::server::stats::Counter = crate::server::stats::Counter::new();

/// Minimum alignment of blocks on every server. Most servers align to 16 bytes, but a server that stores the size of a
/// block in front of it (if its allocator cannot report it: MALLOC=libc on musl) returns blocks offset by a word.
pub const SERVER_ALIGNMENT: usize = 8;

/// Runs code of debug builds only, without counting its allocations.
#[cfg(debug_assertions)]
pub fn uncounted<T>(run: impl FnOnce() -> T) -> T {
    let before = ALLOCATIONS.get();
    let result = run();
    ALLOCATIONS.set(before);
    result
}

// SAFETY: the server's functions are equivalent to malloc, free and realloc, and nothing is allocated before they are
// known. A layout with a larger alignment than theirs is placed within a larger block.
unsafe impl GlobalAlloc for ServerAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        #[cfg(debug_assertions)]
        ALLOCATIONS.count();
        // SAFETY: the caller guarantees a layout of nonzero size.
        unsafe { if layout.align() <= SERVER_ALIGNMENT { block(layout.size()) } else { aligned(layout) } }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the place came from `alloc`, so the block is the server's.
        unsafe {
            let block = if layout.align() <= SERVER_ALIGNMENT { place } else { block_of(place) };
            call!(RedisModule_Free(block.cast()));
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        #[cfg(debug_assertions)]
        ALLOCATIONS.count();
        // SAFETY: as in `dealloc`; the caller guarantees that the new layout is valid.
        unsafe {
            if layout.align() <= SERVER_ALIGNMENT {
                return in_place(call!(RedisModule_Realloc(place.cast(), new_size)));
            }
            let new = aligned(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(place, new, layout.size().min(new_size));
                self.dealloc(place, layout);
            }
            new
        }
    }
}

/// Allocates a block from the server; returns null if that fails.
unsafe fn block(size: usize) -> *mut u8 {
    // SAFETY: like malloc, the server's function accepts any size.
    unsafe { in_place(call!(RedisModule_Alloc(size))) }
}

/// Returns a newly allocated block, moved to a better place during defragmentation.
///
/// # Safety
/// The block is from the server's allocator, and the caller has the only pointer to it.
#[inline(always)]
unsafe fn in_place(block: *mut c_void) -> *mut u8 {
    let defragmentation = DEFRAGMENTATION.load(Relaxed);
    // SAFETY: the caller guarantees that it has the only pointer to the block; a handle that is set is live on its
    // thread.
    if defragmentation.is_null() { block.cast() } else { unsafe { better(defragmentation, block) }.cast() }
}

/// Server's handle while a value is being defragmented; otherwise null.
static DEFRAGMENTATION: AtomicPtr<raw::RedisModuleDefragCtx> = AtomicPtr::new(null_mut());

/// Thread of the defragmentation. Allocations of other threads, which free large values, are not affected.
static DEFRAGMENTING: AtomicUsize = AtomicUsize::new(0);

/// Runs `run` and moves each block that it allocates to the place that the server's defragmentation prefers. The server
/// judges only allocated blocks, so each block is allocated first.
///
/// # Safety
/// `ctx` is the server's handle, for the length of its callback.
pub unsafe fn in_better_places<T>(ctx: *mut raw::RedisModuleDefragCtx, run: impl FnOnce() -> T) -> T {
    /// Guard that ends the defragmentation, even on a panic.
    struct Ended;
    impl Drop for Ended {
        fn drop(&mut self) {
            DEFRAGMENTATION.store(null_mut(), Relaxed);
        }
    }
    let _ended = Ended;
    DEFRAGMENTING.store(this_thread(), Relaxed);
    DEFRAGMENTATION.store(ctx, Relaxed);
    run()
}

#[allow(clippy::as_conversions, clippy::cast_possible_truncation, reason = "a number in glibc, a pointer in musl")]
fn this_thread() -> usize {
    // SAFETY: the function has no precondition.
    unsafe { libc::pthread_self() as usize }
}

/// Moves the block to a better place if the server has one; returns its address.
///
/// # Safety
/// The block is from the server's allocator, and the caller has the only pointer to it. The handle is live if this is
/// its thread.
#[cold]
unsafe fn better(defragmentation: *mut raw::RedisModuleDefragCtx, block: *mut c_void) -> *mut c_void {
    if block.is_null() || DEFRAGMENTING.load(Relaxed) != this_thread() {
        return block;
    }
    // SAFETY: the caller guarantees that it has the only pointer to the block, and that the handle is live on this
    // thread.
    let moved = api!(RedisModule_DefragAlloc).map_or(null_mut(), |defrag| unsafe { defrag(defragmentation, block) });
    if moved.is_null() { block } else { moved }
}

/// Allocates a place with this layout within a block that is large enough for any start of the block. The start of the
/// block is stored in the word before the place.
unsafe fn aligned(layout: Layout) -> *mut u8 {
    let Some(size) = layout.size().checked_add(layout.align()) else { return null_mut() };
    // SAFETY: the block and the place start at multiples of a word. The place is at least a word and at most the
    // alignment behind the start of the block.
    unsafe {
        let block = block(size);
        if block.is_null() {
            return block;
        }
        let behind = block.add(SERVER_ALIGNMENT);
        let place = behind.add(behind.align_offset(layout.align()));
        word_before(place).write(block);
        place
    }
}

/// Returns the block that contains a place.
///
/// # Safety
/// The place came from [`aligned`].
unsafe fn block_of(place: *mut u8) -> *mut u8 {
    // SAFETY: the caller guarantees that the place came from `aligned`, which has written the word.
    unsafe { word_before(place).read() }
}

/// Returns the word that holds the start of the block around a place.
///
/// # Safety
/// The place came from [`aligned`].
unsafe fn word_before(place: *mut u8) -> *mut *mut u8 {
    #![allow(clippy::cast_ptr_alignment, reason = "a place is aligned to more than a word")]
    // SAFETY: the caller guarantees that the place came from `aligned`, so there is a word of the block before it.
    unsafe { place.cast::<*mut u8>().sub(1) }
}

/// Returns the number of bytes that the server's allocator uses for `block`.
///
/// # Safety
/// `block` came from the server's allocator, for something of an alignment of at most [`SERVER_ALIGNMENT`], and is
/// live.
pub unsafe fn size(block: *const c_void) -> usize {
    // SAFETY: the caller guarantees that `block` is a live block of the server's allocator.
    unsafe { call!(RedisModule_MallocSize(block.cast_mut())) }
}
