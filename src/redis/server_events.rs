//! Events of the server.
//!
//! Flushes, roles, loads and cron are handled by attributes of `redis-module-macros`. The SDK has no handlers for the
//! other events, to which [`register`] subscribes. A module has one subscription to each event.

use super::api::{api, subscribe};
use super::server_entry::module_state;
use super::waiting_callbacks::call_waiting;
use super::{guard, outgoing, policy_persistence};
use redis_module::server_events::{FlushSubevent, LoadingSubevent, ServerRole, register_server_events};
use redis_module::{Context, raw};
use std::ffi::c_void;

/// Subscribes to all events.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn register(ctx: *mut raw::RedisModuleCtx) {
    let has_handlers =
        api!(RedisModule_SubscribeToServerEvent).is_some() && register_server_events(&Context::new(ctx)).is_ok();
    // SAFETY: the caller guarantees the context.
    let is_subscribed = outgoing::DEMAND_EVENTS.into_iter().all(|id| unsafe { subscribe(ctx, id, on_event) });
    outgoing::enable_demand_queries(has_handlers && is_subscribed);
    for id in [raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD, raw::REDISMODULE_EVENT_SWAPDB] {
        // SAFETY: the caller guarantees the context. Before 7.0 nothing is loaded asynchronously.
        unsafe { subscribe(ctx, id, on_event) };
    }
}

guard::event_handler! {
    /// Handles FLUSHALL and FLUSHDB.
    flush_event_handler fn on_flush(context, _event: FlushSubevent) {
        guard::panic_test_point();
        // SAFETY: the event's own context, with the server's lock held.
        unsafe { call_waiting(context.ctx, |callbacks, entry| (callbacks.all_keys_changed)(entry)) };
    }
}

guard::event_handler! {
    /// Handles a change of the server's role.
    role_changed_event_handler fn on_role_change(_context, _role: ServerRole) {
        outgoing::on_demand_change();
    }
}

guard::event_handler! {
    /// Handles the start and the end of a load.
    loading_event_handler fn on_loading(context, event: LoadingSubevent) {
        outgoing::on_demand_change();
        // SAFETY: the event's own context, with the server's lock held.
        unsafe {
            policy_persistence::load_event(module_state(), event);
            call_waiting(context.ctx, |callbacks, entry| (callbacks.all_keys_changed)(entry));
        }
    }
}

guard::event_handler! {
    /// Handles the server's cron event, some ten times a second.
    cron_event_handler fn on_cron(context, _version: u64) {
        // SAFETY: the event's own context, with the server's lock held.
        unsafe {
            policy_persistence::propagate_pending(module_state(), context.ctx);
            policy_persistence::cron(module_state());
            call_waiting(context.ctx, |callbacks, entry| (callbacks.cron)(entry));
        }
    }
}

guard::entry_point! {
    /// Handles the events that the SDK has no handlers for.
    unsafe fn on_event(ctx: *mut raw::RedisModuleCtx, event: raw::RedisModuleEvent, subevent: u64, _data: *mut c_void) {
        // SAFETY: the server announces events with its lock held.
        let state = unsafe { module_state() };
        match event.id {
            raw::REDISMODULE_EVENT_FORK_CHILD => {
                if subevent == raw::REDISMODULE_SUBEVENT_FORK_CHILD_BORN {
                    outgoing::on_fork();
                    // SAFETY: the event's own context.
                    unsafe { policy_persistence::on_fork(state, ctx) };
                } else {
                    outgoing::on_demand_change();
                }
            }
            raw::REDISMODULE_EVENT_REPLICA_CHANGE => outgoing::on_demand_change(),
            raw::REDISMODULE_EVENT_REPL_ASYNC_LOAD => policy_persistence::async_load_event(state, subevent),
            // SAFETY: the event's own context.
            raw::REDISMODULE_EVENT_SWAPDB => unsafe {
                call_waiting(ctx, |callbacks, entry| (callbacks.all_keys_changed)(entry));
            },
            _ => {}
        }
    }
}
