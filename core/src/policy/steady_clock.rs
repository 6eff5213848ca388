//! A clock that is never set back.

use crate::number::{Span, Timestamp};
use std::cell::Cell;

/// Counts on from where it was when the server's clock is set back, as soon as it is told a time: what was to end after
/// a while ends after no longer. What it shows is for this process alone, and is stored nowhere.
#[derive(Debug, Default)]
pub struct SteadyClock {
    /// The last time that it was told.
    told: Cell<Timestamp>,
    /// By how much the server's clock was set back, in all.
    set_back: Cell<Span>,
}

impl SteadyClock {
    /// What it shows when the server's clock shows `now`.
    #[inline(always)]
    pub fn read(&self, now: Timestamp) -> Timestamp {
        let back = self.told.get().since(now);
        if back > Span::ZERO {
            self.set_back.set(self.set_back.get().plus(back));
        }
        self.told.set(now);
        now.plus(self.set_back.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH.plus(Span::SECOND.times(seconds))
    }

    #[test]
    fn it_follows_a_clock_that_goes_on_and_stays_where_one_was_that_is_set_back() {
        let clock = SteadyClock::default();
        for (now, shows) in [(100, 100), (110, 110), (50, 110), (60, 120), (10, 120), (500, 610), (499, 610)] {
            assert_eq!(clock.read(at(now)), at(shows), "{now}");
        }
    }
}
