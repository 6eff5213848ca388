//! A ban: who keeps calling though the limits deny it is denied altogether, for a while.
//!
//! `BAN strikes window block` counts the calls that a key's limits have denied, its strikes, in a window that the first
//! of them opens. The last one bans the key for `block`. RL.BAN bans by hand. When to use it: against guessing
//! (passwords, tokens), where a denied call is a sign of ill will and not of haste. Its known flaw: behind one address
//! may be a thousand people. Cost: 32 bytes, and the only write that a denied call makes, at most `strikes` times in a
//! window.

use crate::number::{Period, Span, Timestamp};
use crate::wire::codec::{Decoder, Encoder};

/// When a key is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanRule {
    /// So many denied calls, at least one,
    pub strikes: u32,
    /// within so long of the first of them,
    pub window: Period,
    /// ban the key for so long.
    pub block: Period,
}

/// What a key remembers of strikes and bans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ban {
    /// Banned until then.
    until: Timestamp,
    /// When the first strike was.
    since: Timestamp,
    /// The window that it was counted in.
    window: Span,
    /// How many there have been since.
    strikes: u32,
}

impl Ban {
    /// How long it still lasts; 0 if there is none.
    #[must_use]
    pub fn left(&self, now: Timestamp) -> Span {
        self.until.since(now)
    }

    /// Whether one more strike at `now` would ban.
    #[must_use]
    pub fn is_next(&self, rule: BanRule, now: Timestamp) -> bool {
        self.counting(rule, now).saturating_add(1) >= rule.strikes
    }

    /// The strikes that count for the next one.
    fn counting(&self, rule: BanRule, now: Timestamp) -> u32 {
        if now < self.since.plus(rule.window.span()) { self.strikes } else { 0 }
    }

    /// Counts a strike; the last one bans.
    pub fn strike(&mut self, rule: BanRule, now: Timestamp) {
        if self.is_next(rule, now) {
            let until = self.until.max(now.plus(rule.block.span()).min(Timestamp::MAX));
            *self = Ban { until, ..Ban::default() };
            return;
        }
        let strikes = self.counting(rule, now);
        let since = if strikes == 0 { now } else { self.since };
        *self = Ban { until: self.until, since, window: rule.window.span(), strikes: strikes.saturating_add(1) };
    }

    /// Bans by hand. Never shortens a ban; a duration of 0 lifts it and forgets the strikes.
    pub fn by_hand(&mut self, duration: Span, now: Timestamp) {
        if duration == Span::ZERO {
            *self = Ban::default();
        } else {
            self.until = self.until.max(now.plus(duration).min(Timestamp::MAX));
        }
    }

    /// When all of it is over.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        let strikes_expire = if self.strikes == 0 { Timestamp::EPOCH } else { self.since.plus(self.window) };
        self.until.max(strikes_expire)
    }

    /// The strikes, and since when, for people.
    #[must_use]
    pub fn strikes(&self, now: Timestamp) -> Option<(u32, Timestamp)> {
        (self.strikes > 0 && now < self.since.plus(self.window)).then_some((self.strikes, self.since))
    }

    /// Banned until then.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// Moves along with a clock that has gone back.
    pub fn move_back(&mut self, back: Span) {
        self.until = self.until.minus(back);
        self.since = self.since.minus(back);
    }

    /// What is over by `now` is as if it had never been.
    pub fn forget(&mut self, now: Timestamp) {
        if self.until <= now {
            self.until = Timestamp::EPOCH;
        }
        if self.strikes > 0 && self.since.plus(self.window) <= now {
            *self = Ban { until: self.until, ..Ban::default() };
        }
    }

    /// Whether there is nothing to remember.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Ban::default()
    }

    /// Writes it out.
    pub fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.until.micros());
        to.integer(u64::from(self.strikes));
        if self.strikes > 0 {
            to.integer(self.since.micros());
            to.integer(self.window.micros());
        }
    }

    /// Reads what `encode` wrote of a key that was last changed at `written`. `None` unless some call could have made
    /// it.
    pub fn decode(from: &mut impl Decoder, written: Timestamp) -> Option<Ban> {
        let until = Timestamp::from_micros(from.integer()?)?;
        let strikes = u32::try_from(from.integer()?).ok()?;
        let mut ban = Ban { until, strikes, ..Ban::default() };
        if strikes > 0 {
            ban.since = Timestamp::from_micros(from.integer()?)?;
            ban.window = Period::new(Span::from_micros(from.integer()?))?.span();
        }
        Some(ban).filter(|ban| ban.is_sound(written))
    }

    /// Whether some call can have led to it in a key that was last changed at `written`: nobody is banned for longer
    /// than a duration says, and no strike is yet to come.
    pub(crate) fn is_sound(&self, written: Timestamp) -> bool {
        self.until.since(written) <= Span::MAX_ARGUMENT && self.since <= written
    }
}

#[cfg(test)]
mod tests;
