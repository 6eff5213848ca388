//! Load of the module: the table of commands, and the order of registrations.

#![allow(unsafe_code, reason = "the server passes pointers to the load function")]

use crate::command::usage_kinds::KINDS;
use crate::command::{
    docs, rl_effect, rl_info, rl_leases_and_bans, rl_limit, rl_mtake, rl_policies, rl_take, rl_throttle,
};
#[cfg(debug_assertions)]
use crate::redis::Redis;
use crate::redis::command::{Access, Command, Keys};
use crate::redis::dispatch::{self, CommandProperties};
use crate::redis::{self, api, command, guard, lazy_free, native_type};
use crate::server::settings;
use crate::server::stats::CommandStats;
use crate::version;
use crate::waiting;
use redis_module::raw;
use std::ffi::{CStr, c_int};

#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: redis::memory::ServerAllocator = redis::memory::ServerAllocator;

/// Name of the module, which prefixes its settings: `ratelimit.*`.
const NAME: &CStr = c"ratelimit";

/// Row of the table of commands: name and handler, access to the keys and their position, arity, arguments, and the
/// summary and complexity for COMMAND DOCS.
macro_rules! command {
    (
        $name:literal = $handler:path, $access:ident on $keys:ident, arity $arity:literal, $args:ident,
        $summary:literal,
        $complexity:literal
    ) => {{
        static STATS: CommandStats = CommandStats::new();
        const PROPERTIES: CommandProperties = CommandProperties {
            arity: $arity,
            getkeys_access: Keys::$keys.getkeys_access(Access::$access),
            stats: &STATS,
        };
        guard::entry_point! {
            unsafe fn entry(
                ctx: *mut raw::RedisModuleCtx,
                argv: *mut *mut raw::RedisModuleString,
                length: c_int,
            ) -> c_int, or api::OK => {
                // SAFETY: the server calls this function, with the pointers that `enter` requires.
                unsafe { dispatch::enter(ctx, argv, length, PROPERTIES, $handler) }
            }
        }
        Command {
            name: $name,
            entry,
            access: Access::$access,
            keys: Keys::$keys,
            arity: $arity,
            summary: $summary,
            complexity: $complexity,
            args: docs::$args,
            stats: &STATS,
        }
    }};
}

/// Returns the commands to register.
fn commands() -> impl Iterator<Item = &'static Command> + Clone {
    let always_registered = ALGORITHMS.iter().chain(COMMANDS);
    always_registered.chain((settings::CELL_COMPAT.get() != 0).then_some(&CL_THROTTLE))
}

macro_rules! commands {
    ({} $($algorithm:ident = $name:literal $word:literal, $arguments:tt $options:ident, {
        $($(#[doc = $syntax:literal])+ $command:literal, arity $arity:literal, $summary:literal, $complexity:literal)?
    };)+) => {
        &[$($(command! {
            $command = rl_take::$algorithm, Take on First, arity $arity, $algorithm, $summary, $complexity
        },)?)+]
    };
}

/// Commands generated from the core's list of algorithms.
static ALGORITHMS: &[Command] = rl_take::command_lines!(commands, {});

/// Commands written out by hand.
static COMMANDS: &[Command] = &[
    command! {
        c"rl.acquire" = rl_leases_and_bans::acquire, TakeOrWait on First, arity -5, ACQUIRE,
        c"Acquires or renews a lease of a concurrency limit, which expires after ttl.",
        c"O(log N) with N the number of leases, amortized; if denied, O(log N + K) with K leases that expire first"
    },
    command! {
        c"rl.release" = rl_leases_and_bans::release, Take on First, arity -3, RELEASE,
        c"Releases leases of a concurrency limit; returns how many were held.",
        c"O(M log N) with M the number of holders given and N that of leases, amortized"
    },
    command! {
        c"rl.mtake" = rl_mtake::take, Take on Numbered, arity -4, MULTI,
        c"Takes from limits on several keys, all or nothing.",
        c"O(N) with N the number of keys, each at the cost of its algorithm"
    },
    command! {
        c"rl.mpeek" = rl_mtake::peek, Peek on Numbered, arity -4, MULTI_PEEK,
        c"Returns what RL.MTAKE would return, and changes nothing.",
        c"O(N) with N the number of keys, each at the cost of its algorithm"
    },
    command! {
        c"rl.sketch" = rl_take::sketch, Take on First, arity -6, SKETCH,
        c"Takes from the token bucket of an item, one of any number in a key of fixed size; some may be denied too early.",
        c"O(1)"
    },
    command! {
        c"rl.throttle" = rl_throttle::throttle, Take on First, arity -5, THROTTLE,
        c"Takes from a token bucket, with the arguments and the reply of redis-cell's CL.THROTTLE.",
        c"O(1)"
    },
    command! {
        c"rl.ban" = rl_leases_and_bans::ban, Take on First, arity 3, BAN,
        c"Bans a key for a duration, unless a longer ban stands; 0 lifts the ban. Returns the milliseconds until it ends.",
        c"O(1)"
    },
    command! {
        c"rl.info" = rl_info::info, Peek on First, arity 2, INFO,
        c"Describes what a limiter's key stores.",
        c"O(N) with N the number of leases shown, at most 100"
    },
    command! {
        c"rl.top" = rl_info::top, ReadStatistics on None, arity -1, TOP,
        c"Lists the keys that this server has denied most, in all or recently; RESET forgets the denials.",
        c"O(N + M log M) with N the number of remembered keys and M the number of returned ones"
    },
    command! {
        c"rl.take" = rl_take::take, Take on First, arity -3, TAKE,
        c"Takes from limits of any algorithm on one key, all or nothing.",
        c"O(N) with N the number of specs, each at the cost of its algorithm, and O(log M) with M idempotency keys"
    },
    command! {
        c"rl.peek" = rl_take::peek, Peek on First, arity -3, PEEK,
        c"Returns what RL.TAKE would return, and changes nothing.",
        c"O(N) with N the number of specs, each at the cost of its algorithm, and O(log M) with M idempotency keys"
    },
    command! {
        c"rl.limit" = rl_limit::limit, Take on First, arity -3, LIMIT_BY_NAME,
        c"Takes from the limits of a policy, which the server keeps under a name.",
        c"O(N) with N the number of limits, each at the cost of its algorithm, and O(log M) with M idempotency keys"
    },
    command! {
        c"rl.delay" = rl_limit::delay, Take on First, arity -3, DELAY,
        c"Takes from the limits of a policy; returns 0 if allowed, else the milliseconds to wait, or -1 for never.",
        c"O(N) with N the number of limits, each at the cost of its algorithm, and O(log M) with M idempotency keys"
    },
    command! {
        c"rl.policyset" = rl_policies::set, ManagePolicies on None, arity -3, POLICY_SET,
        c"Sets a policy: a named list of limits that the server keeps. Returns the version that stands.",
        c"O(N) with N the number of its limits"
    },
    command! {
        c"rl.policyscale" = rl_policies::scale, ManagePolicies on None, arity -3, POLICY_SCALE,
        c"Multiplies the limits of a policy by a factor from 0 to 1000, until it is changed or for a duration.",
        c"O(N) with N the number of its limits"
    },
    command! {
        c"rl.policydel" = rl_policies::delete, ManagePolicies on None, arity -2, POLICY_DELETE,
        c"Deletes policies, or one policy if it has the given version; returns how many existed.",
        c"O(N) with N the number of names"
    },
    command! {
        c"rl.policyget" = rl_policies::get, Peek on None, arity 2, POLICY_GET,
        c"Describes a policy: its limits, its scale, and counts of its calls on this server.",
        c"O(1)"
    },
    command! {
        c"rl.policylist" = rl_policies::list, Peek on None, arity -1, POLICY_LIST,
        c"Lists policies with their versions, limits and scales.",
        c"O(N log N) with N the number of policies"
    },
    command! {
        c"rl.policyeffect" = rl_policies::effect, Effect on None, arity -2, POLICY_EFFECT,
        c"Internal: applies policies as another server has them.",
        c"O(N) with N the number of records"
    },
    command! {
        c"rl.effect" = rl_effect::effect, Effect on EveryOther, arity -3, EFFECT,
        c"Internal: applies the state of limiters from another server.",
        c"O(N) with N the number of keys, and of the entries of a log or a lease table that is propagated whole"
    },
];

/// Command of redis-cell, registered only if the setting `cell-compat` is on.
static CL_THROTTLE: Command = command! {
    c"cl.throttle" = rl_throttle::throttle, Take on First, arity -5, THROTTLE,
    c"Another name of RL.THROTTLE.",
    c"O(1)"
};

/// Commands of debug builds, for tests of panics and of allocations.
#[cfg(debug_assertions)]
static FOR_TESTS: &[Command] = &[
    command! {
        c"rl.panic" = panic, Take on First, arity 2, INFO,
        c"Panics on purpose.",
        c"O(1)"
    },
    command! {
        c"rl.allocations" = allocations, Peek on First, arity 2, INFO,
        c"Tells how often the module has asked for memory.",
        c"O(1)"
    },
];

#[cfg(debug_assertions)]
fn panic(
    _redis: &mut Redis,
    mut args: ratelimit_core::wire::args::Args,
) -> Result<crate::reply::Reply, ratelimit_core::wire::error::Error> {
    match args.word()? {
        b"reply" => guard::PANIC_AFTER_REPLY.store(true, std::sync::atomic::Ordering::Relaxed),
        points_until_panic => guard::panic_at(ratelimit_core::wire::args::whole(points_until_panic, 1000)),
    }
    Ok(crate::reply::Reply::Ok)
}

#[cfg(debug_assertions)]
#[allow(clippy::unnecessary_wraps, reason = "signature of a command handler")]
fn allocations(
    _redis: &mut Redis,
    _args: ratelimit_core::wire::args::Args,
) -> Result<crate::reply::Reply, ratelimit_core::wire::error::Error> {
    Ok(crate::reply::Reply::Integer(i64::try_from(redis::memory::ALLOCATIONS.get()).unwrap_or(i64::MAX)))
}

guard::entry_point! {
    /// Loads the module. Called by the server; Valkey accepts this name too.
    ///
    /// # Safety
    /// Only the server may call it.
    #[unsafe(no_mangle)]
    #[allow(non_snake_case, reason = "the name that servers look for")]
    pub unsafe fn RedisModule_OnLoad(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        length: c_int,
    ) -> c_int, or api::ERR => {
        // SAFETY: the server's own context, during the load.
        unsafe { start(ctx, argv, length) }
    }
}

/// # Safety
/// `ctx`, `argv` and `length` are those of the module's load.
unsafe fn start(ctx: *mut raw::RedisModuleCtx, argv: *mut *mut raw::RedisModuleString, length: c_int) -> c_int {
    // SAFETY: the caller guarantees the context. Before the table of functions is filled nothing may be allocated.
    let (init_status, table) = unsafe {
        let (name, api_version) = (NAME.as_ptr(), raw::REDISMODULE_APIVER_1.cast_signed());
        (raw::Export_RedisModule_Init(ctx, name, version::NUMBER, api_version), api::fill())
    };
    if let Err(missing_function) = table {
        let text = c"module ratelimit not loaded: this server is too old, it lacks %s; Redis 6.2 or Valkey 8 is needed";
        if let Some(log) = api::api!(RedisModule_Log) {
            // SAFETY: the caller guarantees the context; the format has one string.
            unsafe { log(ctx, c"warning".as_ptr(), text.as_ptr(), missing_function.as_ptr()) };
        }
        return api::ERR;
    }
    let loaded = if init_status == api::OK {
        guard::log_panics();
        lazy_free::record_main_thread();
        // SAFETY: the caller guarantees that all three are those of the load.
        guard::catch_panic(Err("internal error".to_owned()), || unsafe { load(ctx, argv, length) })
    } else {
        Err("a module of that name is loaded already".to_owned())
    };
    let Err(reason) = loaded else { return api::OK };
    // SAFETY: the caller guarantees the context.
    unsafe { api::log(ctx, c"warning", &format!("module ratelimit not loaded: {reason}")) };
    api::ERR
}

/// Logs the features that this server lacks, in one line.
///
/// # Safety
/// `ctx` is that of the module's load.
unsafe fn log_missing_features(ctx: *mut raw::RedisModuleCtx) {
    let features = [
        (api::api!(RedisModule_RegisterNumericConfig).is_none(), "CONFIG (settings are module arguments only)"),
        (api::api!(RedisModule_SetCommandInfo).is_none(), "COMMAND DOCS"),
        (api::api!(RedisModule_ReplyWithMap).is_none(), "maps in RESP3 (RL.INFO and RL.POLICYGET reply flat arrays)"),
        (api::api!(RedisModule_SetCommandACLCategories).is_none(), "ACL categories (grant commands by name)"),
        (api::api!(RedisModule_CachedMicroseconds).is_none(), "a clock that stands still in MULTI and scripts"),
    ];
    let missing: Vec<&str> = features.into_iter().filter_map(|(is_missing, name)| is_missing.then_some(name)).collect();
    if !missing.is_empty() {
        // SAFETY: the caller guarantees the context.
        unsafe { api::log(ctx, c"notice", &format!("this server lacks, for modules: {}", missing.join(", "))) };
    }
}

/// # Safety
/// `ctx`, `argv` and `length` are those of the module's load.
unsafe fn load(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    length: c_int,
) -> Result<(), String> {
    // SAFETY: the caller guarantees it (see the function's contract).
    unsafe {
        let arguments: Vec<&[u8]> = guard::strings(argv, length).iter().map(|word| guard::bytes(*word)).collect();
        settings::read_arguments(&arguments).map_err(|error| error.to_string().replacen("ERR ", "", 1))?;
        native_type::set_options(ctx);
        for row in &KINDS {
            (row.register)(ctx)?;
        }
        redis::config::register(ctx)?;
        redis::policy_persistence::register(ctx)?;
        command::add_category(ctx);
        for row in commands() {
            command::register(ctx, row)?;
        }
        #[cfg(debug_assertions)]
        for row in FOR_TESTS {
            command::register(ctx, row)?;
        }
        // All that can fail must stay above: older servers unload the library of a module whose load fails, and keep
        // its subscriptions.
        redis::info_section::register(ctx, commands().collect());
        redis::waiting_callbacks::register(waiting::CALLBACKS);
        redis::server_events::register(ctx);
        redis::bus::join(ctx);
        log_missing_features(ctx);
    }
    Ok(())
}
