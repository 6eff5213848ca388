//! `RL.EFFECT`: applies effects that were propagated to replicas and the AOF. See `core/src/effect.rs` for the format.

use super::usage_kinds::KINDS;
use crate::redis::kind_operations::KindOperations;
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::server::stats;
use ratelimit_core::wire::args::{Args, KeyIndex, duplicate};
use ratelimit_core::wire::error::Error;

/// `RL.EFFECT key effect [key effect ...]`
///
/// Internal, but safe for any client: all effects are checked before any is applied, and each must lead to a state that
/// the module would also load from disk. Other modules may run when keys are opened and created, and may change a later
/// key after its check. An effect that no longer applies is skipped, and the reply is an error.
pub fn effect(redis: &mut Redis, args: Args) -> Result<Reply, Error> {
    let now = redis::now();
    let effects = parse(args)?;
    let mut keys_at_check = Vec::with_capacity(effects.len());
    for (key, text, operations) in &effects {
        keys_at_check.push((operations.check_effect)(redis, *key, text)?);
    }
    for ((key, text, operations), key_at_check) in effects.iter().zip(&mut keys_at_check) {
        if key_at_check.may_have_changed(redis) {
            *key_at_check = (operations.check_effect)(redis, *key, text)?;
        }
    }
    // Propagated before any effect is applied: modules that are notified may make further changes, which must follow.
    redis.propagate_verbatim();
    let mut result = Ok(Reply::Ok);
    for ((key, text, operations), key_at_check) in effects.iter().zip(keys_at_check) {
        if let Err(error) = (operations.apply_effect)(redis, *key, text, key_at_check, now) {
            result = Err(error);
        }
    }
    if result.is_ok() {
        stats::EFFECTS_APPLIED.count();
    }
    result
}

/// Key, text of an effect on it, and the operations of the kind that the effect names.
type KeyEffect<'a> = (KeyIndex, &'a [u8], &'static KindOperations);

/// Parses keys and an effect for each. A duplicate key is an error, as its second effect would be checked against a
/// state that the first is about to change.
fn parse(mut args: Args<'_>) -> Result<Vec<KeyEffect<'_>>, Error> {
    let mut effects = Vec::with_capacity(1);
    let mut names = Vec::with_capacity(1);
    loop {
        let key = args.key()?;
        let text = args.word()?;
        effects.push((key, text, operations(text)?));
        names.push(args.name(key));
        if args.is_empty() {
            break;
        }
    }
    if duplicate(names.into_iter()).is_some() { Err(Error::InvalidEffect) } else { Ok(effects) }
}

/// Returns the operations of the kind that an effect names.
fn operations(text: &[u8]) -> Result<&'static KindOperations, Error> {
    let name = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    KINDS.iter().find(|row| row.kind.name().as_bytes() == name).ok_or(Error::InvalidEffect)
}
