//! How often a key was denied in each of the last minutes.

use crate::number::{Period, Timestamp};

/// How many minutes are known.
pub const MOST_MINUTES: u64 = 60;
const ROOM: usize = 60;

const MINUTE: u64 = 60_000_000;

/// Which minute it is, counted up from one that is later than [`MOST_MINUTES`]. A clock that goes back to an earlier
/// minute begins another one, so that no minute holds what was denied in two.
#[derive(Clone, Debug)]
pub struct MinuteClock {
    /// By the server's clock, since the epoch.
    shown: u64,
    minute: u64,
}

impl Default for MinuteClock {
    fn default() -> MinuteClock {
        MinuteClock { shown: 0, minute: MOST_MINUTES }
    }
}

impl MinuteClock {
    /// The minute of `now`.
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

/// How many minutes a time is, the running one included; what is left of it does not count. `None` unless it is from 1
/// to [`MOST_MINUTES`].
pub fn whole_minutes(time: Period) -> Option<u64> {
    let minutes = time.micros().get().div_ceil(MINUTE);
    (minutes <= MOST_MINUTES).then(|| time.micros().get() / MINUTE).filter(|minutes| *minutes > 0)
}

/// The denials of one key, by the minute.
#[derive(Clone, Debug)]
pub struct Minutes {
    /// The last one in which there were any; 0 before the first.
    last: u64,
    /// Each at its number modulo [`MOST_MINUTES`]. Those before `last` by as many and more are gone.
    counts: [u32; ROOM],
}

impl Default for Minutes {
    fn default() -> Minutes {
        Minutes { last: 0, counts: [0; ROOM] }
    }
}

impl Minutes {
    /// Counts one more.
    #[inline]
    pub fn count(&mut self, minute: u64) {
        if minute != self.last {
            self.begin(minute);
        }
        if let Some(count) = self.counts.get_mut(place(minute)) {
            *count = count.saturating_add(1);
        }
    }

    /// Forgets what the next minutes take the room of.
    fn begin(&mut self, minute: u64) {
        let passed = minute.saturating_sub(self.last);
        if passed >= MOST_MINUTES {
            // All at once: a key that takes an entry over comes this way too.
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

    /// Forgets all.
    pub fn clear(&mut self) {
        // The next count begins anew.
        self.last = 0;
    }

    /// How many denials there were in the minutes up to `minute`, as many minutes as are asked for.
    pub fn since(&self, minute: u64, minutes: u64) -> u64 {
        let first = minute.saturating_sub(minutes).saturating_add(1);
        let known = self.last.saturating_sub(MOST_MINUTES).saturating_add(1);
        let counts = (first.max(known)..=self.last.min(minute)).filter_map(|minute| self.counts.get(place(minute)));
        counts.fold(0, |sum, count| sum.saturating_add(u64::from(*count)))
    }
}

fn place(minute: u64) -> usize {
    usize::try_from(minute % MOST_MINUTES).unwrap_or_default()
}
