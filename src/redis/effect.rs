//! Effects on their way out, to replicas and the AOF, and in, from them (`effect.rs` says what they are).

use super::Redis;
use super::api::call;
use super::key::Access;
use super::listeners;
use crate::args::KeyName;
use crate::effect::{Effect, Nobody, Text};
use crate::error::Error;
use crate::limiter::{Timestamp, Usage};
use crate::stats;
use redis_module::raw;

/// The command that carries effects.
pub const COMMAND: &std::ffi::CStr = c"RL.EFFECT";

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

/// Tells replicas and the AOF what has happened to each key.
///
/// # Safety
/// `ctx` and the strings are those of the current call.
pub unsafe fn propagate<'a>(
    ctx: *mut raw::RedisModuleCtx,
    mut effects: impl Iterator<Item = (*mut raw::RedisModuleString, &'a [u8])>,
) {
    let Some((first_key, first_text)) = effects.next() else { return };
    stats::EFFECTS_PROPAGATED.count();
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
    let key = redis.open(name, U::KIND, Access::Look)?;
    match Effect::read::<U>(text).ok_or(Error::InvalidEffect)? {
        Effect::Deletion => Ok(()),
        Effect::Change { version, mut fields, .. } => {
            let accepted = match key.usage::<U>() {
                Some(usage) => usage.accepts_effect(&mut fields, version),
                None => U::default().accepts_effect(&mut fields, version),
            };
            if accepted && fields.end() { Ok(()) } else { Err(Error::InvalidEffect) }
        }
    }
}

fn apply<U: Usage>(redis: &Redis, name: KeyName, text: &[u8], now: Timestamp) -> Result<(), Error> {
    let mut key = redis.open(name, U::KIND, Access::Change)?;
    match Effect::read::<U>(text).ok_or(Error::InvalidEffect)? {
        Effect::Deletion => key.delete(),
        Effect::Change { version, expires_at, mut fields } => {
            key.apply::<U>(|usage| usage.apply_effect(&mut fields, version), expires_at, now);
        }
    }
    Ok(())
}
