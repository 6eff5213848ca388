//! Serving a queue: its head is evaluated like a new call. If there is room, it is charged and answered, and the next
//! call becomes the head, until one has to keep waiting.
//!
//! The evaluation of a denied head returns the wait after which it may be granted. The timer is armed for that instant;
//! an event of the key may come first. A call whose BLOCK timeout has passed is evaluated and answered like a new call.

use super::queue_order;
use super::timer::TimerRun;
use crate::charge;
use crate::redis::{Redis, permissions};
use crate::reply::Reply;
use crate::server::ModuleState;
use crate::server::queues::{Grant, QueueKey, WaitingCall};
use ratelimit_core::syntax::KeyRequest;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Timestamp, Verdict};
use std::sync::Arc;

/// Answers the waiting calls of a key, as far as they can be answered now and the budget of the run allows.
pub fn serve(redis: &mut Redis, index: KeyIndex, key: &QueueKey, run: &mut TimerRun) {
    let (queues, now) = (&redis.state.queues, run.now);
    if queues.has_to_follow_clock(key) && run.may_grant() {
        charge::follow_clock(redis, index, now);
        // The event of the shift is announced now, not after the evaluation: it marks the key as changed, and other
        // modules may run.
        redis.finish();
        queues.mark_clock_followed(key);
    }
    while run.has_budget() {
        // A call whose holder has called again is answered first: if the later call were granted first, the earlier one
        // would count as a renewal.
        if let Some(call) = queues.replaced_call(key) {
            decide(redis, index, key, &call, AnswerReason::WaitEnded, run);
        } else if let Some(head) = queues.head(key)
            && let Some(reason) = evaluate_head(redis, index, key, &head, run)
        {
            decide(redis, index, key, &head, reason, run);
        } else if let Some(call) = queues.overdue_call(key, now) {
            // One at a time: if the call is the head, the next call becomes the head and may be granted.
            queues.timed_out.count();
            decide(redis, index, key, &call, AnswerReason::WaitEnded, run);
        } else {
            return queues.clear_changed(key);
        }
        run.add_work(1);
    }
    // The rest of this queue is served after the queues of other keys.
    queues.mark_changed(key.db, &key.name);
}

/// Reason for which a waiting call is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerReason {
    /// There is room for the call.
    Room,
    /// The call can never be granted, as it costs more than the limit; or its evaluation fails, for example because the
    /// key holds another type or has too many entries.
    Never,
    /// The BLOCK timeout of the call has passed, or its holder has called again.
    WaitEnded,
}

/// Evaluates the head of a key's queue, and returns the reason for which it is to be answered. If it has to keep
/// waiting, returns `None` and sets the instant of the next evaluation. Pauses granting if the server accepts no
/// writes.
fn evaluate_head(
    redis: &mut Redis,
    index: KeyIndex,
    key: &QueueKey,
    head: &WaitingCall,
    run: &mut TimerRun,
) -> Option<AnswerReason> {
    let now = run.now;
    let after = match peek_decision(redis, index, &head.claim.request(head.limit, false), now) {
        Ok(Decision { verdict: Verdict::After(wait), .. }) => Some(wait),
        Ok(Decision { verdict: Verdict::Allowed(_), .. }) if run.may_grant() => return Some(AnswerReason::Room),
        Ok(Decision { verdict: Verdict::Allowed(_), .. }) => {
            redis.state.queues.is_granting_paused.set(true);
            None
        }
        Ok(Decision { verdict: Verdict::Never, .. }) | Err(_) => return Some(AnswerReason::Never),
    };
    redis.state.queues.set_head_due(key, after, now);
    None
}

/// Evaluates and answers a waiting call like a new call.
fn decide(
    redis: &mut Redis,
    index: KeyIndex,
    key: &QueueKey,
    call: &WaitingCall,
    reason: AnswerReason,
    run: &mut TimerRun,
) {
    let now = run.now;
    redis.stats = call.origin.stats;
    let mut request = call.claim.request(call.limit, call.has_waiters_ahead);
    let has_room = match reason {
        AnswerReason::Room => true,
        AnswerReason::Never => false,
        AnswerReason::WaitEnded => {
            peek_decision(redis, index, &request, now).is_ok_and(|decision| decision.verdict.allowed())
        }
    };
    let may_acquire = |user: &Arc<[u8]>| permissions::may_acquire(redis, user, index);
    if has_room && !call.origin.user.as_ref().is_none_or(may_acquire) {
        return end_wait(redis.state, key, call, Err(Error::NoPermission), None, false, now);
    }
    // A denial writes too if it shifts timestamps after the clock moved backwards.
    let writes = has_room || redis.state.queues.has_to_follow_clock(key);
    if !(if writes { run.may_grant() } else { permissions::may_propagate_now() }) {
        redis.stats.count_decision(false);
        let denied = deny_call(redis, index, call, now);
        return end_wait(redis.state, key, call, denied, None, false, now);
    }
    if call.claim.is_fenced {
        assign_token(redis, &mut request, now);
    }
    let is_new_lease = charge::lease_until(redis, index, call.claim.holder(), now).is_none();
    let outcome = charge::charge(redis, index, &request, None, now).map(|answer| answer.decision);
    redis.finish();
    // Other modules, notified of an expired key, may have taken the free room: then the call stays in the queue.
    let has_to_wait = matches!(outcome, Ok(Decision { verdict: Verdict::After(_), .. }));
    if reason == AnswerReason::WaitEnded || !has_to_wait {
        let reply = outcome.as_ref().ok().map(|decision| reply_with_token(redis, index, &request, decision, now));
        end_wait(redis.state, key, call, outcome, reply, is_new_lease, now);
    }
}

/// Answers a waiting call and removes it from its queue. `is_new_lease` is `false` if the call is granted no lease, or
/// renews one.
fn end_wait(
    state: &ModuleState,
    key: &QueueKey,
    call: &WaitingCall,
    outcome: Result<Decision, Error>,
    reply: Option<Reply>,
    is_new_lease: bool,
    now: Timestamp,
) {
    let allowed = outcome.as_ref().is_ok_and(|decision| decision.verdict.allowed());
    if allowed {
        state.queues.served.count();
    }
    // A lease that was only renewed must not be released if the answer is lost: the holder had it before.
    let grant = (allowed && is_new_lease).then(|| Grant {
        key: key.clone(),
        holder: call.claim.holder().into(),
        expires_at: call.claim.expires_at(now),
    });
    let reply = outcome.map(|decision| reply.unwrap_or_else(|| denial_reply(call, &decision)));
    match (state.queues.leave(key, call.place), grant) {
        (Some(waiter), grant) => state.outbox.answer(waiter.client, reply, grant),
        // The client has disconnected while other modules ran.
        (None, Some(grant)) => state.queues.queue_release(grant),
        (None, None) => {}
    }
}

/// Returns the reply to a call that is granted nothing.
pub fn denial_reply(call: &WaitingCall, decision: &Decision) -> Reply {
    if call.claim.is_fenced { Reply::fenced(decision, 0) } else { Reply::decision(decision) }
}

/// Returns the decision on a waiting call that is to be denied even if there is room, because nothing can be written
/// now, or because RL.RELEASE or CLIENT UNBLOCK has ended its wait.
pub fn deny_call(redis: &mut Redis, index: KeyIndex, call: &WaitingCall, now: Timestamp) -> Result<Decision, Error> {
    let mut request = call.claim.request(call.limit, true);
    let decision = peek_decision(redis, index, &request, now)?;
    if !decision.verdict.allowed() {
        return Ok(decision);
    }
    // With waiters ahead, only a renewal is allowed: the holder has a lease, maybe one that is about to be released. A
    // call with NX is denied then.
    for spec in queue_order::specs(&mut request) {
        spec.nx = true;
    }
    peek_decision(redis, index, &request, now)
}

/// Returns the decision on a call without charging it.
fn peek_decision(redis: &mut Redis, index: KeyIndex, request: &KeyRequest, now: Timestamp) -> Result<Decision, Error> {
    charge::peek(redis, index, request, now).map(|answer| answer.decision)
}

/// Adds a new fencing token to a call. The lease gets it unless it has a token already. An unused token is harmless, as
/// the next one is larger.
#[cold]
pub fn assign_token(redis: &Redis, request: &mut KeyRequest, now: Timestamp) {
    let token = redis.state.fencing.next(now);
    for spec in queue_order::specs(request) {
        spec.fence = token;
    }
}

/// Returns the reply to a call: with FENCE also the token of the lease that its holder has, or 0 if it is denied.
pub fn reply_with_token(
    redis: &mut Redis,
    index: KeyIndex,
    request: &KeyRequest,
    decision: &Decision,
    now: Timestamp,
) -> Reply {
    let spec = match request {
        KeyRequest::One(spec) => Some(spec),
        KeyRequest::Composite(call) => call.specs.first(),
        KeyRequest::Policy(_) => None,
    };
    let Some(spec) = spec.filter(|spec| spec.fence.is_some()) else { return Reply::decision(decision) };
    let token =
        if decision.verdict.allowed() { charge::lease_token(redis, index, spec.holder_or_item, now) } else { 0 };
    Reply::fenced(decision, token)
}
