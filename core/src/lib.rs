//! The core of redis-ratelimit: what a limit allows, decided in pure arithmetic. No I/O, no clock, no server.
//!
//! **A key remembers usage; each call brings the limit.** A [`Limit`] is what the call brings: parsed, checked once
//! at construction, then always valid. A [`Usage`] is what the key remembers: how much was used, as of when; its
//! `Default` is "never seen". Because a limiter is phrased as *how much is used*, never *how much is left*, a first
//! call needs no branch of its own.
//!
//! Looking and charging are apart: [`evaluate()`] only looks, and says what charging would change: RL.PEEK ends there;
//! [`Change::apply`] makes that change. A call over several limits looks at all before it takes from any, and a denied
//! call takes nothing.
//!
//! ```
//! use ratelimit_core::algorithm::bucket::{Bucket, BucketUsage, Discipline};
//! use ratelimit_core::{Amount, Request, Period, Span, Timestamp, Verdict, evaluate};
//!
//! // Two at once, then one a second.
//! let [capacity, refill] = [b"2", b"1"].map(|text| Amount::parse_down(text).unwrap());
//! let limit = Bucket::new(capacity, refill, Period::parse(b"1s").unwrap(), Discipline::Burst).unwrap();
//!
//! let mut usage = BucketUsage::default();
//! let now = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
//! let verdicts = [(); 3].map(|()| {
//!     let seen = evaluate(&limit, &usage, now, Request::Take(Amount::ONE));
//!     seen.change().apply(&limit, &mut usage, now);
//!     seen.verdict()
//! });
//! assert_eq!(verdicts, [Verdict::Allowed(Span::ZERO), Verdict::Allowed(Span::ZERO), Verdict::After(Span::SECOND)]);
//!
//! // What was denied passes after just that long.
//! let then = now.plus(Span::SECOND);
//! assert!(evaluate(&limit, &usage, then, Request::Take(Amount::ONE)).verdict().allowed());
//! ```
//!
//! CONTRIBUTING.md lists the edits that add an algorithm.

#![deny(missing_docs)]
#![forbid(unsafe_code)]
// A test that goes wrong may panic: that is what it is for.
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod algorithm;
pub mod ban;
pub mod composite;
pub mod effect;
mod evaluate;
pub mod expiry;
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
