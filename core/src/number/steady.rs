//! Steady time: the clock that deadlines of waiting calls and ends of scales go by. It is this process's alone, and
//! stored nowhere.
//!
//! It goes on with the server's clock, but when that is set back, it goes on from where it is. So a deadline, once
//! written, is right for ever: a clock gone back costs nothing, however many wait, and keeps nobody longer than it
//! said.

use crate::number::{Span, Timestamp};
use std::cell::Cell;

/// An instant of steady time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Steady(Timestamp);

impl Steady {
    /// The instant this much later. It may lie behind the last one that a clock shows: steady time goes on however
    /// often a clock is set ahead and back.
    #[must_use]
    pub fn plus(self, span: Span) -> Steady {
        Steady(self.0.plus(span))
    }

    /// The time from `earlier` to `self`; 0 if it lies later.
    #[must_use]
    pub fn since(self, earlier: Steady) -> Span {
        self.0.since(earlier.0)
    }
}

/// What turns the server's clock into steady time.
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
    /// What the clock showed when it was last read.
    last: Timestamp,
    /// By how much it has gone back in all.
    back: Span,
    /// How often it has.
    steps: u64,
}

impl SteadyClock {
    /// Reads the clock, which shows `now`.
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

    /// The steady time when the clock shows `now`, which has not gone back since it was last read.
    #[must_use]
    #[inline(always)]
    pub fn at(&self, now: Timestamp) -> Steady {
        Steady(now.max(self.last)).plus(self.back)
    }

    /// What the clock shows at that instant, unless it is set before.
    #[must_use]
    pub fn shows(&self, at: Steady) -> Timestamp {
        at.0.minus(self.back)
    }

    /// How often the clock has gone back, as far as it was read.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

/// A steady clock that many read.
#[derive(Debug, Default)]
pub struct SharedSteadyClock(Cell<SteadyClock>);

impl SharedSteadyClock {
    /// What the clock, which shows `now`, would show if it had never been set back.
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
        /// Whatever the clock is set to: steady time never goes back, and goes on as fast as the clock does.
        #[test]
        fn steady_time_goes_on_as_the_clock_does_and_never_back(readings in vec(0..1_000_000u64, 1..50)) {
            let mut clock = SteadyClock::default();
            let (mut last, mut steady) = (us(readings[0]), clock.read(us(readings[0])));
            for now in readings.into_iter().map(us) {
                let (at, steps) = (clock.read(now), clock.steps());
                prop_assert_eq!(at.since(steady), now.since(last));
                prop_assert!(at >= steady);
                prop_assert_eq!(clock.at(now), at);
                prop_assert_eq!(clock.shows(at), now);
                prop_assert_eq!(clock.read(now), at);
                prop_assert_eq!(clock.steps(), steps);
                (last, steady) = (now, at);
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_goes_on_from_where_it_was_for_all_who_read_it() {
        let clock = SharedSteadyClock::default();
        for (now, shows) in [(100, 100), (110, 110), (50, 110), (60, 120), (10, 120), (500, 610), (499, 610)] {
            assert_eq!(clock.read(us(now)), us(shows), "{now}");
        }
    }

    #[test]
    fn a_step_back_is_counted_once() {
        let mut clock = SteadyClock::default();
        let steps = [5, 9, 4, 4, 9, 8].map(|now| (clock.read(us(now)), clock.steps()).1);
        assert_eq!(steps, [0, 0, 1, 1, 1, 2]);
    }

    #[test]
    fn however_often_the_clock_has_been_at_its_last_instant_a_deadline_lies_ahead() {
        let mut clock = SteadyClock::default();
        for _ in 0..100 {
            let deadline = clock.read(Timestamp::MAX).plus(Span::SECOND);
            assert_eq!(deadline.since(clock.read(Timestamp::EPOCH)), Span::SECOND);
            assert_eq!(deadline.since(clock.read(Timestamp::EPOCH.plus(Span::SECOND))), Span::ZERO);
        }
    }
}
