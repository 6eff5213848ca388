//! Bans of keys whose calls are denied repeatedly.
//!
//! `BAN strikes window block` counts the denied calls of a key, its strikes, in a window that the first strike opens.
//! The strike with the number `strikes` bans the key for `block`. RL.BAN bans manually. With `MAX longest`, a ban that
//! soon follows another one lasts twice as long, up to `longest`. **When to use it:** against guessing (passwords,
//! tokens), where a denied call indicates abuse rather than haste. **Known flaw:** if many people share an address, a
//! ban of the address denies all of them. **Cost:** 40 bytes for a key with strikes, a ban or a level. A denied call
//! writes only its strike, at most `strikes` times per window, and corrected times after the clock moved backwards.
//!
//! The level of a ban is the number of times that it was doubled, plus one: level 1 lasts `block`, and level n lasts
//! `block * 2^(n-1)`, at most `longest`. The level stays stored after the ban has ended. It decreases by one for each
//! whole `longest` since that end, and the next ban has one level more than is left:
//!
//! ```text
//! BAN 3 10m 1h MAX 4h      (|====| is the time of a ban)
//! level 1                   |==1h==|
//! level 2     a ban within 4h of its end: |===2h===|
//! level 3         another within 4h of that end:      |=====4h=====|   (level 3 is the highest here)
//! level                                                            3 ----4h----> 2 ----4h----> 1 ----4h----> none
//! ```

use crate::number::{Period, Span, Timestamp};
use crate::wire::codec::{Decoder, Encoder};

/// Conditions and duration of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanRule {
    /// Number of denied calls that ban the key, at least 1.
    pub strikes: u32,
    /// Window in which strikes are counted, starting with the first.
    pub window: Period,
    /// Duration of the first ban.
    pub block: Period,
    /// Maximum duration of repeated bans, at least `block`. `None`: each ban lasts `block`.
    pub longest: Option<Period>,
}

impl BanRule {
    /// Returns the duration of a ban of `level`.
    fn length(self, level: u8) -> Span {
        let block = self.block.span();
        self.longest.map_or(block, |longest| doubled(block, level).min(longest.span()))
    }

    /// Returns the level of a ban by this rule, given the `level` before it. 0 is no level. A ban without MAX keeps the
    /// level.
    fn next_level(self, level: u8) -> u8 {
        let Some(longest) = self.longest else { return level };
        level.saturating_add(1).min(highest_level(self.block.span(), longest.span()))
    }
}

/// Returns `block` doubled `level - 1` times.
fn doubled(block: Span, level: u8) -> Span {
    let factor = 1_u64.checked_shl(u32::from(level).saturating_sub(1)).unwrap_or(u64::MAX);
    block.times(factor)
}

/// Returns the lowest level whose ban lasts `longest`.
fn highest_level(block: Span, longest: Span) -> u8 {
    (1..u8::MAX).find(|level| doubled(block, *level) >= longest).unwrap_or(u8::MAX)
}

/// Flag in the encoded number of strikes, above its 32 bits: a level follows.
const HAS_LEVEL: u64 = 1 << 32;

/// Strikes and ban of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ban {
    /// End of the ban. While there is a level, this is the end of the last ban even if that is over.
    until: Timestamp,
    /// Time of the first strike.
    first_strike_at: Timestamp,
    /// Window of the latest strike's rule. It begins at the first strike.
    window: Span,
    /// `MAX` of the ban that set the level: one level expires for each such span after `until`. 0 without a level.
    longest: Span,
    /// Number of strikes in the window.
    strikes: u32,
    /// Level at the end of the last ban; 0 if there is none.
    level: u8,
}

impl Ban {
    /// Returns the time until the ban ends, or zero if there is none.
    #[must_use]
    pub fn remaining(&self, now: Timestamp) -> Span {
        self.until.since(now)
    }

    /// Counts a strike, and bans the key if it is the strike with the number `rule.strikes`.
    pub fn strike(&mut self, rule: BanRule, now: Timestamp) {
        let strikes = if now < self.first_strike_at.plus(rule.window.span()) { self.strikes } else { 0 };
        if strikes.saturating_add(1) >= rule.strikes {
            let level = rule.next_level(self.level(now));
            let longest = rule.longest.map_or(if level > 0 { self.longest } else { Span::ZERO }, Period::span);
            let until = self.until.max(now.plus(rule.length(level)).min(Timestamp::MAX));
            *self = Ban { until, longest, level, ..Ban::default() };
            return;
        }
        let first_strike_at = if strikes == 0 { now } else { self.first_strike_at };
        (self.strikes, self.first_strike_at, self.window) =
            (strikes.saturating_add(1), first_strike_at, rule.window.span());
    }

    /// Bans the key manually; a ban that lasts longer stays. The level is kept, and expires from the end of the ban on.
    /// A duration of 0 lifts the ban and clears strikes and level.
    pub fn set_manual(&mut self, duration: Span, now: Timestamp) {
        let until = now.plus(duration).min(Timestamp::MAX);
        if duration == Span::ZERO {
            *self = Ban::default();
        } else {
            self.drop_expired_level(now);
            self.level = self.level(now);
            self.until = self.until.max(until);
        }
    }

    /// Returns the level at `now`: that of the last ban, minus one for each whole `longest` since its end. Returns 0 if
    /// there is none.
    #[must_use]
    pub fn level(&self, now: Timestamp) -> u8 {
        let passed = now.since(self.until).micros().checked_div(self.longest.micros()).unwrap_or(0);
        self.level.saturating_sub(u8::try_from(passed).unwrap_or(u8::MAX))
    }

    /// Clears the level if it has expired.
    fn drop_expired_level(&mut self, now: Timestamp) {
        if self.level(now) == 0 {
            (self.level, self.longest) = (0, Span::ZERO);
        }
    }

    /// Returns the time at which ban, strikes and level have expired.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        let strikes_expire = if self.strikes == 0 { Timestamp::EPOCH } else { self.first_strike_at.plus(self.window) };
        self.until.plus(self.longest.times(u64::from(self.level))).max(strikes_expire)
    }

    /// Returns the number of strikes and the time of the first strike; `None` without strikes.
    #[must_use]
    pub fn strikes(&self, now: Timestamp) -> Option<(u32, Timestamp)> {
        // Without strikes, the window has the length 0.
        (now < self.first_strike_at.plus(self.window)).then_some((self.strikes, self.first_strike_at))
    }

    /// Returns the end of the ban.
    #[must_use]
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// Moves all times back by `back`, because the clock moved backwards.
    pub fn move_back(&mut self, back: Span) {
        self.until = self.until.minus(back);
        self.first_strike_at = self.first_strike_at.minus(back);
    }

    /// Clears everything that has expired at `now`.
    pub fn clear_expired(&mut self, now: Timestamp) {
        self.drop_expired_level(now);
        // While there is a level, `until` is still needed: the level expires from then on.
        if self.until <= now && self.level == 0 {
            self.until = Timestamp::EPOCH;
        }
        if self.first_strike_at.plus(self.window) <= now {
            (self.strikes, self.first_strike_at, self.window) = Default::default();
        }
    }

    /// Returns `true` if there is neither a ban nor a strike nor a level.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Ban::default()
    }

    /// Encodes the ban. Without a level, the encoding is that of versions without levels.
    pub fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.until.micros());
        let has_level = if self.level > 0 { HAS_LEVEL } else { 0 };
        to.integer(u64::from(self.strikes) | has_level);
        if self.level > 0 {
            to.integer(u64::from(self.level));
            to.integer(self.longest.micros());
        }
        if self.strikes > 0 {
            to.integer(self.first_strike_at.micros());
            to.integer(self.window.micros());
        }
    }

    /// Decodes the ban of a key that was last changed at `written`. Returns `None` if no call can have led to it.
    pub fn decode(from: &mut impl Decoder, written: Timestamp) -> Option<Ban> {
        let until = Timestamp::from_micros(from.integer()?)?;
        let flagged = from.integer()?;
        let strikes = u32::try_from(flagged & !HAS_LEVEL).ok()?;
        let mut ban = Ban { until, strikes, ..Ban::default() };
        if flagged & HAS_LEVEL != 0 {
            ban.level = u8::try_from(from.integer()?).ok().filter(|level| *level > 0)?;
            ban.longest = Period::new(Span::from_micros(from.integer()?))?.span();
        }
        if strikes > 0 {
            ban.first_strike_at = Timestamp::from_micros(from.integer()?)?;
            ban.window = Period::new(Span::from_micros(from.integer()?))?.span();
        }
        Some(ban).filter(|ban| ban.is_sound(written))
    }

    /// Returns `true` if some call can have led to this state in a key last changed at `written`: the ban lasts at
    /// most [`Span::MAX_ARGUMENT`], no strike is in the future, and the level is reachable with `longest` and has not
    /// expired.
    pub(crate) fn is_sound(&self, written: Timestamp) -> bool {
        let is_reachable = || self.level <= highest_level(Span::MICROSECOND, self.longest);
        self.until.since(written) <= Span::MAX_ARGUMENT
            && self.first_strike_at <= written
            && (self.level == 0 || is_reachable() && self.level(written) > 0)
    }
}

#[cfg(test)]
mod tests;
