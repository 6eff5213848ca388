//! Serving a queue: its head is evaluated like a new call. If there is room, it is charged and answered, and the next
//! call becomes the head, until one has to keep waiting.
//!
//! The evaluation of a denied head returns the wait after which it may be granted. The timer is armed for then, unless
//! an event of the key comes first. A call whose wait has ended is evaluated and answered like a new call.

use super::timer_run::TimerRun;
use super::{fencing, queue_order};
use crate::charge;
use crate::redis::{Redis, permissions};
use crate::reply::Reply;
use crate::server::Global;
use crate::server::queues::{Caller, Grant, QueueKey, WaitingCall};
use ratelimit_core::syntax::KeyRequest;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Timestamp, Verdict};

/// Answers those calls waiting for a lease of a key that can be answered, until the work of the run is used up.
pub fn serve(redis: &mut Redis, index: KeyIndex, key: &QueueKey, run: &mut TimerRun) {
    let (queues, now) = (&redis.global.queues, run.now);
    if queues.is_behind_clock(key) && run.may_grant() {
        charge::follow_clock(redis, index, now);
        // The event is announced now, not after the evaluation: it marks the key as changed, and other modules may run.
        redis.finish();
        queues.followed_clock(key);
    }
    while run.has_budget() {
        // Replaced calls come first: after the later call of the holder was granted, this one would be a renewal.
        if let Some(call) = queues.replaced(key) {
            decide(redis, index, key, &call, AnswerReason::WaitEnded, run);
        } else if let Some(head) = queues.head(key)
            && let Some(reason) = answer_reason(redis, index, key, &head, run)
        {
            decide(redis, index, key, &head, reason, run);
        } else if let Some(call) = queues.overdue(key, now) {
            // If the head is denied, the next call becomes the head and may be granted.
            queues.timed_out.count();
            decide(redis, index, key, &call, AnswerReason::WaitEnded, run);
        } else {
            return queues.clear_changed(key);
        }
        run.add_work(1);
    }
    // The queues of other keys are served first.
    queues.mark_changed(key.db, &key.name);
}

/// Reason for which a waiting call is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerReason {
    /// There is room for the call.
    Room,
    /// The call can never be granted: it costs more than the limit, or the key holds another type.
    Never,
    /// The wait of the call has ended.
    WaitEnded,
}

/// Returns the reason for which the head of a key's queue is to be answered; `None` if it has to keep waiting.
fn answer_reason(
    redis: &mut Redis,
    index: KeyIndex,
    key: &QueueKey,
    head: &WaitingCall,
    run: &mut TimerRun,
) -> Option<AnswerReason> {
    let now = run.now;
    let after = match peek(redis, index, &head.claim.request(head.limit, false), now) {
        Ok(Decision { verdict: Verdict::After(wait), .. }) => Some(wait),
        Ok(Decision { verdict: Verdict::Allowed(_), .. }) if run.may_grant() => return Some(AnswerReason::Room),
        Ok(Decision { verdict: Verdict::Allowed(_), .. }) => {
            redis.global.queues.pause_granting();
            None
        }
        Ok(Decision { verdict: Verdict::Never, .. }) | Err(_) => return Some(AnswerReason::Never),
    };
    redis.global.queues.set_head_due(key, after, now);
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
    redis.stats = call.caller.stats;
    let mut request = call.claim.request(call.limit, call.callers_wait_ahead);
    let passes = match reason {
        AnswerReason::Room => true,
        AnswerReason::Never => false,
        AnswerReason::WaitEnded => peek(redis, index, &request, now).is_ok_and(|decision| decision.verdict.allowed()),
    };
    if passes && !may_acquire(redis, index, &call.caller) {
        return end_wait(redis.global, key, call, Err(Error::NoPermission), None, true, now);
    }
    // A denial writes too if it shifts timestamps after the clock moved backwards.
    let writes = passes || redis.global.queues.is_behind_clock(key);
    if !(if writes { run.may_grant() } else { permissions::may_propagate_now() }) {
        redis.stats.decided(false);
        let denied = deny(redis, index, call, now);
        return end_wait(redis.global, key, call, denied, None, true, now);
    }
    if call.claim.is_fenced() {
        fencing::assign_token(redis, &mut request, now);
    }
    let renews = charge::lease_until(redis, index, call.claim.holder(), now).is_some();
    let decided = charge(redis, index, &request, now);
    redis.finish();
    // Other modules, notified of an expired key, may have taken the free room: then the call stays in the queue.
    let has_to_wait = matches!(decided, Ok(Decision { verdict: Verdict::After(_), .. }));
    if reason == AnswerReason::WaitEnded || !has_to_wait {
        let reply = decided.as_ref().ok().map(|decision| fencing::reply(redis, index, &request, decision, now));
        end_wait(redis.global, key, call, decided, reply, renews, now);
    }
}

/// Answers a call whose wait has ended, and removes it from its queue.
fn end_wait(
    global: &Global,
    key: &QueueKey,
    call: &WaitingCall,
    decided: Result<Decision, Error>,
    reply: Option<Reply>,
    renews: bool,
    now: Timestamp,
) {
    let allowed = decided.as_ref().is_ok_and(|decision| decision.verdict.allowed());
    if allowed {
        global.queues.served.count();
    }
    // A lease that was only renewed must not be released if the answer is lost: the holder had it before.
    let grant = (allowed && !renews).then(|| Grant {
        key: key.clone(),
        holder: call.claim.holder().into(),
        expires_at: call.claim.expires_at(now),
    });
    let reply = decided.map(|decision| reply.unwrap_or_else(|| denied(call, &decision)));
    match (global.queues.leave(key, call.place), grant) {
        (Some(waiter), grant) => global.outbox.answer(waiter.client, reply, grant),
        // The client has disconnected while other modules ran.
        (None, Some(grant)) => global.queues.queue_release(grant),
        (None, None) => {}
    }
}

/// Returns the reply to a call that is granted nothing.
pub fn denied(call: &WaitingCall, decision: &Decision) -> Reply {
    if call.claim.is_fenced() { Reply::fenced(decision, 0) } else { Reply::decision(decision) }
}

/// Returns the decision on a waiting call that is to be denied even if there is room, because nothing can be written
/// now or because its client has ended the wait.
pub fn deny(redis: &mut Redis, index: KeyIndex, call: &WaitingCall, now: Timestamp) -> Result<Decision, Error> {
    let mut request = call.claim.request(call.limit, true);
    let decision = peek(redis, index, &request, now)?;
    if !decision.verdict.allowed() {
        return Ok(decision);
    }
    // The holder has a lease already, or is being granted one that will be released: a call with NX is denied then.
    for spec in queue_order::specs(&mut request) {
        spec.nx = true;
    }
    peek(redis, index, &request, now)
}

/// Returns `true` if the user of a waiting call may still run RL.ACQUIRE on its key.
fn may_acquire(redis: &Redis, index: KeyIndex, caller: &Caller) -> bool {
    caller.user.as_deref().is_none_or(|user| permissions::may_acquire(redis, user, index))
}

/// Returns the decision on a call without charging it.
fn peek(redis: &mut Redis, index: KeyIndex, request: &KeyRequest, now: Timestamp) -> Result<Decision, Error> {
    charge::peek(redis, index, request, now).map(|answer| answer.decision)
}

/// Charges a call if its limit permits; returns the decision.
fn charge(redis: &mut Redis, index: KeyIndex, request: &KeyRequest, now: Timestamp) -> Result<Decision, Error> {
    charge::charge(redis, index, request, None, now).map(|answer| answer.decision)
}
