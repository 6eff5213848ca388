//! From the words of a call to what it requests: `TOKENBUCKET 200 100 60s COST 2` -> a limit, and a request for 2 of it.
//!
//! | type | what is requested | of |
//! |---|---|---|
//! | [`Request`](crate::Request) | a cost, or what `UPTO`, `FORCE`, `MAXWAIT` or a negative cost make of it | one limit |
//! | [`Spec`] | a limit together with its request | one limit |
//! | [`KeyRequest`] | a spec, a [`CompositeRequest`] of several, or the limits of a policy | one key |
//! | [`ManyKeysRequest`] | a [`KeyRequest`] for each key: all pass or none does | many keys |
//!
//! A spec is an algorithm's name, its numbers and options, and ends at the first word that is none of its options, so
//! that several can stand one after another. RL.TOKENBUCKET and its siblings are read by their function of [`Spec`],
//! RL.TAKE by [`KeyRequest`], and RL.MTAKE by [`ManyKeysRequest`].

mod ban_words;
mod bucket_memo;
mod by_policy;
mod common_options;
mod grammar;
mod key_request;
mod many_keys_request;
mod numbers;
mod options;
mod policy;
mod purpose;
mod refusal;
mod spec;
mod spec_options;
mod throttle;
pub mod top_query;
mod window;
mod words;

#[doc(hidden)]
pub use ban_words::block;
pub use bucket_memo::BucketMemo;
pub use by_policy::{ByPolicy, name_of_policy};
pub use grammar::{Reader, holders};
pub use key_request::{CompositeRequest, KeyRequest};
pub use many_keys_request::ManyKeysRequest;
pub use policy::Policy;
pub use purpose::{Acquiring, Block, Idempotency, MAX_ID, Purpose};
pub use spec::{MAX_SPEC_NAME, MAX_SPECS, ParsedLimit, Spec, is_name};
pub use spec_options::SpecOptions;
pub use throttle::throttle;

#[cfg(test)]
mod tests;
