//! Calls that wait for a lease: client, key, and answer.

use crate::reply::Reply;
use crate::server::stats::CommandStats;
use ratelimit_core::queue::{Claim, QueuePlace};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Amount, Timestamp};
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;

/// Copy of a waiting call, without its client.
pub struct WaitingCall {
    /// Place in the queue.
    pub place: QueuePlace,
    /// Lease that the call requests.
    pub claim: Claim,
    /// Origin of the call.
    pub origin: CallOrigin,
    /// Limit of the key.
    pub limit: Amount,
    /// `true` if other waiters precede the call.
    pub has_waiters_ahead: bool,
}

/// Origin of a waiting call.
#[derive(Clone, Debug)]
pub struct CallOrigin {
    /// Counters of the command.
    pub stats: &'static CommandStats,
    /// Name of the user; `None` if the server does not report it.
    pub user: Option<Arc<[u8]>>,
}

/// Identity of a blocked client, which can be compared but not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(pub usize);

/// Client that the server has blocked. Consumed when it is handed back: the server would free a client twice if it were
/// handed back twice.
#[must_use = "a client that is not handed back is never answered"]
pub struct BlockedClient {
    /// Identity of the client.
    pub id: ClientId,
    hand_back: Box<dyn FnOnce(Option<Box<WaiterAnswer>>)>,
}

impl BlockedClient {
    /// Creates a client that `hand_back` hands back to the server.
    pub fn new(id: ClientId, hand_back: impl FnOnce(Option<Box<WaiterAnswer>>) + 'static) -> BlockedClient {
        BlockedClient { id, hand_back: Box::new(hand_back) }
    }

    /// Hands the client back to the server, with its answer unless that has been sent already.
    pub fn hand_back(self, answer: Option<Box<WaiterAnswer>>) {
        (self.hand_back)(answer);
    }
}

/// Client of a waiting call.
pub struct WaitingClient {
    /// Blocked client.
    pub blocked: BlockedClient,
    /// Origin of its call.
    pub origin: CallOrigin,
}

/// Answer to a client that has waited.
pub struct WaiterAnswer {
    /// Reply to the call.
    pub reply: Result<Reply, Error>,
    /// Counters of the command.
    pub stats: &'static CommandStats,
    /// Lease that was granted to the client; `None` if the call was not granted, or has renewed a lease.
    pub grant: Option<Grant>,
    /// `true` once the reply has been sent.
    pub sent: Cell<bool>,
}

/// Key whose leases calls wait for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    /// Database of the key.
    pub db: c_int,
    /// Name of the key.
    pub name: Arc<[u8]>,
}

/// Lease that a waiting call has been granted.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Key of the lease.
    pub key: QueueKey,
    /// Holder of the lease.
    pub holder: Box<[u8]>,
    /// Expiry of the lease.
    pub expires_at: Timestamp,
}
