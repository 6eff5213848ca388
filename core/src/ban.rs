//! A ban: who keeps calling though the limits deny it is denied altogether, for a while.
//!
//! `BAN strikes window block` counts the calls that a key's limits have denied, its strikes, in a window that the first
//! of them opens. The last one bans the key for `block`. RL.BAN bans by hand. With `MAX longest` each ban that follows
//! another soon lasts twice as long as the one before, up to `longest`. When to use it: against guessing (passwords,
//! tokens), where a denied call is a sign of ill will and not of haste. Its known flaw: behind one address may be a
//! thousand people. Cost: 40 bytes, and the only write that a denied call makes, at most `strikes` times in a window.
//!
//! The level of a ban says how often it has been doubled: level 1 lasts `block`, level n lasts `block * 2^(n-1)`, at
//! most `longest`. The key remembers the level after the ban has ended. One level passes with each whole `longest`
//! since that end, and the next ban has one level more than is left:
//!
//! ```text
//! BAN 3 10m 1h MAX 4h        banned            longest    longest
//! level 1 ------------------|==1h==|
//! level 2    a ban before this end + 4h: |===2h===|
//! level 3          ... and before that end + 4h:      |=====4h=====|   (level 3 is the highest here)
//! level                                                            3 ----4h----> 2 ----4h----> 1 ----4h----> forgotten
//! ```

use crate::number::{Period, Span, Timestamp};
use crate::wire::codec::{Decoder, Encoder};

/// When a key is banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanRule {
    /// How many denied calls, at least one,
    pub strikes: u32,
    /// within so long of the first of them,
    pub window: Period,
    /// ban the key for so long,
    pub block: Period,
    /// or, if it has been banned before, for up to so long, at least `block`. `None`: each ban lasts `block`.
    pub longest: Option<Period>,
}

impl BanRule {
    /// How long a ban of `level` lasts.
    fn length(self, level: u8) -> Span {
        let block = self.block.span();
        self.longest.map_or(block, |longest| doubled(block, level).min(longest.span()))
    }

    /// The level that follows `former`, of which 0 is none. A ban without MAX leaves the level that there is.
    fn next_level(self, former: u8) -> u8 {
        let Some(longest) = self.longest else { return former };
        former.saturating_add(1).min(highest_level(self.block.span(), longest.span()))
    }
}

/// `block` doubled `level - 1` times.
fn doubled(block: Span, level: u8) -> Span {
    let factor = 1_u64.checked_shl(u32::from(level).saturating_sub(1)).unwrap_or(u64::MAX);
    block.times(factor)
}

/// The lowest level whose ban lasts `longest`.
fn highest_level(block: Span, longest: Span) -> u8 {
    (1..u8::MAX).find(|level| doubled(block, *level) >= longest).unwrap_or(u8::MAX)
}

/// The bit of the encoded strikes, above all of them, that says that a level follows.
const HAS_LEVEL: u64 = 1 << 32;

/// What a key remembers of strikes and bans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ban {
    /// Banned until then. While there is a level, the end of the last ban, even if it is over.
    until: Timestamp,
    /// When the first strike was.
    since: Timestamp,
    /// The window that it was counted in.
    window: Span,
    /// The `longest` of the ban that has the level, in which one level passes; 0 without a level.
    longest: Span,
    /// How many strikes there have been since the first one.
    strikes: u32,
    /// The level of the last ban, as of its end; 0 if none has grown, or the level has passed.
    level: u8,
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
            let level = rule.next_level(self.level(now));
            let longest = match rule.longest {
                Some(longest) => longest.span(),
                None if level > 0 => self.longest,
                None => Span::ZERO,
            };
            let until = self.until.max(now.plus(rule.length(level)).min(Timestamp::MAX));
            *self = Ban { until, longest, level, ..Ban::default() };
            return;
        }
        let strikes = self.counting(rule, now);
        let since = if strikes == 0 { now } else { self.since };
        (self.strikes, self.since, self.window) = (strikes.saturating_add(1), since, rule.window.span());
    }

    /// Bans by hand. Never shortens a ban. The level stays, and what is left of it passes from the later end on. A
    /// duration of 0 lifts the ban and forgets the strikes and the level.
    pub fn by_hand(&mut self, duration: Span, now: Timestamp) {
        let until = now.plus(duration).min(Timestamp::MAX);
        if duration == Span::ZERO {
            *self = Ban::default();
        } else {
            self.forget_level(now);
            self.level = self.level(now);
            self.until = self.until.max(until);
        }
    }

    /// The level that counts at `now`: that of the ban that stands, and one less for each whole `longest` since its end;
    /// 0 if there is none.
    #[must_use]
    pub fn level(&self, now: Timestamp) -> u8 {
        let passed = now.since(self.until).micros().checked_div(self.longest.micros()).unwrap_or(0);
        self.level.saturating_sub(u8::try_from(passed).unwrap_or(u8::MAX))
    }

    /// Forgets the level if it has passed.
    fn forget_level(&mut self, now: Timestamp) {
        if self.level(now) == 0 {
            (self.level, self.longest) = (0, Span::ZERO);
        }
    }

    /// When all of it is over.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        let strikes_expire = if self.strikes == 0 { Timestamp::EPOCH } else { self.since.plus(self.window) };
        self.until.plus(self.longest.times(u64::from(self.level))).max(strikes_expire)
    }

    /// The strikes, and since when, for people.
    #[must_use]
    pub fn strikes(&self, now: Timestamp) -> Option<(u32, Timestamp)> {
        // Where there are none, the window is of no length.
        (now < self.since.plus(self.window)).then_some((self.strikes, self.since))
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
        self.forget_level(now);
        // A level passes from the end of its ban on.
        if self.until <= now && self.level == 0 {
            self.until = Timestamp::EPOCH;
        }
        if self.since.plus(self.window) <= now {
            (self.strikes, self.since, self.window) = Default::default();
        }
    }

    /// Whether there is nothing to remember.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Ban::default()
    }

    /// Writes it out. Without a level the form is that of the versions before levels.
    pub fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.until.micros());
        let has_level = if self.level > 0 { HAS_LEVEL } else { 0 };
        to.integer(u64::from(self.strikes) | has_level);
        if self.level > 0 {
            to.integer(u64::from(self.level));
            to.integer(self.longest.micros());
        }
        if self.strikes > 0 {
            to.integer(self.since.micros());
            to.integer(self.window.micros());
        }
    }

    /// Reads what `encode` wrote of a key that was last changed at `written`. `None` unless some call could have made
    /// it.
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
            ban.since = Timestamp::from_micros(from.integer()?)?;
            ban.window = Period::new(Span::from_micros(from.integer()?))?.span();
        }
        Some(ban).filter(|ban| ban.is_sound(written))
    }

    /// Whether some call can have led to it in a key that was last changed at `written`: nobody is banned for longer
    /// than a duration says, no strike is yet to come, and a level is one that bans up to `longest` reach and that has
    /// not passed.
    pub(crate) fn is_sound(&self, written: Timestamp) -> bool {
        let is_reached = || self.level <= highest_level(Span::MICROSECOND, self.longest);
        self.until.since(written) <= Span::MAX_ARGUMENT
            && self.since <= written
            && (self.level == 0 || is_reached() && self.level(written) > 0)
    }
}

#[cfg(test)]
mod tests;
