//! Stamps of registers, and the bound up to which a server accepts them.

use crate::number::{Span, Timestamp};
use crate::wire::codec::{Decoder, Encoder};

/// Stamp of a register: the time and the node that wrote it. The register with the later stamp wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Microseconds since the epoch by the writer's clock, and later than any stamp known to the writer.
    pub at: u64,
    /// Node that wrote the register. At equal times, the higher node wins.
    pub node: u64,
}

impl Stamp {
    /// Stamp earlier than all that servers write.
    pub const OLDEST: Stamp = Stamp { at: 0, node: 0 };

    /// Encodes the stamp as two numbers.
    pub(super) fn encode(self, to: &mut impl Encoder) {
        to.integer(self.at);
        to.integer(self.node);
    }

    /// Decodes the output of [`Stamp::encode`].
    pub(super) fn decode(from: &mut impl Decoder) -> Option<Stamp> {
        let at = from.integer().filter(|at| *at <= Timestamp::MAX.micros())?;
        Some(Stamp { at, node: from.integer()? })
    }
}

/// Latest time of a stamp that a server accepts: one day ahead of its own clock.
///
/// A stamp beyond the horizon comes from a wrong clock or an attacker. It counts as the oldest, because otherwise the
/// register could not be changed until that time.
#[derive(Clone, Copy, Debug)]
pub struct Horizon(u64);

impl Horizon {
    /// Distance of the horizon from the clock.
    const AHEAD: Span = Span::SECOND.times(86_400);

    /// Returns the horizon of a server whose clock shows `now`.
    #[must_use]
    pub fn of(now: Timestamp) -> Horizon {
        Horizon(now.plus(Horizon::AHEAD).micros())
    }

    /// Creates a horizon at `last`, for tests with small stamps.
    #[cfg(test)]
    pub(super) fn within(last: u64) -> Horizon {
        Horizon(last)
    }

    /// Returns `true` if the stamp is not beyond the horizon.
    #[must_use]
    pub fn covers(self, stamp: Stamp) -> bool {
        stamp.at <= self.0
    }

    /// Returns `true` if `register` replaces `known`. A stamp beyond the horizon counts as the oldest.
    pub(super) fn is_later<R: Ord>(self, register: &R, known: &R, stamp: impl Fn(&R) -> Stamp) -> bool {
        (self.covers(stamp(register)), register) > (self.covers(stamp(known)), known)
    }

    /// Returns the time of a stamp, or 0 if it is beyond the horizon.
    pub(super) fn zero_if_beyond(self, at: u64) -> u64 {
        if at <= self.0 { at } else { 0 }
    }
}
