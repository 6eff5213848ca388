//! Effects: what replicas and the AOF are told.
//!
//! They get what happened, not what was asked: `RL.EFFECT key effect [key effect ...]` with the absolute state and
//! the absolute expiry of each key, so that replaying it at any later time, on any clock, gives the same bytes. A
//! call over several keys is one such command. An effect is text, readable in MONITOR and in the AOF:
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

/// An effect as text. Short ones, all but those of logs and lease tables, need no memory of their own.
pub struct Text {
    short: [u8; Text::SHORT],
    length: usize,
    long: Vec<u8>,
}

impl Text {
    const SHORT: usize = 128;

    /// The whole of `usage`, which expires at `expires_at`.
    pub fn of<U: Usage>(usage: &U, expires_at: u64) -> Text {
        let mut text = Text::empty();
        text.push(U::KIND.name().as_bytes());
        text.integer(u64::from(U::KIND.version()));
        text.integer(expires_at);
        usage.encode(&mut text);
        text
    }

    /// The key, which held a `U`, is gone.
    pub fn deletion<U: Usage>() -> Text {
        let mut text = Text::empty();
        text.push(U::KIND.name().as_bytes());
        text.push(DELETION);
        text
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        if self.long.is_empty() { self.short.get(..self.length).unwrap_or_default() } else { &self.long }
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
                    self.long = self.bytes().to_vec();
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
}

const DELETION: &[u8] = b" del";

/// Reads the fields of an effect: decimal integers with one space between, as they are written and no other way.
struct Fields<'a>(std::slice::Split<'a, u8, fn(&u8) -> bool>);

impl<'a> Fields<'a> {
    fn of(text: &'a [u8]) -> Fields<'a> {
        Fields(text.split(|byte| *byte == b' '))
    }

    fn end(mut self) -> Option<()> {
        self.0.next().is_none().then_some(())
    }
}

impl Decoder for Fields<'_> {
    fn integer(&mut self) -> Option<u64> {
        let digits = self.0.next()?;
        let canonical = digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || digits.first() != Some(&b'0'));
        canonical.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
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

/// One effect, read and found valid.
enum Effect<U> {
    State { usage: U, expires_at: u64 },
    Deletion,
}

impl<U: Usage> Effect<U> {
    fn read(text: &[u8]) -> Option<Effect<U>> {
        let text = text.strip_prefix(U::KIND.name().as_bytes())?;
        if text == DELETION {
            return Some(Effect::Deletion);
        }
        let mut fields = Fields::of(text.strip_prefix(b" ")?);
        let version = u32::try_from(fields.integer()?).ok().filter(|version| (1..=U::KIND.version()).contains(version))?;
        let expires_at = fields.integer().filter(|at| (1..=LATEST_EXPIRY).contains(at))?;
        let usage = U::decode(&mut fields, version)?;
        fields.end()?;
        Some(Effect::State { usage, expires_at })
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
    Effect::<U>::read(text).ok_or(Error::InvalidEffect)?;
    redis.open::<U>(name, Access::Look).map(|_| ())
}

fn apply<U: Usage>(redis: &Redis, name: KeyName, text: &[u8], now: Timestamp) -> Result<(), Error> {
    let mut key: Key<U> = redis.open(name, Access::Change)?;
    match Effect::<U>::read(text).ok_or(Error::InvalidEffect)? {
        Effect::State { usage, expires_at } => key.replace(usage, expires_at, now),
        Effect::Deletion => key.delete(),
    }
    Ok(())
}
