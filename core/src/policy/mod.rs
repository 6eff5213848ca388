//! The table of policies: what operators set by name, and what the members of a cluster agree on.
//!
//! A name has two registers, its definition and its scale, each stamped by whoever wrote it; the later stamp stands
//! (`entry.rs`). To merge a [`record`](Table::record) is therefore idempotent, commutative and associative: lost,
//! doubled and reordered messages do no harm, and servers that have heard the same have the same. Whether they have,
//! they compare by a [`digest`](Table::digests) of each of 64 groups of names, and send each other the records of those
//! that differ.
//!
//! That holds while clocks are less than a day apart. A stamp that is further ahead than a day of a server's own clock
//! is the oldest there is, wherever it is stored, and is not taken from peers (`stamp.rs`). So no record is the last
//! one for ever. A replica compares nothing: it takes what its primary says, and a load takes what the disk says
//! ([`Origin`]).
//!
//! A deletion is remembered for a day after it was learned, so that an older set, which comes late, does not undo it.
//! It is in no digest, else servers that forget it at different times would never agree. At most 65536 are remembered.
//!
//! A scale that is for a time ends after that time on every server, whatever its clock: a record says how much of it
//! the sender has left, and each server counts on from there by [steady time](crate::queue::Steady).
//!
//! A scale can also be changed relative to what it is (`aimd.rs`). What travels is the factor that it comes to.
//!
//! A call finds its policy read and scaled: [`Table::find`] computes nothing but a hash, and allocates nothing. What
//! goes through all policies does so in pieces ([`Walk`]).
//!
//! ```
//! use ratelimit_core::wire::args::Args;
//! use ratelimit_core::policy::{Condition, PolicyLookup, Merged, Origin, Table};
//! use ratelimit_core::syntax::Policy;
//! use ratelimit_core::Timestamp;
//!
//! let words: [&[u8]; 5] = [b"RL.POLICYSET", b"TOKENBUCKET", b"60", b"60", b"1m"];
//! let policy = Policy::read(&mut Args::new(&words))?;
//! let now = Timestamp::from_clock(1_700_000_000_000_000);
//!
//! let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
//! here.set(b"plan:pro", Condition::Always, &policy, now, 4096)?;
//! let record = here.record(b"plan:pro", now).unwrap();
//! assert_eq!(there.merge(&record, Origin::Peer, now), Merged::Changed);
//! assert!(matches!(there.find(b"plan:pro", now), PolicyLookup::Ruling(_)));
//! assert_eq!(here.digests(), there.digests());
//! # Ok::<(), ratelimit_core::wire::error::Error>(())
//! ```

mod aimd;
mod counts;
mod entry;
mod glob;
mod inbox;
mod merged;
mod record_hash;
mod ruling;
mod scale_timing;
mod setting;
mod slot;
mod slots;
mod stamp;
mod table;
mod walk;

pub use counts::{CountedOutcome, Counts};
pub use glob::Pattern;
pub use merged::{Merged, Origin};
pub use ruling::{PolicyFacts, PolicyLookup, Ruling};
pub use setting::{Condition, DeletionRequest, ScaleOutcome, ScaleStep, Scaling, Set};
pub use slots::Discarded;
pub use stamp::{Horizon, Stamp};
pub use table::Table;
pub use walk::{GROUPS, Walk};

#[cfg(test)]
mod tests;
