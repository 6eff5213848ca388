//! Who waits for a lease, of every key: the queues of the core, and what is due when.
//!
//! Everything of ours runs on the server's main thread. Nothing here is propagated or stored: a queue lives as long as
//! its clients' connections. A queue belongs to the name of a key in a database, whatever becomes of the key.

use ratelimit_core::queue::{Claim, Place, Queue, Waiter};
use ratelimit_core::{Amount, Span, Timestamp};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::stats::{CommandStats, Counter};

/// The server's handle of a blocked client, as a name that is compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub *mut c_void);

/// How one who waits is answered.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// By which the server knows it.
    pub handle: Handle,
    /// Where its call is counted.
    pub stats: &'static CommandStats,
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
    /// When the head may pass, as far as is known.
    head_due: Option<Timestamp>,
    /// Where it is listed among all that are due.
    listed: Option<Timestamp>,
    /// Whether the clock has gone back, which the key has not heard of.
    moved_back: bool,
}

/// All of them.
#[derive(Default)]
struct Lines {
    by_key: HashMap<c_int, HashMap<Arc<[u8]>, Line>>,
    by_client: HashMap<Handle, (Key, Place)>,
    /// By when somebody may pass or has waited long enough.
    by_due: BTreeSet<(Timestamp, Key)>,
    /// Those to which something has happened.
    touched: BTreeSet<Key>,
    /// Leases that were granted to clients that were gone.
    untold: Vec<Grant>,
    /// When the clock was last looked at, while anybody waited.
    seen: Timestamp,
}

thread_local! {
    static LINES: RefCell<Lines> = RefCell::default();
}

/// How many keys somebody waits for.
static KEYS: AtomicUsize = AtomicUsize::new(0);

/// How many calls have waited and were granted a lease.
pub static SERVED: Counter = Counter::new();

/// How many have waited for as long as they would.
pub static TIMED_OUT: Counter = Counter::new();

/// Whether anybody waits.
#[inline(always)]
pub fn any() -> bool {
    KEYS.load(Relaxed) != 0
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

    /// Lists a line anew, or forgets it if nobody waits in it.
    fn relist(&mut self, key: &Key) {
        let Some(line) = self.line(key) else { return };
        let due = [line.queue.deadline(), line.head_due].into_iter().flatten().min();
        let (is_empty, before) = (line.queue.is_empty(), std::mem::replace(&mut line.listed, due));
        if let Some(before) = before {
            self.by_due.remove(&(before, key.clone()));
        }
        if is_empty {
            if let Some(keys) = self.by_key.get_mut(&key.db) {
                keys.remove(&key.name);
                if keys.is_empty() {
                    self.by_key.remove(&key.db);
                }
            }
            self.touched.remove(key);
            KEYS.fetch_sub(1, Relaxed);
        } else if let Some(due) = due {
            self.by_due.insert((due, key.clone()));
        }
    }

    fn leave(&mut self, key: &Key, place: Place) -> Option<Waiter<Client>> {
        let line = self.line(key)?;
        let was_head = line.queue.head().is_some_and(|(head, _)| head == place);
        let waiter = line.queue.leave(place)?;
        if was_head {
            line.head_due = None;
            self.touched.insert(key.clone());
        }
        self.by_client.remove(&waiter.client.handle);
        self.relist(key);
        Some(waiter)
    }
}

/// How many wait for a lease of a key.
pub fn waiting(db: c_int, name: &[u8]) -> usize {
    LINES.with_borrow(|lines| lines.at(db, name).map_or(0, |line| line.queue.len()))
}

/// Whether a holder waits for a lease of a key.
pub fn waits(db: c_int, name: &[u8], holder: &[u8]) -> bool {
    LINES.with_borrow(|lines| lines.at(db, name).is_some_and(|line| line.queue.place_of(holder).is_some()))
}

/// A take has come, of a key for which others may wait, and brings this limit for all of them. Whether others wait, and
/// whether who waits may pass under it.
pub fn limit_to(db: c_int, name: &[u8], limit: Amount) -> (bool, bool) {
    LINES.with_borrow_mut(|lines| {
        let Some(key) = lines.key(db, name) else { return (false, false) };
        let changed = lines.line(&key).is_some_and(|line| line.queue.limit_to(limit));
        if changed {
            lines.touched.insert(key);
        }
        (true, changed)
    })
}

/// Adds one who waits.
pub fn join(key: &Key, limit: Amount, waiter: Waiter<Client>) {
    let handle = waiter.client.handle;
    see(waiter.since);
    LINES.with_borrow_mut(|lines| {
        let line = lines.by_key.entry(key.db).or_default().entry(Arc::clone(&key.name)).or_insert_with(|| {
            KEYS.fetch_add(1, Relaxed);
            Line { queue: Queue::new(limit), head_due: None, listed: None, moved_back: false }
        });
        let place = line.queue.join(waiter);
        lines.by_client.insert(handle, (key.clone(), place));
        lines.touched.insert(key.clone());
        lines.relist(key);
    });
}

/// Takes one away who waited: it is gone, or has been answered.
pub fn leave(key: &Key, place: Place) -> Option<Waiter<Client>> {
    LINES.with_borrow_mut(|lines| lines.leave(key, place))
}

/// The same by the server's handle.
pub fn gone(handle: Handle) -> Option<Next> {
    let (key, place) = LINES.with_borrow(|lines| lines.by_client.get(&handle).cloned())?;
    take_from(&key, |_| Some(place))
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

/// One of a key's queue.
fn next(key: &Key, of: impl FnOnce(&Queue<Client>) -> Option<(Place, &Waiter<Client>)>) -> Option<Next> {
    LINES.with_borrow_mut(|lines| {
        let queue = &lines.line(key)?.queue;
        let (place, waiter) = of(queue)?;
        let others_wait = queue.others_wait_before(place);
        Some(Next { place, claim: waiter.claim.clone(), client: waiter.client, limit: queue.limit(), others_wait })
    })
}

/// Takes the call of a holder away that waits for a lease of a key.
pub fn take_away(db: c_int, name: &[u8], holder: &[u8]) -> Option<Next> {
    let key = LINES.with_borrow(|lines| lines.key(db, name))?;
    take_from(&key, |queue| queue.place_of(holder))
}

/// Takes one of a key's queue away.
fn take_from(key: &Key, place: impl FnOnce(&Queue<Client>) -> Option<Place>) -> Option<Next> {
    let taken = next(key, |queue| {
        let place = place(queue)?;
        Some((place, queue.at(place)?))
    })?;
    leave(key, taken.place)?;
    Some(taken)
}

/// Whose turn it is.
pub fn head(key: &Key) -> Option<Next> {
    next(key, Queue::head)
}

/// One whose holder has asked again since.
pub fn replaced(key: &Key) -> Option<Next> {
    next(key, Queue::replaced)
}

/// One who has waited for as long as it would.
pub fn overdue(key: &Key, now: Timestamp) -> Option<Next> {
    next(key, |queue| queue.overdue(now))
}

/// The head of a key's queue may pass then.
pub fn head_due(key: &Key, at: Timestamp) {
    LINES.with_borrow_mut(|lines| {
        if let Some(line) = lines.line(key) {
            line.head_due = Some(at);
            lines.relist(key);
        }
    });
}

/// Something has happened to a key. Whether anybody waits for it.
pub fn touch(db: c_int, name: &[u8]) -> bool {
    LINES.with_borrow_mut(|lines| {
        let key = lines.key(db, name);
        let waits = key.is_some();
        lines.touched.extend(key);
        waits
    })
}

/// Something may have happened to every key.
pub fn touch_all() {
    LINES.with_borrow_mut(|lines| {
        for (db, keys) in &lines.by_key {
            lines.touched.extend(keys.keys().map(|name| Key { db: *db, name: Arc::clone(name) }));
        }
    });
}

/// Looks at the clock. If it has gone back since it was last looked at, all deadlines move back with it.
pub fn see(now: Timestamp) {
    let back = LINES.with_borrow_mut(|lines| std::mem::replace(&mut lines.seen, now).since(now));
    if back == Span::ZERO || !any() {
        return;
    }
    touch_all();
    LINES.with_borrow_mut(|lines| {
        for key in lines.touched.clone() {
            if let Some(line) = lines.line(&key) {
                line.queue.move_back(back);
                line.head_due = None;
                line.moved_back = true;
                lines.relist(&key);
            }
        }
    });
}

/// Whether the clock has gone back since this was last asked of a key.
pub fn take_moved_back(key: &Key) -> bool {
    LINES.with_borrow_mut(|lines| lines.line(key).is_some_and(|line| std::mem::take(&mut line.moved_back)))
}

/// The keys to which something has happened, or is due by now.
pub fn take_ready(now: Timestamp) -> Vec<Key> {
    see(now);
    LINES.with_borrow_mut(|lines| {
        let mut ready = std::mem::take(&mut lines.touched);
        ready.extend(lines.by_due.iter().take_while(|(due, _)| *due <= now).map(|(_, key)| key.clone()));
        ready.into_iter().collect()
    })
}

/// When the next look is due; `None` if nothing is. At once, if something has happened.
pub fn due() -> Option<Timestamp> {
    LINES.with_borrow(|lines| {
        if !lines.touched.is_empty() || !lines.untold.is_empty() {
            return Some(Timestamp::EPOCH);
        }
        lines.by_due.first().map(|(due, _)| *due)
    })
}

/// A lease has been granted to a client that is gone.
pub fn untold(grant: Grant) {
    LINES.with_borrow_mut(|lines| lines.untold.push(grant));
}

/// The leases that were granted to clients that are gone, to be given back.
pub fn take_untold() -> Vec<Grant> {
    LINES.with_borrow_mut(|lines| std::mem::take(&mut lines.untold))
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

/// The first of those who wait for a lease of a key.
pub fn list(db: c_int, name: &[u8], most: usize, now: Timestamp) -> Vec<Seen> {
    LINES.with_borrow(|lines| {
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
    })
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

/// Every queue, longest first.
pub fn all(now: Timestamp) -> Vec<Waited> {
    let mut all: Vec<Waited> = LINES.with_borrow(|lines| {
        let keys = lines.by_key.iter().flat_map(|(db, keys)| keys.iter().map(move |(name, line)| (*db, name, line)));
        keys.map(|(db, name, line)| {
            let longest = line.queue.iter().map(|waiter| now.since(waiter.since)).max();
            let key = Key { db, name: Arc::clone(name) };
            Waited { key, waiting: line.queue.len(), longest: longest.unwrap_or_default() }
        })
        .collect()
    });
    all.sort_by(|one, other| other.longest.cmp(&one.longest).then_with(|| one.key.cmp(&other.key)));
    all
}
