//! Clients that the server has blocked for this module: blocking them, and handing them back with their answers. The
//! head of `src/waiting/mod.rs` has a diagram of the states in between.
//!
//! The server's own timeout is not used: it can overtake an answer that is being sent, and then the client gets no
//! reply. The timeout callback is used for CLIENT UNBLOCK.

use super::api::{OK, api, call, config, has_flag};
use super::current_call::BACKGROUND_STATS;
use super::dispatch::Replies;
use super::server_entry::ServerEntry;
use super::waiting_callbacks::{call_waiting, callbacks};
use super::{Redis, guard, permissions};
use crate::server::queues::{BlockedClient, CallOrigin, ClientId, WaiterAnswer, WaitingClient};
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Returns `true` if the client of a call can be blocked.
///
/// Returns `false` in a transaction or a script, for a call from a primary or the AOF (no client waits for its reply),
/// and on a server that lacks a needed function.
pub fn may_block(redis: &Redis) -> bool {
    const PREVENTING_FLAGS: [u32; 4] = [
        raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING,
        raw::REDISMODULE_CTX_FLAGS_MULTI,
        raw::REDISMODULE_CTX_FLAGS_LUA,
        raw::REDISMODULE_CTX_FLAGS_REPLICATED,
    ];
    let has_functions = [
        api!(RedisModule_BlockClient).is_some(),
        api!(RedisModule_UnblockClient).is_some(),
        api!(RedisModule_SetDisconnectCallback).is_some(),
        api!(RedisModule_GetBlockedClientPrivateData).is_some(),
        api!(RedisModule_GetBlockedClientHandle).is_some(),
        api!(RedisModule_SubscribeToKeyspaceEvents).is_some(),
        api!(RedisModule_CreateTimer).is_some(),
        api!(RedisModule_StopTimer).is_some(),
        api!(RedisModule_SelectDb).is_some(),
    ];
    // SAFETY: `ctx` is that of the current call.
    let flags = unsafe { call!(RedisModule_GetContextFlags(redis.ctx)) };
    has_functions.into_iter().all(|exists| exists) && !PREVENTING_FLAGS.into_iter().any(|flag| has_flag(flags, flag))
}

/// Blocks the client of a call. The caller has checked [`may_block`], and must not reply afterwards. Returns `None` if
/// the server lacks a needed function.
pub fn block(redis: &Redis) -> Option<WaitingClient> {
    let (block_client, unblock_client) = (api!(RedisModule_BlockClient)?, api!(RedisModule_UnblockClient)?);
    let set_disconnect_callback = api!(RedisModule_SetDisconnectCallback)?;
    // SAFETY: `ctx` is that of the current call.
    let user = unsafe { permissions::user_of(redis.ctx) };
    let timeout_callback: Option<ReplyCallback> =
        if allows_client_unblock(redis.entry()) { Some(on_client_unblock) } else { None };
    // SAFETY: `ctx` is that of the current call, which may block; the callbacks are plain functions. 0: the server sets
    // no timeout.
    let raw_client = unsafe { block_client(redis.ctx, Some(send_answer), timeout_callback, Some(free_answer), 0) };
    // SAFETY: the client has just been blocked.
    unsafe { set_disconnect_callback(raw_client, Some(on_disconnect)) };
    let hand_back = move |answer: Option<Box<WaiterAnswer>>| {
        let answer = answer.map_or(null_mut(), |answer| Box::into_raw(answer).cast());
        // SAFETY: the client has been blocked, and is handed back once: the closure is consumed.
        unsafe { unblock_client(raw_client, answer) };
    };
    let blocked = BlockedClient::new(ClientId(raw_client.addr()), hand_back);
    Some(WaitingClient { blocked, origin: CallOrigin { stats: redis.stats, user } })
}

type ReplyCallback = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// Returns `true` if CLIENT UNBLOCK is offered for waiting clients.
///
/// Redis 7.4, Valkey 8 and later ignore CLIENT UNBLOCK for a client that has been handed back. Older servers would
/// leave that client without a reply, if they read the command between the timer's run, which hands clients back, and
/// the replies. That can happen with threads that read (`io-threads-do-reads`), and with TLS, which buffers input. So
/// CLIENT UNBLOCK is not offered with them on older servers.
fn allows_client_unblock(entry: ServerEntry) -> bool {
    // Only Redis 7.4, Valkey 8 and later have this function: it tells the version.
    if api!(RedisModule_AddACLCategory).is_some() {
        return true;
    }
    let cached = &entry.state.schedule.allows_client_unblock;
    let allows = cached.get().unwrap_or_else(|| {
        // SAFETY: the entry's own context.
        let is_or_absent = |name, value: &str| unsafe { config(entry.ctx, name) }.is_none_or(|actual| actual == value);
        (is_or_absent("io-threads-do-reads", "no") || is_or_absent("io-threads", "1")) && is_or_absent("tls-port", "0")
    });
    cached.set(Some(allows));
    allows
}

guard::entry_point! {
    /// Replies to a client that has been handed back, once the server is ready to send.
    unsafe fn send_answer(
        ctx: *mut raw::RedisModuleCtx,
        _argv: *mut *mut raw::RedisModuleString,
        _length: c_int,
    ) -> c_int, or OK => {
        let Some(data) = api!(RedisModule_GetBlockedClientPrivateData) else { return OK };
        // SAFETY: `ctx` is that of a callback of a blocked client, whose private data is an answer or null.
        let Some(answer) = (unsafe { data(ctx).cast::<WaiterAnswer>().as_ref() }) else { return OK };
        // SAFETY: `ctx` is that of the callback; there are no words.
        let redis = unsafe { Redis::new(ctx, &[], answer.stats) };
        // After a panic, `sent` stays `false`, so `free_answer` has the lease released.
        let may_send = guard::catch_panic(false, || {
            guard::panic_test_point();
            answer.sent.set(true);
            true
        });
        if may_send {
            Replies { ctx: redis.ctx }.send(answer.reply.clone());
        } else {
            Replies { ctx: redis.ctx }.error(&Error::Internal);
        }
        OK
    }
}

guard::entry_point! {
    /// Frees an answer, and reports one that was not sent.
    unsafe fn free_answer(ctx: *mut raw::RedisModuleCtx, answer: *mut c_void) {
        if answer.is_null() {
            return;
        }
        // SAFETY: `hand_back` has created the answer, and it is freed once.
        let answer = unsafe { Box::from_raw(answer.cast::<WaiterAnswer>()) };
        if !answer.sent.get() {
            // SAFETY: the server frees the data of blocked clients with its lock held.
            unsafe { call_waiting(ctx, |callbacks, entry| (callbacks.answer_lost)(entry, *answer)) };
        }
    }
}

guard::entry_point! {
    /// Replies to a client that CLIENT UNBLOCK unblocks.
    unsafe fn on_client_unblock(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        length: c_int,
    ) -> c_int, or OK => {
        // SAFETY: the context of a callback of a blocked client.
        let id = api!(RedisModule_GetBlockedClientHandle).map(|handle| ClientId(unsafe { handle(ctx) }.addr()));
        let (Some(id), Some(callbacks)) = (id, callbacks()) else { return OK };
        // SAFETY: the server times clients out with its lock held. The words are those of the call that waited, which
        // live until it is answered.
        let mut redis = unsafe { Redis::new(ctx, guard::strings(argv, length), &BACKGROUND_STATS) };
        if let Some((blocked, reply)) = (callbacks.client_unblocked)(&mut redis, id) {
            Replies { ctx: redis.ctx }.send(reply);
            blocked.hand_back(None);
        }
        OK
    }
}

guard::entry_point! {
    /// Handles the disconnection of a blocked client.
    unsafe fn on_disconnect(ctx: *mut raw::RedisModuleCtx, raw_client: *mut raw::RedisModuleBlockedClient) {
        // SAFETY: the server drops clients with its lock held.
        unsafe {
            call_waiting(ctx, |callbacks, entry| {
                (callbacks.client_disconnected)(entry, ClientId(raw_client.addr()));
            });
        }
    }
}
