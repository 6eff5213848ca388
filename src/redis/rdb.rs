//! A payload of the server's snapshots, being written or read: of a key, or of what is no key.

use super::api::call;
use ratelimit_core::wire::codec::{Decoder, Encoder};
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
        // With a NUL behind: Redis 6.2 looks for a number up to the first byte that is none, past the end if need be.
        let terminated = [value, b"\0"].concat();
        // SAFETY: as above; the server copies the bytes.
        unsafe { call!(RedisModule_SaveStringBuffer(self.0, terminated.as_ptr().cast(), value.len())) }
    }
}

impl Decoder for Rdb {
    fn integer(&mut self) -> Option<u64> {
        // SAFETY: as above. A failed read returns 0 and sets the handle's error.
        unsafe {
            let value = call!(RedisModule_LoadUnsigned(self.0));
            (call!(RedisModule_IsIOError(self.0)) == 0).then_some(value)
        }
    }

    fn bytes(&mut self, most: usize) -> Option<Box<[u8]>> {
        let mut length = 0;
        // SAFETY: as above. The server's own length is what it allocated; a failed read returns null.
        unsafe {
            let start = call!(RedisModule_LoadStringBuffer(self.0, &raw mut length));
            if start.is_null() {
                return None;
            }
            let bytes = std::slice::from_raw_parts(start.cast::<u8>(), length).get(..length.min(most));
            let bytes = bytes.filter(|bytes| bytes.len() == length).map(Box::from);
            call!(RedisModule_Free(start.cast()));
            bytes
        }
    }
}
