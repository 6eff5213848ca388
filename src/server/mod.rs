//! State of the module outside of keys: policies, the queues of waiting calls, the most denied keys, the progress of a
//! load of policies and of their exchange in a cluster, settings, and counters.
//!
//! Other modules call this one, and change keys, from threads of their own that hold the server's lock. So no state is
//! thread-local. All of it is in a single `ModuleState` (`redis/server_entry.rs`). An entry from the server creates a
//! reference to it, as the server calls the module with its lock held. `ModuleState` is not `Sync`, so such a reference
//! cannot be sent to another thread.

pub mod fencing;
pub mod heavy_hitters;
pub mod peers;
pub mod policy_load;
pub mod policy_table;
pub mod queues;
pub mod settings;
pub mod stats;

use ratelimit_core::syntax::BucketCache;

/// State of the module in this server process. There is one instance.
#[derive(Default)]
pub struct ModuleState {
    /// Policies of this server.
    pub policies: policy_table::Policies,
    /// Progress of a load of policies, and of writing their records to the AOF.
    pub policy_load: policy_load::PolicyLoad,
    /// State of the exchange of policies with the other primaries of a cluster.
    pub peers: peers::Peers,
    /// Calls that wait for leases.
    pub queues: queues::Queues,
    /// Replies to waiting calls, until they are sent.
    pub outbox: queues::outbox::Outbox,
    /// Timer that serves the queues.
    pub schedule: queues::schedule::Schedule,
    /// Cache of the buckets parsed from recent calls.
    pub bucket_cache: BucketCache,
    /// Last fencing token.
    pub fencing: fencing::Fencing,
    /// Most denied keys.
    pub heavy_hitters: heavy_hitters::HeavyHitters,
}
