//! Serving a queue: its head is evaluated as a call would be that came now. If there is room it is charged and
//! answered, and the next call is the head, until one has to wait on.
//!
//! A head that is denied for now says when it may pass; then the timer comes back, unless something happens to the key
//! before. A call that waits no longer is answered as a call would be that came now.

use super::turn::Turn;
use super::{fenced, queue_order};
use crate::charge;
use crate::redis::{Redis, acl, write_permission};
use crate::reply::Reply;
use crate::server::Global;
use crate::server::queues::{Caller, Grant, QueueKey, WaitingCall};
use ratelimit_core::syntax::KeyRequest;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Decision, Timestamp, Verdict};

/// Answers the calls that wait for a lease of a key and can be answered, as long as the turn goes on.
pub fn serve(redis: &mut Redis, name: KeyName, key: &QueueKey, turn: &mut Turn) {
    let (queues, now) = (&redis.global.queues, turn.now);
    if queues.is_behind_clock(key) && turn.may_grant() {
        charge::follow_clock(redis, name, now);
        // Other modules hear of it now, and not once the queue has been looked at.
        redis.finish();
        queues.followed_clock(key);
    }
    while turn.goes_on() {
        // First: once the later call of the same holder has its lease, this would be a renewal.
        if let Some(call) = queues.replaced(key) {
            decide(redis, name, key, &call, AnswerReason::Over, turn);
        } else if let Some(head) = queues.head(key)
            && let Some(reason) = its_turn(redis, name, key, &head, turn)
        {
            decide(redis, name, key, &head, reason, turn);
        } else if let Some(call) = queues.overdue(key, now) {
            // Once the head is denied, another is the head, and may pass.
            queues.timed_out.count();
            decide(redis, name, key, &call, AnswerReason::Over, turn);
        } else {
            return queues.looked_at(key);
        }
        turn.spend(1);
    }
    // The queues of other keys are served first.
    queues.touch(key.db, &key.name);
}

/// Reason for which a waiting call is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerReason {
    /// There is room for the call.
    Room,
    /// The call can never pass: it costs more than the limit, or the key holds something else.
    Never,
    /// The call waits no longer.
    Over,
}

/// Returns the reason for which the head of a key's queue is to be answered; `None` if it has to wait on.
fn its_turn(
    redis: &mut Redis,
    name: KeyName,
    key: &QueueKey,
    head: &WaitingCall,
    turn: &mut Turn,
) -> Option<AnswerReason> {
    let now = turn.now;
    let after = match peek(redis, name, &head.claim.request(head.limit, false), now) {
        Ok(Decision { verdict: Verdict::After(wait), .. }) => Some(wait),
        Ok(Decision { verdict: Verdict::Allowed(_), .. }) if turn.may_grant() => return Some(AnswerReason::Room),
        Ok(Decision { verdict: Verdict::Allowed(_), .. }) => {
            redis.global.queues.hold_up();
            None
        }
        Ok(Decision { verdict: Verdict::Never, .. }) | Err(_) => return Some(AnswerReason::Never),
    };
    redis.global.queues.head_due(key, after, now);
    None
}

/// Answers a call that waits as one would be answered that came now.
fn decide(redis: &mut Redis, name: KeyName, key: &QueueKey, call: &WaitingCall, reason: AnswerReason, turn: &mut Turn) {
    let now = turn.now;
    redis.stats = call.caller.stats;
    let mut request = call.claim.request(call.limit, call.callers_wait_ahead);
    let passes = match reason {
        AnswerReason::Room => true,
        AnswerReason::Never => false,
        AnswerReason::Over => peek(redis, name, &request, now).is_ok_and(|seen| seen.verdict.allowed()),
    };
    if passes && !may_acquire(redis, name, &call.caller) {
        return conclude(redis.global, key, call, Err(Error::NoPermission), None, true, now);
    }
    // A denial writes the clock that has gone back.
    let writes = passes || redis.global.queues.is_behind_clock(key);
    if !(if writes { turn.may_grant() } else { write_permission::may_be_propagated() }) {
        redis.stats.decided(false);
        let denied = deny(redis, name, call, now);
        return conclude(redis.global, key, call, denied, None, true, now);
    }
    if call.claim.is_fenced() {
        fenced::ask(redis, &mut request, now);
    }
    let renews = charge::lease_until(redis, name, call.claim.holder(), now).is_some();
    let decided = charge(redis, name, &request, now);
    redis.finish();
    // Other modules may have taken what was free, as they heard that a key had expired: then its turn comes once more.
    let has_to_wait = matches!(decided, Ok(Decision { verdict: Verdict::After(_), .. }));
    if reason == AnswerReason::Over || !has_to_wait {
        let reply = decided.as_ref().ok().map(|decision| fenced::reply(redis, name, &request, decision, now));
        conclude(redis.global, key, call, decided, reply, renews, now);
    }
}

/// Answers a call that waits no longer.
fn conclude(
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
    // What a renewal takes its holder had, or others hold by its name.
    let grant = (allowed && !renews).then(|| Grant {
        key: key.clone(),
        holder: call.claim.holder().into(),
        expires_at: call.claim.expires_at(now),
    });
    let reply = decided.map(|decision| reply.unwrap_or_else(|| denied(call, &decision)));
    match (global.queues.leave(key, call.place), grant) {
        (Some(waiter), grant) => global.outbox.answer(waiter.client, reply, grant),
        // It has gone while others ran.
        (None, Some(grant)) => global.queues.undelivered(grant),
        (None, None) => {}
    }
}

/// Returns the reply to a call that is granted nothing.
pub fn denied(call: &WaitingCall, decision: &Decision) -> Reply {
    if call.claim.is_fenced() { Reply::fenced(decision, 0) } else { Reply::decision(decision) }
}

/// The decision on a waiting call that is granted nothing, though there may be room: nothing can be written now, or it
/// is told not to wait.
pub fn deny(redis: &mut Redis, name: KeyName, call: &WaitingCall, now: Timestamp) -> Result<Decision, Error> {
    let mut request = call.claim.request(call.limit, true);
    let decision = peek(redis, name, &request, now)?;
    if !decision.verdict.allowed() {
        return Ok(decision);
    }
    // It has a lease already, perhaps one that it is being granted just now and that will be given back.
    for spec in queue_order::specs(&mut request) {
        spec.nx = true;
    }
    peek(redis, name, &request, now)
}

/// Returns `true` if the user of a waiting call may still run RL.ACQUIRE on its key.
fn may_acquire(redis: &Redis, name: KeyName, caller: &Caller) -> bool {
    caller.user.as_deref().is_none_or(|user| acl::may_acquire(redis, user, name))
}

/// The decision on a call that changes nothing.
fn peek(redis: &mut Redis, name: KeyName, request: &KeyRequest, now: Timestamp) -> Result<Decision, Error> {
    charge::peek(redis, name, request, now).map(|answer| answer.decision)
}

/// The decision on a call that is charged if its limit allows it.
fn charge(redis: &mut Redis, name: KeyName, request: &KeyRequest, now: Timestamp) -> Result<Decision, Error> {
    charge::charge(redis, name, request, None, now).map(|answer| answer.decision)
}
