//! Queues of all keys, and the lists that determine when each is evaluated.

use super::waiting_call::{Client, ClientId, Grant, QueueKey};
use ratelimit_core::queue::{Queue, QueuePlace, Steady, SteadyClock, Waiter};
use ratelimit_core::{Amount, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;

/// Queue of a key, with its positions in the lists.
pub struct Line {
    /// Calls that wait for the key.
    pub queue: Queue<Client>,
    /// Sequence number of the line, which is its position in the round.
    pub number: u64,
    /// Earliest instant at which the head may be granted, if known.
    pub head_due: Option<Steady>,
    /// Key in the list of lines by deadline.
    pub due: Option<Steady>,
    /// Key in the list of lines with events.
    pub touched: Option<u64>,
    /// Key in the list of lines by age.
    pub oldest: Option<Steady>,
    /// Number of backward steps of the clock that have been applied to the leases of the key.
    pub clock_steps: u64,
}

/// Queues of all keys.
#[derive(Default)]
pub struct Lines {
    /// Lines by database and name of the key.
    pub by_key: HashMap<c_int, HashMap<Arc<[u8]>, Line>>,
    /// Place of the call of each client.
    pub by_client: HashMap<ClientId, (QueueKey, QueuePlace)>,
    /// Keys by the instant at which a waiter may be granted or its timeout ends.
    pub by_due: BTreeSet<(Steady, QueueKey)>,
    /// Keys ordered by their oldest waiter.
    pub by_age: BTreeSet<(Steady, QueueKey)>,
    /// Keys with events, in the order of the events.
    pub touched: BTreeMap<u64, QueueKey>,
    /// All keys, in the order in which their lines were created.
    pub in_round: BTreeMap<u64, QueueKey>,
    /// Number of lines so far.
    pub begun: u64,
    /// Number of events of keys so far.
    pub touches: u64,
    /// Round over all keys.
    pub round: Round,
    /// Round that checks for keys that may have moved to another node.
    pub slots: Round,
    /// Leases that were granted to clients that had disconnected.
    pub undelivered: VecDeque<Grant>,
    /// Index of the source of work that is tried first.
    pub first: usize,
    /// Clock of all deadlines.
    pub clock: SteadyClock,
}

/// Resumable iteration over all keys, in the order of their lines.
#[derive(Default)]
pub struct Round {
    /// Lower bound of the number of the next line.
    pub next: u64,
    /// Number of keys left.
    pub left: usize,
}

impl Round {
    /// Returns the next key. Starts again from the first key after the last one.
    pub fn next(&mut self, keys: &BTreeMap<u64, QueueKey>) -> Option<QueueKey> {
        self.left = self.left.min(keys.len()).checked_sub(1)?;
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

impl Lines {
    /// Returns the line of a key, if it has waiters.
    pub fn at(&self, db: c_int, name: &[u8]) -> Option<&Line> {
        self.by_key.get(&db)?.get(name)
    }

    /// Returns a key with waiters, with its name from the table.
    pub fn key(&self, db: c_int, name: &[u8]) -> Option<QueueKey> {
        let (name, _) = self.by_key.get(&db)?.get_key_value(name)?;
        Some(QueueKey { db, name: Arc::clone(name) })
    }

    /// Returns the line of a key for changing it, if it has waiters.
    pub fn line(&mut self, key: &QueueKey) -> Option<&mut Line> {
        self.by_key.get_mut(&key.db)?.get_mut(&key.name)
    }

    /// Returns the line of a key; creates it if the key has no waiters.
    pub fn line_or_new(&mut self, key: &QueueKey, limit: Amount) -> &mut Line {
        let Lines { by_key, in_round, begun, round, clock, .. } = self;
        by_key.entry(key.db).or_default().entry(Arc::clone(&key.name)).or_insert_with(|| {
            *begun = begun.saturating_add(1);
            in_round.insert(*begun, key.clone());
            // The new line comes last in a round that is in progress, which still visits all others.
            round.left = round.left.saturating_add(usize::from(round.left > 0));
            Line {
                queue: Queue::new(limit),
                number: *begun,
                head_due: None,
                due: None,
                touched: None,
                oldest: None,
                clock_steps: clock.steps(),
            }
        })
    }

    /// Marks a key as changed. Returns `true` if it has waiters.
    pub fn touch(&mut self, key: &QueueKey) -> bool {
        let touches = self.touches.saturating_add(1);
        let Some(line) = self.line(key) else { return false };
        if line.touched.is_none() {
            line.touched = Some(touches);
            self.touches = touches;
            self.touched.insert(touches, key.clone());
        }
        true
    }

    /// Clears the mark of a changed key.
    pub fn untouch(&mut self, key: &QueueKey) {
        let touched = self.line(key).and_then(|line| line.touched.take());
        touched.and_then(|touched| self.touched.remove(&touched));
    }

    /// Updates the positions of a line in the lists; removes the line if it has no waiters.
    pub fn relist(&mut self, key: &QueueKey) {
        let Some(line) = self.line(key) else { return };
        let (number, is_empty, oldest) = (line.number, line.queue.is_empty(), line.queue.oldest());
        let due = [line.queue.deadline(), line.head_due].into_iter().flatten().min().filter(|_| !is_empty);
        let was_due = std::mem::replace(&mut line.due, due);
        let was_oldest = std::mem::replace(&mut line.oldest, oldest);
        for (listed, was, is) in [(&mut self.by_due, was_due, due), (&mut self.by_age, was_oldest, oldest)] {
            if was != is {
                was.map(|was| listed.remove(&(was, key.clone())));
                listed.extend(is.map(|is| (is, key.clone())));
            }
        }
        if is_empty {
            self.untouch(key);
            self.in_round.remove(&number);
            if let Some(keys) = self.by_key.get_mut(&key.db) {
                keys.remove(&key.name);
                if keys.is_empty() {
                    self.by_key.remove(&key.db);
                }
            }
        }
    }

    /// Removes a call from the queue of a key.
    pub fn leave(&mut self, key: &QueueKey, place: QueuePlace) -> Option<Waiter<Client>> {
        let line = self.line(key)?;
        let was_head = line.queue.head().is_some_and(|(head, _)| head == place);
        let waiter = line.queue.leave(place)?;
        if was_head {
            line.head_due = None;
            self.touch(key);
        }
        self.by_client.remove(&waiter.client.blocked.id);
        self.relist(key);
        Some(waiter)
    }

    /// Reads the clock. If it moved backwards, marks all keys as changed, so that their leases are shifted.
    pub fn read_clock(&mut self, now: Timestamp) -> Steady {
        let steps = self.clock.steps();
        let steady = self.clock.read(now);
        if self.clock.steps() != steps {
            self.touch_all();
        }
        steady
    }

    /// Marks all keys as changed, by starting a round.
    pub fn touch_all(&mut self) {
        self.round.left = self.in_round.len();
    }

    /// Returns the next work of one source, if it has any.
    pub fn work_of(&mut self, source: usize, now: Steady, may_release: bool) -> Option<Work> {
        let key = match source {
            0 if may_release => return self.undelivered.pop_front().map(Work::LeaseRelease),
            1 => self.touched.first_key_value().map(|(_, key)| key.clone()),
            2 => self.by_due.first().filter(|(due, _)| *due <= now).map(|(_, key)| key.clone()),
            3 => self.round.next(&self.in_round),
            _ => None,
        }?;
        self.untouch(&key);
        // The evaluation determines again when the head may be granted.
        if let Some(line) = self.line(&key) {
            line.head_due = None;
            self.relist(&key);
        }
        Some(Work::Evaluation(key))
    }
}
