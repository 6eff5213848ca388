//! Calls on one key, which stays open from the evaluation to the commit.

use super::commit::{Applied, commit_to};
use super::evaluate::{composite_of_one, outcome, stored_usage};
use super::fast_path::FastPath;
use super::key_evaluation::{KeyEvaluation, check, count_call, count_key};
use super::one_limit::OneLimit;
use super::several_limits::SeveralLimits;
use crate::redis::Redis;
use crate::redis::key::{ForeignType, Key, OpenKey, PeekedKey, Stored, replace};
use crate::server::policy_table::EffectivePolicy;
use ratelimit_core::AnyLimit;
use ratelimit_core::algorithm::bucket::{Bucket, BucketUsage};
use ratelimit_core::composite::{Answer, CompositeUsage};
use ratelimit_core::expiry::Expiry;
use ratelimit_core::policy::CountedOutcome;
use ratelimit_core::syntax::{CompositeRequest, KeyRequest, Purpose, Spec};
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Limit, PlainUsage, Request, Timestamp, Usage, with_limit};
use std::borrow::Cow;
use std::iter::once;

/// Answers a call that changes nothing.
///
/// # Errors
/// Returns an error if the key holds another type, or the call would exceed a maximum per key.
pub fn peek(redis: &mut Redis, name: KeyName, request: &KeyRequest, now: Timestamp) -> Result<Answer, Error> {
    match request {
        KeyRequest::One(spec) => peek_one(redis, name, spec, now).map(Answer::of),
        KeyRequest::Composite(request) => peek_several(&redis.peek(name)?, Cow::Borrowed(request), now),
        KeyRequest::Policy(_) => Err(Error::Internal),
    }
}

/// Decides a call of one spec that changes nothing.
///
/// # Errors
/// As [`peek`].
#[inline(always)]
pub fn peek_one(redis: &mut Redis, name: KeyName, spec: &Spec, now: Timestamp) -> Result<Decision, Error> {
    with_limit!(spec, limit => peek_limit(&redis.peek(name)?, limit, spec, now))
}

/// Decides a call under a limit of its algorithm's type, and changes nothing.
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
    let evaluation = OneLimit::at(limit, &*usage, key.contents().is_missing(), spec.request, now);
    evaluation.check_room()?;
    Ok(evaluation.answer(limit, spec.request, &usage, now).with_keep(spec.keep))
}

/// Answers a call over several limits that changes nothing.
#[inline(never)]
fn peek_several(key: &PeekedKey, request: Cow<CompositeRequest>, now: Timestamp) -> Result<Answer, Error> {
    let unused = CompositeUsage::default();
    let stored = stored_usage(key.contents(), &request, &unused)?;
    let evaluation = SeveralLimits::at(request, stored, key.contents().is_missing(), now, || false);
    evaluation.check_room()?;
    evaluation.answer(key.contents(), now).ok_or(Error::Internal)
}

/// Answers a call that is charged if its limits grant it. `policy` is the policy that sets them, if any.
///
/// # Errors
/// Returns an error if the key holds another type, or the call exceeds a maximum per key or needs memory that the
/// server does not have.
pub fn charge(
    redis: &mut Redis,
    name: KeyName,
    request: &KeyRequest,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<Answer, Error> {
    match request {
        KeyRequest::One(spec) => charge_one(redis, name, spec, policy, now).map(Answer::of),
        KeyRequest::Composite(request) => charge_several(redis, name, request, policy, now),
        KeyRequest::Policy(_) => Err(Error::Internal),
    }
}

/// Decides a call of one spec, which is charged if its limit grants it.
///
/// # Errors
/// As [`charge`].
#[inline(always)]
pub fn charge_one(
    redis: &mut Redis,
    name: KeyName,
    spec: &Spec,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<Decision, Error> {
    let mut other_outcome = None;
    let decision = with_limit!(spec, limit => {
        // A copy, so that the caller's spec can stay in registers.
        let limit = limit.to_owned();
        charge_limit(redis, name, &limit, spec, policy, &mut other_outcome, now)
    })?;
    if let Some(policy) = policy {
        let outcome = other_outcome.unwrap_or_else(|| CountedOutcome::of(&decision, Purpose::of(spec.request)));
        policy.counts.count(&outcome);
    }
    Ok(decision)
}

/// Charges a spec under a limit of its algorithm's type. At a key that is neither missing nor of that kind, the outcome
/// is stored in `other_outcome`.
#[inline(always)]
fn charge_limit<L: Limit<Usage: PlainUsage>>(
    redis: &mut Redis,
    name: KeyName,
    limit: &L,
    spec: &Spec,
    policy: Option<&EffectivePolicy>,
    other_outcome: &mut Option<CountedOutcome>,
    now: Timestamp,
) -> Result<Decision, Error> {
    match redis.open(name)?.typed() {
        Ok(key) => Ok(charge_plain(key, limit, spec.request, spec.item(), policy, now)?.with_keep(spec.keep)),
        Err(key) => {
            // Field by field, so that the caller's spec can stay in registers.
            let Spec { limit, request, holder, keep, name, own_cost, nx, fence, shadow, by_policy, slower } = *spec;
            let spec = Spec { limit, request, holder, keep, name, own_cost, nx, fence, shadow, by_policy, slower };
            let (decision, outcome) = charge_other_kind(key, spec, policy, now)?;
            *other_outcome = Some(outcome);
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
    let evaluation = OneLimit::at(limit, key.usage(), key.is_missing(), request, now);
    let changes_key = decide(&mut key, &evaluation, || request.is_peek(), item, policy, now)?;
    Ok(evaluation.commit(limit, request, key, changes_key, now))
}

/// Decides a call of one spec at a key that is neither missing nor of the spec's kind.
#[cold]
#[inline(never)]
fn charge_other_kind(
    key: OpenKey,
    spec: Spec,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<(Decision, CountedOutcome), Error> {
    let request = composite_of_one(key.contents(), &spec, Purpose::Charge)?;
    let answer = charge_open(key, &request, policy, now)?;
    Ok((answer.decision, outcome(&answer, request.purpose)))
}

/// Answers a call over several limits, which are charged if all grant it.
///
/// # Errors
/// As [`charge`].
#[inline(never)]
pub fn charge_several(
    redis: &mut Redis,
    name: KeyName,
    request: &CompositeRequest,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<Answer, Error> {
    let answer = charge_open(redis.open(name)?, request, policy, now)?;
    if let Some(policy) = policy {
        policy.counts.count(&outcome(&answer, request.purpose));
    }
    Ok(answer)
}

fn charge_open(
    mut key: OpenKey,
    request: &CompositeRequest,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<Answer, Error> {
    if let Some(fast_path) = FastPath::at(key.contents(), request, now) {
        let changes_key = decide(&mut key, &fast_path, || false, None, policy, now)?;
        return Ok(commit_to(key, &fast_path, changes_key, now));
    }
    let unused = CompositeUsage::default();
    let stored = stored_usage(key.contents(), request, &unused)?;
    let missing = key.contents().is_missing();
    let evaluation = SeveralLimits::at(Cow::Borrowed(request), stored, missing, now, || key.redis().out_of_memory());
    let changes_key = decide(&mut key, &evaluation, || request.purpose == Purpose::Peek, request.item(), policy, now)?;
    Ok(evaluation.commit(key, changes_key, now))
}

/// Rejects a call that exceeds a maximum per key or the memory limit, and counts any other. A call that only `peeks` is
/// not counted as denied. Returns `true` if the key is changed.
#[inline(always)]
fn decide(
    key: &mut OpenKey,
    evaluation: &impl KeyEvaluation,
    peeks: impl FnOnce() -> bool,
    item: Option<&[u8]>,
    policy: Option<&EffectivePolicy>,
    now: Timestamp,
) -> Result<bool, Error> {
    let allowed = evaluation.allows();
    if allowed {
        check(key.redis(), once(evaluation))?;
    }
    let peeks = !allowed && peeks();
    count_call(key.redis(), allowed, peeks);
    if count_key(evaluation, allowed, peeks) {
        key.denied(item, policy.map(|policy| &policy.name), now);
    }
    Ok(evaluation.changes_key(allowed))
}

/// Decides a call of a bucket. If `legacy_usage` finds a usage in a string, a limiter replaces the string, even if the
/// call is denied.
///
/// # Errors
/// As [`charge`].
#[inline(always)]
pub fn charge_or_take_over(
    redis: &mut Redis,
    name: KeyName,
    bucket: &Bucket,
    request: Request,
    now: Timestamp,
    legacy_usage: impl FnOnce(&mut Redis) -> Option<BucketUsage>,
) -> Result<Decision, Error> {
    let key = match redis.open(name)?.typed() {
        Ok(key) => return charge_plain(key, bucket, request, None, None, now),
        Err(key) => key,
    };
    let stored = key.contents().stored();
    if stored != Stored::Foreign(ForeignType::String) {
        let spec = Spec::of(AnyLimit::Bucket(*bucket), request);
        return charge_other_kind(key, spec, None, now).map(|(decision, _)| decision);
    }
    drop(key);
    let decision = match legacy_usage(redis) {
        Some(usage) => take_over(redis, name, bucket, usage, request, now)?,
        None => None,
    };
    decision.ok_or_else(|| stored.wrong_type(BucketUsage::KIND.name()))
}

/// Decides a call of a bucket that is stored as a string, and replaces the string. Returns `None` if the string cannot
/// be replaced.
fn take_over(
    redis: &mut Redis,
    name: KeyName,
    bucket: &Bucket,
    mut usage: BucketUsage,
    request: Request,
    now: Timestamp,
) -> Result<Option<Decision>, Error> {
    // A recovered usage is like a missing key: the call creates the key, which needs memory.
    let evaluation = OneLimit::at(bucket, &usage, usage.is_unused(), request, now);
    check(redis, once(&evaluation))?;
    let Applied { answer: decision, reset } = evaluation.apply(bucket, request, &mut usage, now);
    if !replace(redis, name, usage, Expiry::of(now, reset).after_charge(None, false), now) {
        return Ok(None);
    }
    let (allowed, peeks) = (evaluation.allows(), request.is_peek());
    count_call(redis, allowed, peeks);
    if count_key(&evaluation, allowed, peeks) {
        redis.denied(name, None, None, now);
    }
    Ok(Some(decision))
}
