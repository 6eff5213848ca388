//! One brake for a fleet: how `MUL` and `ADD` change the factor that a policy is scaled by.
//!
//! Additive increase, multiplicative decrease (Chiu and Jain, 1989): each worker that sees its upstream refuse calls
//! multiplies the factor of all, and each that sees it answer adds to it. With `EVERY` only one change of a word counts
//! in that time, so a hundred workers that see the same refusal brake once.
//!
//! The server that is told computes the new factor. What travels is absolute: the factor, its end, and when each word
//! last changed it. Of two primaries that are told within the time of a message, the later one stands.

use super::entry::{End, Scale, StepTimes};
use super::setting::{ScaleStep, Scaling};
use super::stamp::Stamp;
use crate::number::{Period, Timestamp};

/// Whether `now` is less than `every` away from `last`. A server whose clock is behind that of the server that wrote
/// `last` finds it ahead, and so does one whose clock was set back: by more than `every`, and `last` no longer counts.
fn is_within(every: Period, last: Timestamp, now: Timestamp) -> bool {
    let apart = now.since(last).max(last.since(now));
    last != Timestamp::EPOCH && apart < every.span()
}

impl Scale {
    /// The scale that follows this one when `scaling` is told at `now`; `None` if it changes nothing, since the last
    /// change by its word was within `EVERY`. A scale that has ended is [`Scale::NONE`].
    pub(super) fn followed_by(&self, scaling: Scaling, stamp: Stamp, now: Timestamp) -> Option<Scale> {
        let mut times = self.times;
        let (factor, last) = match scaling.step {
            ScaleStep::Set(factor) => {
                return Some(Scale { stamp, factor, end: end_of(scaling, now, End::Never), times: StepTimes::NEVER });
            }
            ScaleStep::Multiply { by, least } => {
                (self.factor.times(by).max(least).min(self.factor), &mut times.multiplied)
            }
            ScaleStep::Add { step, most } => (self.factor.plus(step).min(most).max(self.factor), &mut times.added),
        };
        if scaling.every.is_some_and(|every| is_within(every, *last, now)) {
            return None;
        }
        *last = now;
        Some(Scale { stamp, factor, end: end_of(scaling, now, self.end), times })
    }
}

/// The end that FOR says, or else the end that `stands`.
fn end_of(scaling: Scaling, now: Timestamp, stands: End) -> End {
    scaling.duration.map_or(stands, |duration| {
        let until = now.plus(duration.span()).min(Timestamp::MAX);
        End::For { duration, until }
    })
}
