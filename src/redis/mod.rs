//! The server: the only unsafe code, and with `module.rs` the only user of the SDK. It knows a usage by its trait
//! (encode, decode, kind), never an algorithm by name.
//!
//! Everything runs on the server's main thread, inside a call of ours; a handle never outlives that call. Functions
//! of the module API that a server may lack are optional pointers, asked at each use; the others are checked once at
//! load ([`api::missing`]), so that a call of one cannot fail.

pub mod api;
mod clock;
pub mod command;
pub mod effect;
pub mod guard;
pub mod key;
pub mod memory;
pub mod native_type;

use crate::args::KeyName;
use crate::error::Error;
use crate::limiter::{Timestamp, Usage};
use api::call;
use key::{Access, Key};
use redis_module::raw;
use std::ffi::CString;

/// One call of a command: the server's context, and the words as the server holds them.
pub struct Redis<'a> {
    ctx: *mut raw::RedisModuleCtx,
    argv: &'a [*mut raw::RedisModuleString],
}

impl<'a> Redis<'a> {
    /// # Safety
    /// `ctx` and `argv` are those of a call that lasts at least as long as `'a`.
    unsafe fn new(ctx: *mut raw::RedisModuleCtx, argv: &'a [*mut raw::RedisModuleString]) -> Redis<'a> {
        Redis { ctx, argv }
    }

    /// The instant of this call, on the server's clock. Read it once and pass it down.
    pub fn now(&self) -> Timestamp {
        clock::now()
    }

    /// Opens a key to look at it, or to change it too. `Err` if it holds anything but a `U`.
    pub fn open<U: Usage>(&self, name: KeyName, access: Access) -> Result<Key<'_, U>, Error> {
        let name = self.string(name).ok_or(Error::WrongArity)?;
        // SAFETY: `ctx` and the string are those of the call that `self` lives in.
        unsafe { Key::open(self.ctx, name, access) }
    }

    /// Whether the server is over its memory limit.
    pub fn out_of_memory(&self) -> bool {
        // SAFETY: `ctx` is that of the current call.
        let flags = unsafe { call!(RedisModule_GetContextFlags(self.ctx)) };
        api::has_flag(flags, raw::REDISMODULE_CTX_FLAGS_OOM)
    }

    /// Tells replicas and the AOF what has happened to each key, as one command.
    pub fn propagate(&self, effects: &[(KeyName, &[u8])]) {
        // SAFETY: `ctx` and the strings are those of the current call; buffers are read before the call returns.
        unsafe { effect::propagate(self.ctx, effects.iter().filter_map(|(name, text)| Some((self.string(*name)?, *text)))) }
    }

    /// Begins a reply of `length` elements.
    pub fn reply_array(&self, length: usize) {
        let length = std::ffi::c_long::try_from(length).unwrap_or(0);
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplyWithArray(self.ctx, length)) };
    }

    /// Replies an integer.
    pub fn reply_integer(&self, value: i64) {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplyWithLongLong(self.ctx, value)) };
    }

    /// Replies OK.
    pub fn reply_ok(&self) {
        // SAFETY: `ctx` is that of the current call; the text is a constant.
        unsafe { call!(RedisModule_ReplyWithSimpleString(self.ctx, c"OK".as_ptr())) };
    }

    /// Replies an error.
    pub fn reply_error(&self, error: &Error) {
        if *error == Error::WrongArity {
            // SAFETY: `ctx` is that of the current call.
            unsafe { call!(RedisModule_WrongArity(self.ctx)) };
            return;
        }
        // No error text has a NUL in it: unexpected words are escaped.
        let text = CString::new(error.to_string()).unwrap_or_default();
        // SAFETY: `ctx` is that of the current call, and the server copies the text.
        unsafe { call!(RedisModule_ReplyWithError(self.ctx, text.as_ptr())) };
    }

    /// Repeats this call, word for word, on replicas and in the AOF.
    pub fn propagate_verbatim(&self) {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplicateVerbatim(self.ctx)) };
    }

    fn string(&self, name: KeyName) -> Option<*mut raw::RedisModuleString> {
        self.argv.get(name.0).copied()
    }
}
