//! Waiting calls: RL.ACQUIRE with BLOCK, from its denial to its reply.
//!
//! ```text
//!                RL.ACQUIRE ... BLOCK, and there is no room
//!                            |
//!                            v      closed, or CLIENT UNBLOCK ERROR: out of the queue
//!                      +-----------+----------------------------------------------------> over
//!                      |  waiting  |
//!                      +-----------+----------------------------------------------------> over
//!                            |      CLIENT UNBLOCK: its denial is sent at once
//!      its turn has come, its time is up, its holder has asked again or gives up,
//!      the key is another node's or another type's: an answer is decided
//!                            |
//!                            v      closed, or CLIENT UNBLOCK ERROR: a lease is given back
//!                      +-----------+----------------------------------------------------> over
//!                      | answered  |
//!                      +-----------+----------------------------------------------------> over
//!                            |      CLIENT UNBLOCK: that answer is sent at once
//!      the timer's turn ends
//!                            |
//!                            v      closed: a lease is given back
//!                     +-------------+---------------------------------------------------> over
//!                     | handed back |
//!                     +-------------+
//!                            |
//!      the server sends the answer, before it reads another call
//!                            |
//!                            v
//!                          over
//! ```
//!
//! A waiting call is in exactly one of three places: in the queues (`server/queues/`), once it is answered in the
//! outbox (`server/queues/outbox.rs`), or handed back to the server, which happens once. Before Redis
//! 7.4, CLIENT UNBLOCK of a client that was handed back leaves it without a reply. So clients are handed back only at
//! the end of a turn of the timer, after which the server sends replies before it reads another call
//! (`redis/blocked.rs`).
//!
//! | what happens | where |
//! |---|---|
//! | a call begins to wait, and its client ends the wait | `clients.rs` |
//! | later calls come behind it | `queue_order.rs` |
//! | something happens to its key, or may have | `events.rs` |
//! | the timer is armed | `timer.rs` |
//! | the timer's turn comes, and is bounded | `timer_turn.rs`, `turn.rs` |
//! | the queue of its key is served, and it is decided | `serve.rs` |
//! | it is given a fencing token | `fenced.rs` |
//!
//! A release reaches a queue by a keyspace event: `charge::release` commits, `Redis::finish` announces the event,
//! `redis/key_events.rs` hears it, `events.rs` marks the queue and arms the timer, and `serve.rs` serves it.
//!
//! This module is above the charge path, which decides a call that has waited like any other. The queues' state is
//! below it, with the rest of the module's state. The server's events reach it through
//! [`CALLBACKS`](crate::waiting::CALLBACKS).

mod clients;
mod events;
pub mod fenced;
pub mod queue_order;
mod serve;
mod timer;
mod timer_turn;
mod turn;

use crate::redis::waiting_callbacks::WaitingCallbacks;

pub use clients::{give_up, wait, waiting_without_lease};

/// Functions of this folder for events of the server.
pub const CALLBACKS: WaitingCallbacks = WaitingCallbacks {
    timer_is_due: timer_turn::run,
    key_changed: events::key_changed,
    all_keys_changed: events::all_keys_changed,
    cron: events::cron,
    client_gone: clients::gone,
    client_unblocked: clients::unblocked,
    answer_lost: clients::answer_lost,
};
