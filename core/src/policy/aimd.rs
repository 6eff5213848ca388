//! One brake for a fleet: how `MUL` and `ADD` change the factor that a policy is scaled by.
//!
//! Additive increase, multiplicative decrease (Chiu and Jain, 1989): each worker that sees its upstream refuse calls
//! multiplies the factor of all, and each that sees it answer adds to it. With `EVERY` only one change of a word counts
//! in that time, so a hundred workers that see the same refusal brake once. A server counts that time by its steady
//! clock, so that one that is set back holds no change for longer, and tells others how long ago the last change was, so
//! that it is the same by a clock that is ahead.
//!
//! The server that is told computes the new factor. What travels is absolute: the factor, its end, and when each word
//! last changed it. Of two primaries that are told within the time of a message, the later one stands.

use super::entry::{End, Scale, StepTimes};
use super::scale_timing::ScaleTiming;
use super::setting::{ScaleStep, Scaling};
use super::stamp::Stamp;
use crate::number::{Span, Timestamp};

impl ScaleTiming {
    /// Returns the timing after a change by the word of `scaling`, which leaves the scale `left`.
    pub(super) fn followed_by(self, scaling: Scaling, left: Option<Span>) -> ScaleTiming {
        match scaling.step {
            ScaleStep::Set(_) => ScaleTiming { left, ..ScaleTiming::default() },
            ScaleStep::Multiply { .. } => ScaleTiming { left, since_multiplied: Span::ZERO, ..self },
            ScaleStep::Add { .. } => ScaleTiming { left, since_added: Span::ZERO, ..self },
        }
    }
}

impl Scale {
    /// Returns `true` if the last change by the word of `scaling` was within its `EVERY`.
    pub(super) fn holds(&self, scaling: Scaling, timing: ScaleTiming) -> bool {
        let (last, age) = match scaling.step {
            ScaleStep::Set(_) => return false,
            ScaleStep::Multiply { .. } => (self.times.multiplied, timing.since_multiplied),
            ScaleStep::Add { .. } => (self.times.added, timing.since_added),
        };
        last != Timestamp::EPOCH && scaling.every.is_some_and(|every| age < every.span())
    }

    /// The scale that follows this one when `scaling` is told at `now`, and does not come too soon. A scale that has
    /// ended is [`Scale::NONE`].
    pub(super) fn followed_by(&self, scaling: Scaling, stamp: Stamp, now: Timestamp) -> Scale {
        let mut times = self.times;
        let (factor, last) = match scaling.step {
            ScaleStep::Set(factor) => {
                return Scale { stamp, factor, end: end_of(scaling, now, End::Never), times: StepTimes::NEVER };
            }
            ScaleStep::Multiply { by, least } => {
                (self.factor.times(by).max(least).min(self.factor), &mut times.multiplied)
            }
            ScaleStep::Add { step, most } => (self.factor.plus(step).min(most).max(self.factor), &mut times.added),
        };
        *last = now;
        Scale { stamp, factor, end: end_of(scaling, now, self.end), times }
    }
}

/// The end that FOR says, or else the end that `stands`.
fn end_of(scaling: Scaling, now: Timestamp, stands: End) -> End {
    scaling.duration.map_or(stands, |duration| {
        let until = now.plus(duration.span()).min(Timestamp::MAX);
        End::For { duration, until }
    })
}
