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
use std::marker::PhantomData;

/// The command that carries effects.
pub const COMMAND: &std::ffi::CStr = c"RL.EFFECT";

/// What a call has changed, for replicas and the AOF.
#[derive(Default)]
pub struct Changes<'a> {
    /// The effects, and on which keys. Most calls have one, which needs no list.
    first: Option<Told>,
    rest: Vec<Told>,
    /// Whether a key was written that nobody can want to know of.
    pub untold: bool,
    call: PhantomData<&'a ()>,
}

struct Told {
    name: *mut raw::RedisModuleString,
    text: Text,
}

impl Changes<'_> {
    /// Adds the last call on `usage`, in the key of that name, which expires at `expires_at`.
    ///
    /// # Safety
    /// The name is one of the call that `self` lives in.
    pub unsafe fn change<U: Usage>(&mut self, name: *mut raw::RedisModuleString, usage: &mut U, expires_at: u64) {
        if listeners::wanted() {
            self.tell(Told { name, text: Text::of_change(usage, expires_at) });
        } else {
            usage.encode_effect(&mut Nobody);
            self.untold = true;
        }
    }

    /// Adds a call that has emptied the key of that name, which held a `U`.
    ///
    /// # Safety
    /// The name is one of the call that `self` lives in.
    pub unsafe fn deletion<U: Usage>(&mut self, name: *mut raw::RedisModuleString) {
        if listeners::wanted() {
            self.tell(Told { name, text: Text::deletion::<U>() });
        } else {
            self.untold = true;
        }
    }

    fn tell(&mut self, told: Told) {
        if self.first.is_none() {
            self.first = Some(told);
        } else {
            self.rest.push(told);
        }
    }

    /// Hands the effects to the server, as one command.
    ///
    /// # Safety
    /// `ctx` is that of the call that `self` lives in.
    pub unsafe fn propagate(&self, ctx: *mut raw::RedisModuleCtx) {
        let Some(Told { name, text }) = &self.first else { return };
        stats::EFFECTS_PROPAGATED.count();
        // SAFETY: the caller's promise. The server copies what it is given; strings made here are freed here.
        unsafe {
            if self.rest.is_empty() {
                let (start, length) = (text.as_bytes().as_ptr().cast::<std::ffi::c_char>(), text.as_bytes().len());
                call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), c"sb".as_ptr(), *name, start, length));
                return;
            }
            let mut words = Vec::new();
            for Told { name, text } in self.first.iter().chain(&self.rest) {
                let text = text.as_bytes();
                words.push(*name);
                words.push(call!(RedisModule_CreateString(ctx, text.as_ptr().cast(), text.len())));
            }
            call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), c"v".as_ptr(), words.as_mut_ptr(), words.len()));
            for text in words.into_iter().skip(1).step_by(2) {
                call!(RedisModule_FreeString(ctx, text));
            }
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
