//! Instants that all move back at once, when the clock does, without any being touched.
//!
//! A log and a lease table hold many instants, and a clock gone back moves all of them by the same. So they are kept
//! as [`Mark`]s, and beside them, once, the [`Shift`] that says how far these have moved since.

use crate::number::{Span, Timestamp};

/// An instant as it is kept: later than it is by the shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(Timestamp);

/// By how much the marks of a usage lie later than their instants.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shift(Span);

impl Shift {
    /// Far below overflow, and so far that a clock has to go through its whole range, back and forth, many times.
    const FAR: Span = Span::MAX.times(32);

    /// How `instant` is kept.
    pub fn mark(self, instant: Timestamp) -> Mark {
        Mark(instant.plus(self.0))
    }

    /// The instant that is kept as `mark`; the epoch for all that has moved to before it.
    pub fn instant(self, mark: Mark) -> Timestamp {
        mark.0.minus(self.0)
    }

    /// The shift after the clock has gone back by `span` more.
    pub fn back(self, span: Span) -> Shift {
        Shift(self.0.plus(span))
    }

    /// Whether it is time to make all marks anew.
    pub fn is_far(self) -> bool {
        self.0 > Shift::FAR
    }
}

#[cfg(test)]
mod tests;
