//! Clock for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Clock that stands still until it is moved, for [`Limiter::local_at`](crate::Limiter::local_at). Waiting calls
/// advance it. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct ManualClock {
    micros: Arc<AtomicI64>,
    /// Start of the clock: the instant of the real clock, and the time of this clock in microseconds since 1970.
    start: (Instant, i64),
}

impl ManualClock {
    /// Creates a clock that starts at the current time.
    pub fn new() -> Self {
        Self::at(SystemTime::now())
    }

    /// Creates a clock that starts at this time.
    pub fn at(now: SystemTime) -> Self {
        let micros = micros_of(now);
        Self { micros: Arc::new(AtomicI64::new(micros)), start: (Instant::now(), micros) }
    }

    /// Moves the clock forward, at most to its latest time.
    pub fn advance(&self, time: Duration) {
        let step = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let advanced = |micros: i64| Some(micros.saturating_add(step));
        let _ = self.micros.fetch_update(Ordering::SeqCst, Ordering::SeqCst, advanced);
    }

    /// Sets the clock to an earlier or later time.
    pub fn set(&self, now: SystemTime) {
        self.micros.store(micros_of(now), Ordering::SeqCst);
    }

    pub(super) fn micros(&self) -> i64 {
        self.micros.load(Ordering::SeqCst)
    }

    /// Returns the time of the clock as an instant, or its start if it has been set to an earlier time.
    pub(crate) fn instant(&self) -> Instant {
        let (instant, micros) = self.start;
        instant + Duration::from_micros(u64::try_from(self.micros() - micros).unwrap_or(0))
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the real time in microseconds since 1970.
pub(super) fn real_micros() -> i64 {
    micros_of(SystemTime::now())
}

fn micros_of(now: SystemTime) -> i64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
