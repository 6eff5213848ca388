//! A turn of the timer: how much is done in one go, and whether leases can be granted in it.
//!
//! **A turn is bounded,** however many keys there are: it does so much ([`EFFORT`]), and goes on in its next turn,
//! between which the server reads calls. Nobody overtakes meanwhile: who comes later comes behind (`queue_order.rs`).
//!
//! **While the server takes no writes,** nobody is granted anything ([`Turn::may_grant`]). Waiting keys are not
//! polled meanwhile: the cron event asks whether the server takes writes again, and if so all keys are looked at.

use crate::redis::server_entry::ServerEntry;
use crate::redis::{now, write_permission};
use ratelimit_core::Timestamp;

/// Effort of one turn of the timer: looks at queues, and answers. A lease that is granted takes some 25 microseconds,
/// the server's reply included.
pub const EFFORT: usize = 100;

/// A turn of the timer.
pub struct Turn<'a> {
    /// The timer's entry.
    pub entry: ServerEntry<'a>,
    /// Start of the turn, which is the time of all its work.
    pub now: Timestamp,
    spent: usize,
    /// `true` if the server takes writes, once it has been asked.
    writes: Option<bool>,
}

impl<'a> Turn<'a> {
    /// A turn that begins now.
    pub fn new(entry: ServerEntry<'a>) -> Turn<'a> {
        Turn { entry, now: now(), spent: 0, writes: None }
    }

    /// Returns `true` if the turn may do more.
    pub fn goes_on(&self) -> bool {
        self.spent < EFFORT
    }

    /// Counts what is done now, which takes so much.
    pub fn spend(&mut self, effort: usize) {
        self.spent = self.spent.saturating_add(effort);
    }

    /// Counts at least so much as done by now.
    pub fn has_spent(&mut self, effort: usize) {
        self.spent = self.spent.max(effort);
    }

    /// Returns the effort spent so far.
    pub fn spent(&self) -> usize {
        self.spent
    }

    /// Returns `true` if a lease can be granted now: if the server would also take a call that does. The server is
    /// asked once a turn, and only where somebody would be granted one.
    pub fn may_grant(&mut self) -> bool {
        let entry = self.entry;
        write_permission::may_be_propagated() && *self.writes.get_or_insert_with(|| write_permission::are_taken(entry))
    }
}
