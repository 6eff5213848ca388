//! Queues of all keys, and the lists that determine when each is evaluated.

use super::waiting_call::{ClientId, Grant, QueueKey, WaitingClient};
use ratelimit_core::queue::{Queue, QueuePlace, Steady, SteadyClock, Waiter};
use ratelimit_core::{Amount, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;

/// Queue of a key, with its positions in the lists.
pub struct QueueEntry {
    /// Calls that wait for the key.
    pub queue: Queue<WaitingClient>,
    /// Sequence number of the queue, which is its position in the round.
    pub number: u64,
    /// Earliest instant at which the head may be granted, if known.
    pub head_due: Option<Steady>,
    /// Instant at which the queue is listed in `by_due`.
    pub due: Option<Steady>,
    /// Number under which the queue is listed in `changed`.
    pub changed: Option<u64>,
    /// Instant at which the queue is listed in `by_age`.
    pub oldest: Option<Steady>,
    /// Number of backward steps of the clock that have been applied to the leases of the key.
    pub clock_steps: u64,
}

/// Queues of all keys.
#[derive(Default)]
pub struct QueueTable {
    /// Queues by database and name of the key.
    pub by_key: HashMap<c_int, HashMap<Arc<[u8]>, QueueEntry>>,
    /// Place of the call of each client.
    pub by_client: HashMap<ClientId, (QueueKey, QueuePlace)>,
    /// Keys by the instant at which a waiter may be granted or its timeout ends.
    pub by_due: BTreeSet<(Steady, QueueKey)>,
    /// Keys ordered by their oldest waiter.
    pub by_age: BTreeSet<(Steady, QueueKey)>,
    /// Changed keys, in the order of the changes.
    pub changed: BTreeMap<u64, QueueKey>,
    /// All keys, in the order in which their queues were created.
    pub by_number: BTreeMap<u64, QueueKey>,
    /// Number of the queue that was created last.
    pub last_number: u64,
    /// Number of changes so far.
    pub changes: u64,
    /// Round over all keys.
    pub round: Round,
    /// Round that checks for keys that may have moved to another node.
    pub slot_round: Round,
    /// Leases that were granted to clients that had disconnected.
    pub undelivered: VecDeque<Grant>,
    /// Index of the source of work that is tried first.
    pub next_source: usize,
    /// Clock of all deadlines.
    pub clock: SteadyClock,
}

/// Resumable iteration over all keys, in the order of their numbers.
#[derive(Default)]
pub struct Round {
    /// Lower bound of the number of the next queue.
    pub next: u64,
    /// Number of keys that the round has still to visit.
    pub keys_left: usize,
}

impl Round {
    /// Returns the next key. Starts again from the first key after the last one.
    pub fn next(&mut self, keys: &BTreeMap<u64, QueueKey>) -> Option<QueueKey> {
        self.keys_left = self.keys_left.min(keys.len()).checked_sub(1)?;
        let (number, key) = keys.range(self.next..).next().or_else(|| keys.first_key_value())?;
        self.next = number.saturating_add(1);
        Some(key.clone())
    }
}

/// Work of the timer.
pub enum Work {
    /// Evaluation of the queue of a key.
    Evaluation(QueueKey),
    /// Release of a lease that was granted to a client that had disconnected.
    LeaseRelease(Grant),
}

impl QueueTable {
    /// Returns the queue of a key, if it has waiters.
    pub fn entry(&self, db: c_int, name: &[u8]) -> Option<&QueueEntry> {
        self.by_key.get(&db)?.get(name)
    }

    /// Returns a key with waiters; its name is shared with the table.
    pub fn key(&self, db: c_int, name: &[u8]) -> Option<QueueKey> {
        let (name, _) = self.by_key.get(&db)?.get_key_value(name)?;
        Some(QueueKey { db, name: Arc::clone(name) })
    }

    /// Returns the queue of a key for changing it, if it has waiters.
    pub fn entry_mut(&mut self, key: &QueueKey) -> Option<&mut QueueEntry> {
        self.by_key.get_mut(&key.db)?.get_mut(&key.name)
    }

    /// Returns the queue of a key; creates it if the key has no waiters.
    pub fn entry_or_new(&mut self, key: &QueueKey, limit: Amount) -> &mut QueueEntry {
        let QueueTable { by_key, by_number, last_number, round, clock, .. } = self;
        by_key.entry(key.db).or_default().entry(Arc::clone(&key.name)).or_insert_with(|| {
            *last_number = last_number.saturating_add(1);
            by_number.insert(*last_number, key.clone());
            // The new queue comes last in a round that is in progress, which still visits all others.
            round.keys_left = round.keys_left.saturating_add(usize::from(round.keys_left > 0));
            QueueEntry {
                queue: Queue::new(limit),
                number: *last_number,
                head_due: None,
                due: None,
                changed: None,
                oldest: None,
                clock_steps: clock.steps(),
            }
        })
    }

    /// Marks a key as changed. Returns `true` if it has waiters.
    pub fn mark_changed(&mut self, key: &QueueKey) -> bool {
        let changes = self.changes.saturating_add(1);
        let Some(entry) = self.entry_mut(key) else { return false };
        if entry.changed.is_none() {
            entry.changed = Some(changes);
            self.changes = changes;
            self.changed.insert(changes, key.clone());
        }
        true
    }

    /// Clears the mark of a changed key.
    pub fn clear_changed(&mut self, key: &QueueKey) {
        let changed = self.entry_mut(key).and_then(|entry| entry.changed.take());
        changed.and_then(|changed| self.changed.remove(&changed));
    }

    /// Updates the positions of a queue in the lists; removes the queue if it has no waiters.
    pub fn update_lists(&mut self, key: &QueueKey) {
        let Some(entry) = self.entry_mut(key) else { return };
        let (number, is_empty, oldest) = (entry.number, entry.queue.is_empty(), entry.queue.oldest_joined_at());
        let due = [entry.queue.earliest_deadline(), entry.head_due].into_iter().flatten().min().filter(|_| !is_empty);
        let was_due = std::mem::replace(&mut entry.due, due);
        let was_oldest = std::mem::replace(&mut entry.oldest, oldest);
        for (list, old, new) in [(&mut self.by_due, was_due, due), (&mut self.by_age, was_oldest, oldest)] {
            if old != new {
                old.map(|old| list.remove(&(old, key.clone())));
                list.extend(new.map(|new| (new, key.clone())));
            }
        }
        if is_empty {
            self.clear_changed(key);
            self.by_number.remove(&number);
            if let Some(keys) = self.by_key.get_mut(&key.db) {
                keys.remove(&key.name);
                if keys.is_empty() {
                    self.by_key.remove(&key.db);
                }
            }
        }
    }

    /// Removes a call from the queue of a key.
    pub fn leave(&mut self, key: &QueueKey, place: QueuePlace) -> Option<Waiter<WaitingClient>> {
        let entry = self.entry_mut(key)?;
        let was_head = entry.queue.head().is_some_and(|(head, _)| head == place);
        let waiter = entry.queue.leave(place)?;
        if was_head {
            entry.head_due = None;
            self.mark_changed(key);
        }
        self.by_client.remove(&waiter.client.blocked.id);
        self.update_lists(key);
        Some(waiter)
    }

    /// Reads the clock. If it moved backwards, marks all keys as changed, so that their leases are shifted.
    pub fn read_clock(&mut self, now: Timestamp) -> Steady {
        let steps = self.clock.steps();
        let steady = self.clock.read(now);
        if self.clock.steps() != steps {
            self.mark_all_changed();
        }
        steady
    }

    /// Marks all keys as changed, by starting a round.
    pub fn mark_all_changed(&mut self) {
        self.round.keys_left = self.by_number.len();
    }

    /// Returns the next work of a source, if it has any: undelivered leases (0), changed keys (1), deadlines (2), or
    /// the round over all keys (3).
    pub fn work_of(&mut self, source: usize, now: Steady, may_release: bool) -> Option<Work> {
        let key = match source {
            0 if may_release => return self.undelivered.pop_front().map(Work::LeaseRelease),
            1 => self.changed.first_key_value().map(|(_, key)| key.clone()),
            2 => self.by_due.first().filter(|(due, _)| *due <= now).map(|(_, key)| key.clone()),
            3 => self.round.next(&self.by_number),
            _ => None,
        }?;
        self.clear_changed(&key);
        // The evaluation determines again when the head may be granted.
        if let Some(entry) = self.entry_mut(&key) {
            entry.head_due = None;
            self.update_lists(&key);
        }
        Some(Work::Evaluation(key))
    }
}
