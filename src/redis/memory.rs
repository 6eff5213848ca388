//! Memory from the server's allocator, so that `used_memory`, maxmemory and MEMORY USAGE count it.

use super::api::{api, call};
use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// The server's allocator. Nothing may be allocated before [`api::fill`](super::api::fill) has returned `Ok`.
pub struct ServerAllocator;

/// Number of allocations; only debug builds count.
#[cfg(debug_assertions)]
pub static ALLOCATIONS: crate::server::stats::Counter = crate::server::stats::Counter::new();

/// The alignment that every server's blocks have. Most have 16; but a server that keeps the size of a block before it
/// (where its allocator cannot be asked: MALLOC=libc on musl) gives blocks that begin a word behind theirs.
pub const SERVER_ALIGNMENT: usize = 8;

/// Runs what a release build leaves out, and counts nothing that it asks for.
#[cfg(debug_assertions)]
pub fn uncounted<T>(run: impl FnOnce() -> T) -> T {
    let before = ALLOCATIONS.get();
    let result = run();
    ALLOCATIONS.set(before);
    result
}

// SAFETY: the server's functions are malloc, free and realloc in all but name, and nothing is allocated before they are
// known. A layout of a larger alignment than theirs gets a place within a larger block.
unsafe impl GlobalAlloc for ServerAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        #[cfg(debug_assertions)]
        ALLOCATIONS.count();
        // SAFETY: passed on from the caller.
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
        // SAFETY: as in `dealloc`; what the caller asks for is a valid layout.
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

/// A block of the server's; null if there is none to be had.
unsafe fn block(size: usize) -> *mut u8 {
    // SAFETY: the server is asked for any size, as malloc is.
    unsafe { in_place(call!(RedisModule_Alloc(size))) }
}

/// A block that was just asked for, where it is to lie.
///
/// # Safety
/// The block is the server's, and nobody else knows of it.
#[inline(always)]
unsafe fn in_place(block: *mut c_void) -> *mut u8 {
    let defragmentation = DEFRAGMENTATION.load(Relaxed);
    // SAFETY: the caller's promise.
    if defragmentation.is_null() { block.cast() } else { unsafe { better(defragmentation, block) }.cast() }
}

/// The server's handle while it has a value defragmented; else null.
static DEFRAGMENTATION: AtomicPtr<raw::RedisModuleDefragCtx> = AtomicPtr::new(null_mut());

/// The thread that it has that done on: any other, which frees large values, is let alone.
static DEFRAGMENTING: AtomicUsize = AtomicUsize::new(0);

/// Gives every block that `run` asks for a place that the server's defragmentation would leave it in. The server knows
/// of a block whether it lies well, and nothing of a block that is still to be had: so each is had first.
///
/// # Safety
/// `ctx` is the server's handle, for the length of its callback.
pub unsafe fn in_better_places<T>(ctx: *mut raw::RedisModuleDefragCtx, run: impl FnOnce() -> T) -> T {
    /// A panic ends it too.
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
    // SAFETY: it has no precondition.
    unsafe { libc::pthread_self() as usize }
}

/// The block, moved to a better place if the server has one.
///
/// # Safety
/// The block is the server's, and nobody else knows of it; the handle is live if this is its thread.
#[cold]
unsafe fn better(defragmentation: *mut raw::RedisModuleDefragCtx, block: *mut c_void) -> *mut c_void {
    if block.is_null() || DEFRAGMENTING.load(Relaxed) != this_thread() {
        return block;
    }
    // SAFETY: the caller's promise.
    let moved = api!(RedisModule_DefragAlloc).map_or(null_mut(), |defrag| unsafe { defrag(defragmentation, block) });
    if moved.is_null() { block } else { moved }
}

/// A place of that layout within a block that has room for it wherever the block begins. Where the block begins is kept
/// in the word before it.
unsafe fn aligned(layout: Layout) -> *mut u8 {
    let Some(size) = layout.size().checked_add(layout.align()) else { return null_mut() };
    // SAFETY: a block begins at a multiple of a word, and so does the place, at least a word and at most the alignment
    // behind it.
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

/// The block that a place lies in.
///
/// # Safety
/// The place came from [`aligned`].
unsafe fn block_of(place: *mut u8) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { word_before(place).read() }
}

/// Returns the word that holds the start of the block around a place.
///
/// # Safety
/// The place came from [`aligned`].
unsafe fn word_before(place: *mut u8) -> *mut *mut u8 {
    #![allow(clippy::cast_ptr_alignment, reason = "a place is aligned to more than a word")]
    // SAFETY: the caller's promise.
    unsafe { place.cast::<*mut u8>().sub(1) }
}

/// The bytes that the server's allocator really holds for `block`.
///
/// # Safety
/// `block` came from the server's allocator, for something of an alignment of at most [`SERVER_ALIGNMENT`], and is
/// live.
pub unsafe fn size(block: *const c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { call!(RedisModule_MallocSize(block.cast_mut())) }
}
