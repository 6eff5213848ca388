//! Schedule of serving waiting calls: state of the timer.

use ratelimit_core::Timestamp;
use std::cell::Cell;

/// Identity of a timer of the server.
pub type TimerId = u64;

/// Timer, and other state that decides when queues are evaluated.
#[derive(Debug, Default)]
pub struct Schedule {
    /// `true` if the module is subscribed to keyspace events.
    pub is_subscribed: Cell<bool>,
    /// Armed timer, and the instant for which it is armed.
    pub armed: Cell<Option<(TimerId, Timestamp)>>,
    /// `true` if CLIENT UNBLOCK is offered for waiting clients; `None` if not queried since the last cron event.
    pub allows_client_unblock: Cell<Option<bool>>,
}
