//! A call on several keys, all or nothing.
//!
//! Every key is evaluated before any is charged, in one instant, and what changes travels as one effect. Keys are
//! opened one after another: others may run when a later one is opened, and change an earlier one. So a key is
//! evaluated again if they may have.

use super::commit::Closed;
use super::evaluated_request::{EvaluatedRequest, evaluate};
use super::key_evaluation::{KeyEvaluation, check, count_call, count_key};
use super::policy_outcome::rule;
use crate::redis::Redis;
use crate::redis::key::ClosedKey;
use crate::reply::Row;
use crate::server::policy_table::Ruling;
use ratelimit_core::policy::CountedOutcome;
use ratelimit_core::syntax::{KeyRequest, ManyKeysRequest, Purpose};
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Span, Timestamp, Verdict};
use std::rc::Rc;

/// The answer to a call on several keys.
pub struct KeysAnswer {
    /// Whether the call as a whole may go on.
    pub allowed: bool,
    /// If all passed, the longest hold (a FORCE that did not fit has passed, and its wait is no hold); else the longest
    /// wait of those that stood in the way. `None` if there is neither.
    pub wait: Option<Verdict>,
    /// Each key's decision.
    pub rows: Vec<Row>,
}

impl KeysAnswer {
    fn of(request: &ManyKeysRequest, allowed: bool) -> KeysAnswer {
        KeysAnswer { allowed, wait: None, rows: Vec::with_capacity(request.keys.len()) }
    }

    /// Adds the decision of a key, as the call is told it: nothing denies a give-back, or has it wait, not even what it
    /// only looks at.
    fn push(&mut self, request: &ManyKeysRequest, key: &EvaluatedRequest, decision: Decision) {
        let decision = match request.purpose {
            Purpose::GiveBack => Decision { verdict: Verdict::Allowed(Span::ZERO), ..decision },
            Purpose::Charge | Purpose::Check | Purpose::Settle => decision,
        };
        let counts = match (self.allowed, request.purpose) {
            (true, _) => decision.verdict.allowed(),
            (false, Purpose::Settle) => true,
            (false, _) => key.denies(),
        };
        if counts {
            self.wait = self.wait.max(Some(decision.verdict));
        }
        self.rows.push(Row::decision(&decision));
    }
}

/// Whether a call as a whole may go on. A settlement may if any key knows its id.
fn is_allowed<'e, 's: 'e, 'a: 's>(
    request: &ManyKeysRequest,
    mut keys: impl Iterator<Item = &'e EvaluatedRequest<'s, 'a>>,
) -> bool {
    match request.purpose {
        Purpose::Settle => keys.any(KeyEvaluation::knows),
        Purpose::GiveBack => true,
        Purpose::Charge | Purpose::Check => !keys.any(KeyEvaluation::denies),
    }
}

/// The answer to a call that changes nothing.
pub fn peek_keys(redis: &mut Redis, request: &ManyKeysRequest, now: Timestamp) -> Result<KeysAnswer, Error> {
    let mut peeked = Vec::with_capacity(request.keys.len());
    for (name, of_key) in &request.keys {
        let key = redis.peek(*name)?;
        let evaluated = evaluate(key.contents(), request, of_key, now, || false)?;
        let answer = evaluated.answer(key.contents(), now).ok_or(Error::Internal)?;
        peeked.push((evaluated, answer.decision));
    }
    let keys = || peeked.iter().map(|(evaluated, _)| evaluated);
    let mut answer = KeysAnswer::of(request, is_allowed(request, keys()));
    if answer.allowed {
        keys().try_for_each(KeyEvaluation::check_room)?;
    }
    for (evaluated, decision) in &peeked {
        answer.push(request, evaluated, *decision);
    }
    Ok(answer)
}

/// The answer to a call that is charged on all of its keys if all allow it. Policies may have asked for limits of some.
pub fn charge_keys(
    redis: &mut Redis,
    request: &ManyKeysRequest,
    rulings: &[Option<Rc<Ruling>>],
    now: Timestamp,
) -> Result<KeysAnswer, Error> {
    let keys = evaluate_keys(redis, request, now)?;
    let evaluated = || keys.iter().map(|key| &key.evaluated);
    let mut answer = KeysAnswer::of(request, is_allowed(request, evaluated()));
    let (allowed, looks) = (answer.allowed, request.only_looks());
    if allowed {
        check(redis, evaluated())?;
    }
    count_call(redis, allowed, looks);
    for (place, EvaluatedKey { closed, evaluated }) in keys.iter().enumerate() {
        if count_key(evaluated, allowed, looks) {
            redis.denied(closed.name(), evaluated.item(), now);
        }
        let changes_key = evaluated.changes_key(allowed);
        let of_key = evaluated.commit(Closed { redis, key: *closed }, changes_key, now);
        rule(redis, rulings.get(place).and_then(Option::as_deref), || {
            let outcome = evaluated.outcome(&of_key);
            // One that others denied has not been admitted by this policy.
            CountedOutcome { charges: outcome.charges && (allowed || evaluated.denies()), ..outcome }
        });
        answer.push(request, evaluated, of_key.decision);
    }
    Ok(answer)
}

/// A key that was evaluated, and closed.
struct EvaluatedKey<'s, 'a> {
    closed: ClosedKey,
    evaluated: EvaluatedRequest<'s, 'a>,
}

/// Evaluates every key.
fn evaluate_keys<'s, 'a>(
    redis: &mut Redis,
    request: &'s ManyKeysRequest<'a>,
    now: Timestamp,
) -> Result<Vec<EvaluatedKey<'s, 'a>>, Error> {
    let mut keys = Vec::with_capacity(request.keys.len());
    for (name, _) in &request.keys {
        redis.expire_first(*name)?;
    }
    for key in &request.keys {
        keys.push(EvaluatedKey::of(redis, request, key, now)?);
    }
    if keys.iter().all(|key| redis.still_holds(&key.closed)) {
        return Ok(keys);
    }
    // Whatever expired has been deleted by now. First those that are missing, whose opening says that others may run;
    // those that are there then stay as they are found.
    for missing in [true, false] {
        for (key, of_key) in keys.iter_mut().zip(&request.keys) {
            if key.closed.is_missing() == missing {
                *key = EvaluatedKey::of(redis, request, of_key, now)?;
            }
        }
    }
    Ok(keys)
}

impl<'s, 'a> EvaluatedKey<'s, 'a> {
    fn of(
        redis: &mut Redis,
        request: &ManyKeysRequest<'a>,
        (name, of_key): &'s (KeyName, KeyRequest<'a>),
        now: Timestamp,
    ) -> Result<EvaluatedKey<'s, 'a>, Error> {
        let key = redis.open(*name)?;
        let out_of_memory = || key.redis().out_of_memory();
        let evaluated = evaluate(key.contents(), request, of_key, now, out_of_memory)?;
        Ok(EvaluatedKey { closed: key.close(evaluated.may_write(), now), evaluated })
    }
}
