//! Call of redis-cell: `RL.THROTTLE`, and `CL.THROTTLE` with `ratelimit.cell-compat yes`.
//!
//! Both charge the bucket of RL.TOKENBUCKET with a capacity of `max_burst + 1`, and have redis-cell's arguments and
//! reply. A key of redis-cell is a string that holds its TAT, the instant at which the bucket has recovered, in
//! nanoseconds. With cell-compat, the first call converts such a key.

use crate::charge::charge_or_migrate;
use crate::redis::key::short_string;
use crate::redis::{self, Redis};
use crate::reply::Reply;
use crate::server::settings::CELL_COMPAT;
use ratelimit_core::algorithm::bucket::{Bucket, BucketUsage};
use ratelimit_core::syntax;
use ratelimit_core::wire::args::{Args, KeyIndex, whole};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Span, Timestamp};

/// `RL.THROTTLE key max_burst count period [quantity]`
pub fn throttle(redis: &mut Redis, mut args: Args) -> Result<Reply, Error> {
    let key = args.key()?;
    let (bucket, request) = syntax::throttle(&mut args)?;
    let now = redis::now();
    let legacy_usage =
        |redis: &mut Redis| if CELL_COMPAT.get() != 0 { legacy_usage(redis, key, &bucket, now) } else { None };
    let decision = charge_or_migrate(redis, key, &bucket, request, now, legacy_usage)?;
    Ok(Reply::throttled(&decision))
}

/// Returns the usage that corresponds to a key of redis-cell; `None` for any other key.
fn legacy_usage(redis: &mut Redis, index: KeyIndex, bucket: &Bucket, now: Timestamp) -> Option<BucketUsage> {
    // Maximum number of digits of a TAT.
    const DIGITS: usize = 20;
    let string = short_string(redis, index, DIGITS)?;
    let expires_at = now.plus(Span::from_micros(string.expires_in_ms.saturating_mul(1000)));
    Some(bucket.recovering_at(tat(&string.bytes, expires_at)?, now))
}

/// Parses the TAT in a string. Returns `None` unless the key expires within a second of it, as redis-cell sets it.
fn tat(text: &[u8], expires_at: Timestamp) -> Option<Timestamp> {
    let nanos = whole(text, u64::MAX)?;
    let tat = Timestamp::from_micros(nanos.div_ceil(1000))?;
    let difference = tat.since(expires_at).plus(expires_at.since(tat));
    (difference <= Span::SECOND).then_some(tat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_is_a_tat_only_if_the_key_expires_at_about_that_time() {
        let timestamp = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000).unwrap();
        let text = b"1700000010000000001";
        assert_eq!(tat(text, timestamp(1_700_000_010)), Timestamp::from_micros(1_700_000_010_000_001));
        assert!(tat(text, timestamp(1_700_000_009)).is_none(), "a second and a microsecond apart");
        assert!(tat(text, timestamp(1_700_000_011)).is_some());
        assert!(tat(text, timestamp(1_700_000_012)).is_none());
        for text in ["", "1.5", "-1", "x", "99999999999999999999"] {
            assert!(tat(text.as_bytes(), timestamp(0)).is_none(), "{text}");
        }
    }
}
