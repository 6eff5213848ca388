//! Effects: the commands that are propagated to replicas and the AOF.
//!
//! An effect contains the outcome of a call, not its arguments: `RL.EFFECT key effect [key effect ...]` with the
//! absolute expiry of each key and its new state, or the change to a large usage. Applying an effect at any later time,
//! on any clock, gives the same state. A call on several keys is one such command. An effect is text, readable in the
//! AOF and in the MONITOR output of a replica:
//!
//! * `rl-bucket 1 1700000001675 1M -1675000`: kind, version of the encoding, expiry in milliseconds since the epoch,
//!   then the fields of the usage, which are numbers and strings;
//! * `rl-bucket 1 max 1M 1700000001675000`: `max` is the latest possible expiry. Used in a rewritten AOF, where the
//!   server writes the real expiry after the effect;
//! * `rl-bucket del`: the key is deleted;
//! * `rl-bucket convert 1 1700000001675 1700000001500 1 ...`: the key held a bucket that expired at 1700000001500 (0:
//!   no expiry), and is converted to a composite key of version 1, which expires at 1700000001675. The change made by
//!   the call follows.
//!
//! Numbers after the expiry are abbreviated: `1M` is a million. A number from 10^12 on, which is probably a timestamp
//! in microseconds, is written as a signed distance: the first one from the expiry, and the others from the first (`+`
//! alone is a distance of zero). Plain digits are accepted too.
//!
//! An effect is validated like a payload from disk, because any client may send one: it can neither create a state that
//! no command creates, nor a key without an expiry.

use crate::expiry::LATEST_EXPIRY;
use crate::limit::Usage;
use crate::wire::codec::{Decoder, Encoder};

/// Effect as text. An effect of up to 192 bytes allocates no memory. Expiries are in milliseconds since the epoch.
///
/// ```
/// use ratelimit_core::algorithm::bucket::BucketUsage;
/// use ratelimit_core::effect::{Effect, EncodedText};
///
/// let deletion = EncodedText::deletion::<BucketUsage>();
/// assert_eq!(deletion.as_bytes(), b"rl-bucket del");
/// assert!(matches!(Effect::decode::<BucketUsage>(deletion.as_bytes()), Some(Effect::Deletion)));
/// ```
pub struct EncodedText {
    short: [u8; EncodedText::SHORT],
    length: usize,
    long: Vec<u8>,
    time_base: TimeBase,
}

/// Reference time of abbreviated timestamps.
#[derive(Clone, Copy, Debug)]
enum TimeBase {
    /// Timestamps are written in digits, because the text has no expiry.
    None,
    /// Expiry in microseconds. Used before the first timestamp.
    Expiry(u64),
    /// First timestamp in microseconds.
    Instant(u64),
}

impl TimeBase {
    /// Smallest number that is written as a distance.
    const MIN_TIMESTAMP: u64 = 1_000_000_000_000;
    /// Smallest distance at which a timestamp is written in digits, because the digits are hardly longer.
    const DISTANCE_LIMIT: u64 = 100_000_000_000;

    fn of_expiry(milliseconds: u64) -> TimeBase {
        TimeBase::Expiry(milliseconds.saturating_mul(1000))
    }

    /// Returns the reference time, or `None` if there is none.
    fn instant(self) -> Option<u64> {
        match self {
            TimeBase::None => None,
            TimeBase::Expiry(at) | TimeBase::Instant(at) => Some(at),
        }
    }

    /// Records a timestamp, which is at least [`TimeBase::MIN_TIMESTAMP`]. The first timestamp becomes the reference.
    fn record(&mut self, instant: u64) {
        if let TimeBase::Expiry(_) = self {
            *self = TimeBase::Instant(instant);
        }
    }
}

/// Factor of numbers that end in [`MILLIONS`].
const MILLION: u64 = 1_000_000;
const MILLIONS: &[u8] = b"M";

impl EncodedText {
    const SHORT: usize = 192;

    /// Encodes the last change to `usage`, whose key expires at `expires_at`.
    pub fn of_change<U: Usage>(usage: &mut U, expires_at: u64) -> EncodedText {
        let mut text = EncodedText::heading::<U>(expires_at);
        usage.encode_effect(&mut text);
        text
    }

    /// Encodes the whole `usage`, whose key expires at `expires_at`.
    pub fn of_whole<U: Usage>(usage: &U, expires_at: u64) -> EncodedText {
        let mut text = EncodedText::heading::<U>(expires_at);
        usage.encode_whole_effect(&mut text);
        text
    }

    /// Encodes a part of `usage`, whose expiry is written after the last part. Returns the start of the next part, if
    /// there is one ([`Usage::encode_part_of_whole`]).
    #[inline(always)]
    pub fn of_part<U: Usage>(usage: &U, from: usize) -> (EncodedText, Option<usize>) {
        let mut text = EncodedText::beginning_with(U::KIND.name().as_bytes());
        text.integer(u64::from(U::VERSION));
        text.push(b" ");
        text.push(LATEST);
        text.time_base = TimeBase::of_expiry(LATEST_EXPIRY);
        let next = usage.encode_part_of_whole(from, &mut text);
        (text, next)
    }

    /// Encodes the deletion of a key that held a `U`.
    #[must_use]
    pub fn deletion<U: Usage>() -> EncodedText {
        let mut text = EncodedText::beginning_with(U::KIND.name().as_bytes());
        text.push(DELETION);
        text
    }

    /// Encodes the conversion of a key that held a `Before` and expired at `plain_expiry`. `usage` is the
    /// composite usage after the call.
    pub fn of_conversion<Before: Usage, After: Usage>(
        plain_expiry: Option<u64>,
        usage: &mut After,
        expires_at: u64,
    ) -> EncodedText {
        let mut text = EncodedText::beginning_with(Before::KIND.name().as_bytes());
        text.push(CONVERSION);
        text.integer(u64::from(After::VERSION));
        text.integer(expires_at);
        text.integer(plain_expiry.and_then(expiry).unwrap_or(NEVER));
        text.time_base = TimeBase::of_expiry(expires_at);
        usage.encode_effect(&mut text);
        text
    }

    /// Returns the bytes of the text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() { self.short.get(..self.length).unwrap_or_default() } else { &self.long }
    }

    /// Creates a text that begins with `heading`, to which fields are appended.
    pub(crate) fn beginning_with(heading: &[u8]) -> EncodedText {
        let (short, long) = ([0; EncodedText::SHORT], Vec::new());
        let mut text = EncodedText { short, length: 0, long, time_base: TimeBase::None };
        text.push(heading);
        text
    }

    fn heading<U: Usage>(expires_at: u64) -> EncodedText {
        let mut text = EncodedText::beginning_with(U::KIND.name().as_bytes());
        text.integer(u64::from(U::VERSION));
        text.integer(expires_at);
        text.time_base = TimeBase::of_expiry(expires_at);
        text
    }

    #[inline]
    fn number<const LENGTH: usize>(&mut self, prefix: &[u8; LENGTH], value: u64) {
        self.push(prefix);
        // Most numbers have one digit, which is faster to write directly.
        match u8::try_from(value) {
            Ok(digit @ 0..=9) => self.push(&[b'0'.saturating_add(digit)]),
            _ => self.push(itoa::Buffer::new().format(value).as_bytes()),
        }
    }

    /// Appends bytes. Inlined, so that a constant of a few bytes is stored directly.
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

impl Encoder for EncodedText {
    fn integer(&mut self, value: u64) {
        let Some(reference) = self.time_base.instant() else {
            return self.number(b" ", value);
        };
        if value >= TimeBase::MIN_TIMESTAMP {
            self.time_base.record(value);
            match value.abs_diff(reference) {
                0 => self.push(b" +"),
                TimeBase::DISTANCE_LIMIT.. => self.number(b" ", value),
                distance => self.number(if value < reference { b" -" } else { b" +" }, distance),
            }
        } else if value != 0 && value.is_multiple_of(MILLION) {
            self.number(b" ", value / MILLION);
            self.push(MILLIONS);
        } else {
            self.number(b" ", value);
        }
    }

    /// Encodes a string as its length, a colon, and its bytes.
    fn bytes(&mut self, value: &[u8]) {
        self.number(b" ", u64::try_from(value.len()).unwrap_or(u64::MAX));
        self.push(b":");
        self.push(value);
    }
}

/// Word for [`LATEST_EXPIRY`].
const LATEST: &[u8] = b"max";

const DELETION: &[u8] = b" del";
const CONVERSION: &[u8] = b" convert";

/// Encoded expiry of a key without an expiry.
const NEVER: u64 = 0;

/// Decoder of the fields of an effect. One space precedes each field. Numbers are abbreviated or in digits.
#[derive(Clone, Copy, Debug)]
pub struct TextDecoder<'a> {
    rest: &'a [u8],
    time_base: TimeBase,
}

impl<'a> TextDecoder<'a> {
    /// Creates a decoder for a text that consists only of fields.
    pub(crate) fn of(rest: &'a [u8]) -> TextDecoder<'a> {
        TextDecoder { rest, time_base: TimeBase::None }
    }

    /// Returns `true` if all fields have been decoded.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Decodes a valid expiry, in milliseconds since the epoch.
    fn expiry(&mut self) -> Option<u64> {
        if let Some(rest) = self.rest.strip_prefix(b" ").and_then(|rest| rest.strip_prefix(LATEST)) {
            self.rest = rest;
            return Some(LATEST_EXPIRY);
        }
        expiry(self.integer()?)
    }

    /// Decodes the distance of a timestamp from the reference. An empty distance is zero.
    fn distance(&mut self) -> Option<u64> {
        let is_empty = !self.rest.first().is_some_and(u8::is_ascii_digit);
        if is_empty {
            Some(0)
        } else {
            self.digits().filter(|distance| (1..TimeBase::DISTANCE_LIMIT).contains(distance))
        }
    }

    /// Decodes digits without leading zeros.
    fn digits(&mut self) -> Option<u64> {
        let end = self.rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        let canonical = digits.len() == 1 || digits.first() != Some(&b'0');
        canonical.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
    }
}

impl Decoder for TextDecoder<'_> {
    fn integer(&mut self) -> Option<u64> {
        self.rest = self.rest.strip_prefix(b" ")?;
        let Some(reference) = self.time_base.instant() else {
            return self.digits();
        };
        let value = match self.rest.split_first()? {
            (b'+', rest) => {
                self.rest = rest;
                reference.checked_add(self.distance()?).filter(|value| *value >= TimeBase::MIN_TIMESTAMP)
            }
            (b'-', rest) => {
                self.rest = rest;
                let distance = self.distance().filter(|distance| *distance != 0)?;
                reference.checked_sub(distance).filter(|value| *value >= TimeBase::MIN_TIMESTAMP)
            }
            _ => {
                let digits = self.digits()?;
                match self.rest.strip_prefix(MILLIONS) {
                    Some(rest) => {
                        self.rest = rest;
                        digits.checked_mul(MILLION).filter(|value| (1..TimeBase::MIN_TIMESTAMP).contains(value))
                    }
                    None => Some(digits),
                }
            }
        }?;
        if value >= TimeBase::MIN_TIMESTAMP {
            self.time_base.record(value);
        }
        Some(value)
    }

    fn bytes(&mut self, max: usize) -> Option<Box<[u8]>> {
        self.rest = self.rest.strip_prefix(b" ")?;
        let length = usize::try_from(self.digits()?).ok().filter(|length| *length <= max)?;
        let (bytes, rest) = self.rest.strip_prefix(b":")?.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes.into())
    }
}

/// Effect with fields that have not been decoded yet.
pub enum Effect<'a> {
    /// Change of the usage, or the whole usage.
    Change {
        /// Version of the encoding.
        version: u32,
        /// Expiry of the key in milliseconds since the epoch.
        expires_at: u64,
        /// Fields of the usage.
        fields: TextDecoder<'a>,
    },
    /// Deletion of the key.
    Deletion,
    /// Conversion of the key to a composite key.
    Conversion {
        /// Version of the encoding of the composite key.
        version: u32,
        /// Expiry of the key in milliseconds since the epoch.
        expires_at: u64,
        /// Expiry before the conversion; `None` if the key had no expiry.
        plain_expiry: Option<u64>,
        /// Fields of the composite key.
        fields: TextDecoder<'a>,
    },
}

impl<'a> Effect<'a> {
    /// Decodes an effect on a key that holds a `U`. Returns `None` for any other text.
    #[must_use]
    pub fn decode<U: Usage>(text: &'a [u8]) -> Option<Effect<'a>> {
        let text = text.strip_prefix(U::KIND.name().as_bytes())?;
        if text == DELETION {
            return Some(Effect::Deletion);
        }
        if let Some(conversion) = text.strip_prefix(CONVERSION) {
            let mut fields = TextDecoder::of(conversion);
            let version = u32::try_from(fields.integer()?).ok()?;
            let expires_at = expiry(fields.integer()?)?;
            let plain_expiry = fields.integer()?;
            let plain_expiry = if plain_expiry == NEVER { None } else { Some(expiry(plain_expiry)?) };
            fields.time_base = TimeBase::of_expiry(expires_at);
            return Some(Effect::Conversion { version, expires_at, plain_expiry, fields });
        }
        let mut fields = TextDecoder::of(text);
        let version = u32::try_from(fields.integer()?).ok().filter(|version| (1..=U::VERSION).contains(version))?;
        let expires_at = fields.expiry()?;
        fields.time_base = TimeBase::of_expiry(expires_at);
        Some(Effect::Change { version, expires_at, fields })
    }
}

/// Returns `at` if it is a valid expiry.
fn expiry(at: u64) -> Option<u64> {
    Some(at).filter(|at| (1..=LATEST_EXPIRY).contains(at))
}

#[cfg(test)]
mod tests;
