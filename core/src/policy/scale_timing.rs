//! Timing of a scale: the time until it ends, and the times since MUL and ADD changed it.
//!
//! Each server measures these times by its own steady clock. Records contain durations instead of times of day, because
//! the clocks of sender and receiver may differ.

use crate::number::{Span, Timestamp};

/// Durations of a scale as measured by the steady clock of one server. Part of records, but not of digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScaleTiming {
    /// Time until the scale ends; `None` if it has no end.
    pub time_left: Option<Span>,
    /// Time since MUL changed the factor. Meaningless if MUL has never changed it.
    pub since_multiplied: Span,
    /// Time since ADD changed the factor. Meaningless if ADD has never changed it.
    pub since_added: Span,
}

impl ScaleTiming {
    /// Converts the durations to instants in steady time, at the steady time `steady`.
    pub fn instants(self, steady: Timestamp) -> ScaleInstants {
        ScaleInstants {
            end: self.time_left.map(|time_left| steady.plus(time_left)),
            multiplied: steady.minus(self.since_multiplied),
            added: steady.minus(self.since_added),
        }
    }
}

/// Instants of a scale in the steady time of one server.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScaleInstants {
    /// End of the scale; `None` if it has no end.
    pub end: Option<Timestamp>,
    /// Last change by MUL. Meaningless if there was none.
    multiplied: Timestamp,
    /// Last change by ADD. Meaningless if there was none.
    added: Timestamp,
}

impl ScaleInstants {
    /// Converts the instants to durations, at the steady time `steady`.
    pub fn timing(self, steady: Timestamp) -> ScaleTiming {
        ScaleTiming {
            time_left: self.end.map(|end| end.since(steady)),
            since_multiplied: steady.since(self.multiplied),
            since_added: steady.since(self.added),
        }
    }
}
