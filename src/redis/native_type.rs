//! Native types of the server, one per kind of usage, with a shared set of generic callbacks.
//!
//! The pointer to the native type identifies the kind, so a value is exactly its usage, and checking the type of a key
//! is one comparison. A value is equivalent to a `Box`, in memory of the server's allocator.

use super::api::{call, now, server_is, valkey_version, warn};
use super::debug_round_trip::check_stored;
use super::rdb::{Rdb, load_usage, save_usage};
use super::server_entry::module_state;
use super::{defragmentation, guard, lazy_free, memory, outgoing, policy_persistence};
use ratelimit_core::effect::EncodedText;
use ratelimit_core::wire::codec::Encoder;
use ratelimit_core::{Usage, UsageKind};
use redis_module::raw;
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Registered types by kind. Written at load, before other code of the module runs.
static TYPES: [AtomicPtr<raw::RedisModuleType>; UsageKind::ALL.len()] =
    [const { AtomicPtr::new(null_mut()) }; UsageKind::ALL.len()];

fn registered_type(kind: UsageKind) -> Option<&'static AtomicPtr<raw::RedisModuleType>> {
    TYPES.get(kind.index())
}

/// Returns the server's pointer to the native type whose values are of type `U`: no other usage has its kind (see
/// [`Usage`]). Returns null for a type that is not registered.
#[inline(always)]
pub fn of<U: Usage>() -> *mut raw::RedisModuleType {
    registered_type(U::KIND).map_or(null_mut(), |native| native.load(Relaxed))
}

/// Returns the kind of a native type of this module.
pub fn kind(native: *mut raw::RedisModuleType) -> Option<UsageKind> {
    let mut kinds = UsageKind::ALL.into_iter().zip(&TYPES);
    kinds.find(|(_, registered)| !native.is_null() && registered.load(Relaxed) == native).map(|(kind, _)| kind)
}

/// Returns `true` if a native type is the one whose values are of type `U`. Null matches an unregistered
/// kind, of which no key exists.
#[inline(always)]
pub fn is<U: Usage>(native: *mut raw::RedisModuleType) -> bool {
    native == of::<U>()
}

/// Registers the native type of `U`. Returns `Err` if the server rejects it.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn register<U: Usage>(ctx: *mut raw::RedisModuleCtx) -> Result<(), &'static str> {
    let name = CString::new(U::KIND.name()).unwrap_or_default();
    let version = stored_version::<U>();
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load::<U>),
        rdb_save: Some(rdb_save::<U>),
        aof_rewrite: Some(aof_rewrite::<U>),
        mem_usage: Some(mem_usage::<U>),
        digest: Some(digest::<U>),
        free: Some(free::<U>),
        free_effort: Some(free_effort::<U>),
        copy: Some(copy::<U>),
        defrag: Some(defrag::<U>),
        // SAFETY: a plain C struct of optional functions, for which zeros mean "none".
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: the caller guarantees that `ctx` is that of the module's load; the server copies the methods and the
    // name.
    let registered = unsafe { call!(RedisModule_CreateDataType(ctx, name.as_ptr(), version, &raw mut methods)) };
    if registered.is_null() {
        return Err("the server refuses a native type (is a module with the same types loaded?)");
    }
    if let Some(native) = registered_type(U::KIND) {
        native.store(registered, Relaxed);
    }
    Ok(())
}

/// Converts `usage` to a value that the server can hold.
pub fn into_raw<U: Usage>(usage: U) -> *mut U {
    // The server reports the size of this block and moves it, so the pointer must be to the start of a server's block.
    const { assert!(align_of::<U>() <= memory::SERVER_ALIGNMENT) };
    Box::into_raw(Box::new(usage))
}

/// Converts a value back to a usage.
///
/// # Safety
/// The value came from [`into_raw`] (or [`defragmentation`], which moves it), and no other pointer to it is used any
/// more.
pub unsafe fn from_raw<U: Usage>(value: *mut U) -> U {
    // SAFETY: the caller guarantees that `value` came from `into_raw` and is not used elsewhere.
    *unsafe { Box::from_raw(value) }
}

/// # Safety
/// `value` is a live value of the type `U`: the server passes to each callback below a value of the type for which the
/// callback was registered.
unsafe fn usage<'a, U: Usage>(value: *const c_void) -> Option<&'a U> {
    // SAFETY: the caller guarantees that `value` is a live value of the type `U`.
    unsafe { value.cast::<U>().as_ref() }
}

/// Returns the version of the payload of a usage. It is higher by one than the version of the usage, because payloads
/// before 0.1.0 had that version and no packed fields.
fn stored_version<U: Usage>() -> c_int {
    c_int::try_from(U::VERSION).unwrap_or(c_int::MAX).saturating_add(1)
}

/// Logs the reason why a payload of another version is rejected.
#[cold]
fn log_refused_version<U: Usage>(version: c_int) {
    let (kind, supported) = (U::KIND.name(), stored_version::<U>());
    let writer = if version < supported { "a version before 0.1.0" } else { "a later version" };
    let reason = format!(
        "{kind}: cannot read a payload of format {version}, written by {writer} of the module; this one reads format {supported}"
    );
    warn(&reason);
}

guard::entry_point! {
    /// Loads a value.
    unsafe fn rdb_load<U: Usage>(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void, or null_mut() => {
        if version != stored_version::<U>() {
            log_refused_version::<U>(version);
            return null_mut();
        }
        // A value that no command can have created is rejected.
        // SAFETY: the handle is that of the callback.
        let usage: Option<U> = load_usage(&mut unsafe { Rdb::new(io) });
        usage.as_ref().inspect(|usage| check_stored(*usage));
        if let Some(token) = usage.as_ref().map(Usage::latest_token).filter(|token| *token > 0) {
            // A client that restores a key may have chosen the token.
            let is_trusted = server_is(raw::REDISMODULE_CTX_FLAGS_LOADING);
            // SAFETY: the server loads with its lock held.
            unsafe { module_state() }.fencing.observe(token, is_trusted, now());
        }
        usage.map_or(null_mut(), |usage| into_raw(usage).cast())
    }
}

guard::entry_point! {
    /// Saves a value.
    unsafe fn rdb_save<U: Usage>(io: *mut raw::RedisModuleIO, value: *mut c_void) {
        // SAFETY: see `usage`.
        if let Some(usage) = unsafe { usage::<U>(value) } {
            // SAFETY: the handle is that of the callback.
            save_usage(&mut unsafe { Rdb::new(io) }, usage);
        }
    }
}

guard::entry_point! {
    /// Writes a value into an AOF that is rewritten.
    unsafe fn aof_rewrite<U: Usage>(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
        // SAFETY: see `usage`; the handle and the key are valid during the callback. The server rewrites with its lock
        // held, or in a child process.
        unsafe {
            policy_persistence::write_to_aof(module_state(), io);
            let Some(usage) = usage::<U>(value) else { return };
            let mut next_part = Some(0);
            while let Some(part) = next_part {
                // The expiry is unknown here. The server writes PEXPIREAT with the real expiry after this command.
                let (text, next) = EncodedText::of_part(usage, part);
                let bytes = text.as_bytes();
                let start = bytes.as_ptr().cast::<std::ffi::c_char>();
                call!(RedisModule_EmitAOF(io, outgoing::COMMAND.as_ptr(), c"sb".as_ptr(), key, start, bytes.len()));
                next_part = next;
            }
        }
    }
}

guard::entry_point! {
    /// Returns the size of a value in bytes.
    unsafe fn mem_usage<U: Usage>(value: *const c_void) -> usize, or 0 => {
        // SAFETY: see `usage`; a value is a block of the server's allocator.
        let (heap, block) = unsafe { (usage::<U>(value).map_or(0, Usage::heap_size), memory::block_size(value)) };
        block.saturating_add(heap)
    }
}

guard::entry_point! {
    /// Returns the work of freeing a value: the server frees a large one in the background.
    unsafe fn free_effort<U: Usage>(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize, or 1 => {
        // SAFETY: see `usage`.
        unsafe { usage::<U>(value) }.map_or(1, Usage::free_effort)
    }
}

/// Digest of a value, which DEBUG DIGEST-VALUE compares: the server's handle, used within its callback.
struct Digest(*mut raw::RedisModuleDigest);

impl Encoder for Digest {
    fn integer(&mut self, value: u64) {
        // SAFETY: the handle is live during its callback.
        unsafe {
            call!(RedisModule_DigestAddLongLong(self.0, value.cast_signed()));
            call!(RedisModule_DigestEndSequence(self.0));
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        // SAFETY: the handle is live during its callback; the server only reads the bytes.
        unsafe {
            call!(RedisModule_DigestAddStringBuffer(self.0, value.as_ptr().cast(), value.len()));
            call!(RedisModule_DigestEndSequence(self.0));
        }
    }
}

guard::entry_point! {
    /// Adds a value to the digest of its key.
    unsafe fn digest<U: Usage>(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
        // SAFETY: see `usage`.
        if let Some(usage) = unsafe { usage::<U>(value) } {
            usage.encode(&mut Digest(digest));
        }
    }
}

guard::entry_point! {
    /// Frees a value.
    unsafe fn free<U: Usage>(value: *mut c_void) {
        if !value.is_null() {
            // SAFETY: the server releases a value that `into_raw` has created.
            lazy_free::free(unsafe { Box::from_raw(value.cast::<U>()) });
        }
    }
}

guard::entry_point! {
    /// Copies a value.
    unsafe fn copy<U: Usage>(
        _from: *mut raw::RedisModuleString,
        _to: *mut raw::RedisModuleString,
        value: *const c_void,
    ) -> *mut c_void, or null_mut() => {
        // SAFETY: see `usage`.
        unsafe { usage::<U>(value) }.map_or(null_mut(), |usage| into_raw(usage.clone()).cast())
    }
}

guard::entry_point! {
    /// Defragments a value.
    unsafe fn defrag<U: Usage>(
        ctx: *mut raw::RedisModuleDefragCtx,
        _key: *mut raw::RedisModuleString,
        value: *mut *mut c_void,
    ) -> c_int, or 0 => {
        // SAFETY: with its lock held, the server passes the address of the only pointer to a value of the type `U`.
        unsafe { defragmentation::move_value(ctx, value.cast::<*mut U>()) }
    }
}

/// Sets the options of the module.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn set_options(ctx: *mut raw::RedisModuleCtx) {
    // In this order: the module reports failed reads, so the server need not abort; opening a key for writing does not
    // count as a modification; an asynchronous load is supported, as no state is derived from the keyspace, and
    // policies are replaced only at the end of a load.
    let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    if valkey_version().is_some() {
        // VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION (Valkey 9); older versions ignore the bit.
        options |= 1 << 5;
    }
    // SAFETY: the caller guarantees that `ctx` is that of the module's load.
    unsafe { call!(RedisModule_SetModuleOptions(ctx, options.cast_signed())) };
}
