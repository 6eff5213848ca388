//! Clients that the server has blocked for this module: blocking them, and handing them back with their answers. The
//! head of `src/waiting/mod.rs` has a diagram of the states in between.
//!
//! The server's own timeout is not used: it can overtake an answer that is being sent, and then the client gets no
//! reply. The timeout callback is used for CLIENT UNBLOCK.

use super::api::{OK, api, call, config, has_flag};
use super::server_entry::ServerEntry;
use super::waiting_callbacks::{callbacks, tell};
use super::{Redis, acl, background_call, guard};
use crate::server::queues::{Answer, BlockedClient, Caller, Client, ClientId};
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// Returns `true` if the client of a call can be blocked: not in a transaction or a script, nor without a client that
/// waits for the reply.
pub fn may_block(redis: &Redis) -> bool {
    const NOT_IN: [u32; 4] = [
        raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING,
        raw::REDISMODULE_CTX_FLAGS_MULTI,
        raw::REDISMODULE_CTX_FLAGS_LUA,
        raw::REDISMODULE_CTX_FLAGS_REPLICATED,
    ];
    let can = [
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
    can.into_iter().all(|can| can) && !NOT_IN.into_iter().any(|flag| has_flag(flags, flag))
}

/// Blocks the client of a call that may block, which must not reply any more. Returns `None` if this server blocks no
/// clients.
pub fn block(redis: &Redis) -> Option<Client> {
    let (block, unblock) = (api!(RedisModule_BlockClient)?, api!(RedisModule_UnblockClient)?);
    let on_disconnection = api!(RedisModule_SetDisconnectCallback)?;
    // SAFETY: `ctx` is that of the current call.
    let user = unsafe { acl::user_of(redis.ctx) };
    let unblocked: Option<ReplyCallback> = if unblockable(redis.entry()) { Some(unblocked) } else { None };
    // SAFETY: `ctx` is that of the current call, which may block; the callbacks are plain functions. No time-out of the
    // server's.
    let client = unsafe { block(redis.ctx, Some(answered), unblocked, Some(free), 0) };
    // SAFETY: it has just been blocked.
    unsafe { on_disconnection(client, Some(disconnected)) };
    let hand_back = move |answer: Option<Box<Answer>>| {
        let answer = answer.map_or(null_mut(), |answer| Box::into_raw(answer).cast());
        // SAFETY: the client has been blocked, and is handed back once: the closure is consumed.
        unsafe { unblock(client, answer) };
    };
    let blocked = BlockedClient::new(ClientId(client.addr()), hand_back);
    Some(Client { blocked, caller: Caller { stats: redis.stats, user } })
}

type ReplyCallback = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// Returns `true` if CLIENT UNBLOCK may reach clients of this module. From Redis 7.4 on, and on Valkey 8, it passes
/// over those that have been handed back. Before that it leaves them without a reply. Nothing is read between the timer
/// and the server's replies, unless threads read (`io-threads-do-reads`) or TLS keeps what it has read: then it cannot
/// have them at all.
fn unblockable(entry: ServerEntry) -> bool {
    // A function that came with 7.4 and Valkey 8.
    if api!(RedisModule_AddACLCategory).is_some() {
        return true;
    }
    let known = &entry.global.schedule.unblockable;
    let unblockable = known.get().unwrap_or_else(|| {
        // SAFETY: the entry's own context.
        let is = |name, value: &str| unsafe { config(entry.ctx, name) }.is_none_or(|found| found == value);
        (is("io-threads-do-reads", "no") || is("io-threads", "1")) && is("tls-port", "0")
    });
    known.set(Some(unblockable));
    unblockable
}

/// # Safety
/// `ctx` is that of a callback of a blocked client.
unsafe fn answer_of<'a>(ctx: *mut raw::RedisModuleCtx) -> Option<&'a Answer> {
    // SAFETY: the caller guarantees that `ctx` is that of a callback; the private data is an answer or null.
    unsafe { api!(RedisModule_GetBlockedClientPrivateData)?(ctx).cast::<Answer>().as_ref() }
}

guard::entry_point! {
    /// Replies to a client that has been handed back, as the server is ready for it.
    unsafe fn answered(
        ctx: *mut raw::RedisModuleCtx,
        _argv: *mut *mut raw::RedisModuleString,
        _length: c_int,
    ) -> c_int, or OK => {
        // SAFETY: `ctx` is that of a callback of a blocked client.
        let Some(answer) = (unsafe { answer_of(ctx) }) else { return OK };
        // SAFETY: `ctx` is that of the callback; there are no words.
        let redis = unsafe { Redis::new(ctx, &[], answer.stats) };
        // A lease whose reply could not be sent is released.
        let may_send = guard::catch_panic(false, || {
            guard::panic_test_point();
            answer.sent.set(true);
            true
        });
        if may_send {
            redis.replies().send(answer.reply.clone());
        } else {
            redis.replies().error(&Error::Internal);
        }
        OK
    }
}

guard::entry_point! {
    /// Frees an answer, whether it was sent or not.
    unsafe fn free(ctx: *mut raw::RedisModuleCtx, answer: *mut c_void) {
        if answer.is_null() {
            return;
        }
        // SAFETY: `hand_back` has created the answer, and it is freed once.
        let answer = unsafe { Box::from_raw(answer.cast::<Answer>()) };
        if !answer.sent.get() {
            // SAFETY: the server frees the data of blocked clients with its lock held.
            unsafe { tell(ctx, |callbacks, entry| (callbacks.answer_lost)(entry, *answer)) };
        }
    }
}

guard::entry_point! {
    /// Replies to a client that CLIENT UNBLOCK unblocks.
    unsafe fn unblocked(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        length: c_int,
    ) -> c_int, or OK => {
        // SAFETY: the context of a callback of a blocked client.
        let client = api!(RedisModule_GetBlockedClientHandle).map(|handle| ClientId(unsafe { handle(ctx) }.addr()));
        let (Some(client), Some(callbacks)) = (client, callbacks()) else { return OK };
        // SAFETY: the server times clients out with its lock held. The words are those of the call that waited, which
        // live until it is answered.
        let mut redis = unsafe { Redis::new(ctx, guard::strings(argv, length), &background_call::STATS) };
        if let Some((client, reply)) = (callbacks.client_unblocked)(&mut redis, client) {
            redis.replies().send(reply);
            client.hand_back(None);
        }
        OK
    }
}

guard::entry_point! {
    /// Handles the disconnection of a blocked client.
    unsafe fn disconnected(ctx: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
        // SAFETY: the server drops clients with its lock held.
        unsafe { tell(ctx, |callbacks, entry| (callbacks.client_disconnected)(entry, ClientId(client.addr()))) };
    }
}
