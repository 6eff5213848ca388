//! The fast path of the everyday call: one token bucket at a key that holds one or is missing, or rates at a composite
//! key that has them all, and nobody who hears of the effect.
//!
//! It comes to what `one_key.rs` comes to: `tests/test_charge_path.py` holds one to the other.

use super::key_evaluation::{KeyEvaluation, count_limit};
use super::rates::Rates;
use crate::redis::key::FastCall;
use crate::redis::{Replies, guard};
use crate::server::policy_table::Ruling;
use ratelimit_core::algorithm::bucket::{Bucket, BucketUsage};
use ratelimit_core::algorithm::count_min::{ItemTaken, Sketch, SketchUsage};
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::expiry::Expiry;
use ratelimit_core::policy::CountedOutcome;
use ratelimit_core::syntax::{CompositeRequest, Purpose};
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::{Amount, Decision, Limit, Taken, Timestamp, Usage};

/// Decides on a call of one unit under a bucket, perhaps a policy's, and replies. `false`: nothing was done, and the
/// call takes the slow path.
#[inline(always)]
pub fn take_bucket_fast(
    call: &FastCall,
    name: KeyName,
    bucket: &Bucket,
    ruling: Option<&Ruling>,
    now: Timestamp,
    reply: impl Fn(Replies, &Decision),
) -> bool {
    let Some(key) = call.open_plain::<BucketUsage>(name) else {
        return take_first_bucket_fast(call, bucket, ruling, now, reply);
    };
    let Some(taken) = bucket.taken_fast(key.usage(), now, Amount::ONE) else {
        key.leave();
        return false;
    };
    guard::panic_test_point();
    // Each of the two ways replies for itself: of what it knows by then the compiler makes constants.
    match taken {
        Taken::Charged(decision, after) => {
            call.stats.decided(true);
            count_limit(BucketUsage::KIND, false, true, false);
            key.replace(after, Expiry::of(now, decision.reset), now);
            count_ruling(ruling, &decision);
            reply(call.replies(), &decision);
        }
        Taken::Denied(decision) => {
            call.stats.decided(false);
            count_limit(BucketUsage::KIND, true, false, false);
            key.denied(None, ruling.map(|ruling| &ruling.name), now);
            count_ruling(ruling, &decision);
            reply(call.replies(), &decision);
        }
    }
    true
}

/// Decides on the first call of one unit at a key, and replies. `false`: nothing was done, and the call takes the slow path.
#[inline(never)]
fn take_first_bucket_fast(
    call: &FastCall,
    bucket: &Bucket,
    ruling: Option<&Ruling>,
    now: Timestamp,
    reply: impl Fn(Replies, &Decision),
) -> bool {
    let Some(key) = call.missing_key() else { return false };
    let taken = bucket.first_taken(now, Amount::ONE).filter(|_| !key.out_of_memory());
    let Some((decision, usage)) = taken else {
        key.leave();
        return false;
    };
    guard::panic_test_point();
    call.stats.decided(true);
    count_limit(BucketUsage::KIND, false, true, true);
    key.make(usage, Expiry::of(now, decision.reset), now);
    count_ruling(ruling, &decision);
    reply(call.replies(), &decision);
    true
}

/// Decides on a call of a policy's limits, and replies. `false`: nothing was done, and the call takes the slow path.
#[inline(always)]
pub fn take_limits_fast(
    call: &FastCall,
    name: KeyName,
    limits: &CompositeRequest,
    ruling: &Ruling,
    now: Timestamp,
    reply: impl Fn(Replies, &Decision),
) -> bool {
    let Some(key) = call.open_plain::<CompositeUsage>(name) else { return false };
    let Some(evaluation) = key.usage().evaluate_fast(limits, now) else {
        key.leave();
        return false;
    };
    guard::panic_test_point();
    let rates = Rates { request: limits, evaluation };
    let allowed = rates.allows();
    call.stats.decided(allowed);
    rates.count(allowed);
    let decision = if allowed {
        let change = |usage: &mut CompositeUsage| {
            let (decision, reset) = rates.charge(usage, now);
            (Expiry::of(now, reset), decision)
        };
        key.commit(change, now)
    } else {
        let decision = rates.deny(key.usage(), now);
        key.denied(None, Some(&ruling.name), now);
        decision
    };
    count_ruling(Some(ruling), &decision);
    reply(call.replies(), &decision);
    true
}

/// Decides on a call of one unit of an item of a sketch, and replies. `false`: nothing was done, and the call takes the
/// slow path.
#[inline(always)]
pub fn take_item_fast(
    call: &FastCall,
    name: KeyName,
    sketch: &Sketch,
    item: &[u8],
    now: Timestamp,
    reply: impl Fn(Replies, &Decision),
) -> bool {
    let Some(key) = call.open_plain::<SketchUsage>(name) else { return false };
    let Some(taken) = sketch.item_taken_fast(key.usage(), item, now, Amount::ONE) else {
        key.leave();
        return false;
    };
    if matches!(&taken, ItemTaken::Charged(_, charged) if charged.grows(key.usage()) && key.out_of_memory()) {
        key.leave();
        return false;
    }
    guard::panic_test_point();
    match taken {
        ItemTaken::Charged(decision, charged) => {
            call.stats.decided(true);
            count_limit(SketchUsage::KIND, false, true, false);
            let apply = |usage: &mut SketchUsage| {
                // A debug build checks what would be told, though there is nobody.
                usage.apply_charge(&charged, sketch, cfg!(debug_assertions));
                (Expiry::of(now, charged.recovery), ())
            };
            key.commit(apply, now);
            reply(call.replies(), &decision);
        }
        ItemTaken::Denied(decision) => {
            call.stats.decided(false);
            count_limit(SketchUsage::KIND, true, false, false);
            key.denied(Some(item), None, now);
            reply(call.replies(), &decision);
        }
    }
    true
}

#[inline(always)]
fn count_ruling(ruling: Option<&Ruling>, decision: &Decision) {
    if let Some(ruling) = ruling {
        ruling.counts.count(&CountedOutcome::of(decision, Purpose::Charge));
    }
}
