//! The queues of all keys, and the lists of which of them is to be looked at when.

use super::waiting_call::{Client, ClientId, Grant, QueueKey};
use ratelimit_core::queue::{Queue, QueuePlace, Steady, SteadyClock, Waiter};
use ratelimit_core::{Amount, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;

/// A key's queue, and when it is to be looked at.
pub struct Line {
    /// The calls that wait for the key.
    pub queue: Queue<Client>,
    /// Which line it is, of all that have been: where it stands in the round.
    pub number: u64,
    /// Instant from which the head may pass, as far as is known.
    pub head_due: Option<Steady>,
    /// Key in the list of lines by deadline.
    pub due: Option<Steady>,
    /// Key in the list of lines to which something has happened.
    pub touched: Option<u64>,
    /// Key in the list of lines by age.
    pub oldest: Option<Steady>,
    /// Number of backward steps of the clock that the key has heard of.
    pub clock_steps: u64,
}

/// The queues of all keys.
#[derive(Default)]
pub struct Lines {
    /// The queues, by database and name of the key.
    pub by_key: HashMap<c_int, HashMap<Arc<[u8]>, Line>>,
    /// Place of the call of each client.
    pub by_client: HashMap<ClientId, (QueueKey, QueuePlace)>,
    /// Keys by the instant at which a caller may pass or has waited long enough.
    pub by_due: BTreeSet<(Steady, QueueKey)>,
    /// Keys ordered by their oldest waiter.
    pub by_age: BTreeSet<(Steady, QueueKey)>,
    /// The keys to which something has happened, in that order.
    pub touched: BTreeMap<u64, QueueKey>,
    /// All keys, in the order in which somebody began to wait for them.
    pub in_round: BTreeMap<u64, QueueKey>,
    /// Number of lines so far.
    pub begun: u64,
    /// Number of events of keys so far.
    pub touches: u64,
    /// Round over all keys.
    pub round: Round,
    /// Walk over keys that may have moved to another node.
    pub slots: Round,
    /// Leases that were granted to clients that were gone.
    pub undelivered: VecDeque<Grant>,
    /// Which source of work is asked first.
    pub first: usize,
    /// The clock of all deadlines.
    pub clock: SteadyClock,
}

/// A walk over all keys, in the order of their lines, that goes on where it was.
#[derive(Default)]
pub struct Round {
    /// The line that comes next, or the first one after it.
    pub next: u64,
    /// Number of keys left.
    pub left: usize,
}

impl Round {
    /// The next key; it begins anew behind the last one.
    pub fn next(&mut self, keys: &BTreeMap<u64, QueueKey>) -> Option<QueueKey> {
        self.left = self.left.min(keys.len()).checked_sub(1)?;
        let (number, key) = keys.range(self.next..).next().or_else(|| keys.first_key_value())?;
        self.next = number.saturating_add(1);
        Some(key.clone())
    }
}

/// Work of the timer.
pub enum Work {
    /// A key is to be looked at.
    Evaluation(QueueKey),
    /// A lease is to be given back that was granted to a client that was gone.
    GiveBack(Grant),
}

impl Lines {
    /// The queue of a key, if anybody waits.
    pub fn at(&self, db: c_int, name: &[u8]) -> Option<&Line> {
        self.by_key.get(&db)?.get(name)
    }

    /// A key for which somebody waits, by the name that is kept.
    pub fn key(&self, db: c_int, name: &[u8]) -> Option<QueueKey> {
        let (name, _) = self.by_key.get(&db)?.get_key_value(name)?;
        Some(QueueKey { db, name: Arc::clone(name) })
    }

    /// The queue of a key, to be changed, if anybody waits.
    pub fn line(&mut self, key: &QueueKey) -> Option<&mut Line> {
        self.by_key.get_mut(&key.db)?.get_mut(&key.name)
    }

    /// The line of a key, new if nobody has waited for it.
    pub fn line_or_new(&mut self, key: &QueueKey, limit: Amount) -> &mut Line {
        let Lines { by_key, in_round, begun, round, clock, .. } = self;
        by_key.entry(key.db).or_default().entry(Arc::clone(&key.name)).or_insert_with(|| {
            *begun = begun.saturating_add(1);
            in_round.insert(*begun, key.clone());
            // It comes last in a round that is under way, which goes over as many others as before.
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

    /// Something has happened to a key. Whether anybody waits for it.
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

    /// Marks what has happened to a key so far as seen to.
    pub fn untouch(&mut self, key: &QueueKey) {
        let touched = self.line(key).and_then(|line| line.touched.take());
        touched.and_then(|touched| self.touched.remove(&touched));
    }

    /// Lists a line anew, or forgets it if nobody waits in it.
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

    /// Takes a call out of the queue of a key.
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

    /// Reads the clock. If it has gone back, all leases are to hear of it.
    pub fn read_clock(&mut self, now: Timestamp) -> Steady {
        let steps = self.clock.steps();
        let steady = self.clock.read(now);
        if self.clock.steps() != steps {
            self.touch_all();
        }
        steady
    }

    /// Something may have happened to every key.
    pub fn touch_all(&mut self) {
        self.round.left = self.in_round.len();
    }

    /// A piece of work of one source, if it has any.
    pub fn work_of(&mut self, source: usize, now: Steady, may_give_back: bool) -> Option<Work> {
        let key = match source {
            0 if may_give_back => return self.undelivered.pop_front().map(Work::GiveBack),
            1 => self.touched.first_key_value().map(|(_, key)| key.clone()),
            2 => self.by_due.first().filter(|(due, _)| *due <= now).map(|(_, key)| key.clone()),
            3 => self.round.next(&self.in_round),
            _ => None,
        }?;
        self.untouch(&key);
        // A look finds out anew when the head may pass.
        if let Some(line) = self.line(&key) {
            line.head_due = None;
            self.relist(&key);
        }
        Some(Work::Evaluation(key))
    }
}
