//! Server-side operations of each kind of usage.

use super::incoming_effect::Applier;
use super::key::PeekedKey;
use super::native_type;
use ratelimit_core::PlainUsage;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{InfoField, Timestamp, Usage, UsageKind};
use redis_module::raw;

/// Operations on keys of a kind of usage.
pub struct KindOperations {
    /// Kind of usage.
    pub kind: UsageKind,
    /// Applier of effects on keys of this kind.
    pub applier: Applier,
    /// Function that describes the usage in a key, or returns an error if it is of another kind.
    pub describe: Describe,
    /// Function that registers the native type, with the context of the module's load, or returns an error if the
    /// server rejects it.
    pub register: unsafe fn(*mut raw::RedisModuleCtx) -> Result<(), &'static str>,
}

type Describe = fn(&PeekedKey, Timestamp) -> Result<Vec<(&'static str, InfoField)>, Error>;

fn describe<U: Usage>(key: &PeekedKey, now: Timestamp) -> Result<Vec<(&'static str, InfoField)>, Error> {
    Ok(key.usage::<U>()?.describe(now, key.recovers_at(now)))
}

impl KindOperations {
    /// Returns the row of the usage `U`.
    pub const fn of<U: Usage>() -> KindOperations {
        KindOperations {
            kind: U::KIND,
            applier: Applier::of::<U>(),
            describe: describe::<U>,
            register: native_type::register::<U>,
        }
    }

    /// Returns the row of the usage `U`, whose plain keys can be converted to composite ones.
    pub const fn of_plain<U: PlainUsage>() -> KindOperations {
        KindOperations { applier: Applier::of_plain::<U>(), ..KindOperations::of::<U>() }
    }
}
