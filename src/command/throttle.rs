//! The redis-cell call: `RL.THROTTLE`, and `CL.THROTTLE` with `ratelimit.cell-compat yes`.
//!
//! The same bucket as RL.TOKENBUCKET with a capacity of `max_burst + 1`, with redis-cell's words and reply. Keys that
//! redis-cell left behind hold its TAT, the instant at which the bucket has recovered, in nanoseconds as a string;
//! with cell-compat the first call takes them over.

use crate::args::{Args, KeyName, whole};
use crate::config::CELL_COMPAT;
use crate::error::Error;
use crate::limiter::bucket::{Bucket, BucketUsage};
use crate::limiter::{Ask, Change, Limit, Span, Timestamp, Usage, look};
use crate::redis::effect::Changes;
use crate::redis::key::Access;
use crate::redis::{self, Redis};
use crate::{reply, spec};

/// `RL.THROTTLE key max_burst count period [quantity]`
pub fn throttle(redis: &Redis, mut args: Args) -> Result<(), Error> {
    let (key, _) = args.key()?;
    let (bucket, ask) = spec::throttle(&mut args)?;
    let now = redis::now();
    if CELL_COMPAT.get() != 0 {
        take_over(redis, key, &bucket, ask, now)?;
    }
    let decision = super::charge(redis, key, &bucket, ask, now)?;
    reply::throttled(redis, &decision);
    Ok(())
}

/// Puts a limiter in the place of a string that redis-cell left behind.
fn take_over(redis: &Redis, name: KeyName, bucket: &Bucket, ask: Ask, now: Timestamp) -> Result<(), Error> {
    let Some(recovers_at) = redis.string_value(name).and_then(|value| {
        let expires_at = now.plus(Span::from_micros(value.expires_in_ms?.saturating_mul(1000)));
        tat(&value.bytes, expires_at)
    }) else {
        return Ok(());
    };
    let usage = bucket.recovering_at(recovers_at, now);
    if usage.is_unused() {
        // Recovered: the call is one on a missing key, and refused like one before anything is changed.
        let charges = matches!(look(bucket, &usage, now, ask).change(), Change::Charge(_));
        if charges && redis.out_of_memory() {
            return Err(Error::OutOfMemory);
        }
        redis.delete_foreign(name);
        return Ok(());
    }
    redis.delete_foreign(name);
    let reset = bucket.reset(&usage, now);
    let mut key = redis.open(name, BucketUsage::KIND, Access::Change)?;
    key.create(usage);
    let mut changes = Changes::default();
    key.written::<BucketUsage>(now, reset, &mut changes);
    redis.propagate(&changes);
    Ok(())
}

/// The TAT that a string holds. It is one only if the key was made to expire about then, as redis-cell does.
fn tat(text: &[u8], expires_at: Timestamp) -> Option<Timestamp> {
    let nanos = whole(text, u64::MAX)?;
    let tat = Timestamp::from_micros(nanos.div_ceil(1000))?;
    let apart = tat.since(expires_at).plus(expires_at.since(tat));
    (apart <= Span::SECOND).then_some(tat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_string_for_a_tat_only_if_the_key_expires_about_then() {
        let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000).unwrap();
        let text = b"1700000010000000001";
        assert_eq!(tat(text, at(1_700_000_010)), Timestamp::from_micros(1_700_000_010_000_001));
        assert!(tat(text, at(1_700_000_009)).is_none(), "a second and a microsecond apart");
        assert!(tat(text, at(1_700_000_011)).is_some());
        assert!(tat(text, at(1_700_000_012)).is_none());
        for text in ["", "1.5", "-1", "x", "99999999999999999999"] {
            assert!(tat(text.as_bytes(), at(0)).is_none(), "{text}");
        }
    }
}
