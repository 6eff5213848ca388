//! Clients that wait for a lease: how they are blocked and answered, and when the queues are looked at.
//!
//! Whoever waits is served from a timer of the module, never inside another call, a notification or a script: there, a
//! change would take the slot or the place of what is running. Whatever may make room (an event of the key, a client
//! that goes, FLUSHALL, SWAPDB, a load) only marks the key and arms the timer, which runs before the next call is read.
//! Else it is armed for when the next lease expires or the next client has waited long enough. The server counts a
//! timer by the wall clock and sleeps by another, so a clock that is set is noticed by its cron event.
//!
//! The server's own time-out is not used: it can overtake an answer that is on its way, and then nobody is answered. Its
//! callback is for CLIENT UNBLOCK. Each blocked client is handed back to the server exactly once: as it is answered, as
//! it goes ([`disconnected`]), or as CLIENT UNBLOCK answers it ([`timed_out`]); until then it is known to
//! [`waiting`], and only then.

use super::api::{self, OK, api, call, has_flag, server_is};
use super::{Redis, guard, listeners, now, policies, slots};
use crate::reply::Reply;
use crate::stats::CommandStats;
use crate::waiting::{self, Client, Grant, Handle, Key, Next};
use ratelimit_core::args::KeyName;
use ratelimit_core::error::Error;
use ratelimit_core::queue::{Claim, Waiter};
use ratelimit_core::spec::Block;
use ratelimit_core::{Amount, Timestamp};
use redis_module::raw;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// What is done for those who wait, by who knows the commands.
#[derive(Clone, Copy)]
pub struct Service {
    /// Answers whoever can be, of the key of this call.
    pub serve: fn(&mut Redis, KeyName, &Key, Timestamp),
    /// What one is answered who waits no longer: without changing anything.
    pub denial: fn(&mut Redis, KeyName, &Next, Timestamp) -> Result<Reply, Error>,
    /// Gives a lease back that was granted to nobody.
    pub give_back: fn(&mut Redis, KeyName, &Grant, Timestamp),
}

static SERVICE: OnceLock<Service> = OnceLock::new();

/// Learns what is done for those who wait.
pub fn register(service: Service) {
    // Set once: a module whose load has come this far is never unloaded.
    SERVICE.get_or_init(|| service);
}

/// How often keys are looked at once more to which something has happened meanwhile, before other calls are read. What is
/// granted is such an event itself.
const LOOKS: usize = 4;

/// How long to wait, in milliseconds, while nobody can be granted a lease.
const RETRY: i64 = 10;

/// The kinds of keyspace events that can make room, where the server does not tell of keys that end: whatever can end or
/// replace one, and ours.
const EVENTS: c_int = OWN_EVENTS
    | raw::REDISMODULE_NOTIFY_GENERIC
    | raw::REDISMODULE_NOTIFY_STRING
    | raw::REDISMODULE_NOTIFY_LIST
    | raw::REDISMODULE_NOTIFY_SET
    | raw::REDISMODULE_NOTIFY_ZSET
    | raw::REDISMODULE_NOTIFY_EXPIRED
    | raw::REDISMODULE_NOTIFY_EVICTED;

/// The kind of ours: a key goes on, and has changed.
const OWN_EVENTS: c_int = raw::REDISMODULE_NOTIFY_MODULE;

thread_local! {
    /// Whether the server tells what happens to keys.
    static SUBSCRIBED: Cell<bool> = const { Cell::new(false) };
    /// The timer that is armed, and for when.
    static ARMED: Cell<Option<(raw::RedisModuleTimerID, Timestamp)>> = const { Cell::new(None) };
    /// How often the cron event has come since keys were last asked about.
    static TURNS: Cell<u8> = const { Cell::new(0) };
}

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
        let until = match block {
            Block::For(span) => Some(now.plus(span).min(Timestamp::MAX)),
            Block::No | Block::Forever => None,
        };
        let (Some(block), Some(on_disconnection)) =
            (api!(RedisModule_BlockClient), api!(RedisModule_SetDisconnectCallback))
        else {
            return Err(Error::Internal);
        };
        subscribe(self.ctx);
        // SAFETY: `ctx` is that of the current call, which may block; the callbacks are plain functions. No time-out of
        // the server's.
        let client = unsafe { block(self.ctx, Some(answered), Some(timed_out), Some(free), 0) };
        // SAFETY: it has just been blocked.
        unsafe { on_disconnection(client, Some(disconnected)) };
        let client = Client { handle: Handle(client.cast()), stats: self.stats };
        waiting::join(&key, limit, Waiter { claim, since: now, until, client });
        arm(self.ctx);
        Ok(())
    }

    /// Denies the call of a holder that waits for a lease of a key, if one does.
    pub fn deny_waiting(&mut self, name: KeyName, holder: &[u8], now: Timestamp) {
        if let Some(next) = waiting::take_away(self.db(), self.key_bytes(name), holder) {
            let denial = denial_of(self, name, &next, now);
            answer(next.client, denial, None);
            self.serve_soon();
        }
    }

    /// Sees to it that those who wait for a key are looked at, once nothing else runs.
    pub fn serve_soon(&self) {
        arm(self.ctx);
    }
}

/// What a client that has waited is answered.
struct Answer {
    reply: Result<Reply, Error>,
    stats: &'static CommandStats,
    /// What it was granted that nobody else knows of.
    grant: Option<Grant>,
    told: Cell<bool>,
}

/// Answers one who has waited, and waits no longer.
pub fn answer(client: Client, reply: Result<Reply, Error>, grant: Option<Grant>) {
    if reply.is_err() {
        client.stats.errors.count();
    }
    let answer = Answer { reply, stats: client.stats, grant, told: Cell::new(false) };
    hand_back(client.handle, Box::into_raw(Box::new(answer)).cast());
}

/// Hands a client back to the server, with what it is to be answered.
fn hand_back(Handle(client): Handle, answer: *mut c_void) {
    if let Some(unblock) = api!(RedisModule_UnblockClient) {
        // SAFETY: each blocked client is handed back once: whoever calls has just taken it out of those who wait.
        unsafe { unblock(client.cast(), answer) };
    }
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
    guard::callback((), || {
        // SAFETY: a callback of a blocked client.
        let Some(answer) = (unsafe { answer_of(ctx) }) else { return };
        answer.told.set(true);
        // SAFETY: the callback's own context; no words are asked of it.
        let redis = unsafe { Redis::new(ctx, &[], answer.stats) };
        match &answer.reply {
            Ok(reply) => redis.reply(reply),
            Err(error) => redis.reply_error(error),
        }
    });
    OK
}

/// The server is done with an answer, whether it was sent or not.
unsafe extern "C" fn free(ctx: *mut raw::RedisModuleCtx, answer: *mut c_void) {
    guard::callback((), || {
        if answer.is_null() {
            return;
        }
        // SAFETY: it was made by `answer`, and is freed once.
        let answer = unsafe { Box::from_raw(answer.cast::<Answer>()) };
        if let (false, Some(grant)) = (answer.told.get(), answer.grant) {
            waiting::untold(grant);
            arm(ctx);
        }
    });
}

/// CLIENT UNBLOCK: what the client is answered, at once.
unsafe extern "C" fn timed_out(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    length: c_int,
) -> c_int {
    guard::callback((), || {
        let Some(handle) = handle_of(ctx) else { return };
        let Some(next) = waiting::gone(handle) else { return };
        let now = now();
        // SAFETY: the words are those of the call that waited, which live until it is answered.
        let mut redis = unsafe { Redis::new(ctx, guard::strings(argv, length), next.client.stats) };
        // RL.ACQUIRE's key is its first argument.
        match denial_of(&mut redis, KeyName(1), &next, now) {
            Ok(reply) => redis.reply(&reply),
            Err(error) => redis.reply_error(&error),
        }
        hand_back(handle, null_mut());
        arm(ctx);
    });
    OK
}

/// What one is told who has been taken out of those who wait, and is granted nothing.
fn denial_of(redis: &mut Redis, name: KeyName, next: &Next, now: Timestamp) -> Result<Reply, Error> {
    let denial = catch_unwind(AssertUnwindSafe(|| match SERVICE.get() {
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
    guard::callback((), || {
        let handle = Handle(client.cast());
        // One that has been handed back already is known no more.
        if waiting::gone(handle).is_some() {
            hand_back(handle, null_mut());
            arm(ctx);
        }
    });
}

/// Hears of what happens to keys from now on. That cannot be given up again, and each event costs the server a call.
///
/// From Redis 7.2 on, and on Valkey, it is told of each key that ends or is replaced, which are fewer. And who hears of
/// what is moved or copied to another database has Valkey before 9.1 leave the client there that did it.
fn subscribe(ctx: *mut raw::RedisModuleCtx) {
    if SUBSCRIBED.replace(true) {
        return;
    }
    // SAFETY: the context of the current call.
    let ends = api!(RedisModule_GetKeyNameFromModuleKey).is_some()
        && unsafe { api::subscribe(ctx, raw::REDISMODULE_EVENT_KEY, ended) };
    if let Some(subscribe) = api!(RedisModule_SubscribeToKeyspaceEvents) {
        // SAFETY: likewise; the callback is a plain function.
        unsafe { subscribe(ctx, if ends { OWN_EVENTS } else { EVENTS }, Some(happened)) };
    }
}

/// Something has happened to a key.
unsafe extern "C" fn happened(
    ctx: *mut raw::RedisModuleCtx,
    _kind: c_int,
    _event: *const c_char,
    name: *mut raw::RedisModuleString,
) -> c_int {
    if waiting::any() {
        // SAFETY: the event's own context, and the name of the key.
        unsafe { touched(ctx, api!(RedisModule_GetSelectedDb).map(|db| db(ctx)), name) };
    }
    OK
}

/// A key has ended, or has been replaced.
unsafe extern "C" fn ended(
    ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut c_void,
) {
    if waiting::any() {
        // SAFETY: what the server passes with such an event: an open key, whose name lives as long.
        unsafe {
            let Some(info) = data.cast::<raw::RedisModuleKeyInfo>().as_ref() else { return };
            let db = api!(RedisModule_GetDbIdFromModuleKey).map(|db| db(info.key));
            let name = api!(RedisModule_GetKeyNameFromModuleKey).map_or(null_mut(), |name| name(info.key).cast_mut());
            touched(ctx, db, name);
        }
    }
}

/// # Safety
/// `ctx` is live, and `name` null or a live string.
unsafe fn touched(ctx: *mut raw::RedisModuleCtx, db: Option<c_int>, name: *mut raw::RedisModuleString) {
    guard::callback((), || {
        // SAFETY: the caller's promise.
        if !name.is_null() && waiting::touch(db.unwrap_or(0), unsafe { guard::bytes(name) }) {
            arm(ctx);
        }
    });
}

/// Something may have happened to every key: FLUSHALL, SWAPDB, a load.
pub fn all_may_have_changed(ctx: *mut raw::RedisModuleCtx) {
    if waiting::any() {
        waiting::touch_all();
        arm(ctx);
    }
}

/// Some ten times a second: the clock may have been set, and a slot may have moved away.
pub fn cron(ctx: *mut raw::RedisModuleCtx) {
    const ASKED_EVERY: u8 = 10;
    if !waiting::any() {
        return;
    }
    let turn = TURNS.get();
    if turn == 0 && server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) {
        waiting::touch_all();
    }
    TURNS.set(turn.checked_add(1).filter(|turn| *turn < ASKED_EVERY).unwrap_or(0));
    let now = now();
    waiting::see(now);
    if waiting::due().is_some_and(|due| due <= now) {
        // Whatever is armed sleeps by the clock that it was armed by.
        disarm(ctx);
        arm_for(ctx, Timestamp::EPOCH, 0);
    }
}

/// Arms the timer for when the next look is due, or disarms it.
fn arm(ctx: *mut raw::RedisModuleCtx) {
    match waiting::due() {
        Some(due) => arm_for(ctx, due, wait_for(due, now())),
        None => disarm(ctx),
    }
}

/// How long the timer waits for what is due then, in milliseconds: for a later one it is armed again. Redis 6.2 and 7.0
/// count microseconds in 32 bits, and one that is further away than these go runs without a pause.
fn wait_for(due: Timestamp, now: Timestamp) -> i64 {
    const LONGEST: i64 = 60_000;
    i64::try_from(due.since(now).ceil_millis()).unwrap_or(LONGEST).min(LONGEST)
}

fn arm_for(ctx: *mut raw::RedisModuleCtx, due: Timestamp, wait: i64) {
    if ARMED.get().is_some_and(|(_, armed)| armed == due) {
        return;
    }
    disarm(ctx);
    if let Some(create) = api!(RedisModule_CreateTimer) {
        // SAFETY: a context of the module's; the callback is a plain function.
        let timer = unsafe { create(ctx, wait, Some(tick), null_mut()) };
        ARMED.set(Some((timer, due)));
    }
}

fn disarm(ctx: *mut raw::RedisModuleCtx) {
    if let (Some((timer, _)), Some(stop)) = (ARMED.take(), api!(RedisModule_StopTimer)) {
        // SAFETY: a context of the module's, and a timer of its own that has not run.
        unsafe { stop(ctx, timer, null_mut()) };
    }
}

/// Looks at the queues.
unsafe extern "C" fn tick(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    ARMED.set(None);
    guard::callback((), || {
        let now = now();
        for _ in 0..LOOKS {
            let untold = if may_grant() { waiting::take_untold() } else { Vec::new() };
            for grant in &untold {
                // SAFETY: the timer's own context.
                unsafe {
                    with_key(ctx, &grant.key, |redis, name, service| (service.give_back)(redis, name, grant, now))
                };
            }
            let ready = waiting::take_ready(now);
            if ready.is_empty() && untold.is_empty() {
                break;
            }
            for key in ready {
                // SAFETY: likewise.
                unsafe { look_at(ctx, &key, now) };
            }
        }
    });
    if waiting::due().is_some() && !may_grant() {
        arm_for(ctx, Timestamp::MAX, RETRY);
    } else {
        arm(ctx);
    }
}

/// Whether a lease can be granted now, and propagated.
pub fn may_grant() -> bool {
    const NOT_WHILE: [u32; 2] = [raw::REDISMODULE_CTX_FLAGS_LOADING, raw::REDISMODULE_CTX_FLAGS_READONLY];
    policies::may_propagate() && !NOT_WHILE.into_iter().any(server_is)
}

/// Looks at the queue of one key.
///
/// # Safety
/// `ctx` is that of a timer.
unsafe fn look_at(ctx: *mut raw::RedisModuleCtx, key: &Key, now: Timestamp) {
    let mut elsewhere = None;
    // SAFETY: the caller's promise.
    let served = unsafe {
        with_key(ctx, key, |redis, name, service| {
            elsewhere = redis.string(name).ok().and_then(|name| slots::elsewhere(ctx, name));
            if elsewhere.is_none() {
                (service.serve)(redis, name, key, now);
            }
        })
    };
    if let Some(error) = elsewhere {
        while let Some(next) = waiting::head(key).or_else(|| waiting::replaced(key)) {
            refuse(key, &next, error.clone());
        }
    } else if let (false, Some(next)) = (served, waiting::replaced(key).or_else(|| waiting::head(key))) {
        // A defect of ours has cut it short. Nobody is to wait for ever for that.
        refuse(key, &next, Error::Internal);
    }
}

/// Answers one who waits with an error.
fn refuse(key: &Key, next: &Next, error: Error) {
    waiting::leave(key, next.place);
    answer(next.client, Err(error), None);
}

/// Runs something on a key, as a call would; whether it came to its end.
///
/// # Safety
/// `ctx` is that of a timer.
unsafe fn with_key(ctx: *mut raw::RedisModuleCtx, key: &Key, run: impl FnOnce(&mut Redis, KeyName, &Service)) -> bool {
    /// What is not about one client's call.
    static STATS: CommandStats = CommandStats::new();
    let (Some(select), Some(service)) = (api!(RedisModule_SelectDb), SERVICE.get()) else { return false };
    // SAFETY: the caller's promise; the string is freed below, when nothing uses it any more.
    let name = unsafe {
        select(ctx, key.db);
        call!(RedisModule_CreateString(null_mut(), key.name.as_ptr().cast(), key.name.len()))
    };
    let argv = [name];
    // SAFETY: likewise.
    let mut redis = unsafe { Redis::new(ctx, &argv, &STATS) };
    // Of a call that nobody made there are no words to count a change by.
    let ran = listeners::as_if_somebody_listened(|| {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            run(&mut redis, KeyName(0), service);
            redis.finish();
        }));
        if ran.is_err() {
            // As when a call panics: what has been changed by then is propagated all the same.
            drop(catch_unwind(AssertUnwindSafe(|| redis.finish())));
        }
        ran.is_ok()
    });
    // SAFETY: made above.
    unsafe { call!(RedisModule_FreeString(null_mut(), name)) };
    ran
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_core::Span;

    #[test]
    fn no_timer_is_set_further_away_than_servers_count() {
        let now = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
        for (micros, wait) in [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (60_000_000, 60_000), (60_001_000, 60_000)] {
            assert_eq!(wait_for(now.plus(Span::from_micros(micros)), now), wait);
        }
        assert_eq!(wait_for(Timestamp::MAX, now), 60_000);
        assert_eq!(wait_for(Timestamp::EPOCH, now), 0);
    }
}
