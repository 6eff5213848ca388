//! Calls that wait for a lease, by key: the queues of the core, and the order in which they are evaluated.
//!
//! Queues are neither propagated nor stored: they last as long as the connections of their clients. A queue belongs to
//! the name of a key in a database, and remains if the key is deleted or replaced.
//!
//! **The work of the timer** is returned one item at a time ([`Queues::next_work`]), so that the timer can stop after
//! any item and resume in its next run. There are four sources, tried round-robin, so that none starves the others:
//! leases to be released, changed keys, keys with a deadline that has passed, and a round over all keys after an event
//! that may have changed every key ([`Queues::mark_all_changed`]). All deadlines are in steady time, which is not
//! affected when the clock moves backwards.

pub mod outbox;
mod queue_table;
pub mod schedule;
mod waiting_call;

use super::stats::Counter;
use queue_table::QueueTable;
pub use queue_table::Work;
use ratelimit_core::queue::{Claim, Queue, QueuePlace, Waiter};
use ratelimit_core::{Amount, Span, Timestamp};
use std::cell::{Cell, RefCell};
use std::ffi::c_int;
pub use waiting_call::{
    BlockedClient, CallOrigin, ClientId, Grant, QueueKey, WaiterAnswer, WaitingCall, WaitingClient,
};

/// Queues of this server, and counters of their outcomes.
#[derive(Default)]
pub struct Queues {
    table: RefCell<QueueTable>,
    /// `true` if a waiter could be granted a lease, but the server does not accept writes. All keys are evaluated once
    /// it accepts writes again.
    pub is_granting_paused: Cell<bool>,
    /// Number of calls that have waited and were granted a lease.
    pub served: Counter,
    /// Number of calls whose timeout has passed.
    pub timed_out: Counter,
    /// Number of evaluations of queues.
    pub evaluations: Counter,
    /// Maximum work that the timer has done in one run.
    pub max_work: Cell<u64>,
}

/// Waiting call, for RL.INFO.
pub struct WaiterFacts {
    /// Holder that requests the lease.
    pub holder: Box<[u8]>,
    /// Units that the call requests.
    pub cost: Amount,
    /// Time waited.
    pub time_waited: Span,
    /// Time until the timeout of the call; `None` if it has none.
    pub time_left: Option<Span>,
}

/// Queue of a key, for INFO.
pub struct QueueFacts {
    /// Key of the leases.
    pub key: QueueKey,
    /// Number of waiters.
    pub waiter_count: usize,
    /// Time that the first waiter has waited.
    pub longest_wait: Span,
}

impl Queues {
    /// Returns `true` if any call waits.
    #[inline(always)]
    pub fn has_waiters(&self) -> bool {
        !self.table.borrow().by_key.is_empty()
    }

    /// Returns the number of calls that wait for a lease of a key.
    pub fn waiter_count(&self, db: c_int, name: &[u8]) -> usize {
        self.table.borrow().entry(db, name).map_or(0, |entry| entry.queue.len())
    }

    /// Returns `true` if a holder waits for a lease of a key.
    pub fn is_waiting(&self, db: c_int, name: &[u8], holder: &[u8]) -> bool {
        self.table.borrow().entry(db, name).is_some_and(|entry| entry.queue.place_of(holder).is_some())
    }

    /// Applies the limit of a new take to all waiters of the key. The first returned value is `true` if the key has
    /// waiters, and the second if the limit has changed so that one of them may be granted.
    pub fn apply_limit(&self, db: c_int, name: &[u8], limit: Amount) -> (bool, bool) {
        let table = &mut *self.table.borrow_mut();
        let Some(key) = table.key(db, name) else { return (false, false) };
        let changed = table.entry_mut(&key).is_some_and(|entry| entry.queue.set_limit(limit));
        if changed {
            table.mark_changed(&key);
        }
        (true, changed)
    }

    /// Adds a waiter with a claim. The waiter waits forever if `timeout` is `None`.
    pub fn join(
        &self,
        key: &QueueKey,
        limit: Amount,
        claim: Claim,
        timeout: Option<Span>,
        client: WaitingClient,
        now: Timestamp,
    ) {
        let table = &mut *self.table.borrow_mut();
        let (joined_at, id) = (table.read_clock(now), client.blocked.id);
        let deadline = timeout.map(|timeout| joined_at.plus(timeout));
        let place = table.entry_or_new(key, limit).queue.join(Waiter { claim, joined_at, deadline, client });
        table.by_client.insert(id, (key.clone(), place));
        table.mark_changed(key);
        table.update_lists(key);
    }

    /// Removes a waiting call whose client has disconnected, or that has been answered.
    pub fn leave(&self, key: &QueueKey, place: QueuePlace) -> Option<Waiter<WaitingClient>> {
        self.table.borrow_mut().leave(key, place)
    }

    /// Removes the call of a client that has disconnected, or that CLIENT UNBLOCK unblocks.
    pub fn remove_client(&self, id: ClientId) -> Option<(WaitingCall, WaitingClient)> {
        let (key, place) = self.table.borrow().by_client.get(&id).cloned()?;
        self.remove_call(&key, |_| Some(place))
    }

    /// Returns a copy of the call that `select` returns for the queue of a key.
    fn copy_call(
        &self,
        key: &QueueKey,
        select: impl FnOnce(&Queue<WaitingClient>) -> Option<(QueuePlace, &Waiter<WaitingClient>)>,
    ) -> Option<WaitingCall> {
        let table = &mut *self.table.borrow_mut();
        let queue = &table.entry_mut(key)?.queue;
        let (place, waiter) = select(queue)?;
        let (has_waiters_ahead, origin) = (queue.has_waiters_ahead(place), waiter.client.origin.clone());
        Some(WaitingCall { place, claim: waiter.claim.clone(), origin, limit: queue.limit(), has_waiters_ahead })
    }

    /// Removes the call of a holder that waits for a lease of a key.
    pub fn remove_holder(&self, db: c_int, name: &[u8], holder: &[u8]) -> Option<(WaitingCall, WaitingClient)> {
        let key = self.table.borrow().key(db, name)?;
        self.remove_call(&key, |queue| queue.place_of(holder))
    }

    /// Removes a call from a key's queue.
    fn remove_call(
        &self,
        key: &QueueKey,
        place: impl FnOnce(&Queue<WaitingClient>) -> Option<QueuePlace>,
    ) -> Option<(WaitingCall, WaitingClient)> {
        let call = self.copy_call(key, |queue| {
            let place = place(queue)?;
            Some((place, queue.at(place)?))
        })?;
        let waiter = self.leave(key, call.place)?;
        Some((call, waiter.client))
    }

    /// Returns the head of the queue of a key.
    pub fn head(&self, key: &QueueKey) -> Option<WaitingCall> {
        self.copy_call(key, Queue::head)
    }

    /// Returns a call whose holder has called again.
    pub fn replaced_call(&self, key: &QueueKey) -> Option<WaitingCall> {
        self.copy_call(key, Queue::replaced)
    }

    /// Returns a call whose timeout has passed.
    pub fn overdue_call(&self, key: &QueueKey, now: Timestamp) -> Option<WaitingCall> {
        let now = self.table.borrow().clock.at(now);
        self.copy_call(key, |queue| queue.overdue(now))
    }

    /// Sets the wait until the head of the queue of a key may be granted; `None` if only an event can make room.
    pub fn set_head_due(&self, key: &QueueKey, wait: Option<Span>, now: Timestamp) {
        let table = &mut *self.table.borrow_mut();
        let now = table.clock.at(now);
        if let Some(entry) = table.entry_mut(key) {
            entry.head_due = wait.map(|wait| now.plus(wait));
            table.update_lists(key);
        }
    }

    /// Resumes granting, as the server accepts writes again.
    pub fn resume_granting(&self) {
        self.is_granting_paused.set(false);
        self.mark_all_changed();
    }

    /// Marks a key as changed. Returns `true` if it has waiters.
    pub fn mark_changed(&self, db: c_int, name: &[u8]) -> bool {
        let table = &mut *self.table.borrow_mut();
        table.key(db, name).is_some_and(|key| table.mark_changed(&key))
    }

    /// Marks all keys as changed.
    pub fn mark_all_changed(&self) {
        self.table.borrow_mut().mark_all_changed();
    }

    /// Clears the mark of a changed key after its whole queue has been evaluated.
    pub fn clear_changed(&self, key: &QueueKey) {
        self.table.borrow_mut().clear_changed(key);
    }

    /// Reads the clock. If it moved backwards since it was last read, marks all keys as changed, so that their leases
    /// are shifted.
    pub fn read_clock(&self, now: Timestamp) {
        self.table.borrow_mut().read_clock(now);
    }

    /// Returns `true` if the clock moved backwards and the leases of this key have not been shifted yet.
    pub fn has_to_follow_clock(&self, key: &QueueKey) -> bool {
        let table = &mut *self.table.borrow_mut();
        let steps = table.clock.steps();
        table.entry_mut(key).is_some_and(|entry| entry.clock_steps != steps)
    }

    /// Records that the leases of a key have been shifted to the clock.
    pub fn mark_clock_followed(&self, key: &QueueKey) {
        let table = &mut *self.table.borrow_mut();
        let steps = table.clock.steps();
        if let Some(entry) = table.entry_mut(key) {
            entry.clock_steps = steps;
        }
    }

    /// Returns the next work; `None` if there is none now.
    pub fn next_work(&self, now: Timestamp) -> Option<Work> {
        const SOURCES: usize = 4;
        let table = &mut *self.table.borrow_mut();
        let (now, may_release) = (table.read_clock(now), !self.is_granting_paused.get());
        let (before, after) = (0..table.next_source, table.next_source..SOURCES);
        let (source, work) =
            after.chain(before).find_map(|source| Some((source, table.work_of(source, now, may_release)?)))?;
        table.next_source = source.saturating_add(1) % SOURCES;
        Some(work)
    }

    /// Returns at most `max_keys` keys with waiters. The next call resumes after them, and starts again after the last
    /// key.
    pub fn next_keys(&self, max_keys: usize) -> Vec<QueueKey> {
        let QueueTable { slot_round, by_number, .. } = &mut *self.table.borrow_mut();
        slot_round.keys_left = max_keys;
        std::iter::from_fn(|| slot_round.next(by_number)).collect()
    }

    /// Returns the instant of the next work; `None` if none is scheduled, the epoch if there is work now.
    pub fn due(&self) -> Option<Timestamp> {
        let table = self.table.borrow();
        let has_releases = !table.undelivered.is_empty() && !self.is_granting_paused.get();
        let is_round_unfinished = table.round.keys_left > 0 && !table.by_number.is_empty();
        if !table.changed.is_empty() || has_releases || is_round_unfinished {
            return Some(Timestamp::EPOCH);
        }
        table.by_due.first().map(|(due, _)| table.clock.shows(*due))
    }

    /// Queues the release of a lease that was granted to a client that has disconnected.
    pub fn queue_release(&self, grant: Grant) {
        self.table.borrow_mut().undelivered.push_back(grant);
    }

    /// Returns the first waiters of a key, at most `max_waiters`.
    pub fn first_waiters(&self, db: c_int, name: &[u8], max_waiters: usize, now: Timestamp) -> Vec<WaiterFacts> {
        let table = self.table.borrow();
        let now = table.clock.at(now);
        let waiters = table.entry(db, name).into_iter().flat_map(|entry| entry.queue.iter());
        waiters
            .take(max_waiters)
            .map(|Waiter { claim, joined_at, deadline, .. }| WaiterFacts {
                holder: claim.holder().into(),
                cost: claim.cost,
                time_waited: now.since(*joined_at),
                time_left: deadline.map(|deadline| deadline.since(now)),
            })
            .collect()
    }

    /// Returns the number of waiting calls, and of their keys.
    pub fn counts(&self) -> (usize, usize) {
        let table = self.table.borrow();
        (table.by_client.len(), table.by_number.len())
    }

    /// Returns the queues with the longest wait, longest first and at most `max_queues`.
    pub fn longest_waiting(&self, max_queues: usize, now: Timestamp) -> Vec<QueueFacts> {
        let table = self.table.borrow();
        let now = table.clock.at(now);
        let oldest = table.by_age.iter().take(max_queues);
        oldest
            .map(|(since, key)| {
                let waiter_count = table.entry(key.db, &key.name).map_or(0, |entry| entry.queue.len());
                QueueFacts { key: key.clone(), waiter_count, longest_wait: now.since(*since) }
            })
            .collect()
    }
}
