//! Functions of the module API. Those that every supported server has are in a table, filled at load; those that a
//! server may lack are looked up at each use.

use ratelimit_core::Timestamp;
use redis_module::{Context, RedisValue, raw};
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_longlong, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

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

/// Fills the table. `Err` has the name of a function that the server lacks; in that case nothing may be allocated.
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
fn with_info<T>(section: &CStr, read: impl FnOnce(*mut raw::RedisModuleServerInfoData) -> Option<T>) -> Option<T> {
    let (get, free) = (api!(RedisModule_GetServerInfo)?, api!(RedisModule_FreeServerInfo)?);
    // SAFETY: on the server's thread; a null context is allowed. The data is freed once and not used after.
    unsafe {
        let info = get(null_mut(), section.as_ptr());
        let result = read(info);
        free(null_mut(), info);
        result
    }
}

/// Returns a number of the server's INFO; `None` if it cannot be queried or has no such field.
pub fn info_number(section: &CStr, name: &CStr) -> Option<u64> {
    let field = api!(RedisModule_ServerInfoGetFieldUnsigned)?;
    with_info(section, |info| {
        let mut failed = OK;
        // SAFETY: the data is live while it is read.
        let value = unsafe { field(info, name.as_ptr(), &raw mut failed) };
        (failed == OK).then_some(value)
    })
}

/// Returns a text of the server's INFO; `None` if it cannot be queried or has no such field.
pub fn info_text(section: &CStr, name: &CStr) -> Option<String> {
    let field = api!(RedisModule_ServerInfoGetFieldC)?;
    with_info(section, |info| {
        // SAFETY: the data, and the text in it, is live while it is read.
        unsafe {
            let text = field(info, name.as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    })
}

/// Returns the value of a setting of the server; `None` if there is no such setting, or no CONFIG.
///
/// # Safety
/// `ctx` is live.
pub unsafe fn config(ctx: *mut raw::RedisModuleCtx, name: &str) -> Option<String> {
    let RedisValue::Array(pair) = Context::new(ctx).call("CONFIG", &["GET", name]).ok()? else { return None };
    match pair.into_iter().nth(1)? {
        RedisValue::SimpleString(value) | RedisValue::BulkString(value) => Some(value),
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
    let version = info_text(c"server", c"valkey_version")?;
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    Some((numbers.next()?, numbers.next().unwrap_or(0)))
}

/// Returns the id of this node; `None` outside a cluster.
pub fn own_node_id() -> Option<&'static [u8; 40]> {
    // SAFETY: called with the server's lock held. The id is null outside a cluster, else it has 40 characters and lives
    // as long as the process.
    unsafe { api!(RedisModule_GetMyClusterID)?().cast::<[u8; 40]>().as_ref() }
}

/// Logs a warning as one line of the server's log.
pub fn warn(text: &str) {
    // SAFETY: a null context is allowed.
    unsafe { log(null_mut(), c"warning", text) };
}

/// Logs a line at a level.
///
/// # Safety
/// `ctx` is live or null.
pub unsafe fn log(ctx: *mut raw::RedisModuleCtx, level: &CStr, text: &str) {
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the caller guarantees the context; the format has one string, which the server copies.
    unsafe { call!(RedisModule_Log(ctx, level.as_ptr(), c"%s".as_ptr(), text.as_ptr())) };
}

/// Callback of a timer.
pub type TimerCallback = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void);

/// Starts a timer. Returns its identity; `None` if the server has no timers.
///
/// # Safety
/// `ctx` is live.
pub unsafe fn start_timer(
    ctx: *mut raw::RedisModuleCtx,
    delay: Duration,
    callback: TimerCallback,
) -> Option<raw::RedisModuleTimerID> {
    let delay = delay.as_millis().try_into().ok()?;
    // SAFETY: the caller guarantees that `ctx` is live; the callback is a plain function.
    Some(unsafe { api!(RedisModule_CreateTimer)?(ctx, delay, Some(callback), null_mut()) })
}

/// Returns the instant of this call on the server's clock. To be read once per call and passed on.
///
/// On Redis 7.2, Valkey 8 and later, it is the instant at which the command began: TIME, scripts and key expiry use the
/// same instant, which does not advance within a MULTI or a script. Older servers do not give modules this instant;
/// there it is the real-time clock, read at each call.
pub fn now() -> Timestamp {
    let micros = match api!(RedisModule_CachedMicroseconds) {
        // SAFETY: the function has no arguments and only reads the server's cached clock.
        Some(cached) => unsafe { cached() },
        None => real_time_micros(),
    };
    Timestamp::from_clock(micros)
}

/// Returns the real-time clock in microseconds since the epoch.
fn real_time_micros() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the function writes only to `time`. It cannot fail, as the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    // Less than a second, so it fits 32 bits, for which the division is faster.
    let micros = u32::try_from(time.tv_nsec).unwrap_or(0) / 1000;
    time.tv_sec.saturating_mul(1_000_000).saturating_add(i64::from(micros))
}

/// Outcome of a dry run of a call, which Redis 7.2 and later, and Valkey, support.
pub enum DryRun {
    /// The call would have been executed.
    Accepted,
    /// The call would have been rejected, with this `errno`.
    Rejected(i32),
    /// The server does not support dry runs.
    Unknown,
}

/// Runs a call with the flag `D` for a dry run. Servers without dry runs reject the flag as an invalid format.
///
/// # Safety
/// `run` calls `RedisModule_Call`, on the server's thread.
pub unsafe fn dry_run(run: impl FnOnce() -> *mut raw::RedisModuleCallReply) -> DryRun {
    // SAFETY: the error number is that of this thread. It is reset first, as the server does not set it on success.
    unsafe { *libc::__errno_location() = 0 };
    let reply = run();
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    if !reply.is_null() {
        // SAFETY: the reply is freed once.
        unsafe { call!(RedisModule_FreeCallReply(reply)) };
    }
    match number {
        0 => DryRun::Accepted,
        libc::EBADF => DryRun::Unknown,
        number => DryRun::Rejected(number),
    }
}

/// Result of the module API for success (`REDISMODULE_OK`).
pub const OK: c_int = 0;

/// Result of the module API for failure (`REDISMODULE_ERR`).
pub const ERR: c_int = 1;
