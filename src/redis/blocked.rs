//! Clients that wait for a lease: how they are blocked, and how they are answered.
//!
//! ```text
//!                RL.ACQUIRE ... BLOCK, and there is no room
//!                            |
//!                            v      closed, or CLIENT UNBLOCK ERROR: out of the queue
//!                      +-----------+----------------------------------------------------> over
//!                      |  waiting  |
//!                      +-----------+----------------------------------------------------> over
//!                            |      CLIENT UNBLOCK: its denial is sent at once
//!      its turn has come, its time is up, its holder has asked again or gives up,
//!      the key is another node's or another type's: an answer is decided
//!                            |
//!                            v      closed, or CLIENT UNBLOCK ERROR: a lease is given back
//!                      +-----------+----------------------------------------------------> over
//!                      | answered  |
//!                      +-----------+----------------------------------------------------> over
//!                            |      CLIENT UNBLOCK: that answer is sent at once
//!      the timer's turn ends
//!                            |
//!                            v      closed: a lease is given back
//!                     +-------------+---------------------------------------------------> over
//!                     | handed back |
//!                     +-------------+
//!                            |
//!      the server sends the answer, before it reads another call
//!                            |
//!                            v
//!                          over
//! ```
//!
//! A client that waits is known to the queues, one that is answered to the outbox, and one that is handed back to the
//! server alone: to one of the three, and each is handed back once. From the last state on CLIENT UNBLOCK would leave a
//! client without any reply before Redis 7.4, so nobody may get there while a call could still be read: see [`unblockable`].
//!
//! The server's own time-out is not used: it can overtake an answer that is on its way, and then nobody is answered. Its
//! callback is for CLIENT UNBLOCK.

use super::api::{OK, api, call, config, has_flag};
use super::{Redis, global::global, guard, handback, now, turns, writes};
use crate::reply::Reply;
use crate::server::Global;
use crate::server::queues::outbox::Answer;
use crate::server::queues::{Client, Handle, Key, WaitingCall};
use ratelimit_core::Amount;
use ratelimit_core::Timestamp;
use ratelimit_core::queue::Claim;
use ratelimit_core::syntax::Block;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Arc;

impl Redis<'_> {
    /// Whether this call can wait: not in a transaction or a script, nor where nobody waits for its reply.
    pub fn may_block(&self) -> bool {
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
        let flags = unsafe { call!(RedisModule_GetContextFlags(self.ctx)) };
        can.into_iter().all(|can| can) && !NOT_IN.into_iter().any(|flag| has_flag(flags, flag))
    }

    /// The database of this call.
    pub fn db(&self) -> c_int {
        // SAFETY: `ctx` is that of the current call.
        api!(RedisModule_GetSelectedDb).map_or(0, |db| unsafe { db(self.ctx) })
    }

    /// The bytes of a key's name.
    pub fn key_bytes(&self, name: KeyName) -> &[u8] {
        // SAFETY: the string is that of the current call, and lives until that ends.
        self.argv.get(name.0).map_or(&[], |string| unsafe { guard::bytes(*string) })
    }

    /// Blocks the client of this call until there is room for what it claims of a key. The last thing that a call does:
    /// it is not to reply. `Err` if this server blocks no clients.
    pub fn block(
        &mut self,
        name: KeyName,
        limit: Amount,
        claim: Claim,
        block: Block,
        now: Timestamp,
    ) -> Result<(), Error> {
        // Others may run now, and not once the client is known to wait: it can be sent no error then.
        self.finish();
        let key = Key { db: self.db(), name: Arc::from(self.key_bytes(name)) };
        let patience = match block {
            Block::For(span) => Some(span),
            Block::No | Block::Forever => None,
        };
        let (Some(block), Some(on_disconnection)) =
            (api!(RedisModule_BlockClient), api!(RedisModule_SetDisconnectCallback))
        else {
            return Err(Error::Internal);
        };
        turns::subscribe(self.global, self.ctx);
        // SAFETY: `ctx` is that of the current call.
        let (unblocked, user) = unsafe { (unblockable(self.global, self.ctx), writes::user_of(self.ctx)) };
        let timed_out: Option<Callback> = if unblocked { Some(timed_out) } else { None };
        // SAFETY: `ctx` is that of the current call, which may block; the callbacks are plain functions. No time-out of
        // the server's.
        let client = unsafe { block(self.ctx, Some(answered), timed_out, Some(free), 0) };
        // SAFETY: it has just been blocked.
        unsafe { on_disconnection(client, Some(disconnected)) };
        let client = Client { handle: Handle(client.cast()), stats: self.stats, user };
        self.global.queues.join(&key, limit, claim, patience, client, now);
        self.serve_soon();
        Ok(())
    }

    /// Denies the call of a holder that waits for a lease of a key, if one does.
    pub fn deny_waiting(&mut self, name: KeyName, holder: &[u8], now: Timestamp) {
        if let Some(next) = self.global.queues.take_away(self.db(), self.key_bytes(name), holder) {
            let denial = denial_of(self, name, &next, now);
            handback::answer(self.global, &next.client, denial, None);
            self.serve_soon();
        }
    }

    /// Sees to it that those who wait for a key are looked at, once nothing else runs.
    pub fn serve_soon(&self) {
        turns::arm(self.global, self.ctx);
    }

    /// Whether the one that is next may still run RL.ACQUIRE on its key.
    pub fn may_acquire(&self, name: KeyName, client: &Client) -> bool {
        let (Some(user), Ok(key)) = (&client.user, self.string(name)) else { return true };
        // SAFETY: the string is that of the current call.
        unsafe { writes::may_acquire(user, key) }
    }
}

type Callback = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// Whether CLIENT UNBLOCK may reach clients of ours. From Redis 7.4 on, and on Valkey 8, it passes over those that have
/// been handed back. Before that it leaves them without a reply. Nothing is read between the timer and the server's
/// replies, unless threads read (`io-threads-do-reads`) or TLS keeps what it has read: then it cannot have them at all.
///
/// # Safety
/// `ctx` is that of the current call.
unsafe fn unblockable(global: &Global, ctx: *mut raw::RedisModuleCtx) -> bool {
    // A function that came with 7.4 and Valkey 8.
    if api!(RedisModule_AddACLCategory).is_some() {
        return true;
    }
    let known = &global.schedule.unblockable;
    let unblockable = known.get().unwrap_or_else(|| {
        // SAFETY: the caller's promise.
        let is = |name, value: &str| unsafe { config(ctx, name) }.is_none_or(|found| found == value);
        (is("io-threads-do-reads", "no") || is("io-threads", "1")) && is("tls-port", "0")
    });
    known.set(Some(unblockable));
    unblockable
}

/// A wait that was ended from outside, and how far it had come.
enum Ended {
    Waiting(WaitingCall),
    Answered(Box<Answer>),
}

/// Takes a client out of the queues, or out of the outbox; `None` if it has been handed back already.
fn end_wait(global: &Global, client: Handle) -> Option<Ended> {
    let waiting = global.queues.gone(client).map(Ended::Waiting);
    waiting.or_else(|| global.outbox.take(client).map(Ended::Answered))
}

/// # Safety
/// `ctx` is that of a callback of a blocked client.
unsafe fn answer_of<'a>(ctx: *mut raw::RedisModuleCtx) -> Option<&'a Answer> {
    // SAFETY: the caller's promise; what it was handed back with is an answer, or null.
    unsafe { api!(RedisModule_GetBlockedClientPrivateData)?(ctx).cast::<Answer>().as_ref() }
}

/// The server is ready to reply to a client that has been handed back.
unsafe extern "C" fn answered(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _length: c_int,
) -> c_int {
    // SAFETY: a callback of a blocked client.
    let Some(answer) = (unsafe { answer_of(ctx) }) else { return OK };
    // SAFETY: the callback's own context; no words are asked of it.
    let redis = unsafe { Redis::new(ctx, &[], answer.stats) };
    // A lease of which it is not told is given back.
    let told = guard::callback(false, || {
        guard::point();
        answer.told.set(true);
        true
    });
    if told {
        redis.reply_with(&answer.reply);
    } else {
        redis.reply_error(&Error::Internal);
    }
    OK
}

/// The server is done with an answer, whether it was sent or not.
unsafe extern "C" fn free(ctx: *mut raw::RedisModuleCtx, answer: *mut c_void) {
    if answer.is_null() {
        return;
    }
    // SAFETY: it was made by `answer`, and is freed once.
    let answer = unsafe { Box::from_raw(answer.cast::<Answer>()) };
    // SAFETY: the server is done with blocked clients with its lock held.
    let global = unsafe { global() };
    if !answer.told.get() {
        untold(global, ctx, *answer);
    }
}

/// A lease that is in an answer that nobody gets is given back.
fn untold(global: &Global, ctx: *mut raw::RedisModuleCtx, answer: Answer) {
    if let Some(grant) = answer.grant {
        global.queues.untold(grant);
        guard::callback((), || turns::arm(global, ctx));
    }
}

/// CLIENT UNBLOCK: what the client is answered, at once.
unsafe extern "C" fn timed_out(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    length: c_int,
) -> c_int {
    // SAFETY: the server times clients out with its lock held.
    let global = unsafe { global() };
    let Some((client, ended)) = handle_of(ctx).and_then(|client| Some((client, end_wait(global, client)?))) else {
        return OK;
    };
    let stats = match &ended {
        Ended::Waiting(next) => next.client.stats,
        Ended::Answered(answer) => answer.stats,
    };
    // SAFETY: the words are those of the call that waited, which live until it is answered.
    let mut redis = unsafe { Redis::new(ctx, guard::strings(argv, length), stats) };
    let told = guard::callback(None, || {
        guard::point();
        Some(match &ended {
            // RL.ACQUIRE's key is its first argument.
            Ended::Waiting(next) => denial_of(&mut redis, KeyName(1), next, now()),
            Ended::Answered(answer) => answer.reply.clone(),
        })
    });
    match (told, ended) {
        (Some(reply), _) => redis.reply_with(&reply),
        (None, Ended::Waiting(_)) => redis.reply_error(&Error::Internal),
        (None, Ended::Answered(answer)) => {
            redis.reply_error(&Error::Internal);
            untold(global, ctx, *answer);
        }
    }
    handback::hand_back(client, null_mut());
    guard::callback((), || turns::arm(global, ctx));
    OK
}

/// What one is told who has been taken out of those who wait, and is granted nothing.
fn denial_of(redis: &mut Redis, name: KeyName, next: &WaitingCall, now: Timestamp) -> Result<Reply, Error> {
    let denial = catch_unwind(AssertUnwindSafe(|| match turns::service() {
        Some(service) => (service.denial)(redis, name, next, now),
        None => Err(Error::Internal),
    }));
    next.client.stats.decided(false);
    denial.unwrap_or(Err(Error::Internal))
}

/// The client that a callback is about.
fn handle_of(ctx: *mut raw::RedisModuleCtx) -> Option<Handle> {
    // SAFETY: the context of a callback of a blocked client.
    api!(RedisModule_GetBlockedClientHandle).map(|handle| Handle(unsafe { handle(ctx) }.cast()))
}

/// A client that waited is gone.
unsafe extern "C" fn disconnected(ctx: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    // SAFETY: the server drops clients with its lock held.
    let (global, client) = (unsafe { global() }, Handle(client.cast()));
    let Some(ended) = end_wait(global, client) else { return };
    handback::hand_back(client, null_mut());
    match ended {
        Ended::Waiting(_) => guard::callback((), || turns::arm(global, ctx)),
        Ended::Answered(answer) => untold(global, ctx, *answer),
    }
}
