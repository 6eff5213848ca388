//! What the module has done since it was loaded, for INFO: by command, by kind, and in all.

use ratelimit_core::Kind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count of events.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A count of no events yet.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Counts one more event.
    pub fn count(&self) {
        // Whoever counts holds the server's lock, so a plain addition does, without a lock on the bus.
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// How many events there were.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Sets the count, whatever has been counted since.
    #[cfg(debug_assertions)]
    pub fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }
}

/// What came of the calls of a command.
#[derive(Debug)]
pub struct CommandStats {
    /// All calls, whatever came of them.
    pub calls: Counter,
    /// Calls that may go on, of a command that takes: peeks are neither admitted nor denied.
    pub admitted: Counter,
    /// Calls that may not go on.
    pub denied: Counter,
    /// Calls that were answered with an error.
    pub errors: Counter,
}

impl CommandStats {
    /// The counts of a command that has had no call yet.
    pub const fn new() -> CommandStats {
        CommandStats { calls: Counter::new(), admitted: Counter::new(), denied: Counter::new(), errors: Counter::new() }
    }

    /// Counts a call that was decided.
    pub fn decided(&self, admitted: bool) {
        if admitted { &self.admitted } else { &self.denied }.count();
    }
}

/// What came of the limits of a kind: one of each key of a call.
#[derive(Debug)]
pub struct KindStats {
    /// Limits that let their call pass, and were charged.
    pub admitted: Counter,
    /// Limits that stood in its way.
    pub denied: Counter,
    /// Keys that a call made.
    pub keys_made: Counter,
}

static OF_KINDS: [KindStats; Kind::ALL.len()] =
    [const { KindStats { admitted: Counter::new(), denied: Counter::new(), keys_made: Counter::new() } };
        Kind::ALL.len()];

/// What came of the limits of every kind.
pub fn of_kinds() -> impl Iterator<Item = (Kind, &'static KindStats)> {
    Kind::ALL.into_iter().zip(&OF_KINDS)
}

/// What came of the limits of a kind; there always is an entry.
pub fn of(kind: Kind) -> Option<&'static KindStats> {
    OF_KINDS.get(kind.index())
}

/// Effects that were propagated to replicas and the AOF.
pub static EFFECTS_PROPAGATED: Counter = Counter::new();

/// Effects that were applied: on a replica, and while an AOF is loaded.
pub static EFFECTS_APPLIED: Counter = Counter::new();
