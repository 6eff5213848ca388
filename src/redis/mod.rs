//! The server: the only unsafe code, and with `module.rs` the only user of the SDK. It knows a usage by its trait
//! (encode, decode, kind), never an algorithm by name.
//!
//! Everything runs on the server's main thread, inside a call of ours; a handle never outlives that call. Functions
//! of the module API that a server may lack are optional pointers, asked at each use; the others are checked once at
//! load ([`api::missing`]), so that a call of one cannot fail.

pub mod api;
mod clock;
pub mod command;
pub mod config;
pub mod effect;
pub mod guard;
pub mod info;
pub mod key;
pub mod listeners;
#[cfg_attr(test, allow(dead_code, reason = "tests of the core have no server to allocate from"))]
pub mod memory;
pub mod native_type;

use crate::args::{Args, KeyName};
use crate::error::Error;
use crate::limiter::Kind;
use crate::stats::CommandStats;
use api::{api, call};
pub use clock::now;
use effect::Changes;
use key::{Access, Key, StringValue};
use redis_module::raw;
use std::ffi::CString;

/// One call of a command: the server's context, and the words as the server holds them.
pub struct Redis<'a> {
    ctx: *mut raw::RedisModuleCtx,
    argv: &'a [*mut raw::RedisModuleString],
    /// Where calls of this command are counted.
    pub stats: &'static CommandStats,
}

impl<'a> Redis<'a> {
    /// # Safety
    /// `ctx` and `argv` are those of a call that lasts at least as long as `'a`.
    unsafe fn new(
        ctx: *mut raw::RedisModuleCtx,
        argv: &'a [*mut raw::RedisModuleString],
        stats: &'static CommandStats,
    ) -> Redis<'a> {
        Redis { ctx, argv, stats }
    }

    /// Opens a key to look at it, or to change it too. `Err` if it holds anything but a limiter of this kind.
    #[inline(always)]
    pub fn open(&self, name: KeyName, kind: Kind, access: Access) -> Result<Key<'_>, Error> {
        let name = self.string(name).ok_or(Error::WrongArity)?;
        // SAFETY: `ctx` and the string are those of the call that `self` lives in.
        unsafe { Key::open(self.ctx, name, kind, access) }
    }

    /// Whether the server is over its memory limit, and evicts nothing.
    ///
    /// One that evicts has done so before this call, down to its limit, and so is over it again by what the call
    /// itself takes, or has left the rest for later. What a call makes may be evicted like any other key.
    pub fn out_of_memory(&self) -> bool {
        // SAFETY: `ctx` is that of the current call.
        let flags = unsafe { call!(RedisModule_GetContextFlags(self.ctx)) };
        api::has_flag(flags, raw::REDISMODULE_CTX_FLAGS_OOM) && !api::has_flag(flags, raw::REDISMODULE_CTX_FLAGS_EVICT)
    }

    /// Tells replicas and the AOF what this call has changed.
    pub fn propagate(&self, changes: &Changes) {
        if changes.untold {
            // Nobody listens, so this goes nowhere; but the server counts a change, by which it knows when to save.
            self.propagate_verbatim();
        }
        // SAFETY: `ctx` is that of the current call.
        unsafe { changes.propagate(self.ctx) }
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

    /// Replies a string of bytes.
    pub fn reply_bytes(&self, value: &[u8]) {
        // SAFETY: `ctx` is that of the current call; the server copies the bytes.
        unsafe { call!(RedisModule_ReplyWithStringBuffer(self.ctx, value.as_ptr().cast(), value.len())) };
    }

    /// Replies that there is nothing.
    pub fn reply_null(&self) {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplyWithNull(self.ctx)) };
    }

    /// Begins a reply of `length` pairs: a map in RESP3, a flat array in RESP2.
    ///
    /// Redis 6.2 lets no module make a map, so there it is the flat array in RESP3 too. Of its replies to a module's
    /// commands only arrays have elements. What another command has replied can be passed on as it is
    /// (`RedisModule_ReplyWithCallReply`), but that command runs for a client that speaks RESP2, a script's map
    /// included. Nor does a module learn which protocol its own client speaks.
    pub fn reply_map(&self, length: usize) {
        match api!(RedisModule_ReplyWithMap) {
            Some(reply) => {
                let length = std::ffi::c_long::try_from(length).unwrap_or(0);
                // SAFETY: `ctx` is that of the current call.
                unsafe { reply(self.ctx, length) };
            }
            None => self.reply_array(length.saturating_mul(2)),
        }
    }

    /// The text of a key that holds a string; `None` if it holds anything else or nothing.
    pub fn string_value(&self, name: KeyName) -> Option<StringValue> {
        let name = self.string(name)?;
        // SAFETY: `ctx` and the string are those of the current call.
        unsafe { key::string_value(self.ctx, name) }
    }

    /// Deletes a key, whatever it holds, and tells replicas and the AOF.
    pub fn delete_foreign(&self, name: KeyName) {
        if let Some(name) = self.string(name) {
            // SAFETY: `ctx` and the string are those of the current call.
            unsafe { key::delete_foreign(self.ctx, name) };
        }
    }

    /// Whether the server only asks which arguments of this call are keys.
    fn is_asked_for_keys(&self) -> bool {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_IsKeysPositionRequest(self.ctx)) != 0 }
    }

    /// Answers which arguments are keys, of a call with numbered ones. There is nobody to send an error to.
    fn answer_keys(&self, mut args: Args, access: command::Access) {
        let flags = access.key_flags().cast_signed();
        for name in args.numbered_keys().into_iter().flat_map(|(names, _)| names) {
            let place = std::ffi::c_int::try_from(name.0).unwrap_or(0);
            // SAFETY: `ctx` is that of the current call, which asks for keys.
            unsafe {
                match api!(RedisModule_KeyAtPosWithFlags) {
                    // Without flags a call that only reads would need the right to write.
                    Some(answer) => answer(self.ctx, place, flags),
                    None => call!(RedisModule_KeyAtPos(self.ctx, place)),
                }
            }
        }
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
