//! What the module has done since it was loaded, for INFO: by command, by kind, and in all.

use ratelimit_core::Kind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count of events.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// None yet.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// One more.
    pub fn count(&self) {
        // Whoever counts holds the server's lock, so a plain addition does, without a lock on the bus.
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// How many there were.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// There were so many, whatever has been counted since.
    #[cfg(debug_assertions)]
    pub fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }
}

/// What came of the calls of a command.
#[derive(Debug)]
pub struct CommandStats {
    /// Calls, whatever came of them.
    pub calls: Counter,
    /// Those that may go on. Of a command that takes: peeks are neither admitted nor denied.
    pub admitted: Counter,
    /// Those that may not.
    pub denied: Counter,
    /// Those that were answered with an error.
    pub errors: Counter,
}

impl CommandStats {
    /// Nothing yet.
    pub const fn new() -> CommandStats {
        CommandStats { calls: Counter::new(), admitted: Counter::new(), denied: Counter::new(), errors: Counter::new() }
    }

    /// A call that was decided.
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

/// Of every kind.
pub fn of_kinds() -> impl Iterator<Item = (Kind, &'static KindStats)> {
    Kind::ALL.into_iter().zip(&OF_KINDS)
}

/// Of a kind: there always is one.
pub fn of(kind: Kind) -> Option<&'static KindStats> {
    OF_KINDS.get(kind.index())
}

/// Effects that were propagated to replicas and the AOF.
pub static EFFECTS_PROPAGATED: Counter = Counter::new();

/// Effects that were applied: on a replica, and while an AOF is loaded.
pub static EFFECTS_APPLIED: Counter = Counter::new();
