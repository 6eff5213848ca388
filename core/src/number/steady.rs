//! Monotonic time for the deadlines of waiting calls and the ends of scales. It exists in this process only and is
//! never stored.
//!
//! Steady time advances with the server's clock. When that clock is set back, steady time continues from its current
//! value. So a stored deadline stays valid: a clock that moved backwards needs no update of any waiter, and extends no
//! deadline.

use crate::number::{Span, Timestamp};
use std::cell::Cell;

/// Instant in steady time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Steady(Timestamp);

impl Steady {
    /// Returns the instant `span` later. The result may lie after [`Timestamp::MAX`], because steady time keeps
    /// advancing however often a clock is set ahead and back.
    #[must_use]
    pub fn plus(self, span: Span) -> Steady {
        Steady(self.0.plus(span))
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Steady) -> Span {
        self.0.since(earlier.0)
    }
}

/// Converter from the server's clock to steady time.
///
/// ```
/// use ratelimit_core::queue::SteadyClock;
/// use ratelimit_core::{Span, Timestamp};
///
/// let at = |second: u64| Timestamp::EPOCH.plus(Span::SECOND.times(second));
/// let mut clock = SteadyClock::default();
/// let deadline = clock.read(at(100)).plus(Span::SECOND.times(30));
/// // The clock is set back by 50 seconds.
/// assert_eq!(deadline.since(clock.read(at(50))), Span::SECOND.times(30));
/// assert_eq!(clock.shows(deadline), at(80));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SteadyClock {
    /// Timestamp of the last reading.
    last: Timestamp,
    /// Total span by which the clock was set back.
    back: Span,
    /// Number of times that the clock was set back.
    steps: u64,
}

impl SteadyClock {
    /// Returns the steady time at a reading `now` of the clock, and records the reading.
    #[inline(always)]
    pub fn read(&mut self, now: Timestamp) -> Steady {
        let step = self.last.since(now);
        if step != Span::ZERO {
            self.back = self.back.plus(step);
            self.steps = self.steps.saturating_add(1);
        }
        self.last = now;
        self.at(now)
    }

    /// Returns the steady time at `now`, without recording the reading. While `now` is earlier than the last recorded
    /// reading, returns the steady time of that reading.
    #[must_use]
    #[inline(always)]
    pub fn at(&self, now: Timestamp) -> Steady {
        Steady(now.max(self.last)).plus(self.back)
    }

    /// Returns the timestamp that corresponds to `deadline`, provided that the clock is not set back before then.
    #[must_use]
    pub fn shows(&self, deadline: Steady) -> Timestamp {
        deadline.0.minus(self.back)
    }

    /// Returns the number of recorded readings that were earlier than the previous recorded reading.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

/// Steady clock that is read through a shared reference.
#[derive(Debug, Default)]
pub struct SharedSteadyClock(Cell<SteadyClock>);

impl SharedSteadyClock {
    /// Returns the timestamp that a clock reading `now` would show if it had never been set back.
    #[inline(always)]
    pub fn read(&self, now: Timestamp) -> Timestamp {
        let mut clock = self.0.get();
        let steady = clock.read(now);
        self.0.set(clock);
        steady.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::calls::us;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Steady time never goes back, and advances as fast as the clock does.
        #[test]
        fn steady_time_is_monotonic_for_any_clock(readings in vec(0..1_000_000u64, 1..50)) {
            let mut clock = SteadyClock::default();
            let (mut last, mut steady) = (us(readings[0]), clock.read(us(readings[0])));
            for now in readings.into_iter().map(us) {
                let (steady_now, steps) = (clock.read(now), clock.steps());
                prop_assert_eq!(steady_now.since(steady), now.since(last));
                prop_assert!(steady_now >= steady);
                prop_assert_eq!(clock.at(now), steady_now);
                prop_assert_eq!(clock.shows(steady_now), now);
                prop_assert_eq!(clock.read(now), steady_now);
                prop_assert_eq!(clock.steps(), steps);
                (last, steady) = (now, steady_now);
            }
        }
    }

    #[test]
    fn shared_clock_continues_from_its_value_when_set_back() {
        let clock = SharedSteadyClock::default();
        for (now, shows) in [(100, 100), (110, 110), (50, 110), (60, 120), (10, 120), (500, 610), (499, 610)] {
            assert_eq!(clock.read(us(now)), us(shows), "{now}");
        }
    }

    #[test]
    fn backward_step_is_counted_once() {
        let mut clock = SteadyClock::default();
        let steps = [5, 9, 4, 4, 9, 8].map(|now| (clock.read(us(now)), clock.steps()).1);
        assert_eq!(steps, [0, 0, 1, 1, 1, 2]);
    }

    #[test]
    fn deadline_after_the_last_timestamp_is_reached_on_time() {
        let mut clock = SteadyClock::default();
        for _ in 0..100 {
            let deadline = clock.read(Timestamp::MAX).plus(Span::SECOND);
            assert_eq!(deadline.since(clock.read(Timestamp::EPOCH)), Span::SECOND);
            assert_eq!(deadline.since(clock.read(Timestamp::EPOCH.plus(Span::SECOND))), Span::ZERO);
        }
    }
}
