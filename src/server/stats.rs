//! Counters since the module was loaded, for INFO: by command, by kind, and in total.

use ratelimit_core::UsageKind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counter of events.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Creates a counter at zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

    /// Counts one more event.
    pub fn count(&self) {
        // The caller holds the server's lock, so no atomic addition is needed, which would lock the memory bus.
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Returns the number of events.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Overwrites the count.
    #[cfg(debug_assertions)]
    pub fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }
}

/// Outcomes of the calls of a command.
#[derive(Debug)]
pub struct CommandStats {
    /// All calls.
    pub calls: Counter,
    /// Granted calls of a command that charges. Peeks are neither granted nor denied.
    pub admitted: Counter,
    /// Denied calls.
    pub denied: Counter,
    /// Calls that were answered with an error.
    pub errors: Counter,
}

impl CommandStats {
    /// Creates counters at zero.
    pub const fn new() -> CommandStats {
        CommandStats { calls: Counter::new(), admitted: Counter::new(), denied: Counter::new(), errors: Counter::new() }
    }

    /// Counts a granted or denied call.
    pub fn count_decision(&self, admitted: bool) {
        if admitted { &self.admitted } else { &self.denied }.count();
    }
}

/// Outcomes of the limits of a kind, counted per key of a call.
#[derive(Debug)]
pub struct KindStats {
    /// Limits that granted their call and were charged.
    pub admitted: Counter,
    /// Limits that denied their call.
    pub denied: Counter,
    /// Keys created by a call.
    pub keys_created: Counter,
}

static KIND_STATS: [KindStats; UsageKind::ALL.len()] =
    [const { KindStats { admitted: Counter::new(), denied: Counter::new(), keys_created: Counter::new() } };
        UsageKind::ALL.len()];

/// Returns the outcomes of the limits of every kind.
pub fn all_kinds() -> impl Iterator<Item = (UsageKind, &'static KindStats)> {
    UsageKind::ALL.into_iter().zip(&KIND_STATS)
}

/// Returns the outcomes of the limits of a kind; never `None`.
pub fn of_kind(kind: UsageKind) -> Option<&'static KindStats> {
    KIND_STATS.get(kind.index())
}

/// Effects that were propagated to replicas and the AOF.
pub static EFFECTS_PROPAGATED: Counter = Counter::new();

/// Effects that were applied on a replica or while an AOF was loaded.
pub static EFFECTS_APPLIED: Counter = Counter::new();
