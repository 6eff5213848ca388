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
        unsafe { if layout.align() <= SERVER_ALIGNMENT { alloc_block(layout.size()) } else { alloc_aligned(layout) } }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the address came from `alloc`, so the block is the server's.
        unsafe {
            let block = if layout.align() <= SERVER_ALIGNMENT { address } else { word_before(address).read() };
            call!(RedisModule_Free(block.cast()));
        }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        #[cfg(debug_assertions)]
        ALLOCATIONS.count();
        // SAFETY: as in `dealloc`; the caller guarantees that the new layout is valid.
        unsafe {
            if layout.align() <= SERVER_ALIGNMENT {
                return relocated(call!(RedisModule_Realloc(address.cast(), new_size)));
            }
            let new = alloc_aligned(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(address, new, layout.size().min(new_size));
                self.dealloc(address, layout);
            }
            new
        }
    }
}

/// Allocates a block from the server; returns null if that fails.
unsafe fn alloc_block(size: usize) -> *mut u8 {
    // SAFETY: like malloc, the server's function accepts any size.
    unsafe { relocated(call!(RedisModule_Alloc(size))) }
}

/// Returns a newly allocated block. While a value is being defragmented, moves the block first.
///
/// # Safety
/// The block is from the server's allocator, and the caller has the only pointer to it.
#[inline(always)]
unsafe fn relocated(block: *mut c_void) -> *mut u8 {
    let defragmentation = DEFRAGMENTATION.load(Relaxed);
    // SAFETY: the caller guarantees that it has the only pointer to the block; a handle that is set is live on its
    // thread.
    if defragmentation.is_null() { block.cast() } else { unsafe { relocate(defragmentation, block) }.cast() }
}

/// Server's handle while a value is being defragmented; otherwise null.
static DEFRAGMENTATION: AtomicPtr<raw::RedisModuleDefragCtx> = AtomicPtr::new(null_mut());

/// Thread of the defragmentation. Allocations of other threads, which free large values, are not affected.
static DEFRAGMENTING_THREAD: AtomicUsize = AtomicUsize::new(0);

/// Runs `run` and moves each block that it allocates to the place that the server's defragmentation prefers. The server
/// judges only allocated blocks, so each block is allocated first.
///
/// # Safety
/// `ctx` is the server's handle, for the length of its callback.
pub unsafe fn with_relocation<T>(ctx: *mut raw::RedisModuleDefragCtx, run: impl FnOnce() -> T) -> T {
    /// Guard that ends the defragmentation, even on a panic.
    struct EndOnDrop;
    impl Drop for EndOnDrop {
        fn drop(&mut self) {
            DEFRAGMENTATION.store(null_mut(), Relaxed);
        }
    }
    let _end = EndOnDrop;
    DEFRAGMENTING_THREAD.store(this_thread(), Relaxed);
    DEFRAGMENTATION.store(ctx, Relaxed);
    run()
}

#[allow(clippy::as_conversions, clippy::cast_possible_truncation, reason = "a number in glibc, a pointer in musl")]
fn this_thread() -> usize {
    // SAFETY: the function has no precondition.
    unsafe { libc::pthread_self() as usize }
}

/// Moves a block to the place that the server's defragmentation prefers, if there is one. Returns its address.
///
/// # Safety
/// The block is from the server's allocator, and the caller has the only pointer to it. The handle is live if this is
/// its thread.
#[cold]
unsafe fn relocate(defragmentation: *mut raw::RedisModuleDefragCtx, block: *mut c_void) -> *mut c_void {
    if block.is_null() || DEFRAGMENTING_THREAD.load(Relaxed) != this_thread() {
        return block;
    }
    // SAFETY: the caller guarantees that it has the only pointer to the block, and that the handle is live on this
    // thread.
    let moved = api!(RedisModule_DefragAlloc).map_or(null_mut(), |defrag| unsafe { defrag(defragmentation, block) });
    if moved.is_null() { block } else { moved }
}

/// Allocates a block that contains an address of this layout wherever the block starts, and returns the address. The
/// word before the address stores the start of the block.
unsafe fn alloc_aligned(layout: Layout) -> *mut u8 {
    let Some(size) = layout.size().checked_add(layout.align()) else { return null_mut() };
    // SAFETY: the block and the address are multiples of a word. The address is at least a word and at most the
    // alignment after the start of the block.
    unsafe {
        let block = alloc_block(size);
        if block.is_null() {
            return block;
        }
        let earliest = block.add(SERVER_ALIGNMENT);
        let address = earliest.add(earliest.align_offset(layout.align()));
        word_before(address).write(block);
        address
    }
}

/// Returns the word that holds the start of the block around an address.
///
/// # Safety
/// The address came from [`alloc_aligned`].
unsafe fn word_before(address: *mut u8) -> *mut *mut u8 {
    #![allow(clippy::cast_ptr_alignment, reason = "the address is aligned to more than a word")]
    // SAFETY: the caller guarantees that the address came from `alloc_aligned`, so there is a word of the block before
    // it.
    unsafe { address.cast::<*mut u8>().sub(1) }
}

/// Returns the number of bytes that the server's allocator uses for `block`.
///
/// # Safety
/// `block` came from the server's allocator, for a value whose alignment is at most [`SERVER_ALIGNMENT`], and is live.
pub unsafe fn block_size(block: *const c_void) -> usize {
    // SAFETY: the caller guarantees that `block` is a live block of the server's allocator.
    unsafe { call!(RedisModule_MallocSize(block.cast_mut())) }
}
