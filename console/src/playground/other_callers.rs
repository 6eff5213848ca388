//! Simulated traffic of all callers but the one that the page shows. Every call comes from a new caller.
//!
//! The calls affect only sketches, which have all callers in one key; other limits have a key for each caller.

use super::simulated_limit::SimulatedLimit;
use ratelimit_core::{Span, Timestamp};

/// Maximum number of other callers a second.
pub const MAX_RATE: u32 = 10_000;
/// Maximum number of calls in one step: those of 100 ms at the highest rate and at ten times the real speed. Further
/// calls are dropped.
const MAX_CALLS_PER_STEP: u32 = 10_000;

/// Generator of the calls of other callers.
pub struct OtherCallers {
    /// Calls a second.
    rate: u32,
    /// Time from which calls are counted: that of the last change of the rate, or of the last dropped calls.
    counted_from: Timestamp,
    /// Number of calls since `counted_from`.
    counted_calls: u64,
    /// Total number of calls.
    serial: u64,
    /// Number of further calls allowed in this step.
    calls_left: u32,
}

impl OtherCallers {
    /// Creates a generator at rate 0.
    #[must_use]
    pub fn new(now: Timestamp) -> OtherCallers {
        OtherCallers { rate: 0, counted_from: now, counted_calls: 0, serial: 0, calls_left: 0 }
    }

    /// Sets the rate in calls a second.
    pub fn set_rate(&mut self, rate: u32, now: Timestamp) {
        if rate != self.rate {
            (self.rate, self.counted_from, self.counted_calls) = (rate, now, 0);
        }
    }

    /// Starts a step.
    pub fn start_step(&mut self) {
        self.calls_left = MAX_CALLS_PER_STEP;
    }

    /// Makes the calls that are due before `until`.
    pub fn call(&mut self, limits: &mut [SimulatedLimit], until: Timestamp) {
        while let Some(after) = self.counted_calls.saturating_mul(1_000_000).checked_div(self.rate.into()) {
            let at = self.counted_from.plus(Span::from_micros(after));
            if at >= until {
                return;
            }
            if self.calls_left == 0 {
                (self.counted_from, self.counted_calls) = (until, 0);
                return;
            }
            (self.counted_calls, self.serial, self.calls_left) =
                (self.counted_calls + 1, self.serial + 1, self.calls_left - 1);
            for limit in &mut *limits {
                limit.take_by_other_caller(self.serial, at);
            }
        }
    }
}
