//! Answers of calls that have waited, from the decision until the timer hands their clients back to the server.
//!
//! An answer may be decided in RL.RELEASE, in a script, or in the timer. A client that has been handed back can no
//! longer be answered: if CLIENT UNBLOCK comes next, Redis before 7.4 unblocks it without a reply. So clients are
//! handed back only at the end of the timer's run, after which the server sends replies before it reads another call.
//! Until then, any other event that ends the wait finds the answer here.

use super::waiting_call::{BlockedClient, ClientId, Grant, WaiterAnswer, WaitingClient};
use crate::reply::Reply;
use ratelimit_core::wire::error::Error;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

/// Answers and their clients, in the order in which they were decided.
#[derive(Default)]
struct Answers {
    in_order: BTreeMap<u64, (BlockedClient, Box<WaiterAnswer>)>,
    by_client: HashMap<ClientId, u64>,
    last_number: u64,
}

/// Answers that are to be handed back.
#[derive(Default)]
pub struct Outbox(RefCell<Answers>);

impl Outbox {
    /// Adds the answer of a call whose wait has ended. It is sent when the timer hands the client back.
    pub fn answer(&self, client: WaitingClient, reply: Result<Reply, Error>, grant: Option<Grant>) {
        let WaitingClient { blocked, origin } = client;
        if reply.is_err() {
            origin.stats.errors.count();
        }
        let answer = Box::new(WaiterAnswer { reply, stats: origin.stats, grant, sent: Cell::new(false) });
        let Answers { in_order, by_client, last_number } = &mut *self.0.borrow_mut();
        *last_number = last_number.saturating_add(1);
        by_client.insert(blocked.id, *last_number);
        in_order.insert(*last_number, (blocked, answer));
    }

    /// Removes a client and its answer, as another event has ended its wait.
    pub fn take(&self, id: ClientId) -> Option<(BlockedClient, Box<WaiterAnswer>)> {
        let Answers { in_order, by_client, .. } = &mut *self.0.borrow_mut();
        in_order.remove(&by_client.remove(&id)?)
    }

    /// Removes the client with the oldest answer, to be handed back.
    pub fn next(&self) -> Option<(BlockedClient, Box<WaiterAnswer>)> {
        let Answers { in_order, by_client, .. } = &mut *self.0.borrow_mut();
        let (_, (blocked, answer)) = in_order.pop_first()?;
        by_client.remove(&blocked.id);
        Some((blocked, answer))
    }

    /// Returns `true` if there are no answers.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().in_order.is_empty()
    }
}
