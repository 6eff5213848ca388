//! When calls that wait are served: whether the timer is armed, and for when.

use ratelimit_core::Timestamp;
use std::cell::Cell;

/// Identity of a timer of the server.
pub type TimerId = u64;

/// The timer, and what else decides when queues are looked at.
#[derive(Debug, Default)]
pub struct Schedule {
    /// `true` if the server announces events of keys.
    pub subscribed: Cell<bool>,
    /// The timer that is armed, and for when.
    pub armed: Cell<Option<(TimerId, Timestamp)>>,
    /// `true` if CLIENT UNBLOCK may reach waiting clients, if that was asked since the last cron event.
    pub unblockable: Cell<Option<bool>>,
}
