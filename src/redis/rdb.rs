//! Payloads in snapshots of the server: encoder and decoder of the values of keys and of aux data.

use super::api::call;
use ratelimit_core::Usage;
use ratelimit_core::wire::codec::{Decoder, Encoder};
use ratelimit_core::wire::packed_fields::{FieldPacker, FieldUnpacker};
use redis_module::raw;

/// Payload that a callback of the server writes or reads.
pub(super) struct Rdb(*mut raw::RedisModuleIO);

impl Rdb {
    /// # Safety
    /// `io` is the server's handle, and the payload is used within its callback.
    pub(super) unsafe fn new(io: *mut raw::RedisModuleIO) -> Rdb {
        Rdb(io)
    }
}

impl Encoder for Rdb {
    fn integer(&mut self, value: u64) {
        // SAFETY: the handle is live (see `new`).
        unsafe { call!(RedisModule_SaveUnsigned(self.0, value)) }
    }

    fn bytes(&mut self, value: &[u8]) {
        /// Maximum length of the copied strings; the server looks for numbers in shorter strings only.
        const MAX_COPIED: usize = 31;
        // Null-terminated: Redis 6.2 parses a number up to the first byte that is not a digit, even past the end.
        let mut terminated = [0; MAX_COPIED + 1];
        let start = match terminated.get_mut(..value.len().min(MAX_COPIED)) {
            Some(short) if short.len() == value.len() => {
                short.copy_from_slice(value);
                terminated.as_ptr()
            }
            _ => value.as_ptr(),
        };
        // SAFETY: the handle is live (see `new`); the server copies the bytes.
        unsafe { call!(RedisModule_SaveStringBuffer(self.0, start.cast(), value.len())) }
    }
}

impl Decoder for Rdb {
    fn integer(&mut self) -> Option<u64> {
        // SAFETY: the handle is live (see `new`). A failed read returns 0 and sets the handle's error.
        unsafe {
            let value = call!(RedisModule_LoadUnsigned(self.0));
            (call!(RedisModule_IsIOError(self.0)) == 0).then_some(value)
        }
    }

    fn bytes(&mut self, max_length: usize) -> Option<Box<[u8]>> {
        let mut length = 0;
        // SAFETY: the handle is live (see `new`). The length is that of the allocation; a failed read returns null.
        unsafe {
            let start = call!(RedisModule_LoadStringBuffer(self.0, &raw mut length));
            if start.is_null() {
                return None;
            }
            if length == 0 {
                call!(RedisModule_Free(start.cast()));
                return Some(Box::default());
            }
            // The block is from the server's allocator, which is also the global allocator of the module.
            let bytes = Box::from_raw(std::ptr::slice_from_raw_parts_mut(start.cast::<u8>(), length));
            Some(bytes).filter(|bytes| bytes.len() <= max_length)
        }
    }
}

/// Saves a usage as its packed fields.
pub(super) fn save_usage(rdb: &mut Rdb, usage: &impl Usage) {
    let mut packer = FieldPacker::new(|block: &[u8]| Encoder::bytes(rdb, block));
    usage.encode(&mut packer);
    packer.end();
}

/// Loads a usage saved by [`save_usage`]. Returns `None` if no command can have created it.
pub(super) fn load_usage<U: Usage>(rdb: &mut Rdb) -> Option<U> {
    let mut unpacker = FieldUnpacker::new(|| Decoder::bytes(rdb, usize::MAX));
    U::decode(&mut unpacker, U::VERSION).filter(|_| unpacker.is_at_end())
}
