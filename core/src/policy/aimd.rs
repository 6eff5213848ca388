//! Relative changes of a policy's scale (`MUL` and `ADD`), which act as one brake for a fleet of workers.
//!
//! The scheme is additive increase, multiplicative decrease (Chiu and Jain, 1989): a worker whose upstream rejects a
//! call multiplies the factor for all, and a worker whose upstream answers adds to it. With `EVERY`, only one change by
//! the same word counts within that time, so that a hundred workers that see the same rejection brake once. A server
//! measures that time by its steady clock, so that a clock that is set back does not delay a change. Records contain
//! the time since the last change, so that a receiver whose clock is ahead measures the same time.
//!
//! The server that receives the command computes the new factor. Records contain absolute values: the factor, its end,
//! and the time of the last change by each word. If two primaries change a factor before they exchange messages, the
//! later change wins.

use super::entry::{End, Scale, StepTimes};
use super::scale_timing::ScaleTiming;
use super::setting::{ScaleStep, Scaling};
use super::stamp::Stamp;
use crate::number::{Span, Timestamp};

impl ScaleTiming {
    /// Returns the timing after the change `scaling`, with `time_left` until the end of the scale.
    pub(super) fn followed_by(self, scaling: Scaling, time_left: Option<Span>) -> ScaleTiming {
        match scaling.step {
            ScaleStep::Set(_) => ScaleTiming { time_left, ..ScaleTiming::default() },
            ScaleStep::Multiply { .. } => ScaleTiming { time_left, since_multiplied: Span::ZERO, ..self },
            ScaleStep::Add { .. } => ScaleTiming { time_left, since_added: Span::ZERO, ..self },
        }
    }
}

impl Scale {
    /// Returns `true` if the last change by the same word was less than `EVERY` ago, so that `scaling` is ignored.
    pub(super) fn is_too_soon(&self, scaling: Scaling, timing: ScaleTiming) -> bool {
        let (last_change, age) = match scaling.step {
            ScaleStep::Set(_) => return false,
            ScaleStep::Multiply { .. } => (self.times.multiplied, timing.since_multiplied),
            ScaleStep::Add { .. } => (self.times.added, timing.since_added),
        };
        last_change != Timestamp::EPOCH && scaling.every.is_some_and(|every| age < every.span())
    }

    /// Returns the scale after applying `scaling` at `now`. `self` must be [`Scale::NONE`] if the last scale has ended.
    /// `EVERY` is not checked.
    pub(super) fn followed_by(&self, scaling: Scaling, stamp: Stamp, now: Timestamp) -> Scale {
        let mut times = self.times;
        let (factor, last_change) = match scaling.step {
            ScaleStep::Set(factor) => {
                return Scale { stamp, factor, end: end_of(scaling, now, End::Never), times: StepTimes::NEVER };
            }
            ScaleStep::Multiply { multiplier, min } => {
                (self.factor.times(multiplier).max(min).min(self.factor), &mut times.multiplied)
            }
            ScaleStep::Add { step, max } => (self.factor.plus(step).min(max).max(self.factor), &mut times.added),
        };
        *last_change = now;
        Scale { stamp, factor, end: end_of(scaling, now, self.end), times }
    }
}

/// Returns the end set by FOR, or `current` without FOR.
fn end_of(scaling: Scaling, now: Timestamp, current: End) -> End {
    scaling.duration.map_or(current, |duration| {
        let until = now.plus(duration.span()).min(Timestamp::MAX);
        End::For { duration, until }
    })
}
