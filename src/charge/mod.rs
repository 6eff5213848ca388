//! The charge path: what a call asks of a key becomes an answer and, if the call may go on, a change of what the key
//! stores.
//!
//! ```text
//!   Request ---> open ---> evaluate ---> check ---> count ---> commit ---> answer
//!                 |           |                                   |
//!              Stored     KeyEvaluation                    change, then the key's expiry,
//!                                                       effect and event
//! ```
//!
//! * A key is opened once, whatever it stores (`Stored`). What a call asks of it is evaluated at that: one limit at a
//!   usage of its own (`one_limit.rs`), or several at a composite key (`several_limits.rs`). Nothing is changed yet.
//! * A call that may go on, on all of its keys, is refused if there is no room or no memory; then it is counted
//!   (`key_evaluation.rs`).
//! * The usage moves back with the clock, is changed, and the key gets its expiry; the effect and the event follow
//!   (`commit.rs`).
//!
//! A call on one key is a call on several, with one (`many_keys.rs`). But its key stays open all along (`one_key.rs`).
//! Beside the slow path, which serves whatever is asked at whatever is stored (`slow_path.rs`), there are two fast
//! ones, which come to the same: one spec at a plain key, of which the compiler knows the algorithm, and rates alone at
//! a composite key (`rates.rs`).

mod by_hand;
mod commit;
mod key_evaluation;
mod many_keys;
mod one_key;
mod one_limit;
mod rates;
mod ruling;
mod several_limits;
mod slow_path;

pub use by_hand::{ban, follow_clock, give_back, lease_until, release};
pub use many_keys::{KeysAnswer, charge_keys, peek_keys};
pub use one_key::{charge, charge_one, charge_or_take_over, charge_several, peek, peek_one};
