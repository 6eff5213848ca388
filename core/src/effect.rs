//! Effects: what is propagated to replicas and the AOF.
//!
//! They get what happened, not what was asked: `RL.EFFECT key effect [key effect ...]` with the absolute expiry of each
//! key and its new state, or of a large usage what has changed in it. Replaying an effect at any later time, on any
//! clock, gives the same bytes. A call over several keys is one such command. An effect is text, readable in the AOF
//! and in a replica's MONITOR:
//!
//! * `rl-bucket 1 1700000001675 1M -1675000`: kind, version of the encoding, expiry in milliseconds since the epoch,
//!   then the fields of the usage, which are numbers and strings;
//! * `rl-bucket 1 max 1M 1700000001675000`: the key expires as late as a key can. An AOF that is rewritten says so, in
//!   fewer bytes than the number takes, since the server writes the real expiry right behind;
//! * `rl-bucket del`: the key is gone;
//! * `rl-bucket convert 1 1700000001675 1700000001500 1 ...`: the key, which held a bucket until 1700000001500, is one
//!   of the kind that is made of others, version 1, and expires at 1700000001675 (0 in place of 1700000001500: it had no
//!   expiry); then what the call changed in that.
//!
//! A number that follows the expiry is written in as few characters as come easily: `1M` is a million, and one from
//! 10^12 on, most likely an instant in microseconds, is told by its distance, signed: the first such number by its
//! distance from the expiry, each later one from the first (`+` alone is the first once more). All are read in digits,
//! too.
//!
//! It is read like a payload from disk: any client might send it, so it can make no state that no command could
//! have made, nor a key without an expiry.

use crate::expiry::LATEST_EXPIRY;
use crate::limit::Usage;
use crate::wire::codec::{Decoder, Encoder};

/// An effect as text. Short ones, all but those of logs and lease tables, need no memory of their own.
///
/// ```
/// use ratelimit_core::algorithm::bucket::BucketUsage;
/// use ratelimit_core::effect::{Effect, Text};
///
/// let deletion = Text::deletion::<BucketUsage>();
/// assert_eq!(deletion.as_bytes(), b"rl-bucket del");
/// assert!(matches!(Effect::read::<BucketUsage>(deletion.as_bytes()), Some(Effect::Deletion)));
/// ```
pub struct Text {
    short: [u8; Text::SHORT],
    length: usize,
    long: Vec<u8>,
    anchor: TimeBase,
}

/// What instants are told by their distance from.
#[derive(Clone, Copy, Debug)]
enum TimeBase {
    /// They are told in digits: the text has no expiry.
    None,
    /// The expiry, in microseconds, until an instant has been told.
    Expiry(u64),
    /// The first instant that was told.
    Instant(u64),
}

impl TimeBase {
    /// The least number that is told by its distance.
    const LEAST: u64 = 1_000_000_000_000;
    /// The least distance that is told in digits instead, as they are hardly more.
    const FAR: u64 = 100_000_000_000;

    fn of_expiry(milliseconds: u64) -> TimeBase {
        TimeBase::Expiry(milliseconds.saturating_mul(1000))
    }

    /// The instant itself; `None` if there is none.
    fn instant(self) -> Option<u64> {
        match self {
            TimeBase::None => None,
            TimeBase::Expiry(at) | TimeBase::Instant(at) => Some(at),
        }
    }

    /// Notes that `instant` has been told, which is at least [`TimeBase::LEAST`].
    fn tell(&mut self, instant: u64) {
        if let TimeBase::Expiry(_) = self {
            *self = TimeBase::Instant(instant);
        }
    }
}

/// What the number before [`MILLIONS`] is to be multiplied by.
const MILLION: u64 = 1_000_000;
const MILLIONS: &[u8] = b"M";

impl Text {
    const SHORT: usize = 192;

    /// What the last call has changed in `usage`, which expires at `expires_at`.
    pub fn of_change<U: Usage>(usage: &mut U, expires_at: u64) -> Text {
        let mut text = Text::heading::<U>(expires_at);
        usage.encode_effect(&mut text);
        text
    }

    /// The whole of `usage`, which expires at `expires_at`.
    pub fn of_whole<U: Usage>(usage: &U, expires_at: u64) -> Text {
        let mut text = Text::heading::<U>(expires_at);
        usage.encode_whole_effect(&mut text);
        text
    }

    /// A part of the whole of `usage`, whose expiry is told behind it, and from where the next part goes on, if there is
    /// one ([`Usage::encode_part_of_whole`]).
    #[inline(always)]
    pub fn of_part<U: Usage>(usage: &U, from: usize) -> (Text, Option<usize>) {
        let mut text = Text::beginning_with(U::KIND.name().as_bytes());
        text.integer(u64::from(U::VERSION));
        text.push(b" ");
        text.push(LATEST);
        text.anchor = TimeBase::of_expiry(LATEST_EXPIRY);
        let next = usage.encode_part_of_whole(from, &mut text);
        (text, next)
    }

    /// The key, which held a `U`, is gone.
    #[must_use]
    pub fn deletion<U: Usage>() -> Text {
        let mut text = Text::beginning_with(U::KIND.name().as_bytes());
        text.push(DELETION);
        text
    }

    /// The key, which held a `Before` and expired at `plain_expiry`, holds an `After`: what the last call changed in
    /// `usage` once that was made of what was there.
    pub fn of_conversion<Before: Usage, After: Usage>(
        plain_expiry: Option<u64>,
        usage: &mut After,
        expires_at: u64,
    ) -> Text {
        let mut text = Text::beginning_with(Before::KIND.name().as_bytes());
        text.push(CONVERSION);
        text.integer(u64::from(After::VERSION));
        text.integer(expires_at);
        text.integer(plain_expiry.and_then(expiry).unwrap_or(NEVER));
        text.anchor = TimeBase::of_expiry(expires_at);
        usage.encode_effect(&mut text);
        text
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() { self.short.get(..self.length).unwrap_or_default() } else { &self.long }
    }

    /// A text of another kind, whose fields follow.
    pub(crate) fn beginning_with(heading: &[u8]) -> Text {
        let mut text = Text::empty();
        text.push(heading);
        text
    }

    fn heading<U: Usage>(expires_at: u64) -> Text {
        let mut text = Text::beginning_with(U::KIND.name().as_bytes());
        text.integer(u64::from(U::VERSION));
        text.integer(expires_at);
        text.anchor = TimeBase::of_expiry(expires_at);
        text
    }

    fn empty() -> Text {
        Text { short: [0; Text::SHORT], length: 0, long: Vec::new(), anchor: TimeBase::None }
    }

    #[inline]
    fn number<const LENGTH: usize>(&mut self, before: &[u8; LENGTH], value: u64) {
        self.push(before);
        // Most numbers are one digit, which is quicker to write than to hand on.
        match u8::try_from(value) {
            Ok(digit @ 0..=9) => self.push(&[b'0'.saturating_add(digit)]),
            _ => self.push(itoa::Buffer::new().format(value).as_bytes()),
        }
    }

    /// Inlined, so that a constant of a few bytes is stored at once.
    #[inline(always)]
    fn push(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        match self.short.get_mut(self.length..end) {
            Some(room) if self.long.is_empty() => {
                room.copy_from_slice(bytes);
                self.length = end;
            }
            _ => self.push_long(bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn push_long(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long = self.as_bytes().to_vec();
        }
        self.long.extend_from_slice(bytes);
    }
}

impl Encoder for Text {
    fn integer(&mut self, value: u64) {
        let Some(anchor) = self.anchor.instant() else {
            return self.number(b" ", value);
        };
        if value >= TimeBase::LEAST {
            self.anchor.tell(value);
            match value.abs_diff(anchor) {
                0 => self.push(b" +"),
                TimeBase::FAR.. => self.number(b" ", value),
                distance => self.number(if value < anchor { b" -" } else { b" +" }, distance),
            }
        } else if value != 0 && value.is_multiple_of(MILLION) {
            self.number(b" ", value / MILLION);
            self.push(MILLIONS);
        } else {
            self.number(b" ", value);
        }
    }

    /// Its length, a colon, and the bytes as they are.
    fn bytes(&mut self, value: &[u8]) {
        self.number(b" ", u64::try_from(value.len()).unwrap_or(u64::MAX));
        self.push(b":");
        self.push(value);
    }
}

/// Stands for [`LATEST_EXPIRY`].
const LATEST: &[u8] = b"max";

const DELETION: &[u8] = b" del";
const CONVERSION: &[u8] = b" convert";

/// The expiry of a key that had none.
const NEVER: u64 = 0;

/// Reads the fields of an effect, each behind one space, as they are written, or with all numbers in digits.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    anchor: TimeBase,
}

impl<'a> Fields<'a> {
    /// Those of a text that is nothing else.
    pub(crate) fn of(text: &'a Text) -> Fields<'a> {
        Fields { rest: text.as_bytes(), anchor: TimeBase::None }
    }

    /// Those of a text that begins with `heading`.
    pub(crate) fn behind(heading: &[u8], text: &'a [u8]) -> Option<Fields<'a>> {
        Some(Fields { rest: text.strip_prefix(heading)?, anchor: TimeBase::None })
    }

    /// Whether all have been read.
    #[must_use]
    pub fn end(&self) -> bool {
        self.rest.is_empty()
    }

    /// An expiry that a key can have, in milliseconds since the epoch.
    fn expiry(&mut self) -> Option<u64> {
        if let Some(rest) = self.rest.strip_prefix(b" ").and_then(|rest| rest.strip_prefix(LATEST)) {
            self.rest = rest;
            return Some(LATEST_EXPIRY);
        }
        expiry(self.integer()?)
    }

    /// How far from the anchor an instant is: nothing at all stands for zero.
    fn distance(&mut self) -> Option<u64> {
        let is_zero = !self.rest.first().is_some_and(u8::is_ascii_digit);
        if is_zero { Some(0) } else { self.digits().filter(|distance| (1..TimeBase::FAR).contains(distance)) }
    }

    /// The digits at the front, with no zero before them.
    fn digits(&mut self) -> Option<u64> {
        let end = self.rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        let canonical = digits.len() == 1 || digits.first() != Some(&b'0');
        canonical.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
    }
}

impl Decoder for Fields<'_> {
    fn integer(&mut self) -> Option<u64> {
        self.rest = self.rest.strip_prefix(b" ")?;
        let Some(anchor) = self.anchor.instant() else {
            return self.digits();
        };
        let value = match self.rest.split_first()? {
            (b'+', rest) => {
                self.rest = rest;
                anchor.checked_add(self.distance()?).filter(|value| *value >= TimeBase::LEAST)
            }
            (b'-', rest) => {
                self.rest = rest;
                let distance = self.distance().filter(|distance| *distance != 0)?;
                anchor.checked_sub(distance).filter(|value| *value >= TimeBase::LEAST)
            }
            _ => {
                let digits = self.digits()?;
                match self.rest.strip_prefix(MILLIONS) {
                    Some(rest) => {
                        self.rest = rest;
                        digits.checked_mul(MILLION).filter(|value| (1..TimeBase::LEAST).contains(value))
                    }
                    None => Some(digits),
                }
            }
        }?;
        if value >= TimeBase::LEAST {
            self.anchor.tell(value);
        }
        Some(value)
    }

    fn bytes(&mut self, most: usize) -> Option<Box<[u8]>> {
        self.rest = self.rest.strip_prefix(b" ")?;
        let length = usize::try_from(self.digits()?).ok().filter(|length| *length <= most)?;
        let (bytes, rest) = self.rest.strip_prefix(b":")?.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes.into())
    }
}

/// An effect, read up to what only its kind can read.
pub enum Effect<'a> {
    /// What has changed, or all of it; the expiry in milliseconds since the epoch.
    Change {
        /// The version of the encoding.
        version: u32,
        /// When the key expires.
        expires_at: u64,
        /// What the kind reads.
        fields: Fields<'a>,
    },
    /// The key is gone.
    Deletion,
    /// The key has been converted to the kind that is made of others.
    Conversion {
        /// The version of that kind's encoding.
        version: u32,
        /// When the key expires.
        expires_at: u64,
        /// When it expired before, if it did.
        plain_expiry: Option<u64>,
        /// What that kind reads.
        fields: Fields<'a>,
    },
}

impl<'a> Effect<'a> {
    /// Of the kind of `U`; `None` if it is none.
    #[must_use]
    pub fn read<U: Usage>(text: &'a [u8]) -> Option<Effect<'a>> {
        let text = text.strip_prefix(U::KIND.name().as_bytes())?;
        if text == DELETION {
            return Some(Effect::Deletion);
        }
        if let Some(conversion) = text.strip_prefix(CONVERSION) {
            let mut fields = Fields { rest: conversion, anchor: TimeBase::None };
            let version = u32::try_from(fields.integer()?).ok()?;
            let expires_at = expiry(fields.integer()?)?;
            let plain_expiry = fields.integer()?;
            let plain_expiry = if plain_expiry == NEVER { None } else { Some(expiry(plain_expiry)?) };
            fields.anchor = TimeBase::of_expiry(expires_at);
            return Some(Effect::Conversion { version, expires_at, plain_expiry, fields });
        }
        let mut fields = Fields { rest: text, anchor: TimeBase::None };
        let version = u32::try_from(fields.integer()?).ok().filter(|version| (1..=U::VERSION).contains(version))?;
        let expires_at = fields.expiry()?;
        fields.anchor = TimeBase::of_expiry(expires_at);
        Some(Effect::Change { version, expires_at, fields })
    }
}

/// An expiry that a key can have.
fn expiry(at: u64) -> Option<u64> {
    Some(at).filter(|at| (1..=LATEST_EXPIRY).contains(at))
}

#[cfg(test)]
mod tests;
