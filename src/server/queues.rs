//! The calls that wait for a lease, of every key: the queues of the core, and which of them is to be looked at next.
//!
//! Nothing here is propagated or stored: a queue lives as long as its clients' connections. A queue belongs to the name
//! of a key in a database, whatever becomes of the key.
//!
//! **The work of the timer** is handed out one piece at a time ([`Queues::next_work`]), so that it can stop after any of
//! them and go on in its next turn. There are four sources, asked in turn, so that none holds the others up: leases to be
//! given back, keys to which something has happened, keys at which something is due, and a round over all keys after
//! what may have happened to each of them ([`Queues::touch_all`]). All deadlines are in steady time, which a clock gone
//! back does not move.

use ratelimit_core::queue::{Claim, Place, Queue, Steady, SteadyClock, Waiter};
use ratelimit_core::{Amount, Span, Timestamp};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::stats::{CommandStats, Counter};

/// The server's handle of a blocked client, as a name that is compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub *mut c_void);

/// How one who waits is answered.
#[derive(Clone, Debug)]
pub struct Client {
    /// By which the server knows it.
    pub handle: Handle,
    /// Where its call is counted.
    pub stats: &'static CommandStats,
    /// The name of its user; `None` where the server does not tell.
    pub user: Option<Arc<[u8]>>,
}

/// A key for a lease of which somebody waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its database.
    pub db: c_int,
    /// Its name.
    pub name: Arc<[u8]>,
}

/// A lease that has been granted to who waited.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Of which key.
    pub key: Key,
    /// To whom.
    pub holder: Box<[u8]>,
    /// Until when.
    pub expires_at: Timestamp,
}

/// A key's queue, and when it is to be looked at.
struct Line {
    queue: Queue<Client>,
    /// Which line it is, of all that have been: where it stands in the round.
    number: u64,
    /// When the head may pass, as far as is known.
    head_due: Option<Steady>,
    /// Where it is listed among all that are due, among those to which something has happened, and by age.
    due: Option<Steady>,
    touched: Option<u64>,
    oldest: Option<Steady>,
    /// How often the clock had gone back when the key last heard of that.
    clock_steps: u64,
}

/// All of them.
#[derive(Default)]
struct Lines {
    by_key: HashMap<c_int, HashMap<Arc<[u8]>, Line>>,
    by_client: HashMap<Handle, (Key, Place)>,
    /// By when somebody may pass or has waited long enough.
    by_due: BTreeSet<(Steady, Key)>,
    /// By since when the one waits who has waited longest.
    by_age: BTreeSet<(Steady, Key)>,
    /// Those to which something has happened, in that order.
    touched: BTreeMap<u64, Key>,
    /// All keys, in the order in which somebody began to wait for them.
    in_round: BTreeMap<u64, Key>,
    /// How many lines there were, and how often one was touched.
    begun: u64,
    touches: u64,
    /// Where the round over all keys goes on, and over how many it has to go yet.
    round: Round,
    /// Where the walk over keys that may have moved to another node goes on.
    slots: Round,
    /// Leases that were granted to clients that were gone.
    untold: VecDeque<Grant>,
    /// Which source of work is asked first.
    first: usize,
    clock: SteadyClock,
}

/// A walk over all keys, in the order of their lines, that goes on where it was.
#[derive(Default)]
struct Round {
    /// The line that comes next, or the first one after it.
    next: u64,
    /// How many keys are left.
    left: usize,
}

impl Round {
    /// The next key; it begins anew behind the last one.
    fn next(&mut self, keys: &BTreeMap<u64, Key>) -> Option<Key> {
        self.left = self.left.min(keys.len()).checked_sub(1)?;
        let (number, key) = keys.range(self.next..).next().or_else(|| keys.first_key_value())?;
        self.next = number.saturating_add(1);
        Some(key.clone())
    }
}

/// What the timer does next.
pub enum Work {
    /// A key is to be looked at.
    Look(Key),
    /// A lease is to be given back that was granted to a client that was gone.
    GiveBack(Grant),
}

/// The queues of this server, and what came of those who waited.
#[derive(Default)]
pub struct Queues {
    lines: RefCell<Lines>,
    /// Whether somebody could be granted a lease but for the server, which takes no writes.
    held_up: Cell<bool>,
    /// How many calls have waited and were granted a lease.
    pub served: Counter,
    /// How many have waited for as long as they would.
    pub timed_out: Counter,
    /// How often a queue was looked at.
    pub looks: Counter,
    /// The most that the timer has done in one turn.
    pub busiest_turn: Cell<u64>,
}

impl Lines {
    /// The queue of a key, if anybody waits.
    fn at(&self, db: c_int, name: &[u8]) -> Option<&Line> {
        self.by_key.get(&db)?.get(name)
    }

    /// A key for which somebody waits, by the name that is kept.
    fn key(&self, db: c_int, name: &[u8]) -> Option<Key> {
        let (name, _) = self.by_key.get(&db)?.get_key_value(name)?;
        Some(Key { db, name: Arc::clone(name) })
    }

    fn line(&mut self, key: &Key) -> Option<&mut Line> {
        self.by_key.get_mut(&key.db)?.get_mut(&key.name)
    }

    /// The line of a key, new if nobody has waited for it.
    fn line_or_new(&mut self, key: &Key, limit: Amount) -> &mut Line {
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
    fn touch(&mut self, key: &Key) -> bool {
        let touches = self.touches.saturating_add(1);
        let Some(line) = self.line(key) else { return false };
        if line.touched.is_none() {
            line.touched = Some(touches);
            self.touches = touches;
            self.touched.insert(touches, key.clone());
        }
        true
    }

    /// What has happened to a key so far has been seen to.
    fn untouch(&mut self, key: &Key) {
        let touched = self.line(key).and_then(|line| line.touched.take());
        touched.and_then(|touched| self.touched.remove(&touched));
    }

    /// Lists a line anew, or forgets it if nobody waits in it.
    fn relist(&mut self, key: &Key) {
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

    fn leave(&mut self, key: &Key, place: Place) -> Option<Waiter<Client>> {
        let line = self.line(key)?;
        let was_head = line.queue.head().is_some_and(|(head, _)| head == place);
        let waiter = line.queue.leave(place)?;
        if was_head {
            line.head_due = None;
            self.touch(key);
        }
        self.by_client.remove(&waiter.client.handle);
        self.relist(key);
        Some(waiter)
    }

    /// Reads the clock. If it has gone back, all leases are to hear of it.
    fn read_clock(&mut self, now: Timestamp) -> Steady {
        let steps = self.clock.steps();
        let steady = self.clock.read(now);
        if self.clock.steps() != steps {
            self.touch_all();
        }
        steady
    }

    fn touch_all(&mut self) {
        self.round.left = self.in_round.len();
    }

    /// A piece of work of one source, if it has any.
    fn work_of(&mut self, source: usize, now: Steady, may_give_back: bool) -> Option<Work> {
        let key = match source {
            0 if may_give_back => return self.untold.pop_front().map(Work::GiveBack),
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
        Some(Work::Look(key))
    }
}

/// One of a queue.
pub struct Next {
    /// Where it waits.
    pub place: Place,
    /// What it asks for.
    pub claim: Claim,
    /// How it is answered.
    pub client: Client,
    /// The limit that holds.
    pub limit: Amount,
    /// Whether others wait before it.
    pub others_wait: bool,
}

/// What there is to know of one who waits.
pub struct Seen {
    /// Who is to hold the lease.
    pub holder: Box<[u8]>,
    /// How much it asks for.
    pub cost: Amount,
    /// For how long it has waited.
    pub waited: Span,
    /// For how long it will; `None`, as long as it takes.
    pub left: Option<Span>,
}

/// A queue, for INFO.
pub struct Waited {
    /// For a lease of which key.
    pub key: Key,
    /// How many wait.
    pub waiting: usize,
    /// For how long the first of them has.
    pub longest: Span,
}

impl Queues {
    /// Whether anybody waits.
    #[inline(always)]
    pub fn any(&self) -> bool {
        !self.lines.borrow().by_key.is_empty()
    }

    /// How many wait for a lease of a key.
    pub fn waiting(&self, db: c_int, name: &[u8]) -> usize {
        self.lines.borrow().at(db, name).map_or(0, |line| line.queue.len())
    }

    /// Whether a holder waits for a lease of a key.
    pub fn waits(&self, db: c_int, name: &[u8], holder: &[u8]) -> bool {
        self.lines.borrow().at(db, name).is_some_and(|line| line.queue.place_of(holder).is_some())
    }

    /// A take has come, of a key for which others may wait, and brings this limit for all of them. Whether others wait,
    /// and whether a call that waits may pass under it.
    pub fn limit_to(&self, db: c_int, name: &[u8], limit: Amount) -> (bool, bool) {
        let lines = &mut *self.lines.borrow_mut();
        let Some(key) = lines.key(db, name) else { return (false, false) };
        let changed = lines.line(&key).is_some_and(|line| line.queue.limit_to(limit));
        if changed {
            lines.touch(&key);
        }
        (true, changed)
    }

    /// Adds a claim that waits from now on, for so long or without an end.
    pub fn join(&self, key: &Key, limit: Amount, claim: Claim, block: Option<Span>, client: Client, now: Timestamp) {
        let lines = &mut *self.lines.borrow_mut();
        let (since, handle) = (lines.read_clock(now), client.handle);
        let until = block.map(|block| since.plus(block));
        let place = lines.line_or_new(key, limit).queue.join(Waiter { claim, since, until, client });
        lines.by_client.insert(handle, (key.clone(), place));
        lines.touch(key);
        lines.relist(key);
    }

    /// Takes one away who waited: it is gone, or has been answered.
    pub fn leave(&self, key: &Key, place: Place) -> Option<Waiter<Client>> {
        self.lines.borrow_mut().leave(key, place)
    }

    /// Takes the call of a client away that is gone, or is answered otherwise.
    pub fn gone(&self, handle: Handle) -> Option<Next> {
        let (key, place) = self.lines.borrow().by_client.get(&handle).cloned()?;
        self.take_from(&key, |_| Some(place))
    }

    /// One of a key's queue.
    fn next(&self, key: &Key, of: impl FnOnce(&Queue<Client>) -> Option<(Place, &Waiter<Client>)>) -> Option<Next> {
        let lines = &mut *self.lines.borrow_mut();
        let queue = &lines.line(key)?.queue;
        let (place, waiter) = of(queue)?;
        let (others_wait, client) = (queue.others_wait_before(place), waiter.client.clone());
        Some(Next { place, claim: waiter.claim.clone(), client, limit: queue.limit(), others_wait })
    }

    /// Takes the call of a holder away that waits for a lease of a key.
    pub fn take_away(&self, db: c_int, name: &[u8], holder: &[u8]) -> Option<Next> {
        let key = self.lines.borrow().key(db, name)?;
        self.take_from(&key, |queue| queue.place_of(holder))
    }

    /// Takes one of a key's queue away.
    fn take_from(&self, key: &Key, place: impl FnOnce(&Queue<Client>) -> Option<Place>) -> Option<Next> {
        let taken = self.next(key, |queue| {
            let place = place(queue)?;
            Some((place, queue.at(place)?))
        })?;
        self.leave(key, taken.place)?;
        Some(taken)
    }

    /// Whose turn it is.
    pub fn head(&self, key: &Key) -> Option<Next> {
        self.next(key, Queue::head)
    }

    /// One whose holder has asked again since.
    pub fn replaced(&self, key: &Key) -> Option<Next> {
        self.next(key, Queue::replaced)
    }

    /// One who has waited for as long as it would.
    pub fn overdue(&self, key: &Key, now: Timestamp) -> Option<Next> {
        let now = self.lines.borrow().clock.at(now);
        self.next(key, |queue| queue.overdue(now))
    }

    /// The head of a key's queue may pass after this long; `None`, not before something happens.
    pub fn head_due(&self, key: &Key, wait: Option<Span>, now: Timestamp) {
        let lines = &mut *self.lines.borrow_mut();
        let now = lines.clock.at(now);
        if let Some(line) = lines.line(key) {
            line.head_due = wait.map(|wait| now.plus(wait));
            lines.relist(key);
        }
    }

    /// Somebody could pass, but the server takes no writes: all keys are looked at when it does again.
    pub fn hold_up(&self) {
        self.held_up.set(true);
    }

    /// Whether the server is to be asked whether it takes writes again.
    pub fn is_held_up(&self) -> bool {
        self.held_up.get()
    }

    /// The server takes writes again.
    pub fn go_on(&self) {
        self.held_up.set(false);
        self.touch_all();
    }

    /// Something has happened to a key. Whether anybody waits for it.
    pub fn touch(&self, db: c_int, name: &[u8]) -> bool {
        let lines = &mut *self.lines.borrow_mut();
        lines.key(db, name).is_some_and(|key| lines.touch(&key))
    }

    /// Something may have happened to every key.
    pub fn touch_all(&self) {
        self.lines.borrow_mut().touch_all();
    }

    /// A key's queue has been looked at to its end: what has happened so far makes no further look.
    pub fn looked_at(&self, key: &Key) {
        self.lines.borrow_mut().untouch(key);
    }

    /// Looks at the clock. If it has gone back since it was last looked at, all leases are to hear of it.
    pub fn see(&self, now: Timestamp) {
        self.lines.borrow_mut().read_clock(now);
    }

    /// Whether the clock has gone back, of which the leases of this key have not heard.
    pub fn is_behind_clock(&self, key: &Key) -> bool {
        let lines = &mut *self.lines.borrow_mut();
        let steps = lines.clock.steps();
        lines.line(key).is_some_and(|line| line.clock_steps != steps)
    }

    /// The leases of a key have heard of the clock.
    pub fn followed_clock(&self, key: &Key) {
        let lines = &mut *self.lines.borrow_mut();
        let steps = lines.clock.steps();
        if let Some(line) = lines.line(key) {
            line.clock_steps = steps;
        }
    }

    /// What is to be done next; `None` if nothing is by now.
    pub fn next_work(&self, now: Timestamp) -> Option<Work> {
        const SOURCES: usize = 4;
        let lines = &mut *self.lines.borrow_mut();
        let (now, may_give_back) = (lines.read_clock(now), !self.held_up.get());
        let (before, after) = (0..lines.first, lines.first..SOURCES);
        let (source, work) =
            after.chain(before).find_map(|source| Some((source, lines.work_of(source, now, may_give_back)?)))?;
        lines.first = source.saturating_add(1) % SOURCES;
        Some(work)
    }

    /// So many of all keys; other calls of this go on behind them, and begin anew behind the last.
    pub fn next_few(&self, most: usize) -> Vec<Key> {
        let Lines { slots, in_round, .. } = &mut *self.lines.borrow_mut();
        slots.left = most;
        std::iter::from_fn(|| slots.next(in_round)).collect()
    }

    /// When there is work; `None` if nothing is known to be due. At once, if something has happened.
    pub fn due(&self) -> Option<Timestamp> {
        let lines = self.lines.borrow();
        let gives_back = !lines.untold.is_empty() && !self.held_up.get();
        let goes_round = lines.round.left > 0 && !lines.in_round.is_empty();
        if !lines.touched.is_empty() || gives_back || goes_round {
            return Some(Timestamp::EPOCH);
        }
        lines.by_due.first().map(|(due, _)| lines.clock.shows(*due))
    }

    /// A lease has been granted to a client that is gone.
    pub fn untold(&self, grant: Grant) {
        self.lines.borrow_mut().untold.push_back(grant);
    }

    /// The first of those who wait for a lease of a key.
    pub fn list(&self, db: c_int, name: &[u8], most: usize, now: Timestamp) -> Vec<Seen> {
        let lines = self.lines.borrow();
        let now = lines.clock.at(now);
        let waiters = lines.at(db, name).into_iter().flat_map(|line| line.queue.iter());
        waiters
            .take(most)
            .map(|Waiter { claim, since, until, .. }| Seen {
                holder: claim.holder().into(),
                cost: claim.cost(),
                waited: now.since(*since),
                left: until.map(|until| until.since(now)),
            })
            .collect()
    }

    /// How many wait, and for how many keys.
    pub fn counts(&self) -> (usize, usize) {
        let lines = self.lines.borrow();
        (lines.by_client.len(), lines.in_round.len())
    }

    /// The queues with those who have waited longest, longest first.
    pub fn longest(&self, most: usize, now: Timestamp) -> Vec<Waited> {
        let lines = self.lines.borrow();
        let now = lines.clock.at(now);
        let oldest = lines.by_age.iter().take(most);
        oldest
            .map(|(since, key)| {
                let waiting = lines.at(key.db, &key.name).map_or(0, |line| line.queue.len());
                Waited { key: key.clone(), waiting, longest: now.since(*since) }
            })
            .collect()
    }
}
