//! Charge path: evaluates the requests of a call at its keys, answers the call and, if it is granted, changes the keys.
//!
//! ```text
//!   request ---> open ---> evaluate ---> check ---> count ---> commit ---> answer
//!                  |           |                                  |
//!               Stored   KeyEvaluation               change, effect, expiry of the key,
//!                                                    and at the end of the call the event
//! ```
//!
//! * A key is opened without knowing its type; [`Stored`](crate::redis::key::Stored) names its contents. The request is
//!   evaluated there and changes nothing yet: one limit at a usage of its own (`one_limit.rs`), limits whose
//!   usage has a fixed size at a composite key (`fast_path.rs`), or everything else at a composite key
//!   (`several_limits.rs`).
//! * If every key grants the call but the call exceeds a maximum per key or needs memory that the server lacks, it is
//!   rejected with an error. Otherwise it is counted, as granted or denied (`commit.rs`).
//! * The usage moves back if the clock did, and is changed (`commit.rs`). The effect is propagated and the key gets its
//!   expiry (`redis/key/open.rs`); the event follows when all keys are closed.
//!
//! A call on one key keeps it open from the evaluation to the commit (`one_key.rs`). A call on several closes each
//! before it opens the next (`many_keys.rs`, `evaluate.rs`). Peeking is evaluating without a commit. A *plain* key
//! holds one usage, a *composite* key several.

mod commit;
mod evaluate;
mod fast_path;
mod leases_and_bans;
mod many_keys;
mod one_key;
mod one_limit;
mod several_limits;

pub use leases_and_bans::{ban, follow_clock, lease_token, lease_until, release};
pub use many_keys::{KeysAnswer, charge_keys, peek_keys};
pub use one_key::{charge, charge_one, charge_or_migrate, charge_several, peek, peek_one};
