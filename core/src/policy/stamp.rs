//! When something was written, and by whom; and which of that a server can believe.

use crate::number::{Span, Timestamp};
use crate::wire::codec::{Decoder, Encoder};

/// When something was written, and by whom. The later of two stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Microseconds since the epoch, by the writer's clock; later than any that it had heard of.
    pub at: u64,
    /// The writer: of two at the same time the higher stands.
    pub node: u64,
}

impl Stamp {
    /// Before any that a server writes.
    pub const OLDEST: Stamp = Stamp { at: 0, node: 0 };

    /// Its two words.
    pub(super) fn encode(self, to: &mut impl Encoder) {
        to.integer(self.at);
        to.integer(self.node);
    }

    /// Reads what [`Stamp::encode`] writes.
    pub(super) fn decode(from: &mut impl Decoder) -> Option<Stamp> {
        let at = from.integer().filter(|at| *at <= Timestamp::MAX.micros())?;
        Some(Stamp { at, node: from.integer()? })
    }
}

/// The latest time that a server believes of a stamp: a day after what its own clock shows.
///
/// A stamp beyond it comes from a clock that is wrong, or from nobody's. It counts as the oldest that there is: else
/// what it marks could not be changed until that time.
#[derive(Clone, Copy, Debug)]
pub struct Horizon(u64);

impl Horizon {
    /// How far ahead of a server's clock a stamp may be.
    const AHEAD: Span = Span::SECOND.times(86_400);

    /// That of a server whose clock shows `now`.
    #[must_use]
    pub fn of(now: Timestamp) -> Horizon {
        Horizon(now.plus(Horizon::AHEAD).micros())
    }

    /// One of its own, for stamps in tests that are near each other.
    #[cfg(test)]
    pub(super) fn within(last: u64) -> Horizon {
        Horizon(last)
    }

    /// Whether the stamp is no later.
    #[must_use]
    pub fn covers(self, stamp: Stamp) -> bool {
        stamp.at <= self.0
    }

    /// The time itself if it is no later, else the first one.
    pub(super) fn or_first(self, at: u64) -> u64 {
        if at <= self.0 { at } else { 0 }
    }
}
