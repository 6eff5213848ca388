//! The work of a turn of the timer: queues that are looked at, leases that are given back, clients that are handed
//! back.
//!
//! Calls that wait are served from a timer of the module, never inside another call, a notification or a script: there,
//! a change would take the slot or the place of what is running. The timer runs before the next call is read.

use super::turn::{EFFORT, Turn};
use super::{serve, timer};
use crate::charge;
use crate::redis::server_entry::ServerEntry;
use crate::redis::{cluster_slots, guard, on_key};
use crate::server::Global;
use crate::server::queues::{Grant, QueueKey, WaitingCall, Work};
use ratelimit_core::wire::error::Error;

/// Effort of finding out which node has a key.
const REDIRECTION: usize = 25;

/// The timer's turn has come. What panics is cut short alone.
pub fn run(entry: ServerEntry) {
    let Global { queues, .. } = entry.global;
    timer::is_over(entry);
    let turn = &mut Turn::new(entry);
    while turn.goes_on()
        && let Some(work) = guard::catch_panic(None, || queues.next_work(turn.now))
    {
        let before = turn.spent();
        guard::catch_panic((), || match work {
            Work::Evaluation(key) => look_at(turn, &key),
            Work::GiveBack(grant) => give_back(turn, grant),
        });
        // Whoever is answered has been counted; a look that answers nobody counts too.
        turn.has_spent(before.saturating_add(1));
    }
    let done = u64::try_from(turn.spent().max(hand_back_answered(entry.global))).unwrap_or(u64::MAX);
    queues.busiest_turn.set(queues.busiest_turn.get().max(done));
    guard::catch_panic((), || timer::arm(entry));
}

/// Hands the clients of answered calls back to the server; returns their number.
fn hand_back_answered(global: &Global) -> usize {
    let answered = std::iter::from_fn(|| global.outbox.next());
    answered.take(EFFORT).map(|(client, answer)| client.hand_back(Some(answer))).count()
}

/// Gives a lease back that was granted to a client that had gone, unless its holder has renewed it since: now, or when
/// the server takes writes again.
fn give_back(turn: &mut Turn, grant: Grant) {
    let Grant { key, holder, expires_at } = &grant;
    if turn.may_grant() {
        on_key::run(turn.entry, key.db, &key.name, |redis, name| {
            // What the key holds now, if it is something else, has no such lease.
            drop(charge::give_back(redis, name, holder, *expires_at, turn.now));
        });
    } else {
        let queues = &turn.entry.global.queues;
        queues.hold_up();
        queues.undelivered(grant);
    }
}

/// Looks at the queue of one key.
fn look_at(turn: &mut Turn, key: &QueueKey) {
    let (entry, mut elsewhere) = (turn.entry, None);
    let queues = &entry.global.queues;
    queues.looks.count();
    let served = on_key::run(entry, key.db, &key.name, |redis, name| {
        elsewhere = cluster_slots::redirection(redis, name);
        if elsewhere.is_none() {
            serve::serve(redis, name, key, turn);
        }
    });
    if let Some(error) = elsewhere {
        turn.spend(REDIRECTION);
        while let Some(call) = queues.head(key).or_else(|| queues.replaced(key)) {
            if !turn.goes_on() {
                // The others run first.
                queues.touch(key.db, &key.name);
                break;
            }
            turn.spend(1);
            refuse(entry.global, key, &call, error.clone());
        }
    } else if let (false, Some(call)) = (served, queues.replaced(key).or_else(|| queues.head(key))) {
        // A defect of ours has cut it short. Nobody is to wait for ever for that.
        refuse(entry.global, key, &call, Error::Internal);
    }
}

/// Answers a call that waits with an error.
fn refuse(global: &Global, key: &QueueKey, call: &WaitingCall, error: Error) {
    if let Some(waiter) = global.queues.leave(key, call.place) {
        global.outbox.answer(waiter.client, Err(error), None);
    }
}
