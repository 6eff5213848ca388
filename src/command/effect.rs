//! `RL.EFFECT`: what the module tells replicas and the AOF, applied. See `redis/effect.rs` for its form.

use crate::args::Args;
use crate::error::Error;
use crate::module::KINDS;
use crate::redis::Redis;
use crate::redis::effect::Applier;

/// `RL.EFFECT key effect [key effect ...]`
///
/// Internal, and harmless in anybody's hands: it is all checked before any is applied, and what it can make a
/// command could have made.
pub fn effect(redis: &Redis, args: Args) -> Result<(), Error> {
    let now = redis.now();
    let mut unchecked = args.clone();
    loop {
        let key = unchecked.key()?;
        let text = unchecked.word()?;
        (applier(text)?.check)(redis, key, text)?;
        if unchecked.is_empty() {
            break;
        }
    }
    let mut checked = args;
    while !checked.is_empty() {
        let key = checked.key()?;
        let text = checked.word()?;
        (applier(text)?.apply)(redis, key, text, now)?;
    }
    redis.propagate_verbatim();
    redis.reply_ok();
    Ok(())
}

/// The kind that an effect names.
fn applier(text: &[u8]) -> Result<Applier, Error> {
    let name = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    let kind = KINDS.iter().find(|row| row.kind.name().as_bytes() == name).ok_or(Error::InvalidEffect)?;
    Ok(kind.applier)
}
