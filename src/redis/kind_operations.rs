//! Operations on keys of each kind of usage: incoming effects, from a primary or the AOF (see the core's `effect.rs`
//! for the format), the description for RL.INFO, and the native type.

use super::debug_round_trip::check_stored;
use super::key::{PeekedKey, Writable, replace_propagated};
use super::{Redis, native_type};
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::effect::Effect;
use ratelimit_core::policy::Origin;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{InfoField, PlainUsage, Timestamp, Usage, UsageKind};
use redis_module::raw;

/// Operations on keys of a kind of usage.
pub struct KindOperations {
    /// Kind of usage.
    pub kind: UsageKind,
    /// Function that returns an error if an effect is malformed or does not apply to the state of the key.
    pub check_effect: fn(&mut Redis, KeyIndex, &[u8]) -> Result<KeyAtCheck, Error>,
    /// Function that applies an effect that has been checked and propagated. If other modules have changed the key
    /// since, so that the effect no longer applies, it changes nothing and returns an error.
    pub apply_effect: ApplyEffect,
    /// Function that describes the usage in a key, or returns an error if it is of another kind.
    pub describe: Describe,
    /// Function that registers the native type, with the context of the module's load, or returns an error if the
    /// server rejects it.
    pub register: unsafe fn(*mut raw::RedisModuleCtx) -> Result<(), &'static str>,
}

type ApplyEffect = fn(&mut Redis, KeyIndex, &[u8], KeyAtCheck, Timestamp) -> Result<(), Error>;

type Describe = fn(&PeekedKey, Timestamp) -> Result<Vec<(&'static str, InfoField)>, Error>;

impl KindOperations {
    /// Returns the operations on keys of the usage `U`.
    pub const fn of<U: Usage>() -> KindOperations {
        KindOperations {
            kind: U::KIND,
            check_effect: check::<U>,
            apply_effect: apply::<U>,
            describe: describe::<U>,
            register: native_type::register::<U>,
        }
    }

    /// Returns the operations on keys of the usage `U`, whose plain keys can be converted to composite ones.
    pub const fn of_plain<U: PlainUsage>() -> KindOperations {
        KindOperations { check_effect: check_plain::<U>, apply_effect: apply_plain::<U>, ..KindOperations::of::<U>() }
    }
}

fn describe<U: Usage>(key: &PeekedKey, now: Timestamp) -> Result<Vec<(&'static str, InfoField)>, Error> {
    Ok(key.usage::<U>()?.describe(now, key.recovers_at(now)))
}

/// State of a key when an effect on it was checked.
#[derive(Clone, Copy)]
pub struct KeyAtCheck {
    missing: bool,
    generation: u32,
}

impl KeyAtCheck {
    /// Returns `true` if the key existed, and other modules may have changed it since. If the key was missing,
    /// [`apply_effect`](KindOperations::apply_effect) detects whether it has been created.
    pub fn may_have_changed(self, redis: &Redis) -> bool {
        !self.missing && self.generation != redis.generation
    }
}

fn check<U: Usage>(redis: &mut Redis, index: KeyIndex, text: &[u8]) -> Result<KeyAtCheck, Error> {
    let key = redis.peek(index)?;
    check_change::<U>(&*key.usage()?, text)?;
    let missing = key.contents().is_missing();
    drop(key);
    Ok(KeyAtCheck { missing, generation: redis.generation })
}

/// Returns an error for an effect that no call on this usage can have caused.
fn check_change<U: Usage>(usage: &U, text: &[u8]) -> Result<(), Error> {
    match Effect::decode::<U>(text).ok_or(Error::InvalidEffect)? {
        Effect::Deletion => Ok(()),
        Effect::Change { version, mut fields, .. } => {
            let is_accepted = usage.accepts_effect(&mut fields, version);
            if is_accepted && fields.is_at_end() { Ok(()) } else { Err(Error::InvalidEffect) }
        }
        Effect::Conversion { .. } => Err(Error::InvalidEffect),
    }
}

fn check_plain<U: PlainUsage>(redis: &mut Redis, index: KeyIndex, text: &[u8]) -> Result<KeyAtCheck, Error> {
    if !matches!(Effect::decode::<U>(text), Some(Effect::Conversion { .. })) {
        return check::<U>(redis, index, text);
    }
    let key = redis.peek(index)?;
    check_conversion::<U>(&*key.usage()?, key.contents().is_missing(), text)?;
    drop(key);
    Ok(KeyAtCheck { missing: false, generation: redis.generation })
}

/// Returns an error for a conversion that no call on this usage can have caused. `missing` is `true` for a missing key.
fn check_conversion<U: PlainUsage>(plain: &U, missing: bool, text: &[u8]) -> Result<(), Error> {
    match Effect::decode::<U>(text) {
        Some(Effect::Conversion { version, plain_expiry, mut fields, .. }) if !missing => {
            let is_accepted = CompositeUsage::accepts_conversion(plain, plain_expiry, &mut fields, version);
            if is_accepted && fields.is_at_end() { Ok(()) } else { Err(Error::InvalidEffect) }
        }
        _ => Err(Error::InvalidEffect),
    }
}

fn apply<U: Usage>(
    redis: &mut Redis,
    index: KeyIndex,
    text: &[u8],
    key_at_check: KeyAtCheck,
    now: Timestamp,
) -> Result<(), Error> {
    let may_have_changed = key_at_check.may_have_changed(redis);
    let mut key = redis.open_as::<U>(index)?;
    if may_have_changed || key.is_missing() != key_at_check.missing {
        check_change(key.usage(), text)?;
    }
    match Effect::decode::<U>(text).ok_or(Error::InvalidEffect)? {
        Effect::Deletion => key.remove(),
        Effect::Change { version, expires_at, mut fields } => {
            key.usage_mut().apply_effect(&mut fields, version);
            let token = key.usage().latest_token();
            key.set(expires_at, now);
            observe_token(redis, token, now);
        }
        Effect::Conversion { .. } => return Err(Error::InvalidEffect),
    }
    Ok(())
}

/// Records the fencing token of an effect. A token from a client is ignored if it is more than a day ahead.
fn observe_token(redis: &Redis, token: u64, now: Timestamp) {
    if token > 0 {
        redis.state.fencing.observe(token, redis.origin() != Origin::Peer, now);
    }
}

fn apply_plain<U: PlainUsage>(
    redis: &mut Redis,
    index: KeyIndex,
    text: &[u8],
    key_at_check: KeyAtCheck,
    now: Timestamp,
) -> Result<(), Error> {
    let Some(Effect::Conversion { expires_at, plain_expiry, mut fields, .. }) = Effect::decode::<U>(text) else {
        return apply::<U>(redis, index, text, key_at_check, now);
    };
    let may_have_changed = key_at_check.may_have_changed(redis);
    let mut key = redis.open_as::<U>(index)?;
    if may_have_changed || key.is_missing() {
        check_conversion(key.usage(), key.is_missing(), text)?;
    }
    let components = CompositeUsage::apply_conversion(key.usage_mut(), plain_expiry, &mut fields);
    drop(key);
    check_stored(&components);
    observe_token(redis, components.latest_token(), now);
    replace_propagated(redis, index, components, expires_at, now);
    Ok(())
}
