//! When calls that wait are served: whether the timer is armed, and for when.

use ratelimit_core::Timestamp;
use std::cell::Cell;

/// What the server knows the timer by.
pub type TimerId = u64;

/// The timer, and what else decides when queues are looked at.
#[derive(Debug, Default)]
pub struct Schedule {
    /// Whether the server tells what happens to keys.
    pub subscribed: Cell<bool>,
    /// The timer that is armed, and for when.
    pub armed: Cell<Option<(TimerId, Timestamp)>>,
    /// Whether CLIENT UNBLOCK may reach clients that wait, if that was asked since the last cron event.
    pub unblockable: Cell<Option<bool>>,
}
