//! Effects: what replicas and the AOF are told.
//!
//! They get what happened, not what was asked: `RL.EFFECT key effect [key effect ...]` with the absolute state and
//! the absolute expiry of each key, so that replaying it at any later time, on any clock, gives the same bytes. A
//! call over several keys is one such command. An effect is text, readable in the AOF and in a replica's MONITOR:
//!
//! * `rl-bucket 1 1700000001675 1000000 1700000000000000`: kind, version of the encoding, expiry in milliseconds
//!   since the epoch, then the fields of the usage;
//! * `rl-bucket del`: the key is gone.
//!
//! It is read like a payload from disk: any client might send it, so it can make no state that no command could
//! have made, nor a key without an expiry.

use super::Redis;
use super::api::call;
use super::key::{Access, Key};
use super::listeners;
use crate::args::KeyName;
use crate::error::Error;
use crate::limiter::codec::{Decoder, Encoder};
use crate::limiter::{Timestamp, Usage};
use redis_module::raw;

/// The command that carries effects.
pub const COMMAND: &std::ffi::CStr = c"RL.EFFECT";

/// The latest expiry that an effect may carry, in milliseconds since the epoch: beyond what any limit can ask for
/// (the last instant, the longest wait, an eighth of it and a second), and far from overflow in the server. A rewritten
/// AOF has it too, where the server itself puts the real one behind.
pub const LATEST_EXPIRY: u64 = 1_000_000 * 86_400_000;

/// What a call has come to for one key.
pub enum Outcome {
    /// Nothing was written.
    Unchanged,
    /// The key was written, and nobody can want to know.
    Untold,
    /// The key was written, and this is the effect.
    Told(Text),
}

impl Outcome {
    /// Of the last call on `usage`, which expires at `expires_at`.
    pub fn of_change<U: Usage>(usage: &mut U, expires_at: u64) -> Outcome {
        if listeners::wanted() {
            Outcome::Told(Text::of_change(usage, expires_at))
        } else {
            usage.encode_effect(&mut Nobody);
            Outcome::Untold
        }
    }

    /// Of a call that has emptied the key, which held a `U`.
    pub fn of_deletion<U: Usage>() -> Outcome {
        if listeners::wanted() { Outcome::Told(Text::deletion::<U>()) } else { Outcome::Untold }
    }
}

/// Takes an effect to nowhere.
struct Nobody;

impl Encoder for Nobody {
    fn integer(&mut self, _value: u64) {}

    fn bytes(&mut self, _value: &[u8]) {}
}

/// An effect as text. Short ones, all but those of logs and lease tables, need no memory of their own.
pub struct Text {
    short: [u8; Text::SHORT],
    length: usize,
    long: Vec<u8>,
}

impl Text {
    const SHORT: usize = 128;

    /// What the last call has changed in `usage`, which expires at `expires_at`.
    fn of_change<U: Usage>(usage: &mut U, expires_at: u64) -> Text {
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

    /// The key, which held a `U`, is gone.
    fn deletion<U: Usage>() -> Text {
        let mut text = Text::empty();
        text.push(U::KIND.name().as_bytes());
        text.push(DELETION);
        text
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        if self.long.is_empty() { self.short.get(..self.length).unwrap_or_default() } else { &self.long }
    }

    fn heading<U: Usage>(expires_at: u64) -> Text {
        let mut text = Text::empty();
        text.push(U::KIND.name().as_bytes());
        text.integer(u64::from(U::KIND.version()));
        text.integer(expires_at);
        text
    }

    fn empty() -> Text {
        Text { short: [0; Text::SHORT], length: 0, long: Vec::new() }
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        match self.short.get_mut(self.length..end) {
            Some(room) if self.long.is_empty() => {
                room.copy_from_slice(bytes);
                self.length = end;
            }
            _ => {
                if self.long.is_empty() {
                    self.long = self.as_bytes().to_vec();
                }
                self.long.extend_from_slice(bytes);
            }
        }
    }
}

impl Encoder for Text {
    fn integer(&mut self, value: u64) {
        self.push(b" ");
        self.push(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Its length, a colon, and the bytes as they are.
    fn bytes(&mut self, value: &[u8]) {
        self.integer(u64::try_from(value.len()).unwrap_or(u64::MAX));
        self.push(b":");
        self.push(value);
    }
}

const DELETION: &[u8] = b" del";

/// Reads the fields of an effect, each behind one space, as they are written and no other way.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn end(&self) -> bool {
        self.0.is_empty()
    }

    /// The digits at the front, with no zero before them.
    fn digits(&mut self) -> Option<u64> {
        let end = self.0.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at_checked(end)?;
        self.0 = rest;
        let canonical = digits.len() == 1 || digits.first() != Some(&b'0');
        canonical.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
    }
}

impl Decoder for Fields<'_> {
    fn integer(&mut self) -> Option<u64> {
        self.0 = self.0.strip_prefix(b" ")?;
        self.digits()
    }

    fn bytes(&mut self, most: usize) -> Option<Box<[u8]>> {
        let length = usize::try_from(self.integer()?).ok().filter(|length| *length <= most)?;
        let (bytes, rest) = self.0.strip_prefix(b":")?.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes.into())
    }
}

/// Tells replicas and the AOF what has happened to each key.
///
/// # Safety
/// `ctx` and the strings are those of the current call.
pub unsafe fn propagate<'a>(
    ctx: *mut raw::RedisModuleCtx,
    mut effects: impl Iterator<Item = (*mut raw::RedisModuleString, &'a [u8])>,
) {
    let Some((first_key, first_text)) = effects.next() else { return };
    let mut rest = effects.peekable();
    // SAFETY: the caller's promise. The server copies what it is given; strings made here are freed here.
    unsafe {
        if rest.peek().is_none() {
            let text = first_text.as_ptr().cast::<std::ffi::c_char>();
            call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), c"sb".as_ptr(), first_key, text, first_text.len()));
            return;
        }
        let mut words = Vec::new();
        for (key, text) in std::iter::once((first_key, first_text)).chain(rest) {
            words.push(key);
            words.push(call!(RedisModule_CreateString(ctx, text.as_ptr().cast(), text.len())));
        }
        call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), c"v".as_ptr(), words.as_mut_ptr(), words.len()));
        for text in words.into_iter().skip(1).step_by(2) {
            call!(RedisModule_FreeString(ctx, text));
        }
    }
}

/// An effect, read up to what only its kind can read.
enum Effect<'a> {
    Change { version: u32, expires_at: u64, fields: Fields<'a> },
    Deletion,
}

impl<'a> Effect<'a> {
    fn read<U: Usage>(text: &'a [u8]) -> Option<Effect<'a>> {
        let text = text.strip_prefix(U::KIND.name().as_bytes())?;
        if text == DELETION {
            return Some(Effect::Deletion);
        }
        let mut fields = Fields(text);
        let version =
            u32::try_from(fields.integer()?).ok().filter(|version| (1..=U::KIND.version()).contains(version))?;
        let expires_at = fields.integer().filter(|at| (1..=LATEST_EXPIRY).contains(at))?;
        Some(Effect::Change { version, expires_at, fields })
    }
}

/// What the table of kinds holds for effects: how one is checked and then applied.
#[derive(Clone, Copy)]
pub struct Applier {
    /// Whether the effect is valid and the key can take it.
    pub check: fn(&Redis, KeyName, &[u8]) -> Result<(), Error>,
    /// Applies an effect that has been checked.
    pub apply: fn(&Redis, KeyName, &[u8], Timestamp) -> Result<(), Error>,
}

impl Applier {
    /// Of the usage `U`.
    pub const fn of<U: Usage>() -> Applier {
        Applier { check: check::<U>, apply: apply::<U> }
    }
}

fn check<U: Usage>(redis: &Redis, name: KeyName, text: &[u8]) -> Result<(), Error> {
    let key: Key<U> = redis.open(name, Access::Look)?;
    match Effect::read::<U>(text).ok_or(Error::InvalidEffect)? {
        Effect::Deletion => Ok(()),
        Effect::Change { version, mut fields, .. } => {
            let accepted = match key.usage() {
                Some(usage) => usage.accepts_effect(&mut fields, version),
                None => U::default().accepts_effect(&mut fields, version),
            };
            if accepted && fields.end() { Ok(()) } else { Err(Error::InvalidEffect) }
        }
    }
}

fn apply<U: Usage>(redis: &Redis, name: KeyName, text: &[u8], now: Timestamp) -> Result<(), Error> {
    let mut key: Key<U> = redis.open(name, Access::Change)?;
    match Effect::read::<U>(text).ok_or(Error::InvalidEffect)? {
        Effect::Deletion => key.delete(),
        Effect::Change { version, expires_at, mut fields } => {
            key.apply(|usage| usage.apply_effect(&mut fields, version), expires_at, now);
        }
    }
    Ok(())
}
