//! Denials of a key per minute.

use crate::number::{Period, Timestamp};

/// Number of minutes that are counted.
pub const MAX_MINUTES: u64 = 60;
/// [`MAX_MINUTES`] as a `usize`.
const SLOTS: usize = 60;

/// Microseconds in a minute.
const MINUTE: u64 = 60_000_000;

/// Counter of minutes, which starts at [`MAX_MINUTES`]. If the clock moves back to an earlier minute, the counter
/// advances, so that the denials of two minutes are never added up.
#[derive(Clone, Debug)]
pub struct MinuteClock {
    /// Minutes of the server's clock since the epoch.
    clock_minute: u64,
    counter: u64,
}

impl Default for MinuteClock {
    fn default() -> MinuteClock {
        MinuteClock { clock_minute: 0, counter: MAX_MINUTES }
    }
}

impl MinuteClock {
    /// Advances the counter to `now` and returns it.
    #[inline]
    pub fn minute(&mut self, now: Timestamp) -> u64 {
        let clock_minute = now.micros() / MINUTE;
        if clock_minute != self.clock_minute {
            self.advance(clock_minute);
        }
        self.counter
    }

    #[cold]
    fn advance(&mut self, clock_minute: u64) {
        let passed = clock_minute.checked_sub(self.clock_minute).unwrap_or(1);
        (self.clock_minute, self.counter) = (clock_minute, self.counter.saturating_add(passed));
    }
}

/// Returns the number of whole minutes in a period. `None` unless the period is from 1 to [`MAX_MINUTES`] minutes.
pub fn whole_minutes(period: Period) -> Option<u64> {
    let micros = period.micros().get();
    (MINUTE..=MAX_MINUTES * MINUTE).contains(&micros).then_some(micros / MINUTE)
}

/// Denials of one key per minute.
#[derive(Clone, Debug)]
pub struct Minutes {
    /// Last minute with denials; 0 if there is none.
    last: u64,
    /// Count of each of the [`MAX_MINUTES`] minutes up to `last`, at the index of the minute modulo [`MAX_MINUTES`].
    counts: [u32; SLOTS],
}

impl Default for Minutes {
    fn default() -> Minutes {
        Minutes { last: 0, counts: [0; SLOTS] }
    }
}

impl Minutes {
    /// Counts a denial.
    #[inline]
    pub fn count(&mut self, minute: u64) {
        if minute != self.last {
            self.begin(minute);
        }
        if let Some(count) = self.counts.get_mut(slot(minute)) {
            *count = count.saturating_add(1);
        }
    }

    /// Clears the counts of the minutes since the last denial, whose slots are reused.
    fn begin(&mut self, minute: u64) {
        let passed = minute.saturating_sub(self.last);
        if passed >= MAX_MINUTES {
            // All slots are older. That includes the counts of a key that has lost the entry: see `clear`.
            self.counts = [0; SLOTS];
        } else {
            for ago in 0..passed {
                if let Some(count) = self.counts.get_mut(slot(minute.saturating_sub(ago))) {
                    *count = 0;
                }
            }
        }
        self.last = minute;
    }

    /// Clears all counts.
    pub fn clear(&mut self) {
        // The next call of `count` clears the slots, because `minute` is at least `MAX_MINUTES`.
        self.last = 0;
    }

    /// Returns the number of denials in the `minutes` minutes up to and including `minute`.
    pub fn since(&self, minute: u64, minutes: u64) -> u64 {
        let first = minute.saturating_sub(minutes).saturating_add(1);
        let oldest_counted = self.last.saturating_sub(MAX_MINUTES).saturating_add(1);
        let counts =
            (first.max(oldest_counted)..=self.last.min(minute)).filter_map(|minute| self.counts.get(slot(minute)));
        counts.fold(0, |sum, count| sum.saturating_add(u64::from(*count)))
    }
}

fn slot(minute: u64) -> usize {
    usize::try_from(minute % MAX_MINUTES).unwrap_or_default()
}
