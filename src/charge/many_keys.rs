//! Calls on several keys: all are charged or none is.
//!
//! Every key is evaluated before any is charged, in one instant, and the changes are propagated as one effect. Keys are
//! opened one after another: other modules may run when a later one is opened, and change an earlier one. Then it is
//! evaluated again.

use super::commit::Closed;
use super::evaluate::{EvaluatedRequest, evaluate};
use super::key_evaluation::{KeyEvaluation, check, count_call, count_key};
use crate::redis::Redis;
use crate::redis::key::ClosedKey;
use crate::reply::Row;
use crate::server::policy_table::EffectivePolicy;
use ratelimit_core::policy::CountedOutcome;
use ratelimit_core::syntax::{KeyRequest, ManyKeysRequest, Purpose};
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Span, Timestamp, Verdict};
use smallvec::SmallVec;
use std::rc::Rc;

/// Answer to a call on several keys.
pub struct KeysAnswer {
    /// The call as a whole is granted.
    pub allowed: bool,
    /// Longest hold if all keys granted the call (a forced charge past its limit has no hold), else the longest wait of
    /// the keys that denied it. `None` if there is neither.
    pub wait: Option<Verdict>,
    /// Decision of each key.
    pub rows: Vec<Row>,
}

impl KeysAnswer {
    fn of(request: &ManyKeysRequest, allowed: bool) -> KeysAnswer {
        KeysAnswer { allowed, wait: None, rows: Vec::with_capacity(request.keys.len()) }
    }

    /// Adds the decision of a key. A refund is never denied and never waits, not even for a key that it only peeks at.
    #[inline(always)]
    fn push(&mut self, request: &ManyKeysRequest, denies: bool, decision: Decision) {
        let decision = match request.purpose {
            Purpose::Refund => Decision { verdict: Verdict::Allowed(Span::ZERO), ..decision },
            Purpose::Charge | Purpose::Peek | Purpose::Settle => decision,
        };
        let counts = match (self.allowed, request.purpose) {
            (true, _) => decision.verdict.allowed(),
            (false, Purpose::Settle) => true,
            (false, _) => denies,
        };
        if counts {
            self.wait = self.wait.max(Some(decision.verdict));
        }
        self.rows.push(Row::decision(&decision));
    }
}

/// Returns `true` if a call as a whole is granted. A settlement is granted if any key has recorded its
/// idempotency key.
#[inline(always)]
fn is_allowed<'e, 's: 'e, 'a: 's>(
    request: &ManyKeysRequest,
    mut keys: impl Iterator<Item = &'e EvaluatedRequest<'s, 'a>>,
) -> bool {
    match request.purpose {
        Purpose::Settle => keys.any(KeyEvaluation::has_record),
        Purpose::Refund => true,
        Purpose::Charge | Purpose::Peek => !keys.any(KeyEvaluation::denies),
    }
}

/// Answers a call that changes nothing.
///
/// # Errors
/// A key holds something else, or has no room for what the call would add.
pub fn peek_keys(redis: &mut Redis, request: &ManyKeysRequest, now: Timestamp) -> Result<KeysAnswer, Error> {
    let mut peeked = Vec::with_capacity(request.keys.len());
    for (name, of_key) in &request.keys {
        let key = redis.peek(*name)?;
        let evaluated = evaluate(key.contents(), request, of_key, now, || false)?;
        let decision = evaluated.answer(key.contents(), now).ok_or(Error::Internal)?;
        peeked.push((evaluated, decision));
    }
    let keys = || peeked.iter().map(|(evaluated, _)| evaluated);
    let mut answer = KeysAnswer::of(request, is_allowed(request, keys()));
    if answer.allowed {
        keys().try_for_each(KeyEvaluation::check_room)?;
    }
    for (evaluated, decision) in &peeked {
        answer.push(request, evaluated.denies(), *decision);
    }
    Ok(answer)
}

/// Answers a call that is charged on all of its keys if all grant it. `policies` has, for each key, the policy
/// that sets its limits, or `None`.
///
/// # Errors
/// A key holds something else, or has no room for what the call adds, or there is no memory for it.
pub fn charge_keys(
    redis: &mut Redis,
    request: &ManyKeysRequest,
    policies: &[Option<Rc<EffectivePolicy>>],
    now: Timestamp,
) -> Result<KeysAnswer, Error> {
    let mut keys = EvaluatedKeys::new();
    evaluate_keys(redis, request, now, &mut keys)?;
    let evaluated = || keys.iter().map(|key| &key.evaluated);
    let mut answer = KeysAnswer::of(request, is_allowed(request, evaluated()));
    let (allowed, peeks) = (answer.allowed, !answer.allowed && request.is_peek());
    if allowed {
        check(redis, evaluated())?;
    }
    count_call(redis, allowed, peeks);
    for (place, EvaluatedKey { closed, evaluated }) in keys.drain(..).enumerate() {
        let policy = policies.get(place).and_then(Option::as_deref);
        let denies = evaluated.denies();
        if count_key(&evaluated, allowed, peeks) {
            redis.denied(closed.name(), evaluated.item(), policy.map(|policy| &policy.name), now);
        }
        let changes_key = evaluated.changes_key(allowed);
        let (decision, outcome) = evaluated.commit(Closed { redis, key: &closed }, changes_key, now);
        if let Some(policy) = policy {
            // A key that others denied has not been admitted by this policy.
            let charges = outcome.charges && (allowed || denies);
            policy.counts.count(&CountedOutcome { charges, ..outcome });
        }
        answer.push(request, denies, decision);
    }
    Ok(answer)
}

/// Key that was evaluated, and closed.
struct EvaluatedKey<'s, 'a, 'c> {
    closed: ClosedKey<'c>,
    evaluated: EvaluatedRequest<'s, 'a>,
}

/// Keys of a call. Those of most calls need no allocation.
type EvaluatedKeys<'s, 'a, 'c> = SmallVec<[EvaluatedKey<'s, 'a, 'c>; 8]>;

/// Evaluates every key.
#[inline(always)]
fn evaluate_keys<'s, 'a, 'c>(
    redis: &mut Redis<'c>,
    request: &'s ManyKeysRequest<'a>,
    now: Timestamp,
    keys: &mut EvaluatedKeys<'s, 'a, 'c>,
) -> Result<(), Error> {
    for (name, _) in &request.keys {
        redis.expire_first(*name)?;
    }
    for key in &request.keys {
        evaluate_key(redis, request, key, now, keys)?;
    }
    if !keys.iter().all(|key| redis.still_holds(&key.closed)) {
        evaluate_again(redis, request, now, keys)?;
    }
    Ok(())
}

/// Opens a key, evaluates it, and closes it.
#[inline(always)]
fn evaluate_key<'s, 'a, 'c>(
    redis: &mut Redis<'c>,
    request: &ManyKeysRequest<'a>,
    (name, of_key): &'s (KeyName, KeyRequest<'a>),
    now: Timestamp,
    keys: &mut EvaluatedKeys<'s, 'a, 'c>,
) -> Result<(), Error> {
    let key = redis.open(*name)?;
    let out_of_memory = || key.redis().out_of_memory();
    let evaluated = evaluate(key.contents(), request, of_key, now, out_of_memory)?;
    keys.push(EvaluatedKey { closed: key.close(evaluated.may_write(), now), evaluated });
    Ok(())
}

/// Evaluates the keys again, after other modules may have run. Expired keys have been deleted by now. Missing keys are
/// opened first, because opening one lets other modules run. The keys that exist cannot change after that.
#[cold]
#[inline(never)]
fn evaluate_again<'s, 'a, 'c>(
    redis: &mut Redis<'c>,
    request: &'s ManyKeysRequest<'a>,
    now: Timestamp,
    keys: &mut EvaluatedKeys<'s, 'a, 'c>,
) -> Result<(), Error> {
    for missing in [true, false] {
        for (key, of_key) in keys.iter_mut().zip(&request.keys) {
            if key.closed.is_missing() == missing {
                let mut again = SmallVec::new();
                evaluate_key(redis, request, of_key, now, &mut again)?;
                *key = again.pop().ok_or(Error::Internal)?;
            }
        }
    }
    Ok(())
}
