//! One native type of the server per kind of usage, all from one set of callbacks.
//!
//! The type's pointer is the tag: a value is exactly its usage, and asking whether a key holds one is one
//! comparison. A value is a `Box` in all but name, from the server's allocator.

use super::api::{api, call, has_flag};
use super::clock::now;
use super::debug_readback::check_stored;
use super::rdb::Rdb;
use super::{defragmentation, global::global, guard, lazy_free, memory, outgoing, policy_lifetime};
use crate::server::Global;
use ratelimit_core::algorithm::bucket::BucketUsage;
use ratelimit_core::algorithm::count_min::SketchUsage;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::effect::Text;
use ratelimit_core::wire::codec::Encoder;
use ratelimit_core::{Kind, Usage};
use redis_module::raw;
use std::any::TypeId;
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The registered types, by kind. Written at load, before anything else of ours runs.
static TYPES: [Registered; Kind::ALL.len()] =
    [const { Registered { usage: OnceLock::new(), native: AtomicPtr::new(null_mut()) } }; Kind::ALL.len()];

/// A type of the server, and what its values are.
struct Registered {
    usage: OnceLock<TypeId>,
    native: AtomicPtr<raw::RedisModuleType>,
}

fn slot(kind: Kind) -> Option<&'static Registered> {
    TYPES.get(kind.index())
}

/// The server's pointer to a type of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Native(*mut raw::RedisModuleType);

impl Native {
    /// What the server knows it by; null for a type that is not registered.
    pub fn pointer(self) -> *mut raw::RedisModuleType {
        self.0
    }
}

/// The server's type whose values are of type `U`: a usage that claims another's kind has none.
#[inline(always)]
pub fn of<U: Usage>() -> Native {
    match slot(U::KIND) {
        Some(slot) if slot.usage.get() == Some(&TypeId::of::<U>()) => Native(slot.native.load(Relaxed)),
        _ => Native(null_mut()),
    }
}

/// The kind of a native type of ours.
pub fn kind(native: *mut raw::RedisModuleType) -> Option<Kind> {
    let mut kinds = Kind::ALL.into_iter().zip(&TYPES);
    kinds.find(|(_, slot)| !native.is_null() && slot.native.load(Relaxed) == native).map(|(kind, _)| kind)
}

/// Whether a native type is the one whose values are of type `U`.
#[inline(always)]
pub fn is<U: Usage>(native: *mut raw::RedisModuleType) -> bool {
    !native.is_null() && native == of::<U>().pointer()
}

/// A usage that is the only one of its kind, so that the kind's native type tells that a value is one.
///
/// # Safety
/// No other usage has its [`Usage::KIND`].
pub unsafe trait OnlyOfItsKind: Usage {}

// SAFETY: no other usage has the kind of buckets.
unsafe impl OnlyOfItsKind for BucketUsage {}
// SAFETY: no other usage has the kind of sketches.
unsafe impl OnlyOfItsKind for SketchUsage {}
// SAFETY: no other usage has the kind of composite keys.
unsafe impl OnlyOfItsKind for CompositeUsage {}

/// Whether a native type is the one whose values are of type `U`, as [`is`] says. It takes null for that of a kind that
/// is not registered: a key of that type has no value.
#[inline(always)]
pub fn is_of_only<U: OnlyOfItsKind>(native: *mut raw::RedisModuleType) -> bool {
    slot(U::KIND).is_some_and(|slot| slot.native.load(Relaxed) == native)
}

/// Registers the type for `U`. `Err` if the server refuses it.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn register<U: Usage>(ctx: *mut raw::RedisModuleCtx) -> Result<(), &'static str> {
    let name = CString::new(U::KIND.name()).unwrap_or_default();
    let version = c_int::try_from(U::VERSION).unwrap_or(c_int::MAX);
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load::<U>),
        rdb_save: Some(rdb_save::<U>),
        aof_rewrite: Some(aof_rewrite::<U>),
        mem_usage: Some(mem_usage::<U>),
        digest: Some(digest::<U>),
        free: Some(free::<U>),
        aux_load: None,
        aux_save: None,
        aux_save_triggers: 0,
        free_effort: Some(free_effort::<U>),
        unlink: None,
        copy: Some(copy::<U>),
        defrag: Some(defrag::<U>),
        mem_usage2: None,
        free_effort2: None,
        unlink2: None,
        copy2: None,
        aux_save2: None,
    };
    // SAFETY: the caller's promise; the server copies the methods and the name.
    let registered = unsafe { call!(RedisModule_CreateDataType(ctx, name.as_ptr(), version, &raw mut methods)) };
    if registered.is_null() {
        return Err("the server refuses a native type (is a module with the same types loaded?)");
    }
    // A second usage of a kind would have its values taken for the first's.
    let slot = slot(U::KIND).filter(|slot| *slot.usage.get_or_init(TypeId::of::<U>) == TypeId::of::<U>());
    slot.map(|slot| slot.native.store(registered, Relaxed)).ok_or("two native types of one kind")
}

/// Makes `usage` a value that the server can hold.
pub fn into_raw<U: Usage>(usage: U) -> *mut U {
    // The server is asked for the size of the very block, and moves it: so it must be one of its own, not one within.
    const { assert!(align_of::<U>() <= memory::SERVER_ALIGNMENT) };
    Box::into_raw(Box::new(usage))
}

/// Takes a value back.
///
/// # Safety
/// It came from [`into_raw`] (or [`defragmentation`], which moves it), and nobody holds it any more.
pub unsafe fn from_raw<U: Usage>(value: *mut U) -> U {
    // SAFETY: the caller's promise.
    *unsafe { Box::from_raw(value) }
}

/// # Safety
/// `value` is a live value of the type `U`: the server passes each callback below one of the type that it was
/// registered for.
unsafe fn usage<'a, U: Usage>(value: *const c_void) -> Option<&'a U> {
    // SAFETY: the caller's promise.
    unsafe { value.cast::<U>().as_ref() }
}

guard::entry_point! {
    /// Loads a value.
    fn rdb_load<U: Usage>(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void, or null_mut() => {
        let known = u32::try_from(version).ok().filter(|version| (1..=U::VERSION).contains(version));
        // What cannot be told for certain is refused: a payload from a later version, or one that no command made.
        let usage = known.and_then(|version| U::decode(&mut Rdb(io), version));
        usage.as_ref().inspect(|usage| check_stored(*usage));
        if let Some(token) = usage.as_ref().map(Usage::latest_token).filter(|token| *token > 0) {
            // SAFETY: the server loads with its lock held.
            fencing_token_read(unsafe { global() }, token);
        }
        usage.map_or(null_mut(), |usage| into_raw(usage).cast())
    }
}

/// Sees a fencing token in a key that is loaded, or that a client restores.
#[cold]
fn fencing_token_read(global: &Global, token: u64) {
    // SAFETY: a null context is allowed.
    let flags = unsafe { call!(RedisModule_GetContextFlags(null_mut())) };
    let is_trusted = has_flag(flags, raw::REDISMODULE_CTX_FLAGS_LOADING);
    global.fencing.see(token, is_trusted, now());
}

guard::entry_point! {
    /// Saves a value.
    fn rdb_save<U: Usage>(io: *mut raw::RedisModuleIO, value: *mut c_void) {
        // SAFETY: see `usage`.
        if let Some(usage) = unsafe { usage::<U>(value) } {
            usage.encode(&mut Rdb(io));
        }
    }
}

guard::entry_point! {
    /// Writes a value into an AOF that is rewritten.
    fn aof_rewrite<U: Usage>(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
        // SAFETY: see `usage`; the handle and the key are the server's, for the length of the callback. Whoever
        // rewrites holds the server's lock, or is a child of its own.
        unsafe {
            policy_lifetime::rewrite(global(), io);
            let Some(usage) = usage::<U>(value) else { return };
            let mut from = Some(0);
            while let Some(part) = from {
                // The expiry is not known here. The server writes a PEXPIREAT with the real one right behind.
                let (text, next) = Text::of_part(usage, part);
                let bytes = text.as_bytes();
                let start = bytes.as_ptr().cast::<std::ffi::c_char>();
                call!(RedisModule_EmitAOF(io, outgoing::COMMAND.as_ptr(), c"sb".as_ptr(), key, start, bytes.len()));
                from = next;
            }
        }
    }
}

guard::entry_point! {
    /// Returns the bytes of a value.
    fn mem_usage<U: Usage>(value: *const c_void) -> usize, or 0 => {
        // SAFETY: see `usage`; a value is a block of the server's allocator.
        let (owned, itself) = unsafe { (usage::<U>(value).map_or(0, Usage::heap_size), memory::size(value)) };
        itself.saturating_add(owned)
    }
}

guard::entry_point! {
    /// Returns the work of freeing a value: the server frees a large one in the background.
    fn free_effort<U: Usage>(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize, or 1 => {
        // SAFETY: see `usage`.
        unsafe { usage::<U>(value) }.map_or(1, Usage::effort)
    }
}

/// The digest of a value, which DEBUG DIGEST-VALUE compares.
struct Digest(*mut raw::RedisModuleDigest);

impl Encoder for Digest {
    fn integer(&mut self, value: u64) {
        // SAFETY: the server's handle, for the length of the callback.
        unsafe {
            call!(RedisModule_DigestAddLongLong(self.0, value.cast_signed()));
            call!(RedisModule_DigestEndSequence(self.0));
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        // SAFETY: as above; the server only reads the bytes.
        unsafe {
            call!(RedisModule_DigestAddStringBuffer(self.0, value.as_ptr().cast(), value.len()));
            call!(RedisModule_DigestEndSequence(self.0));
        }
    }
}

guard::entry_point! {
    /// Adds a value to the digest of its key.
    fn digest<U: Usage>(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
        // SAFETY: see `usage`.
        if let Some(usage) = unsafe { usage::<U>(value) } {
            usage.encode(&mut Digest(digest));
        }
    }
}

guard::entry_point! {
    /// Frees a value.
    fn free<U: Usage>(value: *mut c_void) {
        if !value.is_null() {
            // SAFETY: the server lets go of a value that `into_raw` made.
            lazy_free::free(unsafe { Box::from_raw(value.cast::<U>()) });
        }
    }
}

guard::entry_point! {
    /// Copies a value.
    fn copy<U: Usage>(
        _from: *mut raw::RedisModuleString,
        _to: *mut raw::RedisModuleString,
        value: *const c_void,
    ) -> *mut c_void, or null_mut() => {
        // SAFETY: see `usage`.
        unsafe { usage::<U>(value) }.map_or(null_mut(), |usage| into_raw(usage.clone()).cast())
    }
}

guard::entry_point! {
    /// Moves a value to better places.
    fn defrag<U: Usage>(
        ctx: *mut raw::RedisModuleDefragCtx,
        _key: *mut raw::RedisModuleString,
        value: *mut *mut c_void,
    ) -> c_int, or 0 => {
        // SAFETY: the server passes the place that holds the only pointer to a value of the type `U`, with its lock held.
        unsafe { defragmentation::move_value(ctx, value.cast::<*mut U>()) }
    }
}

/// Tells the server how we treat its calls back.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn set_options(ctx: *mut raw::RedisModuleCtx) {
    // A failed read is an error of ours to report, not the server's to abort on; a key opened for writing and left
    // as it was has not been modified; nothing outside the keyspace is derived from it, and policies wait until the
    // load has ended, so it may be loaded beside the old one.
    let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    // SAFETY: the caller's promise.
    unsafe {
        if server_is_valkey(ctx) {
            // VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION (Valkey 9); unknown bits are ignored by older ones.
            options |= 1 << 5;
        }
        call!(RedisModule_SetModuleOptions(ctx, options.cast_signed()));
    }
}

/// # Safety
/// `ctx` is live.
unsafe fn server_is_valkey(ctx: *mut raw::RedisModuleCtx) -> bool {
    let (Some(get), Some(field), Some(free)) =
        (api!(RedisModule_GetServerInfo), api!(RedisModule_ServerInfoGetFieldC), api!(RedisModule_FreeServerInfo))
    else {
        return false;
    };
    // SAFETY: the caller's promise; the data is freed once and not used after.
    unsafe {
        let data = get(ctx, c"server".as_ptr());
        let name = field(data, c"server_name".as_ptr());
        let is_valkey = !name.is_null() && std::ffi::CStr::from_ptr(name) == c"valkey";
        free(ctx, data);
        is_valkey
    }
}
