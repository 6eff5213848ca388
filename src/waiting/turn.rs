//! Turn of the timer: its bound, and permission to grant leases in it.
//!
//! **A turn is bounded,** independent of the number of keys: it does a limited amount of work ([`EFFORT`]), and the
//! rest is done in the next turn. In between the server reads calls. No call overtakes meanwhile: a new call goes to
//! the end of the queue (`queue_order.rs`).
//!
//! **While the server does not accept writes,** no lease is granted ([`Turn::may_grant`]). Keys with waiters are not
//! polled meanwhile: the cron event checks if the server accepts writes again, and then all keys are evaluated.

use crate::redis::server_entry::ServerEntry;
use crate::redis::{now, write_permission};
use ratelimit_core::Timestamp;

/// Maximum effort of one turn of the timer: evaluations of queues, and answers. Granting a lease takes about 25
/// microseconds, including the server's reply.
pub const EFFORT: usize = 100;

/// Turn of the timer.
pub struct Turn<'a> {
    /// Entry of the timer.
    pub entry: ServerEntry<'a>,
    /// Start of the turn, which is the time of all its work.
    pub now: Timestamp,
    spent: usize,
    /// `true` if the server accepts writes; `None` before it has been queried.
    writes: Option<bool>,
}

impl<'a> Turn<'a> {
    /// Begins a turn now.
    pub fn new(entry: ServerEntry<'a>) -> Turn<'a> {
        Turn { entry, now: now(), spent: 0, writes: None }
    }

    /// Returns `true` if the turn may do more.
    pub fn goes_on(&self) -> bool {
        self.spent < EFFORT
    }

    /// Adds to the effort spent so far.
    pub fn spend(&mut self, effort: usize) {
        self.spent = self.spent.saturating_add(effort);
    }

    /// Raises the effort spent so far to at least `effort`.
    pub fn has_spent(&mut self, effort: usize) {
        self.spent = self.spent.max(effort);
    }

    /// Returns the effort spent so far.
    pub fn spent(&self) -> usize {
        self.spent
    }

    /// Returns `true` if a lease can be granted now: the server would also accept a call that takes one. The server is
    /// queried at most once a turn, and only if a lease could be granted.
    pub fn may_grant(&mut self) -> bool {
        let entry = self.entry;
        write_permission::may_be_propagated() && *self.writes.get_or_insert_with(|| write_permission::are_taken(entry))
    }
}
