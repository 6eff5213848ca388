//! One brake for a fleet: how `MUL` and `ADD` change the factor that a policy is scaled by.
//!
//! Additive increase, multiplicative decrease (Chiu and Jain, 1989): each worker that sees its upstream refuse calls
//! multiplies the factor of all, and each that sees it answer adds to it. With `EVERY` only one change of a word counts
//! in that time, so a hundred workers that see the same refusal brake once. A server counts that time by its steady
//! clock, so that one that is set back holds no change for longer.
//!
//! The server that is told computes the new factor. What travels is absolute: the factor, its end, and when each word
//! last changed it. Of two primaries that are told within the time of a message, the later one stands.

use super::entry::{End, Scale, StepTimes};
use super::setting::{ScaleStep, Scaling};
use super::stamp::Stamp;
use crate::number::Timestamp;

impl StepTimes {
    /// These changes on the steady clock, which shows `steady` when they are learned at `now`. One that lies ahead,
    /// by the clock of another server or by one that was set back before a restart, counts as made then.
    pub(super) fn learned(self, now: Timestamp, steady: Timestamp) -> StepTimes {
        let learned = |at: Timestamp| {
            if at == Timestamp::EPOCH { at } else { steady.minus(now.since(at)) }
        };
        StepTimes { multiplied: learned(self.multiplied), added: learned(self.added) }
    }

    /// Whether the last change by the word of `scaling` was within its `EVERY`, all by the steady clock.
    pub(super) fn hold(&self, scaling: Scaling, steady: Timestamp) -> bool {
        let last = match scaling.step {
            ScaleStep::Set(_) => Timestamp::EPOCH,
            ScaleStep::Multiply { .. } => self.multiplied,
            ScaleStep::Add { .. } => self.added,
        };
        last != Timestamp::EPOCH && scaling.every.is_some_and(|every| steady.since(last) < every.span())
    }
}

impl Scale {
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
