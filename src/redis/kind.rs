//! What the server's side knows of a kind of usage.

use super::effect::Applier;
use super::{Redis, native_type};
use ratelimit_core::args::KeyName;
use ratelimit_core::composite::Single;
use ratelimit_core::error::Error;
use ratelimit_core::{Fact, Kind, Timestamp, Usage};
use redis_module::raw;

/// A kind of usage, with what is done to any key of it.
pub struct KindRow {
    /// The kind.
    pub kind: Kind,
    /// How an effect on it is applied.
    pub applier: Applier,
    /// What the usage in a key says to people; `None` if there is no key.
    pub describe: Describe,
    /// Registers its native type, with the context of the module's load. `Err` if the server refuses it.
    pub register: unsafe fn(*mut raw::RedisModuleCtx) -> Result<(), &'static str>,
}

type Describe = fn(&mut Redis, KeyName, Timestamp) -> Result<Option<Vec<(&'static str, Fact)>>, Error>;

fn describe<U: Usage>(
    redis: &mut Redis,
    name: KeyName,
    now: Timestamp,
) -> Result<Option<Vec<(&'static str, Fact)>>, Error> {
    let key = redis.peek::<U>(name)?;
    Ok((!key.is_missing()).then(|| key.usage().describe(now)))
}

impl KindRow {
    /// Of the usage `U`.
    pub const fn of<U: Usage>() -> KindRow {
        KindRow {
            kind: U::KIND,
            applier: Applier::of::<U>(),
            describe: describe::<U>,
            register: native_type::register::<U>,
        }
    }

    /// Of the usage `U`, a plain key of which can become one with parts.
    pub const fn of_plain<U: Single>() -> KindRow {
        KindRow { applier: Applier::of_plain::<U>(), ..KindRow::of::<U>() }
    }
}
