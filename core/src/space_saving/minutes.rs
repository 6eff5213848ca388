//! Denials of a key per minute.

use crate::number::{Period, Timestamp};

/// Number of minutes that are counted.
pub const MAX_MINUTES: u64 = 60;
const ROOM: usize = 60;

const MINUTE: u64 = 60_000_000;

/// Counter of minutes, starting above [`MAX_MINUTES`]. If the clock moves back to an earlier minute, a new minute
/// begins, so that no minute counts the denials of two.
#[derive(Clone, Debug)]
pub struct MinuteClock {
    /// Minute of the clock of the server, since the epoch.
    shown: u64,
    minute: u64,
}

impl Default for MinuteClock {
    fn default() -> MinuteClock {
        MinuteClock { shown: 0, minute: MAX_MINUTES }
    }
}

impl MinuteClock {
    /// Returns the number of the minute at `now`.
    #[inline]
    pub fn minute(&mut self, now: Timestamp) -> u64 {
        let shown = now.micros() / MINUTE;
        if shown != self.shown {
            self.turn(shown);
        }
        self.minute
    }

    #[cold]
    fn turn(&mut self, shown: u64) {
        let passed = shown.checked_sub(self.shown).unwrap_or(1);
        (self.shown, self.minute) = (shown, self.minute.saturating_add(passed));
    }
}

/// Returns the number of minutes in a span, with the current minute as the last one; fractions do not count. `None`
/// unless it is from 1 to [`MAX_MINUTES`].
pub fn whole_minutes(time: Period) -> Option<u64> {
    let minutes = time.micros().get().div_ceil(MINUTE);
    (minutes <= MAX_MINUTES).then(|| time.micros().get() / MINUTE).filter(|minutes| *minutes > 0)
}

/// Denials of one key per minute.
#[derive(Clone, Debug)]
pub struct Minutes {
    /// Last minute with denials; 0 if there is none.
    last: u64,
    /// Counts, each at its minute modulo [`MAX_MINUTES`]. Counts older than [`MAX_MINUTES`] before `last` are
    /// overwritten.
    counts: [u32; ROOM],
}

impl Default for Minutes {
    fn default() -> Minutes {
        Minutes { last: 0, counts: [0; ROOM] }
    }
}

impl Minutes {
    /// Counts a denial.
    #[inline]
    pub fn count(&mut self, minute: u64) {
        if minute != self.last {
            self.begin(minute);
        }
        if let Some(count) = self.counts.get_mut(place(minute)) {
            *count = count.saturating_add(1);
        }
    }

    /// Clears the counts of the minutes since the last denial, whose slots are reused.
    fn begin(&mut self, minute: u64) {
        let passed = minute.saturating_sub(self.last);
        if passed >= MAX_MINUTES {
            // Clears all slots at once. Also the case for a key that takes over an entry.
            self.counts = [0; ROOM];
        } else {
            for ago in 0..passed {
                if let Some(count) = self.counts.get_mut(place(minute.saturating_sub(ago))) {
                    *count = 0;
                }
            }
        }
        self.last = minute;
    }

    /// Clears all counts.
    pub fn clear(&mut self) {
        // The next count clears the slots.
        self.last = 0;
    }

    /// Returns the number of denials in the last `minutes` up to `minute`.
    pub fn since(&self, minute: u64, minutes: u64) -> u64 {
        let first = minute.saturating_sub(minutes).saturating_add(1);
        let known = self.last.saturating_sub(MAX_MINUTES).saturating_add(1);
        let counts = (first.max(known)..=self.last.min(minute)).filter_map(|minute| self.counts.get(place(minute)));
        counts.fold(0, |sum, count| sum.saturating_add(u64::from(*count)))
    }
}

fn place(minute: u64) -> usize {
    usize::try_from(minute % MAX_MINUTES).unwrap_or_default()
}
