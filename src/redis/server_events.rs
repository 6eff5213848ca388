//! What the server announces: a module has one subscription to each event, so who is to hear of it is told here.

use super::api::subscribe;
use super::global::global;
use super::waiting_callbacks::tell;
use super::{effect_demand, guard, policy_lifetime};
use redis_module::raw;
use std::ffi::c_void;

/// Subscribes to all that somebody of ours is to hear of.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn watch(ctx: *mut raw::RedisModuleCtx) {
    // SAFETY: the caller's promise.
    let all = effect_demand::EVENTS.into_iter().all(|id| unsafe { subscribe(ctx, id, heard) });
    effect_demand::watched(all);
    for id in [
        raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD,
        raw::REDISMODULE_EVENT_CRON_LOOP,
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_SWAPDB,
    ] {
        // SAFETY: likewise. Before 7.0 nothing is loaded beside the old data.
        unsafe { subscribe(ctx, id, heard) };
    }
}

guard::entry_point! {
    /// Hears of an event of the server.
    fn heard(ctx: *mut raw::RedisModuleCtx, event: raw::RedisModuleEvent, subevent: u64, _data: *mut c_void) {
        // SAFETY: the server announces events with its lock held.
        let global = unsafe { global() };
        let forked =
            event.id == raw::REDISMODULE_EVENT_FORK_CHILD && subevent == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN;
        if effect_demand::EVENTS.contains(&event.id) {
            effect_demand::changed(forked);
        }
        match event.id {
            raw::REDISMODULE_EVENT_CRON_LOOP => {
                // SAFETY: the event's own context.
                unsafe { policy_lifetime::pay(global, ctx) };
                policy_lifetime::cron(global);
                // SAFETY: likewise.
                unsafe { tell(ctx, |callbacks, entry| (callbacks.cron)(entry)) };
            }
            raw::REDISMODULE_EVENT_FLUSHDB | raw::REDISMODULE_EVENT_SWAPDB => {
                // SAFETY: the event's own context.
                unsafe { tell(ctx, |callbacks, entry| (callbacks.all_keys_changed)(entry)) };
            }
            // SAFETY: the event's own context.
            raw::REDISMODULE_EVENT_FORK_CHILD if forked => unsafe { policy_lifetime::forked(global, ctx) },
            raw::REDISMODULE_EVENT_LOADING => {
                policy_lifetime::loading(global, subevent);
                // SAFETY: the event's own context.
                unsafe { tell(ctx, |callbacks, entry| (callbacks.all_keys_changed)(entry)) };
            }
            raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD => policy_lifetime::loading_async(global, subevent),
            _ => {}
        }
    }
}
