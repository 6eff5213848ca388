//! Table of policies: limits that operators set by name, replicated to all members of a cluster.
//!
//! A name has two registers, its definition and its scale. The server that writes a register stamps it, and the later
//! stamp wins (`entry.rs`). Merging a [`record`](Table::record) is therefore idempotent, commutative and associative:
//! lost, duplicated and reordered messages do no harm, and servers that received the same records have the same table.
//! To detect differences, servers compare a [`digest`](Table::digests) of each of 64 groups of names, and send each
//! other the records of the groups that differ.
//!
//! All servers agree while their clocks are less than a day apart. A stamp that is more than a day ahead of a server's
//! own clock counts as the oldest wherever it is stored, and is not accepted from peers (`stamp.rs`). So every record
//! can be superseded. Replicas and loads from disk do not compare stamps: they accept all records of the primary or the
//! file ([`Origin`]).
//!
//! A deletion is stored for a day after it was received, so that an older definition that arrives late does not undo
//! it. Deletions are not part of the digest, because each server drops them at another time. At most 65536 are stored.
//!
//! A scale with a duration ends after that time on every server, even if its clock is wrong: a record contains the time
//! that is left at the sender, and each receiver measures it in [steady time](crate::queue::Steady).
//!
//! A scale can also be changed relative to its current factor (`aimd.rs`). Records contain the resulting factor.
//!
//! A call finds its policy parsed and scaled: [`Table::find`] computes only a hash and allocates nothing. Operations on
//! all policies are done in batches ([`Walk`]).
//!
//! ```
//! use ratelimit_core::wire::args::Args;
//! use ratelimit_core::policy::{Condition, PolicyLookup, MergeOutcome, Origin, Table};
//! use ratelimit_core::syntax::Policy;
//! use ratelimit_core::Timestamp;
//!
//! let words: [&[u8]; 5] = [b"RL.POLICYSET", b"TOKENBUCKET", b"60", b"60", b"1m"];
//! let policy = Policy::parse(&mut Args::new(&words))?;
//! let now = Timestamp::from_clock(1_700_000_000_000_000);
//!
//! let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
//! here.set(b"plan:pro", Condition::Always, &policy, now, 4096)?;
//! let record = here.record(b"plan:pro", now).unwrap();
//! assert_eq!(there.merge(&record, Origin::Peer, now), MergeOutcome::Changed);
//! assert!(matches!(there.find(b"plan:pro", now), PolicyLookup::Found(_)));
//! assert_eq!(here.digests(), there.digests());
//! # Ok::<(), ratelimit_core::wire::error::Error>(())
//! ```

mod aimd;
mod counts;
mod effective_policy;
mod entry;
mod glob;
mod gossip;
mod inbox;
mod merge_outcome;
mod record_hash;
mod scale_timing;
mod setting;
mod slot;
mod slots;
mod stamp;
mod table;
mod walk;

pub use counts::{CountedOutcome, Counts};
pub use effective_policy::{EffectivePolicy, PolicyFacts, PolicyLookup};
pub use glob::Pattern;
pub use gossip::{DigestOutcome, EarlyDigest, Gossip};
pub use merge_outcome::{MergeOutcome, Origin};
pub use setting::{Condition, DeletionRequest, ScaleOutcome, ScaleStep, Scaling, SetOutcome};
pub use slots::Discarded;
pub use stamp::{Horizon, Stamp};
pub use table::Table;
pub use walk::{GROUPS, Walk};

#[cfg(test)]
mod tests;
