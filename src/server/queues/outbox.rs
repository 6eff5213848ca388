//! The answers of calls that have waited, from the decision until the timer hands their clients back to the server.
//!
//! An answer may be decided anywhere: in RL.RELEASE, in a script, in the timer itself. A client that has been handed
//! back is out of reach: where CLIENT UNBLOCK comes next, Redis before 7.4 unblocks it without any reply. So clients
//! are handed back at the end of the timer's turn alone, after which the server sends replies before it reads a call;
//! until then whatever else ends the wait finds the answer here.

use super::waiting_call::{Client, ClientHandle, Grant};
use crate::reply::Reply;
use crate::server::stats::CommandStats;
use ratelimit_core::wire::error::Error;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};

/// What a client that has waited is answered.
pub struct Answer {
    /// The reply of its call.
    pub reply: Result<Reply, Error>,
    /// Where its call is counted.
    pub stats: &'static CommandStats,
    /// What it was granted that nobody else knows of.
    pub grant: Option<Grant>,
    /// Whether it has been sent.
    pub told: Cell<bool>,
}

/// Answers by the clients they are for, in the order in which they were decided.
#[derive(Default)]
struct Answers {
    in_order: BTreeMap<u64, (ClientHandle, Box<Answer>)>,
    by_client: HashMap<ClientHandle, u64>,
    decided: u64,
}

/// The answers that are to be handed back.
#[derive(Default)]
pub struct Outbox(RefCell<Answers>);

impl Outbox {
    /// Adds the answer of a call that waits no longer. It is sent when the timer hands the client back.
    pub fn answer(&self, client: &Client, reply: Result<Reply, Error>, grant: Option<Grant>) {
        let Client { handle, stats, .. } = client;
        if reply.is_err() {
            stats.errors.count();
        }
        let answer = Box::new(Answer { reply, stats, grant, told: Cell::new(false) });
        let Answers { in_order, by_client, decided } = &mut *self.0.borrow_mut();
        *decided = decided.saturating_add(1);
        in_order.insert(*decided, (*handle, answer));
        by_client.insert(*handle, *decided);
    }

    /// Takes the answer of one client out: something else has ended its wait.
    pub fn take(&self, client: ClientHandle) -> Option<Box<Answer>> {
        let Answers { in_order, by_client, .. } = &mut *self.0.borrow_mut();
        let (_, answer) = in_order.remove(&by_client.remove(&client)?)?;
        Some(answer)
    }

    /// Takes the oldest answer out, to be handed back.
    pub fn next(&self) -> Option<(ClientHandle, Box<Answer>)> {
        let Answers { in_order, by_client, .. } = &mut *self.0.borrow_mut();
        let (_, (client, answer)) = in_order.pop_first()?;
        by_client.remove(&client);
        Some((client, answer))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().in_order.is_empty()
    }
}
