//! A call that waits for a lease: its client, its key, and what it is granted.

use crate::server::stats::CommandStats;
use ratelimit_core::queue::{Claim, QueuePlace};
use ratelimit_core::{Amount, Timestamp};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// A call that waits, as its queue has it.
pub struct WaitingCall {
    /// Where it waits.
    pub place: QueuePlace,
    /// What it asks for.
    pub claim: Claim,
    /// How it is answered.
    pub client: Client,
    /// The limit that holds.
    pub limit: Amount,
    /// Whether others wait before it.
    pub callers_wait_ahead: bool,
}

/// The server's handle of a blocked client, as a name that is compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientHandle(pub *mut c_void);

/// How one who waits is answered.
#[derive(Clone, Debug)]
pub struct Client {
    /// By what the server knows it.
    pub handle: ClientHandle,
    /// Where its call is counted.
    pub stats: &'static CommandStats,
    /// The name of its user; `None` where the server does not tell.
    pub user: Option<Arc<[u8]>>,
}

/// A key for a lease of which somebody waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    /// Its database.
    pub db: c_int,
    /// Its name.
    pub name: Arc<[u8]>,
}

/// A lease that has been granted to who waited.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The key of which it is one.
    pub key: QueueKey,
    /// The holder of the lease.
    pub holder: Box<[u8]>,
    /// When it expires.
    pub expires_at: Timestamp,
}
