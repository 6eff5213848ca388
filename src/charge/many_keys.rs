//! Calls on several keys: all are charged or none is.
//!
//! Every key is evaluated before any is charged, all with the same `now`, and the changes are propagated as one effect.
//! Keys are opened one after another: other modules may run when a later one is opened, and change an earlier one. If
//! that may have happened, all keys are evaluated again.

use super::commit::{ClosedTarget, KeyEvaluation, check_room_and_memory, count_call, count_key};
use super::evaluate::{EvaluatedRequest, evaluate};
use crate::redis::Redis;
use crate::redis::key::ClosedKey;
use crate::reply::Row;
use crate::server::policy_table::EffectivePolicy;
use ratelimit_core::policy::CountedOutcome;
use ratelimit_core::syntax::{KeyRequest, ManyKeysRequest, Purpose};
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Span, Timestamp, Verdict};
use smallvec::SmallVec;
use std::rc::Rc;

/// Answer to a call on several keys.
pub struct KeysAnswer {
    /// `true` if the call as a whole is granted.
    pub allowed: bool,
    /// Verdict to report; `None` if there is none. Of a granted call: the one with the longest hold, leaving out keys
    /// whose limit a forced charge exceeds. Of a denied call: the one with the longest wait among the keys that denied
    /// it.
    pub longest_wait: Option<Verdict>,
    /// Decision of each key.
    pub rows: Vec<Row>,
}

impl KeysAnswer {
    fn of(request: &ManyKeysRequest, allowed: bool) -> KeysAnswer {
        KeysAnswer { allowed, longest_wait: None, rows: Vec::with_capacity(request.keys.len()) }
    }

    /// Adds the decision of a key. A refund is reported as granted without a hold, also at a key that it leaves
    /// unchanged because the limit has a cost of its own or counts leases.
    #[inline(always)]
    fn push(&mut self, request: &ManyKeysRequest, denies: bool, decision: Decision) {
        let decision = match request.purpose {
            Purpose::Refund => Decision { verdict: Verdict::Allowed(Span::ZERO), ..decision },
            Purpose::Charge | Purpose::Peek | Purpose::Settle => decision,
        };
        let affects_wait = match (self.allowed, request.purpose) {
            (true, _) => decision.verdict.allowed(),
            // No key denies a settlement. It fails if no key has the record, and then every verdict is `Never`.
            (false, Purpose::Settle) => true,
            (false, _) => denies,
        };
        if affects_wait {
            self.longest_wait = self.longest_wait.max(Some(decision.verdict));
        }
        self.rows.push(Row::decision(&decision));
    }
}

/// Returns `true` if a call as a whole is granted. A settlement is granted if its idempotency key is recorded at any of
/// its keys.
#[inline(always)]
fn is_allowed<'e, 's: 'e, 'a: 's>(
    request: &ManyKeysRequest,
    mut evaluations: impl Iterator<Item = &'e EvaluatedRequest<'s, 'a>>,
) -> bool {
    match request.purpose {
        Purpose::Settle => evaluations.any(KeyEvaluation::has_record),
        Purpose::Refund => true,
        Purpose::Charge | Purpose::Peek => !evaluations.any(KeyEvaluation::denies),
    }
}

/// Answers a call that changes nothing.
///
/// # Errors
/// Returns an error if a key holds another type, or the call would exceed a maximum per key.
pub fn peek_keys(redis: &mut Redis, request: &ManyKeysRequest, now: Timestamp) -> Result<KeysAnswer, Error> {
    let mut evaluated_keys = Vec::with_capacity(request.keys.len());
    for (index, key_request) in &request.keys {
        let key = redis.peek(*index)?;
        let evaluated = evaluate(key.contents(), request, key_request, now, || false)?;
        let decision = evaluated.answer(key.contents(), now).ok_or(Error::Internal)?;
        evaluated_keys.push((evaluated, decision));
    }
    let evaluations = || evaluated_keys.iter().map(|(evaluated, _)| evaluated);
    let mut answer = KeysAnswer::of(request, is_allowed(request, evaluations()));
    if answer.allowed {
        evaluations().try_for_each(KeyEvaluation::check_room)?;
    }
    for (evaluated, decision) in &evaluated_keys {
        answer.push(request, evaluated.denies(), *decision);
    }
    Ok(answer)
}

/// Decides a call, and charges it at all of its keys if all grant it. `policies` has the policy that sets the limits of
/// each key, or `None`.
///
/// # Errors
/// Returns an error if a key holds another type, or the call would exceed a maximum per key, or there is no memory for
/// it.
pub fn charge_keys(
    redis: &mut Redis,
    request: &ManyKeysRequest,
    policies: &[Option<Rc<EffectivePolicy>>],
    now: Timestamp,
) -> Result<KeysAnswer, Error> {
    let mut keys = EvaluatedKeys::new();
    evaluate_keys(redis, request, now, &mut keys)?;
    let evaluations = || keys.iter().map(|key| &key.evaluated);
    let mut answer = KeysAnswer::of(request, is_allowed(request, evaluations()));
    let (allowed, is_denied_peek) = (answer.allowed, !answer.allowed && request.is_peek());
    if allowed {
        check_room_and_memory(redis, evaluations())?;
    }
    count_call(redis, allowed, is_denied_peek);
    for (position, EvaluatedKey { closed, evaluated }) in keys.drain(..).enumerate() {
        let policy = policies.get(position).and_then(Option::as_deref);
        let denies = evaluated.denies();
        let records_denial = count_key(&evaluated, allowed, is_denied_peek);
        if records_denial {
            redis.record_denial(closed.index, evaluated.item(), policy.map(|policy| &policy.name), now);
        }
        let changes_key = evaluated.changes_key(allowed);
        let count = policy.map(|policy| {
            move |outcome: CountedOutcome| {
                // If only other keys denied the call, this policy neither admitted nor denied it: it counts as a call
                // only.
                let charges = outcome.charges && (allowed || denies);
                policy.counts.count(&CountedOutcome { charges, ..outcome });
            }
        });
        let decision = evaluated.commit(ClosedTarget { redis, key: &closed }, changes_key, count, now);
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

/// Opens, evaluates and closes every key of a call.
#[inline(always)]
fn evaluate_keys<'s, 'a, 'c>(
    redis: &mut Redis<'c>,
    request: &'s ManyKeysRequest<'a>,
    now: Timestamp,
    keys: &mut EvaluatedKeys<'s, 'a, 'c>,
) -> Result<(), Error> {
    for (index, _) in &request.keys {
        redis.delete_if_expired(*index)?;
    }
    for key in &request.keys {
        evaluate_key(redis, request, key, now, keys)?;
    }
    if !keys.iter().all(|key| redis.is_current(&key.closed)) {
        evaluate_again(redis, request, now, keys)?;
    }
    Ok(())
}

/// Opens a key, evaluates it, and closes it.
#[inline(always)]
fn evaluate_key<'s, 'a, 'c>(
    redis: &mut Redis<'c>,
    request: &ManyKeysRequest<'a>,
    (index, key_request): &'s (KeyIndex, KeyRequest<'a>),
    now: Timestamp,
    keys: &mut EvaluatedKeys<'s, 'a, 'c>,
) -> Result<(), Error> {
    let key = redis.open(*index)?;
    let out_of_memory = || key.redis().out_of_memory();
    let evaluated = evaluate(key.contents(), request, key_request, now, out_of_memory)?;
    keys.push(EvaluatedKey { closed: key.close(evaluated.may_write(), now), evaluated });
    Ok(())
}

/// Evaluates the keys again, after other modules may have run. Expired keys have been deleted by now. Missing keys are
/// opened first, because opening a missing key lets other modules run. The keys that exist cannot change after that.
#[cold]
#[inline(never)]
fn evaluate_again<'s, 'a, 'c>(
    redis: &mut Redis<'c>,
    request: &'s ManyKeysRequest<'a>,
    now: Timestamp,
    keys: &mut EvaluatedKeys<'s, 'a, 'c>,
) -> Result<(), Error> {
    for missing in [true, false] {
        for (key, name_and_request) in keys.iter_mut().zip(&request.keys) {
            if key.closed.missing == missing {
                let mut evaluated = SmallVec::new();
                evaluate_key(redis, request, name_and_request, now, &mut evaluated)?;
                *key = evaluated.pop().ok_or(Error::Internal)?;
            }
        }
    }
    Ok(())
}
