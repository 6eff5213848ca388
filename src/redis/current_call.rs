//! State of one call of a command: access to the server, and the work left for the end of the call.

use super::api::now;
use super::api::{api, call, has_flag};
use super::debug_round_trip::RoundTripCheck;
use super::outgoing::{self, RecordedEffects};
use super::server_entry::{ServerEntry, module_state, with_name};
use super::{bus, guard, policy_persistence};
use crate::server::ModuleState;
use crate::server::settings::DENIAL_EVENTS;
use crate::server::stats::CommandStats;
use ratelimit_core::policy::Origin;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Timestamp, Usage};
use redis_module::raw;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Current call of a command: the server's context, the words of the call, and the effects and events that are still to
/// be propagated and announced. A handler borrows it for the duration of its call.
pub struct Redis<'a> {
    /// Server's context.
    pub(super) ctx: *mut raw::RedisModuleCtx,
    /// Words of the call, as the server's strings.
    pub(super) argv: &'a [*mut raw::RedisModuleString],
    /// State of the module outside of keys.
    pub state: &'a ModuleState,
    /// Counters of the command.
    pub stats: &'static CommandStats,
    /// Number of times that other modules may have run: the generation of pointers into keys (see `key/mod.rs`).
    pub(super) generation: u32,
    /// Number of events that have been announced.
    announced_count: usize,
    /// Actions to run once everything recorded has been propagated.
    ///
    /// `None` in most calls, which makes it cheap to drop.
    pending_actions: Option<VecDeque<Action>>,
    /// Keyspace events, to be announced at the end of the call.
    events: SmallVec<[(KeyIndex, Event); 8]>,
    /// Effects to be propagated.
    pub(super) effects: RecordedEffects,
}

type Action = Box<dyn FnOnce(&mut Redis)>;

/// Counters of work that belongs to no client's call.
pub(super) static BACKGROUND_STATS: CommandStats = CommandStats::new();

impl<'a> Redis<'a> {
    /// # Safety
    /// `ctx` and `argv` are those of a call that lasts at least as long as `'a` and holds the server's lock.
    pub(super) unsafe fn new(
        ctx: *mut raw::RedisModuleCtx,
        argv: &'a [*mut raw::RedisModuleString],
        stats: &'static CommandStats,
    ) -> Redis<'a> {
        Redis {
            ctx,
            argv,
            // SAFETY: the caller guarantees that the server's lock is held for as long as the call lasts.
            state: unsafe { module_state() },
            stats,
            generation: 0,
            announced_count: 0,
            pending_actions: None,
            events: SmallVec::new(),
            effects: RecordedEffects::default(),
        }
    }

    /// Runs `run` on a key from a timer, like a call. Returns `true` if it completed without a panic.
    pub fn in_background(entry: ServerEntry, db: c_int, name: &[u8], run: impl FnOnce(&mut Redis, KeyIndex)) -> bool {
        let run_as_call = |name| {
            let argv = [name];
            // SAFETY: the entry's own context; the string lives as long as it is used.
            let mut redis = unsafe { Redis::new(entry.ctx, &argv, &BACKGROUND_STATS) };
            // Effects are forced: a timer has no command to replicate verbatim, by which the server would count the
            // change.
            outgoing::with_effects(|| {
                let ran = catch_unwind(AssertUnwindSafe(|| {
                    run(&mut redis, KeyIndex(0));
                    redis.finish();
                }));
                if ran.is_err() {
                    // After a panic, the changes made before it are still propagated.
                    drop(catch_unwind(AssertUnwindSafe(|| redis.finish())));
                }
                ran.is_ok()
            })
        };
        // The closure catches panics, so it returns a result.
        with_name(entry, db, name, run_as_call).unwrap_or(false)
    }

    /// Returns the server's context of this call, with the module's state.
    pub fn entry(&self) -> ServerEntry<'a> {
        ServerEntry { ctx: self.ctx, state: self.state }
    }

    /// Returns `true` if the server calls the command only to learn the positions of its keys.
    #[inline(always)]
    pub(super) fn is_key_position_request(&self) -> bool {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_IsKeysPositionRequest(self.ctx)) != 0 }
    }

    /// Returns the number of the database that this call runs in.
    pub fn db(&self) -> c_int {
        // SAFETY: `ctx` is that of the current call.
        api!(RedisModule_GetSelectedDb).map_or(0, |db| unsafe { db(self.ctx) })
    }

    /// Returns the bytes of a key's name.
    pub fn key_bytes(&self, index: KeyIndex) -> &[u8] {
        // SAFETY: the string is that of the current call, and lives until that ends.
        self.argv.get(index.0).map_or(&[], |string| unsafe { guard::bytes(*string) })
    }

    /// Returns `true` if the server is over its memory limit and its policy is `noeviction`.
    ///
    /// A server that evicts has done so before this call, so it is over its limit only by the memory of the call
    /// itself, or by evictions that it has deferred. It may evict a key that a call creates like any other key.
    pub fn out_of_memory(&self) -> bool {
        // SAFETY: `ctx` is that of the current call.
        let flags = unsafe { call!(RedisModule_GetContextFlags(self.ctx)) };
        has_flag(flags, raw::REDISMODULE_CTX_FLAGS_OOM) && !has_flag(flags, raw::REDISMODULE_CTX_FLAGS_EVICT)
    }

    /// Records that a key, or its `item`, denied the call. `policy` is the policy that sets the limits of the key, if
    /// there is one. Queues the denial event if the setting `denial-events` is on. To be called once per key and call.
    #[inline(never)]
    pub fn record_denial(&mut self, index: KeyIndex, item: Option<&[u8]>, policy: Option<&Rc<[u8]>>, now: Timestamp) {
        self.state.heavy_hitters.record(self.key_bytes(index), item, policy, now);
        if DENIAL_EVENTS.get() != 0 {
            self.queue_event(index, Event::Denied);
        }
    }

    /// Queues a keyspace event of a key. Events are announced at the end of the call, as subscribers may change keys.
    #[inline(always)]
    pub(super) fn queue_event(&mut self, index: KeyIndex, event: Event) {
        self.events.push((index, event));
    }

    /// Queues an action to run once everything recorded has been propagated.
    pub(super) fn after_propagation(&mut self, run: impl FnOnce(&mut Redis) + 'static) {
        self.pending_actions.get_or_insert_default().push_back(Box::new(run));
    }

    /// Queues an action to run once everything recorded has been propagated, before all actions of
    /// `after_propagation`: those may let other modules run.
    pub(super) fn first_after_propagation(&mut self, run: impl FnOnce(&mut Redis) + 'static) {
        self.pending_actions.get_or_insert_default().push_front(Box::new(run));
    }

    /// Propagates all changes recorded since the last propagation to replicas and the AOF, as one command.
    #[inline(always)]
    pub fn propagate(&mut self) {
        // SAFETY: `ctx` and the words are those of the current call.
        unsafe { self.effects.propagate(self.ctx, self.argv) };
    }

    /// Propagates the changes recorded before, and then a change of a key, to replicas and the AOF.
    #[inline(always)]
    pub(super) fn propagate_change<U: Usage>(
        &mut self,
        index: KeyIndex,
        usage: &mut U,
        expires_at: u64,
        check: &RoundTripCheck<U>,
    ) {
        self.propagate();
        if let Ok(string) = self.string(index) {
            // SAFETY: `ctx` and the string are those of the current call.
            unsafe { outgoing::propagate_change(self.ctx, string, usage, expires_at, check) };
        }
    }

    /// Starts a new generation of pointers: other modules may have run and changed any key.
    pub(super) fn other_modules_may_run(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// Finishes the call's changes to keys, whether the call succeeded or not: propagates the recorded changes to
    /// replicas and the AOF, then runs the queued actions, and then announces the keyspace events.
    pub fn finish(&mut self) {
        self.propagate();
        while let Some(run) = self.pending_actions.as_mut().and_then(VecDeque::pop_front) {
            run(self);
            guard::panic_test_point();
        }
        while let Some((index, event)) = self.next_event() {
            self.announce(index, event);
            guard::panic_test_point();
        }
    }

    #[inline(always)]
    fn next_event(&mut self) -> Option<(KeyIndex, Event)> {
        let event = self.events.get(self.announced_count).copied();
        self.announced_count = self.announced_count.saturating_add(usize::from(event.is_some()));
        event
    }

    #[inline(always)]
    fn announce(&mut self, index: KeyIndex, event: Event) {
        let (class, text) = match event {
            Event::Taken => (raw::REDISMODULE_NOTIFY_MODULE, c"rl.take"),
            Event::Deleted => (raw::REDISMODULE_NOTIFY_GENERIC, c"del"),
            Event::Denied => (raw::REDISMODULE_NOTIFY_MODULE, c"rl.denied"),
        };
        let Ok(name) = self.string(index) else { return };
        self.other_modules_may_run();
        // SAFETY: `ctx` and the string are those of the current call; the name of the event is a constant.
        unsafe {
            if event != Event::Denied {
                call!(RedisModule_SignalModifiedKey(self.ctx, name));
            }
            call!(RedisModule_NotifyKeyspaceEvent(self.ctx, class, text.as_ptr(), name));
        }
    }

    /// Propagates this call verbatim to replicas and the AOF.
    pub fn propagate_verbatim(&self) {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplicateVerbatim(self.ctx)) };
    }

    /// Returns the origin of the policy records in this call: the primary, the AOF, or else a peer.
    pub fn origin(&self) -> Origin {
        // SAFETY: `ctx` is that of the current call.
        let flags = unsafe { call!(RedisModule_GetContextFlags(self.ctx)) };
        if has_flag(flags, raw::REDISMODULE_CTX_FLAGS_REPLICATED) {
            Origin::Primary
        } else if has_flag(flags, raw::REDISMODULE_CTX_FLAGS_LOADING) {
            Origin::Disk
        } else {
            Origin::Peer
        }
    }

    /// Propagates the current records of policies to replicas and the AOF. Returns the records.
    pub fn propagate_policies(&self, names: &[impl AsRef<[u8]>]) -> Vec<Vec<u8>> {
        let (policies, now) = (&self.state.policies, now());
        let records: Vec<Vec<u8>> = names.iter().filter_map(|name| policies.record(name.as_ref(), now)).collect();
        for record in &records {
            self.propagate_record(record);
        }
        records
    }

    /// Propagates the record of a policy, or another record that is stored with the policies, to replicas and the AOF.
    pub fn propagate_record(&self, record: &[u8]) {
        // SAFETY: `ctx` is that of the current call.
        unsafe { policy_persistence::propagate_record(self.ctx, record) };
    }

    /// Propagates the current records of policies to replicas, the AOF and the other primaries of the cluster.
    pub fn propagate_policies_to_cluster(&self, names: &[&[u8]]) {
        let records = self.propagate_policies(names);
        // SAFETY: `ctx` is that of the current call.
        unsafe { bus::send_to_primaries(self.ctx, &records) };
    }

    /// Returns the server's string of a key's name.
    pub(super) fn string(&self, index: KeyIndex) -> Result<*mut raw::RedisModuleString, Error> {
        let Some(string) = self.argv.get(index.0) else { return Err(Error::WrongArity) };
        Ok(*string)
    }
}

/// Keyspace event, announced to clients that watch or cache the key and to subscribers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Key whose usage was charged, given back, or shifted back with the clock.
    Taken,
    /// Deleted key.
    Deleted,
    /// Key that denied a call. It was not changed.
    Denied,
}
