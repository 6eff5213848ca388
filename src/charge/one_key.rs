//! A call on one key, which stays open from the evaluation to the commit.

use super::commit::{Apply, Unplaced, commit, commit_to};
use super::evaluated_request::{composite_of_one, held, outcome};
use super::key_evaluation::{KeyEvaluation, check, count_call, count_key, count_limit};
use super::one_limit::OneLimit;
use super::policy_outcome::rule;
use super::rates::Rates;
use super::several_limits::SeveralLimits;
use crate::redis::key::{ForeignType, Key, OpenKey, PeekedKey, Stored, Writable, replace};
use crate::redis::{Redis, guard};
use crate::server::policy_table::Ruling;
use ratelimit_core::AnyLimit;
use ratelimit_core::algorithm::bucket::{Bucket, BucketUsage};
use ratelimit_core::composite::{Answer, CompositeUsage};
use ratelimit_core::expiry::Expiry;
use ratelimit_core::policy::CountedOutcome;
use ratelimit_core::syntax::{CompositeRequest, KeyRequest, Purpose, Spec};
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Limit, Request, Taken, Timestamp, Usage, with_limit};
use std::borrow::Cow;
use std::iter::once;

/// The answer to a call that changes nothing.
pub fn peek(redis: &mut Redis, name: KeyName, request: &KeyRequest, now: Timestamp) -> Result<Answer, Error> {
    match request {
        KeyRequest::One(spec) => peek_one(redis, name, spec, now).map(Answer::of),
        KeyRequest::Composite(request) => peek_several(&redis.peek(name)?, Cow::Borrowed(request), now),
        KeyRequest::Policy(_) => Err(Error::Internal),
    }
}

/// The decision on a call of one spec that changes nothing: the fast path of a plain key, and of a missing one.
#[inline(always)]
pub fn peek_one(redis: &mut Redis, name: KeyName, spec: &Spec, now: Timestamp) -> Result<Decision, Error> {
    with_limit!(spec, limit => peek_limit(&redis.peek(name)?, limit, spec, now))
}

/// Looks at a spec under its limit, which has the type of its algorithm.
fn peek_limit<L: Limit>(key: &PeekedKey, limit: &L, spec: &Spec, now: Timestamp) -> Result<Decision, Error> {
    let Some(usage) = key.contents().usage::<L::Usage>() else {
        let request = composite_of_one(key.contents(), spec, Purpose::Charge)?;
        return peek_several(key, Cow::Owned(request), now).map(|answer| answer.decision);
    };
    let evaluation = OneLimit::at(limit, &*usage, key.contents().is_missing(), spec.request, now);
    evaluation.check_room()?;
    Ok(evaluation.under(limit).answer(&usage, now).keeping(spec.kept))
}

/// The answer to a call over several limits that changes nothing.
#[inline(never)]
fn peek_several(key: &PeekedKey, request: Cow<CompositeRequest>, now: Timestamp) -> Result<Answer, Error> {
    let unused = CompositeUsage::default();
    let held = held(key.contents(), &request, &unused)?;
    let evaluation = SeveralLimits::at(request, held, key.contents().is_missing(), now, || false);
    evaluation.check_room()?;
    evaluation.answer(key.contents(), now).ok_or(Error::Internal)
}

/// The answer to a call that is charged if its limits allow it. A policy may have asked for them.
pub fn charge(
    redis: &mut Redis,
    name: KeyName,
    request: &KeyRequest,
    ruling: Option<&Ruling>,
    now: Timestamp,
) -> Result<Answer, Error> {
    match request {
        KeyRequest::One(spec) => charge_one(redis, name, spec, ruling, now).map(Answer::of),
        KeyRequest::Composite(request) => charge_several(redis, name, request, ruling, now),
        KeyRequest::Policy(_) => Err(Error::Internal),
    }
}

/// The decision on a call of one spec, which is charged if its limit allows it: the fast path of a plain key, and of a
/// missing one.
#[inline(always)]
pub fn charge_one(
    redis: &mut Redis,
    name: KeyName,
    spec: &Spec,
    ruling: Option<&Ruling>,
    now: Timestamp,
) -> Result<Decision, Error> {
    let mut elsewhere = None;
    let decision = with_limit!(spec, limit => charge_limit(redis, name, limit, spec, &mut elsewhere, now))?;
    rule(redis, ruling, || elsewhere.unwrap_or_else(|| CountedOutcome::of(&decision, Purpose::of(spec.request))));
    Ok(decision)
}

/// Charges a spec under its limit, which has the type of its algorithm. The outcome of a call at a key that is neither
/// missing nor of that kind is left in `elsewhere`.
#[inline(always)]
fn charge_limit<L: Limit>(
    redis: &mut Redis,
    name: KeyName,
    limit: &L,
    spec: &Spec,
    elsewhere: &mut Option<CountedOutcome>,
    now: Timestamp,
) -> Result<Decision, Error> {
    match redis.open(name)?.typed() {
        Ok(key) => Ok(charge_plain(key, limit, spec.request, spec.item(), now)?.keeping(spec.kept)),
        Err(key) => {
            let (decision, outcome) = charge_elsewhere(key, spec, now)?;
            *elsewhere = Some(outcome);
            Ok(decision)
        }
    }
}

#[inline(always)]
fn charge_plain<L: Limit>(
    mut key: Key<L::Usage>,
    limit: &L,
    request: Request,
    item: Option<&[u8]>,
    now: Timestamp,
) -> Result<Decision, Error> {
    if let Request::Take(cost) = request
        && let Some(taken) = limit.taken_fast(key.usage(), now, cost)
    {
        guard::panic_test_point();
        return Ok(commit_fast(key, taken, item, now));
    }
    let evaluation = OneLimit::at(limit, key.usage(), key.is_missing(), request, now);
    let changes_key = decide(&mut key, &evaluation, || request.is_look(), item, now)?;
    Ok(commit(key, &evaluation.under(limit), changes_key, now))
}

/// Commits a take that was decided in one go: of a key that is there, and that grows no more.
#[inline(always)]
fn commit_fast<U: Usage>(mut key: Key<U>, taken: Taken<U>, item: Option<&[u8]>, now: Timestamp) -> Decision {
    let allowed = matches!(taken, Taken::Charged(..));
    count_call(key.redis(), allowed, false);
    count_limit(U::KIND, !allowed, allowed, false);
    match taken {
        Taken::Charged(decision, after) => {
            *key.usage_mut() = after;
            let expiry = Expiry::of(now, decision.reset);
            key.commit(|present| expiry.after_charge(present, false), now);
            decision
        }
        Taken::Denied(decision) => {
            key.denied(item, now);
            decision
        }
    }
}

/// The decision on a call of one spec at a key that is neither missing nor of the spec's kind.
#[cold]
#[inline(never)]
fn charge_elsewhere(key: OpenKey, spec: &Spec, now: Timestamp) -> Result<(Decision, CountedOutcome), Error> {
    let request = composite_of_one(key.contents(), spec, Purpose::Charge)?;
    let answer = charge_open(key, &request, now)?;
    Ok((answer.decision, outcome(&answer, request.purpose)))
}

/// The answer to a call over several limits, which are charged if all allow it.
#[inline(never)]
pub fn charge_several(
    redis: &mut Redis,
    name: KeyName,
    request: &CompositeRequest,
    ruling: Option<&Ruling>,
    now: Timestamp,
) -> Result<Answer, Error> {
    let answer = charge_open(redis.open(name)?, request, now)?;
    rule(redis, ruling, || outcome(&answer, request.purpose));
    Ok(answer)
}

fn charge_open(mut key: OpenKey, request: &CompositeRequest, now: Timestamp) -> Result<Answer, Error> {
    let rates = key.contents().usage::<CompositeUsage>().and_then(|usage| usage.evaluate_fast(request, now));
    if let Some(evaluation) = rates {
        let rates = Rates { request, evaluation };
        let changes_key = decide(&mut key, &rates, || false, None, now)?;
        return Ok(commit_to(key, &rates, changes_key, now));
    }
    let unused = CompositeUsage::default();
    let held = held(key.contents(), request, &unused)?;
    let missing = key.contents().is_missing();
    let evaluation = SeveralLimits::at(Cow::Borrowed(request), held, missing, now, || key.redis().out_of_memory());
    let changes_key = decide(&mut key, &evaluation, || request.purpose == Purpose::Check, request.item(), now)?;
    Ok(evaluation.commit(key, changes_key, now))
}

/// Refuses a call for which there is no room, and counts any other. A call that only `looks` is not counted as denied.
/// Returns whether the key is changed.
#[inline(always)]
fn decide(
    key: &mut OpenKey,
    evaluation: &impl KeyEvaluation,
    looks: impl FnOnce() -> bool,
    item: Option<&[u8]>,
    now: Timestamp,
) -> Result<bool, Error> {
    let allowed = evaluation.allows();
    if allowed {
        check(key.redis(), once(evaluation))?;
    }
    let looks = !allowed && looks();
    count_call(key.redis(), allowed, looks);
    if count_key(evaluation, allowed, looks) {
        key.denied(item, now);
    }
    Ok(evaluation.changes_key(allowed))
}

/// The decision on a call of a bucket. In a string, `left_behind` may find a usage: then a limiter comes into the place
/// of the string, even if the call is denied.
#[inline(always)]
pub fn charge_or_take_over(
    redis: &mut Redis,
    name: KeyName,
    bucket: &Bucket,
    request: Request,
    now: Timestamp,
    left_behind: impl FnOnce(&mut Redis) -> Option<BucketUsage>,
) -> Result<Decision, Error> {
    let key = match redis.open(name)?.typed() {
        Ok(key) => return charge_plain(key, bucket, request, None, now),
        Err(key) => key,
    };
    let stored = key.contents().stored();
    if stored != Stored::Foreign(ForeignType::String) {
        let spec = Spec::of(AnyLimit::Bucket(*bucket), request);
        return charge_elsewhere(key, &spec, now).map(|(decision, _)| decision);
    }
    drop(key);
    let decision = match left_behind(redis) {
        Some(usage) => take_over(redis, name, bucket, usage, request, now)?,
        None => None,
    };
    decision.ok_or_else(|| stored.wrong_type(BucketUsage::KIND.name()))
}

/// The decision on a call of a bucket that a string stands for. `None` if the string has to stay.
fn take_over(
    redis: &mut Redis,
    name: KeyName,
    bucket: &Bucket,
    mut usage: BucketUsage,
    request: Request,
    now: Timestamp,
) -> Result<Option<Decision>, Error> {
    // What has recovered is a missing key, to make which is refused like making any.
    let evaluation = OneLimit::at(bucket, &usage, usage.is_unused(), request, now);
    check(redis, once(&evaluation))?;
    let mut expires_at = None;
    let unplaced = Unplaced { usage: &mut usage, expires_at: &mut expires_at };
    let decision = commit(unplaced, &evaluation.under(bucket), true, now);
    if !expires_at.is_some_and(|expires_at| replace(redis, name, usage, expires_at, now)) {
        return Ok(None);
    }
    let (allowed, looks) = (evaluation.allows(), request.is_look());
    count_call(redis, allowed, looks);
    if count_key(&evaluation, allowed, looks) {
        redis.denied(name, None, now);
    }
    Ok(Some(decision))
}
