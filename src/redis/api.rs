//! Functions of the module API. Those that every supported server has are in a table, filled at load; those that a
//! server may lack are looked up at each use.

use redis_module::{Context, RedisValue, raw};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Calls a function of the module API that every supported server has: one load and an indirect call. A call through a
/// pointer of the SDK takes four instructions, of which two check that the server has the function.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        ($crate::redis::api::functions().$name)($($argument),*)
    };
}
pub(crate) use call;

/// Returns a function of the module API that a server may lack: `Some(function)` if this one has it.
macro_rules! api {
    ($name:ident) => {{
        #[allow(unused_unsafe, reason = "used in safe code and in unsafe blocks alike")]
        // SAFETY: the pointers are written once, at load, before other code of the module runs.
        let function = unsafe { redis_module::raw::$name };
        function
    }};
}
pub(crate) use api;

macro_rules! functions {
    ($($name:ident($($argument:tt)*) $(-> $result:ty)?;)*) => {
        /// Functions without which the module does not load, under their names in the module API.
        #[allow(non_snake_case, reason = "names in the module API")]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument)*) $(-> $result)?,)*
        }

        impl Functions {
            /// Reads the functions of this server. `Err` has the name of the first that it lacks.
            fn of_server() -> Result<Functions, &'static CStr> {
                Ok(Functions { $($name: {
                    const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    };
                    api!($name).ok_or(NAME)?
                },)* })
            }
        }
    };
}

type CallReply = *mut raw::RedisModuleCallReply;
type Ctx = *mut raw::RedisModuleCtx;
type Digest = *mut raw::RedisModuleDigest;
type Io = *mut raw::RedisModuleIO;
type Key = *mut raw::RedisModuleKey;
type Text = *mut raw::RedisModuleString;
type Type = *mut raw::RedisModuleType;

functions! {
    RedisModule_Alloc(usize) -> *mut c_void;
    RedisModule_Call(Ctx, *const c_char, *const c_char, ...) -> CallReply;
    RedisModule_CallReplyStringPtr(CallReply, *mut usize) -> *const c_char;
    RedisModule_CloseKey(Key);
    RedisModule_CreateCommand(Ctx, *const c_char, raw::RedisModuleCmdFunc, *const c_char, c_int, c_int, c_int) -> c_int;
    RedisModule_CreateDataType(Ctx, *const c_char, c_int, *mut raw::RedisModuleTypeMethods) -> Type;
    RedisModule_CreateString(Ctx, *const c_char, usize) -> Text;
    RedisModule_DeleteKey(Key) -> c_int;
    RedisModule_DigestAddLongLong(Digest, c_longlong);
    RedisModule_DigestAddStringBuffer(Digest, *const c_char, usize);
    RedisModule_DigestEndSequence(Digest);
    RedisModule_EmitAOF(Io, *const c_char, *const c_char, ...);
    RedisModule_Free(*mut c_void);
    RedisModule_FreeCallReply(CallReply);
    RedisModule_FreeString(Ctx, Text);
    RedisModule_GetContextFlags(Ctx) -> c_int;
    RedisModule_GetExpire(Key) -> c_longlong;
    RedisModule_IsIOError(Io) -> c_int;
    RedisModule_IsKeysPositionRequest(Ctx) -> c_int;
    RedisModule_KeyAtPos(Ctx, c_int);
    RedisModule_KeyType(Key) -> c_int;
    RedisModule_LoadStringBuffer(Io, *mut usize) -> *mut c_char;
    RedisModule_LoadUnsigned(Io) -> u64;
    RedisModule_Log(Ctx, *const c_char, *const c_char, ...);
    RedisModule_MallocSize(*mut c_void) -> usize;
    RedisModule_ModuleTypeGetType(Key) -> Type;
    RedisModule_ModuleTypeGetValue(Key) -> *mut c_void;
    RedisModule_ModuleTypeSetValue(Key, Type, *mut c_void) -> c_int;
    RedisModule_NotifyKeyspaceEvent(Ctx, c_int, *const c_char, Text) -> c_int;
    RedisModule_OpenKey(Ctx, Text, c_int) -> Key;
    RedisModule_Realloc(*mut c_void, usize) -> *mut c_void;
    RedisModule_Replicate(Ctx, *const c_char, *const c_char, ...) -> c_int;
    RedisModule_ReplicateVerbatim(Ctx) -> c_int;
    RedisModule_ReplyWithArray(Ctx, c_long) -> c_int;
    RedisModule_ReplyWithError(Ctx, *const c_char) -> c_int;
    RedisModule_ReplyWithLongLong(Ctx, c_longlong) -> c_int;
    RedisModule_ReplyWithNull(Ctx) -> c_int;
    RedisModule_ReplyWithSimpleString(Ctx, *const c_char) -> c_int;
    RedisModule_ReplyWithStringBuffer(Ctx, *const c_char, usize) -> c_int;
    RedisModule_SaveStringBuffer(Io, *const c_char, usize);
    RedisModule_SaveUnsigned(Io, u64);
    RedisModule_SetExpire(Key, c_longlong) -> c_int;
    RedisModule_SetModuleOptions(Ctx, c_int);
    RedisModule_SignalModifiedKey(Ctx, Text) -> c_int;
    RedisModule_StringPtrLen(*const raw::RedisModuleString, *mut usize) -> *const c_char;
    RedisModule_ValueLength(Key) -> usize;
    RedisModule_WrongArity(Ctx) -> c_int;
}

struct Table(UnsafeCell<MaybeUninit<Functions>>);

// SAFETY: written once, as the module loads, before other code of the module reads it.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new(MaybeUninit::uninit()));

/// Fills the table. `Err` has the name of a function that the server lacks; nothing may be allocated then.
///
/// # Safety
/// The module is being loaded, and the SDK's pointers are set. No code of the module has run yet, unless the table has
/// been filled before.
pub unsafe fn fill() -> Result<(), &'static CStr> {
    static FILLED: AtomicBool = AtomicBool::new(false);
    if !FILLED.load(Relaxed) {
        let functions = Functions::of_server()?;
        // SAFETY: the caller guarantees that nothing reads the table yet.
        unsafe { (*TABLE.0.get()).write(functions) };
        FILLED.store(true, Relaxed);
    }
    Ok(())
}

/// Returns the functions of the server.
///
/// # Safety
/// [`fill`] has returned `Ok`.
#[inline(always)]
pub unsafe fn functions() -> &'static Functions {
    // SAFETY: the caller guarantees that the table is filled, and it is never written again.
    unsafe { (*TABLE.0.get()).assume_init_ref() }
}

/// Returns `true` if `flags` has the bit of `flag`.
pub fn has_flag(flags: c_int, flag: u32) -> bool {
    flags & flag.cast_signed() != 0
}

/// Returns `true` if the server is in the state of this flag.
pub fn server_is(flag: u32) -> bool {
    // SAFETY: on the server's thread; a null context is allowed.
    has_flag(unsafe { call!(RedisModule_GetContextFlags(null_mut())) }, flag)
}

/// Returns the result of `read` for a section of the server's INFO; `None` if it cannot be queried.
pub fn in_info<T>(section: &CStr, read: impl FnOnce(*mut raw::RedisModuleServerInfoData) -> Option<T>) -> Option<T> {
    let (get, free) = (api!(RedisModule_GetServerInfo)?, api!(RedisModule_FreeServerInfo)?);
    // SAFETY: on the server's thread; a null context is allowed. The data is freed once and not used after.
    unsafe {
        let info = get(null_mut(), section.as_ptr());
        let found = read(info);
        free(null_mut(), info);
        found
    }
}

/// Returns a number of the server's INFO; `None` if it cannot be queried or has no such field.
pub fn info_number(section: &CStr, name: &CStr) -> Option<u64> {
    let field = api!(RedisModule_ServerInfoGetFieldUnsigned)?;
    in_info(section, |info| {
        let mut failed = OK;
        // SAFETY: the data is live while it is read.
        let value = unsafe { field(info, name.as_ptr(), &raw mut failed) };
        (failed == OK).then_some(value)
    })
}

/// Returns the value of a setting of the server; `None` where it has no such setting, or no CONFIG.
///
/// # Safety
/// `ctx` is live.
pub unsafe fn config(ctx: *mut raw::RedisModuleCtx, name: &str) -> Option<String> {
    match Context::new(ctx).call("CONFIG", &["GET", name]).ok()? {
        RedisValue::Array(pair) => match pair.into_iter().nth(1)? {
            RedisValue::SimpleString(value) | RedisValue::BulkString(value) => Some(value),
            _ => None,
        },
        _ => None,
    }
}

/// Function that the server calls with an event.
pub type Callback = unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);

/// Subscribes to an event. Returns `false` if the server has no event of that number.
///
/// # Safety
/// `ctx` is a live context of the module.
pub unsafe fn subscribe(ctx: *mut raw::RedisModuleCtx, id: u64, callback: Callback) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    // SAFETY: the caller guarantees that `ctx` is a live context of the module; the callback is a plain function.
    api!(RedisModule_SubscribeToServerEvent)
        .is_some_and(|subscribe| unsafe { subscribe(ctx, event, Some(callback)) } == OK)
}

/// Returns the version of Valkey as two numbers; `None` for Redis.
pub fn valkey_version() -> Option<(u32, u32)> {
    let field = api!(RedisModule_ServerInfoGetFieldC)?;
    let version = in_info(c"server", |info| {
        // SAFETY: the data, and the text in it, is live while it is read.
        unsafe {
            let text = field(info, c"valkey_version".as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    })?;
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    Some((numbers.next()?, numbers.next().unwrap_or(0)))
}

/// Result of the module API for success (`REDISMODULE_OK`).
pub const OK: c_int = 0;

/// Result of the module API for failure (`REDISMODULE_ERR`).
pub const ERR: c_int = 1;
