//! Timing of a scale: when it ends, and how long ago MUL and ADD changed it.
//!
//! Each server counts by its own steady clock. What travels is a duration, so that no clock has to be right but the
//! one that counts.

use super::entry::Scale;
use crate::number::{Span, Timestamp};

/// Durations of a scale as one server counts them by its steady clock. Records carry them, and no digest has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScaleTiming {
    /// Time left of a scale that has an end; else `None`.
    pub left: Option<Span>,
    /// Time since MUL changed the factor; without meaning if it never did.
    pub since_multiplied: Span,
    /// Time since ADD changed the factor; without meaning if it never did.
    pub since_added: Span,
}

impl ScaleTiming {
    /// Returns the timing of a scale that was stored like this, and is loaded when the clock shows `now`. Time has
    /// passed since, even if the clock was set back meanwhile.
    pub fn loaded(self, scale: &Scale, now: Timestamp) -> ScaleTiming {
        let by_clock = scale.left_by_clock(now);
        ScaleTiming {
            left: by_clock.map(|by_clock| self.left.map_or(by_clock, |left| left.min(by_clock))),
            since_multiplied: self.since_multiplied.max(now.since(scale.times.multiplied)),
            since_added: self.since_added.max(now.since(scale.times.added)),
        }
    }

    /// Returns the timing that a sender has told of a scale: by the clock, which shows `now`, where a record of the
    /// first form says only when the scale ends.
    pub fn told(self, scale: &Scale, now: Timestamp) -> ScaleTiming {
        ScaleTiming { left: self.left.or(scale.left_by_clock(now)), ..self }
    }

    /// Returns the instants that these durations lead to on the steady clock, which shows `steady`.
    pub fn instants(self, steady: Timestamp) -> ScaleInstants {
        ScaleInstants {
            ends: self.left.map(|left| steady.plus(left)),
            multiplied: steady.minus(self.since_multiplied),
            added: steady.minus(self.since_added),
        }
    }
}

/// Instants of a scale on the steady clock of one server.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScaleInstants {
    /// End of the scale; `None`: it has none.
    pub ends: Option<Timestamp>,
    /// Last change by MUL; without meaning if there was none.
    multiplied: Timestamp,
    /// Last change by ADD; without meaning if there was none.
    added: Timestamp,
}

impl ScaleInstants {
    /// Returns the durations from or to these instants when the steady clock shows `steady`.
    pub fn timing(self, steady: Timestamp) -> ScaleTiming {
        ScaleTiming {
            left: self.ends.map(|ends| ends.since(steady)),
            since_multiplied: steady.since(self.multiplied),
            since_added: steady.since(self.added),
        }
    }
}
