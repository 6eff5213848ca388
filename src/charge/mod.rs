//! The charge path: what a call asks of a key becomes an answer and, if the call may go on, a change of what the key
//! stores.
//!
//! ```text
//!   spec or call ---> open ---> evaluate ---> check ---> count ---> commit ---> answer
//!                      |           |                                   |
//!                   Stored   KeyEvaluation                 change, effect, the key's expiry,
//!                                                          and at the end the event
//! ```
//!
//! * A key is opened without knowing its type; [`Stored`](crate::redis::key::Stored) says what it holds. The call is
//!   evaluated at what was found: one limit at a usage of its own (`one_limit.rs`), or several at a composite key
//!   (`several_limits.rs`). Nothing is changed yet.
//! * If every key allows the call but there is no room or no memory for what it adds, it is refused with an error. Else
//!   it is counted, as allowed or denied (`key_evaluation.rs`).
//! * The usage moves back if the clock did, and is changed (`commit.rs`). The effect is propagated and the key gets its
//!   expiry (`redis/key/open.rs`); the event follows when all keys are closed.
//!
//! Calls on one key are in `one_key.rs`, where the key stays open; calls on several in `many_keys.rs`, where each is
//! closed before the next. Both come to the same. A *plain* key holds one usage, a *composite* key several. There are
//! three fast paths: one spec at a plain key, of which the compiler knows the algorithm; limits that keep no entries at
//! a composite key (`rates.rs`); and the everyday call, which says no more than a token bucket or a policy, while
//! nobody hears of effects (`fast_one_key.rs`, and of several keys `fast_many_keys.rs`). `evaluated_request.rs` evaluates
//! whatever is requested at whatever is stored.

mod commit;
mod evaluated_request;
mod fast_many_keys;
mod fast_one_key;
mod key_evaluation;
mod leases_and_bans;
mod many_keys;
mod one_key;
mod one_limit;
mod policy_outcome;
mod rates;
mod several_limits;

pub use fast_many_keys::take_buckets_fast;
pub use fast_one_key::{take_bucket_fast, take_item_fast, take_limits_fast};
pub use leases_and_bans::{ban, follow_clock, give_back, lease_token, lease_until, release};
pub use many_keys::{KeysAnswer, charge_keys, peek_keys};
pub use one_key::{charge, charge_one, charge_or_take_over, charge_several, peek, peek_one};
