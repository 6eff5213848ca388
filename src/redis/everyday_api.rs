//! The functions of the module API that everyday calls use, in a table of our own: to call one takes one instruction,
//! where the SDK's pointers take four, two of which ask whether the server has the function. A call of `RL.LIMIT` makes
//! 14 of them.

use redis_module::raw;
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_long, c_longlong, c_void};
use std::mem::MaybeUninit;

/// Calls a function of the module API that everyday calls use, once the module has been loaded.
macro_rules! call_everyday {
    ($name:ident($($argument:expr),* $(,)?)) => {
        ($crate::redis::everyday_api::functions().$name)($($argument),*)
    };
}
pub(crate) use call_everyday;

macro_rules! everyday_functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by the names that they have in the module API.
        #[allow(non_snake_case, reason = "the names that they have in the module API")]
        #[derive(Clone, Copy)]
        pub struct Functions {
            $(
                /// The function of that name.
                pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,
            )*
        }

        impl Functions {
            /// `None` if the server lacks one.
            fn of_server() -> Option<Functions> {
                // SAFETY: the pointers are written once, when the module loads, before anything else of ours runs.
                unsafe { Some(Functions { $($name: raw::$name?,)* }) }
            }
        }
    };
}

type Ctx = *mut raw::RedisModuleCtx;
type Key = *mut raw::RedisModuleKey;
type Text = *mut raw::RedisModuleString;

everyday_functions! {
    RedisModule_CloseKey(Key);
    RedisModule_KeyType(Key) -> c_int;
    RedisModule_ModuleTypeGetType(Key) -> *mut raw::RedisModuleType;
    RedisModule_ModuleTypeGetValue(Key) -> *mut c_void;
    RedisModule_NotifyKeyspaceEvent(Ctx, c_int, *const c_char, Text) -> c_int;
    RedisModule_OpenKey(Ctx, Text, c_int) -> Key;
    RedisModule_ReplicateVerbatim(Ctx) -> c_int;
    RedisModule_ReplyWithArray(Ctx, c_long) -> c_int;
    RedisModule_ReplyWithLongLong(Ctx, c_longlong) -> c_int;
    RedisModule_SignalModifiedKey(Ctx, Text) -> c_int;
    RedisModule_StringPtrLen(*const raw::RedisModuleString, *mut usize) -> *const c_char;
}

struct Table(UnsafeCell<MaybeUninit<Functions>>);

// SAFETY: it is written once, as the module loads, before any other code of ours reads it.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new(MaybeUninit::uninit()));

/// Fills the table, when the module loads. `false` if the server lacks a function.
///
/// # Safety
/// Nothing of ours runs beside it, and nothing has called a function of the table yet.
pub unsafe fn fill() -> bool {
    let Some(functions) = Functions::of_server() else { return false };
    // SAFETY: the caller's promise.
    unsafe { (*TABLE.0.get()).write(functions) };
    true
}

/// The functions of the server.
///
/// # Safety
/// The module has been loaded, so that [`fill`] has returned `true`.
#[inline(always)]
pub unsafe fn functions() -> &'static Functions {
    // SAFETY: the caller's promise; nothing is written any more.
    unsafe { (*TABLE.0.get()).assume_init_ref() }
}
