//! What happens when a server loads the module: the tables of kinds and commands, and their registration.

use crate::command::{algorithm, docs, effect};
use crate::limiter::bucket::BucketUsage;
use crate::limiter::fixed_window::WindowUsage;
use crate::limiter::sliding_window::SliderUsage;
use crate::limiter::{Kind, Usage};
use crate::redis::command::{Access, Command, Keys};
use crate::redis::effect::Applier;
use crate::redis::{api, command, guard, memory, native_type};
use redis_module::raw;
use std::ffi::{CString, c_int};

#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: memory::ServerAllocator = memory::ServerAllocator;

/// The module's name: its settings are `ratelimit.*`.
const NAME: &std::ffi::CStr = c"ratelimit";

/// The version that MODULE LIST shows: 0.1.0 as 100 (a hundred a minor version, ten thousand a major one).
const VERSION: c_int = 100;

/// What the module knows of a kind of usage.
pub struct KindRow {
    /// The kind.
    pub kind: Kind,
    /// How an effect on it is applied.
    pub applier: Applier,
    register: unsafe fn(*mut raw::RedisModuleCtx) -> Result<(), &'static str>,
}

impl KindRow {
    const fn of<U: Usage>() -> KindRow {
        KindRow { kind: U::KIND, applier: Applier::of::<U>(), register: native_type::register::<U> }
    }
}

/// Every kind of usage.
pub static KINDS: [KindRow; Kind::ALL.len()] =
    [KindRow::of::<BucketUsage>(), KindRow::of::<WindowUsage>(), KindRow::of::<SliderUsage>()];

/// The entry point of a handler.
macro_rules! entry {
    ($handler:path) => {{
        unsafe extern "C" fn entry(
            ctx: *mut raw::RedisModuleCtx,
            argv: *mut *mut raw::RedisModuleString,
            argc: c_int,
        ) -> c_int {
            // SAFETY: called by the server, with what `enter` asks for.
            unsafe { guard::enter(ctx, argv, argc, $handler) }
        }
        entry
    }};
}

/// Every command.
static COMMANDS: [Command; 7] = [
    Command {
        name: c"rl.tokenbucket",
        entry: entry!(algorithm::token_bucket),
        access: Access::Take,
        keys: Keys::First,
        arity: -5,
        summary: c"Takes from a token bucket: a burst of capacity, refilled continuously by refill per period.",
        complexity: c"O(1)",
        args: docs::TOKEN_BUCKET,
    },
    Command {
        name: c"rl.leakybucket",
        entry: entry!(algorithm::leaky_bucket),
        access: Access::Take,
        keys: Keys::First,
        arity: -5,
        summary: c"Queues in a leaky bucket of capacity, which requests leave at leak per period; tells when its turn comes.",
        complexity: c"O(1)",
        args: docs::LEAKY_BUCKET,
    },
    Command {
        name: c"rl.fixed",
        entry: entry!(algorithm::fixed_window),
        access: Access::Take,
        keys: Keys::First,
        arity: -4,
        summary: c"Takes from a fixed window: limit per window, opened by the first admitted call or aligned to the clock.",
        complexity: c"O(1)",
        args: docs::FIXED,
    },
    Command {
        name: c"rl.sliding",
        entry: entry!(algorithm::sliding_window),
        access: Access::Take,
        keys: Keys::First,
        arity: -4,
        summary: c"Takes from a sliding window, estimated from the counts of the current and the previous window.",
        complexity: c"O(1)",
        args: docs::SLIDING,
    },
    Command {
        name: c"rl.take",
        entry: entry!(algorithm::take),
        access: Access::Take,
        keys: Keys::First,
        arity: -5,
        summary: c"Takes from a limiter of any algorithm.",
        complexity: c"O(1)",
        args: docs::TAKE,
    },
    Command {
        name: c"rl.peek",
        entry: entry!(algorithm::peek),
        access: Access::Peek,
        keys: Keys::First,
        arity: -5,
        summary: c"Tells what RL.TAKE would answer, and changes nothing.",
        complexity: c"O(1)",
        args: docs::TAKE,
    },
    Command {
        name: c"rl.effect",
        entry: entry!(effect::effect),
        access: Access::Effect,
        keys: Keys::EveryOther,
        arity: -3,
        summary: c"Internal: sets limiters as another server had them.",
        complexity: c"O(N) with N the number of keys",
        args: docs::EFFECT,
    },
];

/// Called by the server (Redis, or Valkey, which knows both names) to load the module.
///
/// # Safety
/// For the server alone.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name that servers look for")]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server's own context. Until this has filled in the module API nothing may allocate.
    let started = unsafe {
        raw::Export_RedisModule_Init(ctx, NAME.as_ptr(), VERSION, raw::REDISMODULE_APIVER_1.cast_signed())
    };
    if started != api::OK {
        return api::ERR;
    }
    guard::log_panics();
    // SAFETY: the server's own context, during the load.
    match guard::callback(Err("internal error".to_owned()), || unsafe { load(ctx) }) {
        Ok(()) => api::OK,
        Err(reason) => {
            let reason = CString::new(format!("module ratelimit not loaded: {reason}")).unwrap_or_default();
            // SAFETY: as above.
            unsafe { api::call!(RedisModule_Log(ctx, c"warning".as_ptr(), c"%s".as_ptr(), reason.as_ptr())) };
            api::ERR
        }
    }
}

/// # Safety
/// `ctx` is that of the module's load.
unsafe fn load(ctx: *mut raw::RedisModuleCtx) -> Result<(), String> {
    if let Some(name) = api::missing() {
        return Err(format!("this server is too old, it lacks {name}; Redis 6.2 or Valkey 8 is needed"));
    }
    // SAFETY: the caller's promise.
    unsafe {
        native_type::set_options(ctx);
        for row in &KINDS {
            (row.register)(ctx)?;
        }
        command::add_category(ctx);
        for row in &COMMANDS {
            command::register(ctx, row)?;
        }
    }
    Ok(())
}
