//! The module's state that is in no key: policies, the queues of waiting calls, the keys that are denied most, how far
//! a load of policies and their exchange in a cluster have progressed, settings, and counters.
//!
//! Other modules call ours, and change keys, from threads of their own that hold the server's lock. So no state belongs
//! to a thread. All of it is in one `Global`, of which there is one (`redis/global.rs`). An entry from the server makes
//! a reference to it, since the server enters with its lock held. A `Global` is not `Sync`, so such a reference cannot
//! get into another thread.

pub mod fencing;
pub mod heavy_hitters;
pub mod peers;
pub mod policy_load;
pub mod policy_table;
pub mod queues;
pub mod settings;
pub mod stats;

use ratelimit_core::syntax::BucketMemo;

/// The module's state in this process of the server. There is one.
#[derive(Default)]
pub struct Global {
    /// Its policies.
    pub policies: policy_table::Policies,
    /// How far a load of policies has come, and what the AOF still lacks.
    pub policy_load: policy_load::PolicyLoad,
    /// What the other primaries of a cluster have told.
    pub peers: peers::Peers,
    /// The calls that wait for leases.
    pub queues: queues::Queues,
    /// The answers of those that have waited.
    pub outbox: queues::outbox::Outbox,
    /// When they are served.
    pub schedule: queues::schedule::Schedule,
    /// The buckets that calls have brought last.
    pub bucket_memo: BucketMemo,
    /// The last fencing token.
    pub fencing: fencing::Fencing,
    /// The keys that are denied most.
    pub heavy_hitters: heavy_hitters::HeavyHitters,
}
