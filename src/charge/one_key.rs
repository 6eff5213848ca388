//! Calls on one key, which stays open from the evaluation to the commit.

use super::commit::{Applied, KeyEvaluation, check_room_and_memory, commit_to, count_call, count_key};
use super::evaluate::{composite_of_one, counted_outcome, stored_usage};
use super::fast_path::FastPath;
use super::one_limit::OneLimit;
use super::several_limits::SeveralLimits;
use crate::redis::Redis;
use crate::redis::key::{Key, OpenKey, PeekedKey, Stored, replace};
use crate::server::policy_table::EffectivePolicy;
use ratelimit_core::AnyLimit;
use ratelimit_core::algorithm::bucket::{Bucket, BucketUsage};
use ratelimit_core::composite::{Answer, CompositeUsage};
use ratelimit_core::expiry::Expiry;
use ratelimit_core::policy::CountedOutcome;
use ratelimit_core::syntax::{CompositeRequest, KeyRequest, Purpose, Spec};
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Limit, PlainUsage, Request, Timestamp, Usage, with_limit};
use std::borrow::Cow;
use std::iter::once;

/// Answers a call that changes nothing.
///
/// # Errors
/// Returns an error if the key holds another type, or the call would exceed a maximum per key.
pub fn peek(redis: &mut Redis, index: KeyIndex, request: &KeyRequest, now: Timestamp) -> Result<Answer, Error> {
    match request {
        KeyRequest::One(spec) => peek_one(redis, index, spec, now).map(Answer::of),
        KeyRequest::Composite(request) => peek_several(&redis.peek(index)?, Cow::Borrowed(request), now),
        // Unreachable: the command has replaced the name of a policy by its limits.
        KeyRequest::Policy(_) => Err(Error::Internal),
    }
}

/// Decides a call of one spec that changes nothing.
///
/// # Errors
/// Returns an error in the cases of [`peek`].
#[inline(always)]
pub fn peek_one(redis: &mut Redis, index: KeyIndex, spec: &Spec, now: Timestamp) -> Result<Decision, Error> {
    with_limit!(spec, limit => peek_limit(&redis.peek(index)?, limit, spec, now))
}

/// Decides a call of one spec, with its limit as the concrete type `L`, and changes nothing.
fn peek_limit<L: Limit<Usage: PlainUsage>>(
    key: &PeekedKey,
    limit: &L,
    spec: &Spec,
    now: Timestamp,
) -> Result<Decision, Error> {
    let Some(usage) = key.contents().usage::<L::Usage>() else {
        let request = composite_of_one(key.contents(), spec, Purpose::Charge)?;
        return peek_several(key, Cow::Owned(request), now).map(|answer| answer.decision);
    };
    let evaluation = OneLimit::evaluate(limit, &*usage, key.contents().is_missing(), spec.request, now);
    evaluation.check_room()?;
    Ok(evaluation.answer(limit, spec.request, &usage, now).with_keep(spec.keep))
}

/// Answers a call over several limits that changes nothing.
#[inline(never)]
fn peek_several(key: &PeekedKey, request: Cow<CompositeRequest>, now: Timestamp) -> Result<Answer, Error> {
    let empty = CompositeUsage::default();
    let stored = stored_usage(key.contents(), &request, &empty)?;
    let evaluation = SeveralLimits::evaluate(request, stored, key.contents().is_missing(), now, || false);
    evaluation.check_room()?;
    evaluation.answer(key.contents(), now).ok_or(Error::Internal)
}

/// Decides a call, and charges it if its limits grant it. `policy` is the policy that sets the limits, if there is one.
///
/// # Errors
/// Returns an error if the key holds another type, or the call would exceed a maximum per key, or there is no memory
/// for it.
pub fn charge(
    redis: &mut Redis,
    index: KeyIndex,
    request: &KeyRequest,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<Answer, Error> {
    match request {
        KeyRequest::One(spec) => charge_one(redis, index, spec, policy, now).map(Answer::of),
        KeyRequest::Composite(request) => charge_several(redis, index, request, policy, now),
        // Unreachable: the command has replaced the name of a policy by its limits.
        KeyRequest::Policy(_) => Err(Error::Internal),
    }
}

/// Decides a call of one spec, and charges it if its limit grants it.
///
/// # Errors
/// Returns an error in the cases of [`charge`].
#[inline(always)]
pub fn charge_one(
    redis: &mut Redis,
    index: KeyIndex,
    spec: &Spec,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<Decision, Error> {
    let mut composite_outcome = None;
    let decision = with_limit!(spec, limit => {
        // Copied: a reference into the caller's spec would force it into memory.
        let limit = limit.to_owned();
        charge_limit(redis, index, &limit, spec, policy, &mut composite_outcome, now)
    })?;
    if let Some(policy) = policy {
        match composite_outcome {
            Some(outcome) => count_composite(policy, outcome),
            None => policy.counts.count(&CountedOutcome::of(&decision, Purpose::of(spec.request))),
        }
    }
    Ok(decision)
}

/// Counts a call that was decided as a composite one.
///
/// Not inlined: the compiler would merge the two outcomes of [`charge_one`] bit by bit, in 180 instructions.
#[cold]
#[inline(never)]
fn count_composite(policy: &EffectivePolicy, outcome: CountedOutcome) {
    policy.counts.count(&outcome);
}

/// Charges a spec, with its limit as the concrete type `L`.
///
/// If the key holds another kind of usage, the call is decided as a composite one. `composite_outcome` then receives
/// its outcome, which has more to count than a `Decision`.
#[inline(always)]
fn charge_limit<L: Limit<Usage: PlainUsage>>(
    redis: &mut Redis,
    index: KeyIndex,
    limit: &L,
    spec: &Spec,
    policy: Option<&EffectivePolicy>,
    composite_outcome: &mut Option<CountedOutcome>,
    now: Timestamp,
) -> Result<Decision, Error> {
    match redis.open(index)?.typed() {
        Ok(key) => Ok(charge_plain(key, limit, spec.request, spec.item(), policy, now)?.with_keep(spec.keep)),
        Err(key) => {
            // Copied field by field: a reference to the whole spec would force it into memory.
            let spec = Spec { ..*spec };
            let (decision, outcome) = charge_other_kind(key, spec, policy, now)?;
            *composite_outcome = Some(outcome);
            Ok(decision)
        }
    }
}

/// Charges a request under a limit at a plain or missing key.
#[inline(always)]
fn charge_plain<L>(
    mut key: Key<L::Usage>,
    limit: &L,
    request: Request,
    item: Option<&[u8]>,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<Decision, Error>
where
    L: Limit<Usage: PlainUsage>,
{
    let evaluation = OneLimit::evaluate(limit, key.usage(), key.is_missing(), request, now);
    let changes_key = check_and_count(&mut key, &evaluation, || request.is_peek(), item, policy, now)?;
    Ok(evaluation.commit(limit, request, key, changes_key, now))
}

/// Decides a call of one spec at a key that holds another type, and charges it if its limit grants it.
#[cold]
#[inline(never)]
fn charge_other_kind(
    key: OpenKey,
    spec: Spec,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<(Decision, CountedOutcome), Error> {
    let request = composite_of_one(key.contents(), &spec, Purpose::Charge)?;
    let answer = charge_composite(key, &request, policy, now)?;
    Ok((answer.decision, counted_outcome(&answer, request.purpose)))
}

/// Decides a call over several limits, and charges them if all grant it.
///
/// # Errors
/// Returns an error in the cases of [`charge`].
#[inline(never)]
pub fn charge_several(
    redis: &mut Redis,
    index: KeyIndex,
    request: &CompositeRequest,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<Answer, Error> {
    let answer = charge_composite(redis.open(index)?, request, policy, now)?;
    if let Some(policy) = policy {
        policy.counts.count(&counted_outcome(&answer, request.purpose));
    }
    Ok(answer)
}

/// Charges a composite request at an open key.
fn charge_composite(
    mut key: OpenKey,
    request: &CompositeRequest,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<Answer, Error> {
    if let Some(fast_path) = FastPath::evaluate(key.contents(), request, now) {
        // The fast path evaluates neither peeks nor sketches, and only sketches have items.
        let changes_key = check_and_count(&mut key, &fast_path, || false, None, policy, now)?;
        return Ok(commit_to(key, &fast_path, changes_key, now));
    }
    let empty = CompositeUsage::default();
    let stored = stored_usage(key.contents(), request, &empty)?;
    let missing = key.contents().is_missing();
    let evaluation =
        SeveralLimits::evaluate(Cow::Borrowed(request), stored, missing, now, || key.redis().out_of_memory());
    let changes_key =
        check_and_count(&mut key, &evaluation, || request.purpose == Purpose::Peek, request.item(), policy, now)?;
    Ok(evaluation.commit(key, changes_key, now))
}

/// Rejects a call that would exceed a maximum per key or the memory limit, and counts any other. A denied peek is not
/// counted as denied. Returns `true` if the call changes the key.
#[inline(always)]
fn check_and_count(
    key: &mut OpenKey,
    evaluation: &impl KeyEvaluation,
    is_peek: impl FnOnce() -> bool,
    item: Option<&[u8]>,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<bool, Error> {
    let allowed = evaluation.allows();
    if allowed {
        check_room_and_memory(key.redis(), once(evaluation))?;
    }
    let is_denied_peek = !allowed && is_peek();
    count_call(key.redis(), allowed, is_denied_peek);
    let records_denial = count_key(evaluation, allowed, is_denied_peek);
    if records_denial {
        key.record_denial(item, policy.map(|policy| &policy.name), now);
    }
    Ok(evaluation.changes_key(allowed))
}

/// Decides a call of a bucket, and charges it if the bucket grants it. If the key is a string of redis-cell, which
/// `legacy_usage` reads, a bucket replaces it, even if the call is denied.
///
/// # Errors
/// Returns an error in the cases of [`charge`].
#[inline(always)]
pub fn charge_or_migrate(
    redis: &mut Redis,
    index: KeyIndex,
    bucket: &Bucket,
    request: Request,
    now: Timestamp,
    legacy_usage: impl FnOnce(&mut Redis) -> Option<BucketUsage>,
) -> Result<Decision, Error> {
    let key = match redis.open(index)?.typed() {
        Ok(key) => return charge_plain(key, bucket, request, None, None, now),
        Err(key) => key,
    };
    let stored = key.contents().stored();
    if stored != Stored::STRING {
        let spec = Spec::of(AnyLimit::Bucket(*bucket), request);
        return charge_other_kind(key, spec, None, now).map(|(decision, _)| decision);
    }
    drop(key);
    let decision = match legacy_usage(redis) {
        Some(usage) => migrate_string(redis, index, bucket, usage, request, now)?,
        None => None,
    };
    decision.ok_or_else(|| stored.wrong_type(BucketUsage::KIND.name()))
}

/// Decides a call of a bucket that is stored as a string, and replaces the string. Returns `None` if the string cannot
/// be replaced.
fn migrate_string(
    redis: &mut Redis,
    index: KeyIndex,
    bucket: &Bucket,
    mut usage: BucketUsage,
    request: Request,
    now: Timestamp,
) -> Result<Option<Decision>, Error> {
    // If the bucket of the string is full again, treat the key as missing: a charge then counts as creating it, and is
    // rejected if the server is out of memory.
    let evaluation = OneLimit::evaluate(bucket, &usage, usage.is_unused(), request, now);
    check_room_and_memory(redis, once(&evaluation))?;
    let Applied { answer: decision, reset } = evaluation.apply(bucket, request, &mut usage, now);
    if !replace(redis, index, usage, Expiry::of(now, reset).after_charge(None, false), now) {
        return Ok(None);
    }
    let allowed = evaluation.allows();
    let is_denied_peek = !allowed && request.is_peek();
    count_call(redis, allowed, is_denied_peek);
    let records_denial = count_key(&evaluation, allowed, is_denied_peek);
    if records_denial {
        redis.record_denial(index, None, None, now);
    }
    Ok(Some(decision))
}
