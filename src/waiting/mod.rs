//! Waiting calls: RL.ACQUIRE with BLOCK, from its denial to its reply.
//!
//! ```text
//!                RL.ACQUIRE ... BLOCK, and there is no room
//!                            |
//!                            v      disconnection, or CLIENT UNBLOCK ERROR: the call leaves the queue
//!                      +-----------+----------------------------------------------------> over
//!                      |  waiting  |
//!                      +-----------+----------------------------------------------------> over
//!                            |      CLIENT UNBLOCK: its denial is sent at once
//!      there is room, its timeout has passed, its holder has called again or released,
//!      the key has moved to another node or holds another type: an answer is decided
//!                            |
//!                            v      disconnection, or CLIENT UNBLOCK ERROR: its lease is released
//!                      +-----------+----------------------------------------------------> over
//!                      | answered  |
//!                      +-----------+----------------------------------------------------> over
//!                            |      CLIENT UNBLOCK: that answer is sent at once
//!      the timer's run ends
//!                            |
//!                            v      disconnection: its lease is released
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
//! A call is in exactly one of three places: in the queues (`server/queues/`) while it waits, in the outbox
//! (`server/queues/outbox.rs`) after its answer is decided, and at last in the server, to which no call is handed back
//! twice. Before Redis 7.4, CLIENT UNBLOCK of a client that was handed back leaves it without a reply. So clients are
//! handed back only at the end of a run of the timer, after which the server sends replies before it reads another
//! call (`redis/blocked.rs`).
//!
//! | what happens | where |
//! |---|---|
//! | a call begins to wait; its client ends the wait | `clients.rs` |
//! | later calls are placed behind it | `queue_order.rs` |
//! | an event may have made room in its key | `events.rs` |
//! | the timer is armed; a run of it is bounded | `timer.rs` |
//! | the timer runs | `timer_work.rs` |
//! | the queue of its key is served; the call is decided; its lease gets a fencing token | `serve.rs` |
//!
//! A release reaches a queue by a keyspace event: `charge::release` commits, `Redis::finish` announces the event,
//! `redis/key_events.rs` receives it, `events.rs` marks the queue and arms the timer, and `serve.rs` serves it.
//!
//! This module uses the charge path, which decides a call that has waited in the same way as one that has not. The
//! state of the queues is in `server/queues/`, with the rest of the module's state. The server's events reach this
//! module through [`CALLBACKS`](crate::waiting::CALLBACKS).

mod clients;
mod events;
pub mod queue_order;
mod serve;
mod timer;
mod timer_work;

use crate::redis::waiting_callbacks::WaitingCallbacks;

pub use clients::{deny, holders_waiting_without_lease, wait};
pub use serve::{assign_token, reply_with_token};

/// Functions of this folder for events of the server.
pub const CALLBACKS: WaitingCallbacks = WaitingCallbacks {
    timer_is_due: timer_work::run,
    key_changed: events::key_changed,
    all_keys_changed: events::all_keys_changed,
    cron: events::cron,
    client_disconnected: clients::client_disconnected,
    client_unblocked: clients::client_unblocked,
    answer_lost: clients::answer_lost,
};
