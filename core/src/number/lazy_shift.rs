//! Timestamps that can all be moved back at once in constant time.
//!
//! A log and a lease table hold many timestamps. When the clock moves backwards, all of them move back by the same
//! span. So each timestamp is stored as a [`Mark`], and one [`Shift`] records the distance that the marks have moved
//! since.

use crate::number::{Span, Timestamp};

/// Stored form of a timestamp: the timestamp plus the shift at the time of storing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(Timestamp);

impl Mark {
    /// Returns the mark with these bits.
    pub fn from_bits(bits: u64) -> Mark {
        Mark(Timestamp::EPOCH.plus(Span::from_micros(bits)))
    }

    /// Returns the bits of the mark. Their order is that of the marks.
    pub fn bits(self) -> u64 {
        self.0.micros()
    }
}

/// Total distance that the marks of a usage have moved back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift(Span);

impl Shift {
    /// No shift: a mark equals its timestamp.
    pub const NONE: Shift = Shift(Span::ZERO);

    /// Shift above which marks are recomputed. Far below overflow, and out of reach unless a clock goes back and forth
    /// through its whole range many times.
    const FAR: Span = Span::MAX.times(32);

    /// Returns the stored form of `timestamp`.
    pub fn mark(self, timestamp: Timestamp) -> Mark {
        Mark(timestamp.plus(self.0))
    }

    /// Returns the timestamp stored as `mark`, or the epoch if it has moved to before the epoch.
    pub fn timestamp(self, mark: Mark) -> Timestamp {
        mark.0.minus(self.0)
    }

    /// Returns the shift after the clock has moved back by another `span`.
    pub fn back(self, span: Span) -> Shift {
        Shift(self.0.plus(span))
    }

    /// Returns `true` if all marks must be recomputed to avoid overflow.
    pub fn is_far(self) -> bool {
        self.0 > Shift::FAR
    }
}

#[cfg(test)]
mod tests;
