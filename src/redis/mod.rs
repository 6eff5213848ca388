//! The server: the only unsafe code, and with `module.rs` the only user of the SDK. It knows a usage by its trait
//! (encode, decode, kind), never an algorithm by name.
//!
//! Everything runs inside a call of ours, on the thread that holds the server's lock: mostly its main thread, but other
//! modules call from threads of their own. A handle never outlives that call. Functions of the module API that a
//! server may lack are optional pointers, asked at each use; the others are checked once at
//! load ([`api::missing`](crate::redis::api::missing)), so that a call of one cannot fail.

#![allow(unsafe_code, reason = "the server is reached by pointers alone")]

pub mod acl;
pub mod api;
mod before;
pub mod blocked;
pub mod bus;
mod clock;
pub mod command;
pub mod config;
mod dry_run;
pub mod effect;
pub mod entry;
pub mod events;
mod global;
pub mod guard;
pub mod info;
pub mod key;
pub mod key_events;
pub mod kind;
pub mod lazy_free;
pub mod listeners;
#[cfg_attr(test, allow(dead_code, reason = "tests of the core have no server to allocate from"))]
pub mod memory;
pub mod native_type;
pub mod on_key;
pub mod policies;
mod rdb;
pub mod slots;
pub mod waiting_room;
pub mod writes;

use crate::reply::{Reply, Row};
use crate::server::Global;
use crate::server::settings::DENIAL_EVENTS;
use crate::server::stats::CommandStats;
use api::{api, call};
pub use clock::now;
use effect::Changes;
use entry::Entry;
use key::Event;
use ratelimit_core::Timestamp;
use ratelimit_core::algorithm::sketch::Place;
use ratelimit_core::policy::Origin;
use ratelimit_core::wire::args::{Args, KeyName};
use ratelimit_core::wire::error::Error;
use redis_module::raw;
use std::collections::VecDeque;
use std::ffi::{CString, c_int, c_long};

/// One call of a command: the server's context, the words as the server holds them, and what is left to be propagated
/// and announced.
pub struct Redis<'a> {
    ctx: *mut raw::RedisModuleCtx,
    argv: &'a [*mut raw::RedisModuleString],
    /// What this server knows beside its keys.
    pub global: &'a Global,
    /// Where calls of this command are counted.
    pub stats: &'static CommandStats,
    /// How often others may have run: what was found in a key before may not be there any more (see `key.rs`).
    turn: u32,
    changes: Changes,
    /// What has happened to its first few keys: most calls have no more.
    events: [Option<(KeyName, Event)>; FEW],
    happened: usize,
    announced: usize,
    more: Option<Box<More>>,
    /// Where the last denial is noted, until it is known whether a policy ruled.
    denied: Option<Place>,
}

const FEW: usize = 4;

/// What is left to be done and announced of a call that needs lists for it.
#[derive(Default)]
struct More {
    events: Vec<(KeyName, Event)>,
    /// What is done to keys once it has been propagated.
    pending: VecDeque<Pending>,
}

type Pending = Box<dyn FnOnce(&mut Redis)>;

impl<'a> Redis<'a> {
    /// # Safety
    /// `ctx` and `argv` are those of a call that lasts at least as long as `'a`, and holds the server's lock.
    unsafe fn new(
        ctx: *mut raw::RedisModuleCtx,
        argv: &'a [*mut raw::RedisModuleString],
        stats: &'static CommandStats,
    ) -> Redis<'a> {
        let changes = Changes::default();
        // SAFETY: the caller's promise.
        let global = unsafe { global::global() };
        Redis {
            ctx,
            argv,
            global,
            stats,
            turn: 0,
            changes,
            events: [None; FEW],
            happened: 0,
            announced: 0,
            more: None,
            denied: None,
        }
    }

    /// The entry from the server that this call is.
    pub fn entry(&self) -> Entry<'a> {
        Entry { ctx: self.ctx, global: self.global }
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

    /// Whether the server is over its memory limit, and evicts nothing.
    ///
    /// One that evicts has done so before this call, down to its limit, and so is over it again by what the call
    /// itself takes, or has left the rest for later. What a call makes may be evicted like any other key.
    pub fn out_of_memory(&self) -> bool {
        // SAFETY: `ctx` is that of the current call.
        let flags = unsafe { call!(RedisModule_GetContextFlags(self.ctx)) };
        api::has_flag(flags, raw::REDISMODULE_CTX_FLAGS_OOM) && !api::has_flag(flags, raw::REDISMODULE_CTX_FLAGS_EVICT)
    }

    /// Records that a key stood in the way of the call, which has changed nothing of it, and has it announced if that
    /// is wanted. Once a key and call.
    #[inline(never)]
    pub fn denied(&mut self, name: KeyName, now: Timestamp) {
        if let Some(string) = self.argv.get(name.0) {
            // SAFETY: the string is that of the current call, and lives until that ends.
            self.denied = self.global.heavy_hitters.record(unsafe { guard::bytes(*string) }, now);
        }
        if DENIAL_EVENTS.get() != 0 {
            self.happened(name, Event::Denied);
        }
    }

    /// Records which policy, if any, has denied the key that was denied last, if any was since the last such record.
    #[inline(always)]
    pub fn ruled(&mut self, policy: Option<&[u8]>) {
        if let (Some(place), Some(policy)) = (self.denied.take(), policy) {
            self.global.heavy_hitters.ruled(place, policy);
        }
    }

    /// Adds to what those will hear of who might change more.
    #[inline(always)]
    fn happened(&mut self, name: KeyName, event: Event) {
        if let Some(room) = self.events.get_mut(self.happened) {
            *room = Some((name, event));
        } else {
            self.more.get_or_insert_default().events.push((name, event));
        }
        self.happened = self.happened.saturating_add(1);
    }

    /// Leaves something to be done once all that was recorded has been propagated.
    fn later(&mut self, run: impl FnOnce(&mut Redis) + 'static) {
        self.more.get_or_insert_default().pending.push_back(Box::new(run));
    }

    /// The same, before all that lets others run.
    fn first(&mut self, run: impl FnOnce(&mut Redis) + 'static) {
        self.more.get_or_insert_default().pending.push_front(Box::new(run));
    }

    /// Ends what the call does to keys, whatever has become of the call: what has changed is propagated to replicas and
    /// the AOF, then what was left for later is done, and then those hear of it who might change more.
    pub fn finish(&mut self) {
        self.propagate();
        while let Some(run) = self.more.as_mut().and_then(|more| more.pending.pop_front()) {
            run(self);
            guard::point();
        }
        while let Some((name, event)) = self.next_event() {
            self.announce(name, event);
            guard::point();
        }
    }

    #[inline(always)]
    fn next_event(&mut self) -> Option<(KeyName, Event)> {
        let next = self.announced;
        if next >= self.happened {
            return None;
        }
        self.announced = next.saturating_add(1);
        match self.events.get(next) {
            Some(event) => *event,
            None => self.more.as_ref()?.events.get(next.saturating_sub(FEW)).copied(),
        }
    }

    #[inline(always)]
    fn announce(&mut self, name: KeyName, event: Event) {
        let (class, text) = match event {
            Event::Taken => (raw::REDISMODULE_NOTIFY_MODULE, c"rl.take"),
            Event::Deleted => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
            Event::Denied => (raw::REDISMODULE_NOTIFY_MODULE, c"rl.denied"),
        };
        let Ok(name) = self.string(name) else { return };
        self.others_may_run();
        // SAFETY: `ctx` and the string are those of the current call; the event's name is a constant.
        unsafe {
            if event != Event::Denied {
                call!(RedisModule_SignalModifiedKey(self.ctx, name));
            }
            call!(RedisModule_NotifyKeyspaceEvent(self.ctx, class, text.as_ptr(), name));
        }
    }

    /// Sends a reply, or an error.
    fn reply_with(&self, reply: &Result<Reply, Error>) {
        match reply {
            Ok(reply) => self.reply(reply),
            Err(error) => self.reply_error(error),
        }
    }

    /// Sends a reply.
    fn reply(&self, reply: &Reply) {
        match reply {
            Reply::Row(row) => self.reply_row(row),
            Reply::Rows(integers, rows) => {
                self.reply_array(3);
                for value in integers {
                    self.reply_integer(*value);
                }
                self.reply_array(rows.len());
                for row in rows {
                    self.reply_row(row);
                }
            }
            Reply::Integer(value) => self.reply_integer(*value),
            Reply::Bytes(bytes) => self.reply_bytes(bytes),
            Reply::Array(replies) => {
                self.reply_array(replies.len());
                for reply in replies {
                    self.reply(reply);
                }
            }
            Reply::Map(pairs) => {
                self.reply_map(pairs.len());
                for (name, reply) in pairs {
                    self.reply_bytes(name.as_bytes());
                    self.reply(reply);
                }
            }
            // SAFETY: `ctx` is that of the current call; the text is a constant.
            Reply::Null => unsafe {
                call!(RedisModule_ReplyWithNull(self.ctx));
            },
            // SAFETY: likewise.
            Reply::Ok => unsafe {
                call!(RedisModule_ReplyWithSimpleString(self.ctx, c"OK".as_ptr()));
            },
            Reply::Later => {}
        }
    }

    #[inline(always)]
    fn reply_row(&self, row: &Row) {
        self.reply_array(row.integers().len());
        for value in row.integers() {
            self.reply_integer(*value);
        }
    }

    fn reply_array(&self, length: usize) {
        let length = c_long::try_from(length).unwrap_or(0);
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplyWithArray(self.ctx, length)) };
    }

    fn reply_integer(&self, value: i64) {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplyWithLongLong(self.ctx, value)) };
    }

    fn reply_bytes(&self, value: &[u8]) {
        // SAFETY: `ctx` is that of the current call; the server copies the bytes.
        unsafe { call!(RedisModule_ReplyWithStringBuffer(self.ctx, value.as_ptr().cast(), value.len())) };
    }

    /// Begins a reply of `length` pairs: a map in RESP3, a flat array in RESP2.
    ///
    /// Redis 6.2 lets no module make a map, so there it is the flat array in RESP3 too. Of its replies to a module's
    /// commands only arrays have elements. What another command has replied can be passed on as it is
    /// (`RedisModule_ReplyWithCallReply`), but that command runs for a client that speaks RESP2, a script's map
    /// included. Nor does a module learn which protocol its own client speaks.
    fn reply_map(&self, length: usize) {
        match api!(RedisModule_ReplyWithMap) {
            Some(reply) => {
                let length = c_long::try_from(length).unwrap_or(0);
                // SAFETY: `ctx` is that of the current call.
                unsafe { reply(self.ctx, length) };
            }
            None => self.reply_array(length.saturating_mul(2)),
        }
    }

    /// Whether the server only asks which arguments of this call are keys.
    fn is_asked_for_keys(&self) -> bool {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_IsKeysPositionRequest(self.ctx)) != 0 }
    }

    /// Answers which arguments are keys, of a call with numbered ones. There is nobody to send an error to.
    fn answer_keys(&self, mut args: Args, access: command::Access) {
        let flags = access.key_flags().cast_signed();
        for name in args.numbered_keys().into_iter().flatten() {
            let place = c_int::try_from(name.0).unwrap_or(0);
            // SAFETY: `ctx` is that of the current call, which asks for keys.
            unsafe {
                match api!(RedisModule_KeyAtPosWithFlags) {
                    // Without flags a call that only reads would need the right to write.
                    Some(answer) => answer(self.ctx, place, flags),
                    None => call!(RedisModule_KeyAtPos(self.ctx, place)),
                }
            }
        }
    }

    /// Sends an error.
    fn reply_error(&self, error: &Error) {
        if *error == Error::WrongArity {
            // SAFETY: `ctx` is that of the current call.
            unsafe { call!(RedisModule_WrongArity(self.ctx)) };
            return;
        }
        // No error text has a NUL in it: unexpected words are escaped.
        let text = CString::new(error.to_string()).unwrap_or_default();
        // SAFETY: `ctx` is that of the current call, and the server copies the text.
        unsafe { call!(RedisModule_ReplyWithError(self.ctx, text.as_ptr())) };
    }

    /// Repeats this call, word for word, on replicas and in the AOF.
    pub fn propagate_verbatim(&self) {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplicateVerbatim(self.ctx)) };
    }

    /// Where the records of this call come from.
    pub fn origin(&self) -> Origin {
        // SAFETY: `ctx` is that of the current call.
        let flags = unsafe { call!(RedisModule_GetContextFlags(self.ctx)) };
        if api::has_flag(flags, raw::REDISMODULE_CTX_FLAGS_REPLICATED) {
            Origin::Primary
        } else if api::has_flag(flags, raw::REDISMODULE_CTX_FLAGS_LOADING) {
            Origin::Disk
        } else {
            Origin::Peer
        }
    }

    /// Propagates what has become of policies to replicas and the AOF.
    pub fn propagate_policies(&self, names: &[Box<[u8]>]) {
        for record in names.iter().filter_map(|name| self.global.policies.record(name, now())) {
            // SAFETY: `ctx` is that of the current call.
            unsafe { policies::propagate_record(self.ctx, &record) };
        }
    }

    /// Propagates what has become of policies to replicas and the AOF, and to the rest of the cluster.
    pub fn policies_changed(&self, names: &[&[u8]]) {
        let now = now();
        let records: Vec<Vec<u8>> = names.iter().filter_map(|name| self.global.policies.record(name, now)).collect();
        for record in &records {
            // SAFETY: `ctx` is that of the current call.
            unsafe { policies::propagate_record(self.ctx, record) };
        }
        // SAFETY: likewise.
        unsafe { bus::announce(self.ctx, &records) };
    }

    fn string(&self, name: KeyName) -> Result<*mut raw::RedisModuleString, Error> {
        self.argv.get(name.0).copied().ok_or(Error::WrongArity)
    }
}
