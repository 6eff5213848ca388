//! Callers beside the one whose traffic is shown: each calls once, and is never seen again.
//!
//! Limits that give each caller a key of its own never notice them. A sketch has all callers in one key.

use super::lane::Lane;
use ratelimit_core::{Span, Timestamp};

/// So many others call in a second at most.
pub const MOST_CALLS: u32 = 10_000;
/// So many of their calls are made in one step at most, as many as 100 ms at ten times the speed have; the rest are not
/// made.
const MOST_AT_ONCE: u32 = 10_000;

/// The others, and when the next of them calls.
pub struct Crowd {
    /// Calls in a second.
    rate: u32,
    /// Since when they come at that rate, and how many have come since.
    from: Timestamp,
    made: u64,
    /// How many have called.
    serial: u64,
    /// How many may call yet in this step.
    left: u32,
}

impl Crowd {
    /// Nobody, as of that instant.
    #[must_use]
    pub fn new(now: Timestamp) -> Crowd {
        Crowd { rate: 0, from: now, made: 0, serial: 0, left: 0 }
    }

    /// So many call in a second, from that instant on.
    pub fn change(&mut self, rate: u32, now: Timestamp) {
        if rate != self.rate {
            (self.rate, self.from, self.made) = (rate, now, 0);
        }
    }

    /// Begins a step.
    pub fn begin(&mut self) {
        self.left = MOST_AT_ONCE;
    }

    /// Makes the calls that are due before that instant.
    pub fn call(&mut self, lanes: &mut [Lane], until: Timestamp) {
        while let Some(after) = self.made.saturating_mul(1_000_000).checked_div(self.rate.into()) {
            let at = self.from.plus(Span::from_micros(after));
            if at >= until {
                return;
            }
            if self.left == 0 {
                (self.from, self.made) = (until, 0);
                return;
            }
            (self.made, self.serial, self.left) = (self.made + 1, self.serial + 1, self.left - 1);
            for lane in &mut *lanes {
                lane.take_of_other(self.serial, at);
            }
        }
    }
}
