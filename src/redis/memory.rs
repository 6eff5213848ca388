//! Memory from the server's allocator, so that `used_memory`, maxmemory and MEMORY USAGE count it.

use redis_module::raw;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

/// The server's allocator. It exists only once the module is loading: nothing may allocate before.
pub struct ServerAllocator;

/// How often memory was asked for; only debug builds count.
#[cfg(debug_assertions)]
pub static ALLOCATIONS: crate::stats::Counter = crate::stats::Counter::new();

/// The largest alignment that is served. Allocators of servers lay blocks of a size at multiples of that size within
/// aligned pages, so a size that is a multiple of the alignment is aligned to it.
const ALIGNMENT: usize = 16;

/// The size to ask for, so that the block is aligned.
fn aligned(size: usize, layout: Layout) -> usize {
    size.checked_next_multiple_of(layout.align()).unwrap_or(size)
}

// SAFETY: the server's functions are malloc, free and realloc in all but name; a missing one yields null, which is
// how an allocation fails. What asks for a larger alignment than is served gets null, too.
unsafe impl GlobalAlloc for ServerAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        #[cfg(debug_assertions)]
        ALLOCATIONS.count();
        // SAFETY: passed on from the caller; the pointer is written once, at load.
        match unsafe { raw::RedisModule_Alloc } {
            // SAFETY: as malloc, any size.
            Some(alloc) if layout.align() <= ALIGNMENT => unsafe { alloc(aligned(layout.size(), layout)).cast() },
            _ => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the block came from `alloc`, so the function is there and the block is the server's.
        if let Some(free) = unsafe { raw::RedisModule_Free } {
            // SAFETY: as above.
            unsafe { free(block.cast()) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        #[cfg(debug_assertions)]
        ALLOCATIONS.count();
        // SAFETY: as in `dealloc`.
        match unsafe { raw::RedisModule_Realloc } {
            // SAFETY: as above.
            Some(realloc) if layout.align() <= ALIGNMENT => unsafe {
                realloc(block.cast(), aligned(new_size, layout)).cast()
            },
            _ => std::ptr::null_mut(),
        }
    }
}

/// The bytes that the server's allocator really holds for `block`.
///
/// # Safety
/// `block` came from the server's allocator and is live.
pub unsafe fn size(block: *const c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { super::api::call!(RedisModule_MallocSize(block.cast_mut())) }
}
