//! Clients of waiting calls: start of a wait, and its end by the client.

use super::{queue_order, serve, timer};
use crate::charge;
use crate::redis::server_entry::ServerEntry;
use crate::redis::waiting_callbacks::UnblockedClient;
use crate::redis::{self, Redis, blocked, guard, key_events};
use crate::reply::Reply;
use crate::server::queues::{BlockedClient, ClientId, QueueKey, WaiterAnswer, WaitingCall};
use crate::server::{ModuleState, settings};
use ratelimit_core::queue::Claim;
use ratelimit_core::syntax::{Block, KeyRequest};
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Timestamp, Verdict};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Adds a call to the queue of its key if it would be denied for now and may wait. Returns `true` if the call waits;
/// then the caller must not send a reply.
pub fn wait(
    redis: &mut Redis,
    index: KeyIndex,
    request: &mut KeyRequest,
    block: Block,
    now: Timestamp,
) -> Result<bool, Error> {
    let timeout = match block {
        Block::No => return Ok(false),
        Block::For(span) => Some(span),
        Block::Forever => None,
    };
    if !blocked::may_block(redis)
        || !matches!(charge::peek(redis, index, request, now)?.decision.verdict, Verdict::After(_))
    {
        return Ok(false);
    }
    let [spec] = queue_order::specs(request) else { return Ok(false) };
    let Some(claim) = Claim::of(spec) else { return Ok(false) };
    let limit = spec.limit.raised_by(spec.keep).limit();
    charge::follow_clock(redis, index, now);
    let (queues, db, key) = (&redis.state.queues, redis.db(), redis.key_bytes(index));
    if !queues.is_waiting(db, key, claim.holder()) {
        settings::check_blocked(queues.waiter_count(db, key))?;
    }
    // Other modules may run now, but not after the client has been blocked, when no error can be sent to it.
    redis.finish();
    let key = QueueKey { db: redis.db(), name: Arc::from(redis.key_bytes(index)) };
    key_events::subscribe(redis.entry());
    let client = blocked::block(redis).ok_or(Error::Internal)?;
    redis.state.queues.join(&key, limit, claim, timeout, client, now);
    timer::arm(redis.entry());
    Ok(true)
}

/// Returns the holders in a call of RL.RELEASE that wait for a lease of a key and have none to release. A holder that
/// disconnects may send its release on another connection, which may arrive before the disconnection: a lease granted
/// in between would have no owner.
pub fn holders_waiting_without_lease<'h>(
    redis: &mut Redis,
    index: KeyIndex,
    holders: &[&'h [u8]],
    now: Timestamp,
) -> Vec<&'h [u8]> {
    let waits =
        |redis: &Redis, holder: &[u8]| redis.state.queues.is_waiting(redis.db(), redis.key_bytes(index), holder);
    let mut waiting = if redis.state.queues.has_waiters() { holders.to_vec() } else { Vec::new() };
    waiting.retain(|holder| waits(redis, holder) && charge::lease_until(redis, index, holder, now).is_none());
    waiting
}

/// Denies the waiting call of a holder at a key; does nothing if the holder does not wait.
pub fn deny(redis: &mut Redis, index: KeyIndex, holder: &[u8], now: Timestamp) {
    if let Some((call, client)) = redis.state.queues.remove_holder(redis.db(), redis.key_bytes(index), holder) {
        let denial = denial(redis, index, &call, now);
        redis.state.outbox.answer(client, denial, None);
        timer::arm(redis.entry());
    }
}

/// State of a wait that a client has ended.
enum EndedWait {
    Waiting(WaitingCall),
    Answered(Box<WaiterAnswer>),
}

/// Removes a client from the queues, or from the outbox. Returns `None` if it has been handed back already.
fn remove_client(state: &ModuleState, id: ClientId) -> Option<(BlockedClient, EndedWait)> {
    if let Some((call, client)) = state.queues.remove_client(id) {
        return Some((client.blocked, EndedWait::Waiting(call)));
    }
    let (blocked, answer) = state.outbox.take(id)?;
    Some((blocked, EndedWait::Answered(answer)))
}

/// Ends the wait of a client that has disconnected.
pub fn client_disconnected(entry: ServerEntry, id: ClientId) {
    let Some((blocked, ended)) = remove_client(entry.state, id) else { return };
    blocked.hand_back(None);
    match ended {
        EndedWait::Waiting(_) => timer::arm(entry),
        EndedWait::Answered(answer) => answer_lost(entry, *answer),
    }
}

/// Ends the wait of a client that CLIENT UNBLOCK unblocks. Returns the client and its reply, or `None` if the
/// client has been handed back already.
pub fn client_unblocked(redis: &mut Redis, id: ClientId) -> Option<UnblockedClient> {
    let (blocked, ended) = remove_client(redis.state, id)?;
    redis.stats = match &ended {
        EndedWait::Waiting(call) => call.origin.stats,
        EndedWait::Answered(answer) => answer.stats,
    };
    let reply = guard::catch_panic(None, || {
        guard::panic_test_point();
        Some(match &ended {
            // The key is the first argument of RL.ACQUIRE.
            EndedWait::Waiting(call) => denial(redis, KeyIndex(1), call, redis::now()),
            EndedWait::Answered(answer) => answer.reply.clone(),
        })
    });
    let entry = redis.entry();
    guard::catch_panic((), || match ended {
        EndedWait::Answered(answer) if reply.is_none() => answer_lost(entry, *answer),
        EndedWait::Waiting(_) | EndedWait::Answered(_) => timer::arm(entry),
    });
    Some((blocked, reply.unwrap_or(Err(Error::Internal))))
}

/// Queues the release of the lease that an answer grants, as the answer was not sent.
pub fn answer_lost(entry: ServerEntry, answer: WaiterAnswer) {
    if let Some(grant) = answer.grant {
        entry.state.queues.queue_release(grant);
        timer::arm(entry);
    }
}

/// Returns the reply to a call that was taken out of its queue and is granted nothing.
fn denial(redis: &mut Redis, index: KeyIndex, call: &WaitingCall, now: Timestamp) -> Result<Reply, Error> {
    let denial = catch_unwind(AssertUnwindSafe(|| serve::deny_call(redis, index, call, now)));
    call.origin.stats.count_decision(false);
    denial.unwrap_or(Err(Error::Internal)).map(|decision| serve::denial_reply(call, &decision))
}
