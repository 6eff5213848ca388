//! Effects on their way out, to replicas and the AOF, and in, from them (`effect.rs` says what they are).

use super::Redis;
use super::api::{OK, call};
use super::before::{Before, check_stored};
use super::key::Writable;
use super::listeners;
use crate::server::stats;
use ratelimit_core::Single;
use ratelimit_core::composite::PartsUsage;
use ratelimit_core::effect::{Effect, Nobody, Text};
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Timestamp, Usage};

/// The command that carries effects.
pub const COMMAND: &std::ffi::CStr = c"RL.EFFECT";

/// What a call has changed and has not propagated to replicas and the AOF yet.
#[derive(Default)]
pub struct Changes {
    /// The effects, and on which keys. Most calls have one, which needs no list.
    first: Option<Outgoing>,
    rest: Vec<Outgoing>,
    /// Whether a key was written that nobody can want to know of.
    unsent: bool,
}

struct Outgoing {
    name: KeyName,
    text: Text,
}

impl Changes {
    /// Adds the last call on `usage`, in the key of that name, which expires at `expires_at`. Before the call it was
    /// `before`.
    #[inline(always)]
    pub fn change<U: Usage>(&mut self, name: KeyName, usage: &mut U, expires_at: u64, before: &Before<U>) {
        before.check_change(usage);
        if listeners::any() {
            self.add_change(name, usage, expires_at);
        } else {
            usage.encode_effect(&mut Nobody);
            self.unsent = true;
        }
    }

    #[inline(never)]
    fn add_change<U: Usage>(&mut self, name: KeyName, usage: &mut U, expires_at: u64) {
        self.add(Outgoing { name, text: Text::of_change(usage, expires_at) });
    }

    /// Adds the call that has made `parts` of what a plain key of that name remembered, which expired at `plain_expiry`.
    pub fn conversion<U: Single>(
        &mut self,
        name: KeyName,
        parts: &mut PartsUsage,
        plain_expiry: Option<u64>,
        expires_at: u64,
    ) {
        if parts.is_unused() {
            // What the call has changed is no part of another.
            parts.encode_effect(&mut Nobody);
            self.deletion::<U>(name);
        } else if listeners::any() {
            self.add(Outgoing { name, text: Text::of_conversion::<U, _>(plain_expiry, parts, expires_at) });
        } else {
            parts.encode_effect(&mut Nobody);
            self.unsent = true;
        }
    }

    /// Adds the whole of `usage`, in the key of that name, which expires at `expires_at`.
    pub fn whole<U: Usage>(&mut self, name: KeyName, usage: &U, expires_at: u64) {
        check_stored(usage);
        if listeners::any() {
            self.add(Outgoing { name, text: Text::of_whole(usage, expires_at) });
        } else {
            self.unsent = true;
        }
    }

    /// Adds a call that has emptied the key of that name, which held a `U`.
    pub fn deletion<U: Usage>(&mut self, name: KeyName) {
        if listeners::any() {
            self.add(Outgoing { name, text: Text::deletion::<U>() });
        } else {
            self.unsent = true;
        }
    }

    fn add(&mut self, effect: Outgoing) {
        if self.first.is_none() {
            self.first = Some(effect);
        } else {
            self.rest.push(effect);
        }
    }
}

impl Redis<'_> {
    /// Propagates to replicas and the AOF what this call has changed since it last did: as one command.
    #[inline(always)]
    pub fn propagate(&mut self) {
        if std::mem::take(&mut self.changes.unsent) {
            // Nobody listens, so this goes nowhere; but the server counts a change, by which it knows when to save.
            self.propagate_verbatim();
        }
        if self.changes.first.is_some() {
            self.propagate_effects();
        }
    }

    #[inline(never)]
    fn propagate_effects(&mut self) {
        let Some(Outgoing { name, text }) = &self.changes.first else { return };
        let mut handed_over = false;
        // SAFETY: `ctx` and the keys' names are those of the current call. The server copies what it is given; strings
        // made here are freed here.
        unsafe {
            if self.changes.rest.is_empty() {
                let (start, length) = (text.as_bytes().as_ptr().cast::<std::ffi::c_char>(), text.as_bytes().len());
                if let Ok(name) = self.string(*name) {
                    let words = c"sb".as_ptr();
                    let told = call!(RedisModule_Replicate(self.ctx, COMMAND.as_ptr(), words, name, start, length));
                    handed_over = told == OK;
                }
            } else {
                let mut words = Vec::new();
                for Outgoing { name, text } in self.changes.first.iter().chain(&self.changes.rest) {
                    let Ok(name) = self.string(*name) else { continue };
                    let text = text.as_bytes();
                    words.push(name);
                    words.push(call!(RedisModule_CreateString(self.ctx, text.as_ptr().cast(), text.len())));
                }
                let (start, length) = (words.as_mut_ptr(), words.len());
                let told = call!(RedisModule_Replicate(self.ctx, COMMAND.as_ptr(), c"v".as_ptr(), start, length));
                handed_over = told == OK;
                for text in words.into_iter().skip(1).step_by(2) {
                    call!(RedisModule_FreeString(self.ctx, text));
                }
                self.changes.rest.clear();
            }
        }
        self.changes.first = None;
        if handed_over && listeners::hear() {
            stats::EFFECTS_PROPAGATED.count();
        }
    }
}

/// What the table of kinds holds for effects: how one is checked and then applied.
#[derive(Clone, Copy)]
pub struct Applier {
    /// Whether the effect is valid and the key can take it.
    pub check: fn(&mut Redis, KeyName, &[u8]) -> Result<Checked, Error>,
    /// Applies an effect that has been checked, and that has been propagated. Nothing is changed if others have changed
    /// the key since, and it cannot take the effect any more.
    pub apply: Apply,
}

type Apply = fn(&mut Redis, KeyName, &[u8], Checked, Timestamp) -> Result<(), Error>;

/// What an effect was checked against.
#[derive(Clone, Copy)]
pub struct Checked {
    missing: bool,
    turn: u32,
}

impl Checked {
    /// Whether it was a key that others may have changed since.
    pub fn is_overtaken(self, redis: &Redis) -> bool {
        !self.missing && self.turn != redis.turn
    }
}

impl Applier {
    /// Of the usage `U`.
    pub const fn of<U: Usage>() -> Applier {
        Applier { check: check::<U>, apply: apply::<U> }
    }

    /// Of the usage `U`, a plain key of which can become one with parts.
    pub const fn of_plain<U: Single>() -> Applier {
        Applier { check: check_plain::<U>, apply: apply_plain::<U> }
    }
}

fn check<U: Usage>(redis: &mut Redis, name: KeyName, text: &[u8]) -> Result<Checked, Error> {
    let key = redis.peek(name)?;
    accept::<U>(&*key.usage()?, text)?;
    let missing = key.contents().is_missing();
    drop(key);
    Ok(Checked { missing, turn: redis.turn })
}

/// Refuses an effect that no call on that usage can have had.
fn accept<U: Usage>(usage: &U, text: &[u8]) -> Result<(), Error> {
    match Effect::read::<U>(text).ok_or(Error::InvalidEffect)? {
        Effect::Deletion => Ok(()),
        Effect::Change { version, mut fields, .. } => {
            let accepted = usage.accepts_effect(&mut fields, version);
            if accepted && fields.end() { Ok(()) } else { Err(Error::InvalidEffect) }
        }
        Effect::Conversion { .. } => Err(Error::InvalidEffect),
    }
}

fn check_plain<U: Single>(redis: &mut Redis, name: KeyName, text: &[u8]) -> Result<Checked, Error> {
    if !matches!(Effect::read::<U>(text), Some(Effect::Conversion { .. })) {
        return check::<U>(redis, name, text);
    }
    let key = redis.peek(name)?;
    accept_conversion::<U>(&*key.usage()?, key.contents().is_missing(), text)?;
    drop(key);
    Ok(Checked { missing: false, turn: redis.turn })
}

/// Refuses a conversion that no call on that usage, in a key that may be `missing`, can have made.
fn accept_conversion<U: Single>(plain: &U, missing: bool, text: &[u8]) -> Result<(), Error> {
    match Effect::read::<U>(text) {
        Some(Effect::Conversion { version, plain_expiry, mut fields, .. }) if !missing => {
            let accepted = PartsUsage::accepts_conversion(plain, plain_expiry, &mut fields, version);
            if accepted && fields.end() { Ok(()) } else { Err(Error::InvalidEffect) }
        }
        _ => Err(Error::InvalidEffect),
    }
}

fn apply<U: Usage>(
    redis: &mut Redis,
    name: KeyName,
    text: &[u8],
    checked: Checked,
    now: Timestamp,
) -> Result<(), Error> {
    let overtaken = checked.is_overtaken(redis);
    let mut key = redis.open_as::<U>(name)?;
    if overtaken || key.is_missing() != checked.missing {
        accept(key.usage(), text)?;
    }
    match Effect::read::<U>(text).ok_or(Error::InvalidEffect)? {
        Effect::Deletion => key.remove(),
        Effect::Change { version, expires_at, mut fields } => {
            key.usage_mut().apply_effect(&mut fields, version);
            key.set(expires_at, now);
        }
        Effect::Conversion { .. } => return Err(Error::InvalidEffect),
    }
    Ok(())
}

fn apply_plain<U: Single>(
    redis: &mut Redis,
    name: KeyName,
    text: &[u8],
    checked: Checked,
    now: Timestamp,
) -> Result<(), Error> {
    let Some(Effect::Conversion { expires_at, plain_expiry, mut fields, .. }) = Effect::read::<U>(text) else {
        return apply::<U>(redis, name, text, checked, now);
    };
    let overtaken = checked.is_overtaken(redis);
    let mut key = redis.open_as::<U>(name)?;
    if overtaken || key.is_missing() {
        accept_conversion(key.usage(), key.is_missing(), text)?;
    }
    let parts = PartsUsage::apply_conversion(key.usage_mut(), plain_expiry, &mut fields);
    drop(key);
    check_stored(&parts);
    redis.put(name, parts, expires_at, now);
    Ok(())
}
