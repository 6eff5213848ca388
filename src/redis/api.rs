//! How a function of the module API is called: they are pointers that the server fills in when the module loads.

use redis_module::{Context, RedisValue, raw};
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

/// Calls a function of the module API that every supported server has (see [`missing`]).
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        match redis_module::raw::$name {
            Some(function) => function($($argument),*),
            None => $crate::redis::api::unavailable(stringify!($name)),
        }
    };
}
pub(crate) use call;

/// A function of the module API that a server may lack: `Some(function)` if this one has it.
macro_rules! api {
    ($name:ident) => {{
        #[allow(unused_unsafe, reason = "used in safe code and in unsafe blocks alike")]
        // SAFETY: the pointers are written once, when the module loads, before anything else of ours runs.
        let function = unsafe { redis_module::raw::$name };
        function
    }};
}
pub(crate) use api;

macro_rules! first_missing {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), api!($name).is_none())),*]
            .into_iter()
            .find_map(|(name, missing)| missing.then_some(name))
    };
}

/// The first of the functions that the module cannot do without and that this server lacks.
pub fn missing() -> Option<&'static str> {
    first_missing!(
        RedisModule_Alloc,
        RedisModule_Call,
        RedisModule_CallReplyStringPtr,
        RedisModule_CloseKey,
        RedisModule_CreateCommand,
        RedisModule_CreateDataType,
        RedisModule_CreateString,
        RedisModule_DeleteKey,
        RedisModule_DigestAddLongLong,
        RedisModule_DigestAddStringBuffer,
        RedisModule_DigestEndSequence,
        RedisModule_EmitAOF,
        RedisModule_Free,
        RedisModule_FreeCallReply,
        RedisModule_FreeString,
        RedisModule_GetContextFlags,
        RedisModule_GetExpire,
        RedisModule_IsIOError,
        RedisModule_IsKeysPositionRequest,
        RedisModule_KeyAtPos,
        RedisModule_KeyType,
        RedisModule_LoadStringBuffer,
        RedisModule_LoadUnsigned,
        RedisModule_Log,
        RedisModule_MallocSize,
        RedisModule_ModuleTypeGetType,
        RedisModule_ModuleTypeGetValue,
        RedisModule_ModuleTypeSetValue,
        RedisModule_NotifyKeyspaceEvent,
        RedisModule_OpenKey,
        RedisModule_Realloc,
        RedisModule_Replicate,
        RedisModule_ReplicateVerbatim,
        RedisModule_ReplyWithArray,
        RedisModule_ReplyWithError,
        RedisModule_ReplyWithLongLong,
        RedisModule_ReplyWithNull,
        RedisModule_ReplyWithSimpleString,
        RedisModule_ReplyWithStringBuffer,
        RedisModule_SaveStringBuffer,
        RedisModule_SaveUnsigned,
        RedisModule_SetExpire,
        RedisModule_SetModuleOptions,
        RedisModule_SignalModifiedKey,
        RedisModule_StringPtrLen,
        RedisModule_ValueLength,
        RedisModule_WrongArity,
    )
}

/// Called only if [`missing`] has a gap: the guard turns it into an error for the client.
#[cold]
pub fn unavailable(name: &str) -> ! {
    #![allow(clippy::panic, reason = "caught by the guard; there is nothing else to answer")]
    panic!("this server lacks {name}");
}

/// Whether `flags` has the bit of `flag`.
pub fn has_flag(flags: c_int, flag: u32) -> bool {
    flags & flag.cast_signed() != 0
}

/// Whether the server is in the state that this flag stands for.
pub fn server_is(flag: u32) -> bool {
    // SAFETY: on the server's thread; a null context is allowed.
    has_flag(unsafe { call!(RedisModule_GetContextFlags(null_mut())) }, flag)
}

/// What `read` finds in a section of the server's INFO; `None` where it cannot be asked.
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

/// A number of the server's INFO; `None` where it cannot be asked or has no such field.
pub fn info_number(section: &CStr, name: &CStr) -> Option<u64> {
    let field = api!(RedisModule_ServerInfoGetFieldUnsigned)?;
    in_info(section, |info| {
        let mut failed = OK;
        // SAFETY: the data is there as long as it is read.
        let value = unsafe { field(info, name.as_ptr(), &raw mut failed) };
        (failed == OK).then_some(value)
    })
}

/// What CONFIG GET says of a setting of the server's; `None` where it has no such setting, or no CONFIG.
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

/// What the server calls with an event.
pub type Callback = unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);

/// Subscribes to one event; `false` if the server knows none of that number.
///
/// # Safety
/// `ctx` is a live context of the module's.
pub unsafe fn subscribe(ctx: *mut raw::RedisModuleCtx, id: u64, callback: Callback) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: 1 };
    // SAFETY: the caller's promise; the callback is a plain function.
    api!(RedisModule_SubscribeToServerEvent)
        .is_some_and(|subscribe| unsafe { subscribe(ctx, event, Some(callback)) } == OK)
}

/// The version of a Valkey, as two numbers; `None` of a Redis.
pub fn valkey_version() -> Option<(u32, u32)> {
    let field = api!(RedisModule_ServerInfoGetFieldC)?;
    let version = in_info(c"server", |info| {
        // SAFETY: the data is there as long as it is read, and the text with it.
        unsafe {
            let text = field(info, c"valkey_version".as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    })?;
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    Some((numbers.next()?, numbers.next().unwrap_or(0)))
}

/// What the module API returns, and is returned, for success (`REDISMODULE_OK`).
pub const OK: c_int = 0;

/// What the module API returns, and is returned, for failure (`REDISMODULE_ERR`).
pub const ERR: c_int = 1;
