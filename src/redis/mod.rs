//! The server: the only unsafe code, and with `module.rs` the only user of the SDK. It knows a usage by its trait
//! (encode, decode, kind), never an algorithm by name.
//!
//! Everything runs inside a call of ours, on the thread that holds the server's lock: mostly its main thread, but other
//! modules call from threads of their own. A handle never outlives that call. Functions of the module API that a
//! server may lack are optional pointers, asked at each use; the others are checked once at
//! load ([`api::missing`](crate::redis::api::missing)), so that a call of one cannot fail.

#![allow(unsafe_code, reason = "the server is reached by pointers alone")]

pub mod acl;
pub mod api;
mod before;
pub mod blocked;
pub mod bus;
mod clock;
pub mod command;
pub mod config;
mod current_call;
pub mod dispatch;
mod dry_run;
pub mod effect_demand;
mod global;
pub mod guard;
pub mod incoming_effect;
pub mod info_section;
pub mod key;
pub mod key_events;
pub mod kind_row;
pub mod lazy_free;
#[cfg_attr(test, allow(dead_code, reason = "tests of the core have no server to allocate from"))]
pub mod memory;
pub mod native_type;
pub mod on_key;
mod outgoing;
pub mod policy_lifetime;
mod rdb;
mod replies;
pub mod server_entry;
pub mod server_events;
pub mod slots;
pub mod waiting_room;
pub mod writes;

pub use clock::now;
pub use current_call::Redis;
