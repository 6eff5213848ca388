//! What the server's side knows of a kind of usage.

use super::incoming_effect::Applier;
use super::key::PeekedKey;
use super::native_type;
use ratelimit_core::Single;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{InfoField, Kind, Timestamp, Usage};
use redis_module::raw;

/// Kind of usage, with what is done to any key of it.
pub struct KindRow {
    /// The kind.
    pub kind: Kind,
    /// Applier of effects on it.
    pub applier: Applier,
    /// Describes the usage in a key. `Err` if it is of another kind.
    pub describe: Describe,
    /// Registers its native type, with the context of the module's load. `Err` if the server refuses it.
    pub register: unsafe fn(*mut raw::RedisModuleCtx) -> Result<(), &'static str>,
}

type Describe = fn(&PeekedKey, Timestamp) -> Result<Vec<(&'static str, InfoField)>, Error>;

fn describe<U: Usage>(key: &PeekedKey, now: Timestamp) -> Result<Vec<(&'static str, InfoField)>, Error> {
    Ok(key.usage::<U>()?.describe(now, key.recovers_at(now)))
}

impl KindRow {
    /// The row of the usage `U`.
    pub const fn of<U: Usage>() -> KindRow {
        KindRow {
            kind: U::KIND,
            applier: Applier::of::<U>(),
            describe: describe::<U>,
            register: native_type::register::<U>,
        }
    }

    /// The row of the usage `U`, a plain key of which can become one with components.
    pub const fn of_plain<U: Single>() -> KindRow {
        KindRow { applier: Applier::of_plain::<U>(), ..KindRow::of::<U>() }
    }
}
