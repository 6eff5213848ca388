//! Core of redis-ratelimit: evaluates limits with integer arithmetic, without I/O, a clock or a server.
//!
//! **A key stores usage; each call supplies the limit.** A [`Limit`] is parsed from the call, validated when it is
//! created, and never invalid afterwards. A [`Usage`] is stored in the key: the used amount and the time it refers to.
//! Its `Default` equals a key that does not exist. Because the used amount is stored, not the remaining one, the first
//! call needs no special case.
//!
//! Evaluation and charge are separate. [`evaluate()`] returns the verdict and the [`Change`] that the call would make;
//! RL.PEEK stops there. [`Change::apply`] makes the change. A call on several limits evaluates all of them before
//! it charges any, and a denied call charges nothing.
//!
//! ```
//! use ratelimit_core::algorithm::bucket::{Bucket, BucketUsage, Discipline};
//! use ratelimit_core::{Amount, Request, Period, Span, Timestamp, Verdict, evaluate};
//!
//! // A burst of two, then one per second.
//! let [capacity, refill] = [b"2", b"1"].map(|text| Amount::parse_down(text).unwrap());
//! let limit = Bucket::new(capacity, refill, Period::parse(b"1s").unwrap(), Discipline::Burst).unwrap();
//!
//! let mut usage = BucketUsage::default();
//! let now = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
//! let verdicts = [(); 3].map(|()| {
//!     let evaluation = evaluate(&limit, &usage, now, Request::Take(Amount::ONE));
//!     evaluation.change.apply(&limit, &mut usage, now);
//!     evaluation.verdict
//! });
//! assert_eq!(verdicts, [Verdict::Allowed(Span::ZERO), Verdict::Allowed(Span::ZERO), Verdict::After(Span::SECOND)]);
//!
//! // The denied call is granted after the returned wait.
//! let later = now.plus(Span::SECOND);
//! assert!(evaluate(&limit, &usage, later, Request::Take(Amount::ONE)).verdict.allowed());
//! ```
//!
//! CONTRIBUTING.md lists the edits that add an algorithm.

#![deny(missing_docs)]
#![forbid(unsafe_code)]
// Tests may panic: a panic only fails the test.
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod algorithm;
pub mod ban;
pub mod composite;
pub mod effect;
mod evaluate;
pub mod expiry;
mod keyed_hash;
mod limit;
mod number;
pub mod policy;
pub mod queue;
mod record_table;
pub mod round_trip;
pub mod space_saving;
pub mod syntax;
#[cfg(test)]
mod testing;
mod usage_kind;
pub mod wire;

pub use algorithm::any::{AnyLimit, AnyUsage, PlainUsage};
pub use evaluate::{Change, Evaluation, Request, evaluate};
pub use limit::{Decision, Identity, InfoField, Limit, RecoverySource, Taken, Usage, Verdict};
pub use number::{Amount, Period, Span, Timestamp};
pub use usage_kind::UsageKind;
