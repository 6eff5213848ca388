//! What a call says of its limits: `TOKENBUCKET 200 100 60s COST 2` -> a limit and what is asked of it.
//!
//! A spec is an algorithm's name, its numbers and options, and ends at the first word that is none of its options, so
//! that several can stand one after another. RL.TOKENBUCKET and its siblings are read by their function of [`Spec`],
//! RL.TAKE by [`KeyRequest`], and calls on several keys by [`ManyKeysRequest`].

mod ban_words;
mod bucket_memo;
mod by_policy;
mod call;
mod common_options;
mod grammar;
mod keys;
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
pub use call::{Call, KeyRequest};
pub use grammar::{Reader, holders};
pub use keys::ManyKeysRequest;
pub use policy::Policy;
pub use purpose::{Acquiring, Block, Idempotency, MAX_ID, Purpose};
pub use spec::{MAX_NAME, MAX_SPECS, ParsedLimit, Spec, is_name};
pub use spec_options::SpecOptions;
pub use throttle::throttle;

#[cfg(test)]
mod tests;
