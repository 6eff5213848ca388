//! Parser of command arguments: `TOKENBUCKET 200 100 60s COST 2` becomes a limit and a request for 2 units.
//!
//! | type | parsed arguments | applies to |
//! |---|---|---|
//! | [`Request`](crate::Request) | a cost with its mode (`UPTO`, `FORCE`, `MAXWAIT`) or a refund | one limit |
//! | [`Spec`] | a limit together with its request | one limit |
//! | [`KeyRequest`] | a spec, a [`CompositeRequest`] of several, or the limits of a policy | one key |
//! | [`ManyKeysRequest`] | a [`KeyRequest`] for each key: all are charged or none is | many keys |
//!
//! A spec consists of the name of an algorithm, its numbers and its options. It ends at the first word that is not one
//! of its options, so that several specs can follow each other. RL.TOKENBUCKET and similar commands are parsed by the
//! matching function of [`Spec`], RL.TAKE by [`KeyRequest`], and RL.MTAKE by [`ManyKeysRequest`].

mod ban_words;
mod bucket_cache;
mod common_options;
mod grammar;
mod key_request;
mod many_keys_request;
mod numbers;
mod options;
mod policy;
mod policy_request;
mod purpose;
mod spec;
mod spec_options;
mod throttle;
pub mod top_query;
mod window;
mod word_errors;
mod words;

#[doc(hidden)]
pub use ban_words::ban_duration;
pub use bucket_cache::BucketCache;
pub use grammar::{LimitParser, holders};
pub use key_request::{CompositeRequest, KeyRequest};
pub use many_keys_request::ManyKeysRequest;
pub use policy::Policy;
pub use policy_request::{PolicyRequest, name_of_policy};
pub use purpose::{AcquireOptions, Block, Idempotency, MAX_ID, Purpose};
pub use spec::{MAX_SPEC_NAME, MAX_SPECS, ParsedLimit, Spec, is_name};
pub use spec_options::SpecOptions;
pub use throttle::throttle;

#[cfg(test)]
mod tests;
