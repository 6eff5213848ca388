//! The fast path of a call on several keys: a token bucket each, at keys that all hold one and allow the call, and
//! nobody who hears of the effect.
//!
//! It comes to what `many_keys.rs` comes to: `tests/test_charge_path.py` holds one to the other.

use super::key_evaluation::count_limit;
use crate::redis::guard;
use crate::redis::key::{FastCall, MOST_PLAIN_KEYS, PlainKeys};
use ratelimit_core::algorithm::bucket::{Bucket, BucketUsage};
use ratelimit_core::expiry::Expiry;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::{Amount, Decision, Limit, Taken, Timestamp, Usage};

/// Decides on a call of one unit under a bucket of each of these keys, and replies. `false`: nothing was done, and the
/// call takes the slow path.
#[inline(always)]
pub fn take_buckets_fast(
    call: &FastCall,
    names: impl Iterator<Item = KeyName> + Clone,
    buckets: impl Iterator<Item = Option<Bucket>>,
    now: Timestamp,
) -> bool {
    let Some(mut keys) = PlainKeys::<BucketUsage>::of(call, names.clone()) else { return false };
    let mut taken: [Option<(Decision, BucketUsage)>; MOST_PLAIN_KEYS] = [None; MOST_PLAIN_KEYS];
    for (room, (name, bucket)) in taken.iter_mut().zip(names.zip(buckets)) {
        let Some(bucket) = bucket else { return false };
        let Some(usage) = keys.find(name, now) else { return false };
        let Some(Taken::Charged(decision, after)) = bucket.taken_fast(usage, now, Amount::ONE) else { return false };
        *room = Some((decision, after));
    }
    guard::panic_test_point();
    call.stats.decided(true);
    for _ in taken.iter().flatten() {
        count_limit(BucketUsage::KIND, false, true, false);
    }
    let changes = taken.iter().flatten().map(|(decision, after)| (*after, Expiry::of(now, decision.reset)));
    keys.commit(changes, now);
    call.replies().reply_decisions(taken.iter().flatten().map(|(decision, _)| decision));
    true
}
