//! Work of a run of the timer: evaluating queues, releasing leases, and handing clients back.
//!
//! Waiting calls are served from a timer of the module, never inside another call, a notification or a script: there, a
//! change would be propagated with the slot, or at the position, of the running command. The timer runs before the
//! next call is read.

use super::serve;
use super::timer::{self, MAX_WORK, TimerRun};
use crate::charge;
use crate::redis::server_entry::ServerEntry;
use crate::redis::{Redis, cluster_slots, guard};
use crate::server::ModuleState;
use crate::server::queues::{Grant, QueueKey, WaitingCall, Work};
use ratelimit_core::wire::error::Error;

/// Work of finding the node that owns a key, in the units of [`MAX_WORK`].
const REDIRECTION_WORK: usize = 25;

/// Does the work of one run of the timer. A panic ends only the item of work that caused it.
pub fn run(entry: ServerEntry) {
    let ModuleState { queues, .. } = entry.state;
    timer::mark_fired(entry);
    let run = &mut TimerRun::new(entry);
    while run.has_budget()
        && let Some(work) = guard::catch_panic(None, || queues.next_work(run.now))
    {
        let work_before = run.work_done();
        guard::catch_panic((), || match work {
            Work::Evaluation(key) => evaluate_queue(run, &key),
            Work::LeaseRelease(grant) => release_undelivered(run, grant),
        });
        // Answers have been counted; an evaluation without an answer counts as one.
        run.raise_work_to(work_before.saturating_add(1));
    }
    let work_done = u64::try_from(run.work_done().max(hand_back_answered(entry.state))).unwrap_or(u64::MAX);
    queues.max_work.set(queues.max_work.get().max(work_done));
    guard::catch_panic((), || timer::arm(entry));
}

/// Hands the clients of answered calls back to the server; returns their number.
fn hand_back_answered(state: &ModuleState) -> usize {
    let answered = std::iter::from_fn(|| state.outbox.next());
    answered.take(MAX_WORK).map(|(client, answer)| client.hand_back(Some(answer))).count()
}

/// Releases a lease that was granted to a client that had disconnected, unless its holder has renewed it since. If the
/// server does not accept writes, the release is queued again.
fn release_undelivered(run: &mut TimerRun, grant: Grant) {
    let Grant { key, holder, expires_at } = &grant;
    if run.may_grant() {
        Redis::in_background(run.entry, key.db, &key.name, |redis, index| {
            // An error means that the key now holds another type, without this lease.
            drop(charge::release(redis, index, &[holder], Some(*expires_at), run.now));
        });
    } else {
        let queues = &run.entry.state.queues;
        queues.is_granting_paused.set(true);
        queues.queue_release(grant);
    }
}

/// Evaluates the queue of one key.
fn evaluate_queue(run: &mut TimerRun, key: &QueueKey) {
    let (entry, mut redirection) = (run.entry, None);
    let queues = &entry.state.queues;
    queues.evaluations.count();
    let completed = Redis::in_background(entry, key.db, &key.name, |redis, index| {
        redirection = cluster_slots::redirection(redis, index);
        if redirection.is_none() {
            serve::serve(redis, index, key, run);
        }
    });
    if let Some(error) = redirection {
        run.add_work(REDIRECTION_WORK);
        while let Some(call) = queues.head(key).or_else(|| queues.replaced_call(key)) {
            if !run.has_budget() {
                // Other keys are served first.
                queues.mark_changed(key.db, &key.name);
                break;
            }
            run.add_work(1);
            reject(entry.state, key, &call, error.clone());
        }
    } else if let (false, Some(call)) = (completed, queues.replaced_call(key).or_else(|| queues.head(key))) {
        // A panic has interrupted the evaluation. Its call is answered, so that it does not wait forever.
        reject(entry.state, key, &call, Error::Internal);
    }
}

/// Answers a waiting call with an error.
fn reject(state: &ModuleState, key: &QueueKey, call: &WaitingCall, error: Error) {
    if let Some(waiter) = state.queues.leave(key, call.place) {
        state.outbox.answer(waiter.client, Err(error), None);
    }
}
