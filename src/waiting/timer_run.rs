//! Run of the timer: its bound, and permission to grant leases in it.
//!
//! **A run is bounded,** independent of the number of keys: it does a limited amount of work ([`MAX_WORK`]), and the
//! rest is done in the next run. In between the server reads calls. No call overtakes meanwhile: a new call goes to
//! the end of the queue (`queue_order.rs`).
//!
//! **While the server does not accept writes,** no lease is granted ([`TimerRun::may_grant`]). Keys with waiters are not
//! polled meanwhile: the cron event checks if the server accepts writes again, and then all keys are evaluated.

use crate::redis::server_entry::ServerEntry;
use crate::redis::{now, permissions};
use ratelimit_core::Timestamp;

/// Maximum work of one run of the timer: evaluations of queues, and answers. Granting a lease takes about 25
/// microseconds, including the server's reply.
pub const MAX_WORK: usize = 100;

/// Run of the timer.
pub struct TimerRun<'a> {
    /// Entry of the timer.
    pub entry: ServerEntry<'a>,
    /// Start of the run, which is the time of all its work.
    pub now: Timestamp,
    work: usize,
    /// `true` if the server accepts writes; `None` before it has been queried.
    accepts_writes: Option<bool>,
}

impl<'a> TimerRun<'a> {
    /// Begins a run now.
    pub fn new(entry: ServerEntry<'a>) -> TimerRun<'a> {
        TimerRun { entry, now: now(), work: 0, accepts_writes: None }
    }

    /// Returns `true` if the run may do more work.
    pub fn has_budget(&self) -> bool {
        self.work < MAX_WORK
    }

    /// Adds to the work done so far.
    pub fn add_work(&mut self, work: usize) {
        self.work = self.work.saturating_add(work);
    }

    /// Raises the work done so far to at least `work`.
    pub fn raise_work_to(&mut self, work: usize) {
        self.work = self.work.max(work);
    }

    /// Returns the work done so far.
    pub fn work_done(&self) -> usize {
        self.work
    }

    /// Returns `true` if a lease can be granted now: the server would also accept a call that takes one. The server is
    /// queried at most once a run, and only if a lease could be granted.
    pub fn may_grant(&mut self) -> bool {
        let entry = self.entry;
        permissions::may_propagate_now()
            && *self.accepts_writes.get_or_insert_with(|| permissions::accepts_writes(entry))
    }
}
