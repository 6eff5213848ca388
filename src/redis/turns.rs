//! When the queues of those who wait are looked at, and how much in one go.
//!
//! Whoever waits is served from a timer of the module, never inside another call, a notification or a script: there, a
//! change would take the slot or the place of what is running. Whatever may make room (an event of the key, a client
//! that goes, FLUSHALL, SWAPDB, a load) only marks the key and arms the timer, which runs before the next call is read.
//! Else it is armed for when the next lease expires or the next client has waited long enough. The server counts a
//! timer by the wall clock and sleeps by another, so a clock that is set is noticed by its cron event.
//!
//! **A turn of the timer is bounded,** however many keys there are: it does so much ([`EFFORT`]), and goes on in its next
//! turn, between which the server reads calls. Nobody overtakes meanwhile: who comes later comes behind.
//!
//! **While the server takes no writes,** nobody is granted anything ([`Turn::may_grant`]). Nothing is looked at for that
//! again and again: the cron event asks whether it does, and then all keys are looked at.

use super::api::{self, OK, api, call, server_is};
use super::{Redis, global::global, guard, handback, listeners, now, policies, slots, writes};
use crate::reply::Reply;
use crate::server::Global;
use crate::server::queues::schedule::Schedule;
use crate::server::queues::{Grant, Key, WaitingCall, Work};
use crate::server::stats::CommandStats;
use ratelimit_core::Timestamp;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// What is done for those who wait, by who knows the commands.
#[derive(Clone, Copy)]
pub struct Service {
    /// Answers whoever can be, of the key of this call, as long as the turn goes on.
    pub serve: fn(&mut Redis, KeyName, &Key, &mut Turn),
    /// What one is answered who waits no longer: without changing anything.
    pub denial: fn(&mut Redis, KeyName, &WaitingCall, Timestamp) -> Result<Reply, Error>,
    /// Gives a lease back that was granted to nobody.
    pub give_back: fn(&mut Redis, KeyName, &Grant, Timestamp),
}

static SERVICE: OnceLock<Service> = OnceLock::new();

/// Learns what is done for those who wait.
pub fn register(service: Service) {
    // Set once: a module whose load has come this far is never unloaded.
    SERVICE.get_or_init(|| service);
}

/// What is done for those who wait.
pub fn service() -> Option<&'static Service> {
    SERVICE.get()
}

/// How much the timer does in one turn: looks at queues, and answers. A lease that is granted takes some 25 microseconds,
/// the server's reply included.
const EFFORT: usize = 100;

/// What it takes to find out which node has a key.
const REDIRECTION: usize = 25;

/// How many keys are asked after at each cron event of a cluster's node, whether they are still its own.
const ASKED_AFTER: usize = 100;

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

/// A turn of the timer.
pub struct Turn {
    ctx: *mut raw::RedisModuleCtx,
    /// When it began, for all that it does.
    pub now: Timestamp,
    spent: usize,
    /// Whether the server takes writes, once it has been asked.
    writes: Option<bool>,
}

impl Turn {
    fn new(ctx: *mut raw::RedisModuleCtx) -> Turn {
        Turn { ctx, now: now(), spent: 0, writes: None }
    }

    /// Whether it may do more.
    pub fn goes_on(&self) -> bool {
        self.spent < EFFORT
    }

    /// It does something that takes so much.
    pub fn spend(&mut self, effort: usize) {
        self.spent = self.spent.saturating_add(effort);
    }

    /// Whether a lease can be granted now: whether the server would also take a call that does. That is asked once a
    /// turn, and only where somebody would be granted one.
    pub fn may_grant(&mut self) -> bool {
        let ctx = self.ctx;
        // SAFETY: a turn does not outlive the timer's context.
        may_propagate() && *self.writes.get_or_insert_with(|| unsafe { writes::are_taken(ctx) })
    }
}

/// Whether this server is one that writes, and may propagate what it writes. It may change within a turn.
pub fn may_propagate() -> bool {
    const NOT_WHILE: [u32; 2] = [raw::REDISMODULE_CTX_FLAGS_LOADING, raw::REDISMODULE_CTX_FLAGS_READONLY];
    policies::may_propagate() && !NOT_WHILE.into_iter().any(server_is)
}

/// Hears of what happens to keys from now on. That cannot be given up again, and each event costs the server a call.
///
/// From Redis 7.2 on, and on Valkey, it is told of each key that ends or is replaced, which are fewer. And who hears of
/// what is moved or copied to another database has Valkey before 9.1 leave the client there that did it.
pub fn subscribe(global: &Global, ctx: *mut raw::RedisModuleCtx) {
    if global.schedule.subscribed.replace(true) {
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
    // SAFETY: the server tells of keys with its lock held. The event's own context, and the name of the key.
    unsafe {
        let global = global();
        if global.queues.any() {
            touched(global, ctx, api!(RedisModule_GetSelectedDb).map(|db| db(ctx)), name);
        }
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
    // SAFETY: the server tells of keys with its lock held. With such an event it passes an open key, whose name lives as
    // long.
    unsafe {
        let global = global();
        if global.queues.any() {
            let Some(info) = data.cast::<raw::RedisModuleKeyInfo>().as_ref() else { return };
            let db = api!(RedisModule_GetDbIdFromModuleKey).map(|db| db(info.key));
            let name = api!(RedisModule_GetKeyNameFromModuleKey).map_or(null_mut(), |name| name(info.key).cast_mut());
            touched(global, ctx, db, name);
        }
    }
}

/// # Safety
/// `ctx` is live, and `name` null or a live string.
unsafe fn touched(
    global: &Global,
    ctx: *mut raw::RedisModuleCtx,
    db: Option<c_int>,
    name: *mut raw::RedisModuleString,
) {
    guard::callback((), || {
        // SAFETY: the caller's promise.
        if !name.is_null() && global.queues.touch(db.unwrap_or(0), unsafe { guard::bytes(name) }) {
            arm(global, ctx);
        }
    });
}

/// Something may have happened to every key: FLUSHALL, SWAPDB, a load.
pub fn all_may_have_changed(global: &Global, ctx: *mut raw::RedisModuleCtx) {
    if global.queues.any() {
        global.queues.touch_all();
        arm(global, ctx);
    }
}

/// Some ten times a second: the clock may have been set, a slot may have moved away, and writes may be taken again.
pub fn cron(global: &Global, ctx: *mut raw::RedisModuleCtx) {
    let Global { queues, schedule, .. } = global;
    schedule.unblockable.set(None);
    if queues.is_held_up() && Turn::new(ctx).may_grant() {
        queues.go_on();
    }
    if queues.any() && server_is(raw::REDISMODULE_CTX_FLAGS_CLUSTER) {
        for key in queues.next_few(ASKED_AFTER) {
            // SAFETY: the event's own context.
            unsafe { ask_after(global, ctx, &key) };
        }
    }
    let now = now();
    queues.see(now);
    if due(global).is_some_and(|due| due <= now) {
        // Whatever is armed sleeps by the clock that it was armed by.
        disarm(schedule, ctx);
        arm_for(schedule, ctx, Timestamp::EPOCH, 0);
    }
}

/// Has a key looked at that is not this node's any more.
///
/// # Safety
/// `ctx` is that of an event.
unsafe fn ask_after(global: &Global, ctx: *mut raw::RedisModuleCtx, key: &Key) {
    // SAFETY: the caller's promise; the string lives as long as it is asked for.
    match unsafe { with_name(ctx, key, |name| slots::place(ctx, name)) } {
        Some(slots::Place::Here | slots::Place::Unknown) | None => {}
        // So is every other key.
        Some(slots::Place::Down) => global.queues.touch_all(),
        Some(slots::Place::Elsewhere) => {
            global.queues.touch(key.db, &key.name);
        }
    }
}

/// When there is work; `None` if nothing is known to be due.
fn due(global: &Global) -> Option<Timestamp> {
    if global.outbox.is_empty() { global.queues.due() } else { Some(Timestamp::EPOCH) }
}

/// Arms the timer for when there is work, or disarms it.
pub fn arm(global: &Global, ctx: *mut raw::RedisModuleCtx) {
    match due(global) {
        Some(due) => arm_for(&global.schedule, ctx, due, wait_for(due, now())),
        None => disarm(&global.schedule, ctx),
    }
}

/// How long the timer waits for what is due then, in milliseconds: for a later one it is armed again. Redis 6.2 and 7.0
/// count microseconds in 32 bits, and one that is further away than these go runs without a pause.
fn wait_for(due: Timestamp, now: Timestamp) -> i64 {
    const LONGEST: i64 = 60_000;
    i64::try_from(due.since(now).ceil_millis()).unwrap_or(LONGEST).min(LONGEST)
}

fn arm_for(schedule: &Schedule, ctx: *mut raw::RedisModuleCtx, due: Timestamp, wait: i64) {
    if schedule.armed.get().is_some_and(|(_, armed)| armed == due) {
        return;
    }
    disarm(schedule, ctx);
    if let Some(create) = api!(RedisModule_CreateTimer) {
        // SAFETY: a context of the module's; the callback is a plain function.
        let id = unsafe { create(ctx, wait, Some(tick), null_mut()) };
        schedule.armed.set(Some((id, due)));
    }
}

fn disarm(schedule: &Schedule, ctx: *mut raw::RedisModuleCtx) {
    if let (Some((id, _)), Some(stop)) = (schedule.armed.take(), api!(RedisModule_StopTimer)) {
        // SAFETY: a context of the module's, and a timer of its own that has not run.
        unsafe { stop(ctx, id, null_mut()) };
    }
}

/// The timer's turn. What panics is cut short alone.
unsafe extern "C" fn tick(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: a timer runs with the server's lock held.
    let global = unsafe { global() };
    global.schedule.armed.set(None);
    let turn = &mut Turn::new(ctx);
    while turn.goes_on()
        && let Some(work) = guard::callback(None, || global.queues.next_work(turn.now))
    {
        let before = turn.spent;
        guard::callback((), || match work {
            // SAFETY: the timer's own context.
            Work::Look(key) => unsafe { look_at(global, turn, &key) },
            // SAFETY: likewise.
            Work::GiveBack(grant) => unsafe { give_back(global, turn, grant) },
        });
        // Whoever is answered has been counted; a look that answers nobody counts too.
        turn.spent = turn.spent.max(before.saturating_add(1));
    }
    let handed_back = handback::hand_back_answered(global, EFFORT);
    let done = u64::try_from(turn.spent.max(handed_back)).unwrap_or(u64::MAX);
    global.queues.busiest_turn.set(global.queues.busiest_turn.get().max(done));
    guard::callback((), || arm(global, ctx));
}

/// Gives a lease back, now or when the server takes writes again.
///
/// # Safety
/// The turn is under way.
unsafe fn give_back(global: &Global, turn: &mut Turn, grant: Grant) {
    if turn.may_grant() {
        let now = turn.now;
        // SAFETY: the caller's promise.
        unsafe {
            with_key(turn.ctx, &grant.key, |redis, name, service| (service.give_back)(redis, name, &grant, now));
        }
    } else {
        global.queues.hold_up();
        global.queues.untold(grant);
    }
}

/// Looks at the queue of one key.
///
/// # Safety
/// The turn is under way.
unsafe fn look_at(global: &Global, turn: &mut Turn, key: &Key) {
    let Global { queues, .. } = global;
    queues.looks.count();
    let (mut elsewhere, ctx) = (None, turn.ctx);
    // SAFETY: the caller's promise.
    let served = unsafe {
        with_key(ctx, key, |redis, name, service| {
            elsewhere = redis.string(name).ok().and_then(|name| slots::elsewhere(ctx, name));
            if elsewhere.is_none() {
                (service.serve)(redis, name, key, turn);
            }
        })
    };
    if let Some(error) = elsewhere {
        turn.spend(REDIRECTION);
        while let Some(next) = queues.head(key).or_else(|| queues.replaced(key)) {
            if !turn.goes_on() {
                // The others run first.
                queues.touch(key.db, &key.name);
                break;
            }
            turn.spend(1);
            refuse(global, key, &next, error.clone());
        }
    } else if let (false, Some(next)) = (served, queues.replaced(key).or_else(|| queues.head(key))) {
        // A defect of ours has cut it short. Nobody is to wait for ever for that.
        refuse(global, key, &next, Error::Internal);
    }
}

/// Answers one who waits with an error.
fn refuse(global: &Global, key: &Key, next: &WaitingCall, error: Error) {
    global.queues.leave(key, next.place);
    handback::answer(global, &next.client, Err(error), None);
}

/// Has the server hold the name of a key as its own string, in the key's database.
///
/// # Safety
/// `ctx` is that of a timer or of an event.
unsafe fn with_name<T>(
    ctx: *mut raw::RedisModuleCtx,
    key: &Key,
    run: impl FnOnce(*mut raw::RedisModuleString) -> T,
) -> Option<T> {
    let select = api!(RedisModule_SelectDb)?;
    // SAFETY: the caller's promise; the string is freed when nothing uses it any more.
    unsafe {
        select(ctx, key.db);
        let name = call!(RedisModule_CreateString(null_mut(), key.name.as_ptr().cast(), key.name.len()));
        let done = run(name);
        call!(RedisModule_FreeString(null_mut(), name));
        Some(done)
    }
}

/// Runs something on a key, as a call would; whether it came to its end.
///
/// # Safety
/// `ctx` is that of a timer.
unsafe fn with_key(ctx: *mut raw::RedisModuleCtx, key: &Key, run: impl FnOnce(&mut Redis, KeyName, &Service)) -> bool {
    /// What is not about one client's call.
    static STATS: CommandStats = CommandStats::new();
    let Some(service) = SERVICE.get() else { return false };
    let run = |name| {
        let argv = [name];
        // SAFETY: the caller's promise; the string lives as long as it is used.
        let mut redis = unsafe { Redis::new(ctx, &argv, &STATS) };
        // Of a call that nobody made there are no words to count a change by.
        listeners::as_if_somebody_listened(|| {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                run(&mut redis, KeyName(0), service);
                redis.finish();
            }));
            if ran.is_err() {
                // As when a call panics: what has been changed by then is propagated all the same.
                drop(catch_unwind(AssertUnwindSafe(|| redis.finish())));
            }
            ran.is_ok()
        })
    };
    // SAFETY: the caller's promise. What is run does not panic.
    unsafe { with_name(ctx, key, run) }.unwrap_or(false)
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
