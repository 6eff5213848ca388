//! The boundary to the server: with `module.rs` (what a load does) the only unsafe code and the only user of the SDK,
//! but for a derived conversion in `reply.rs`.
//! It knows a usage by its trait (encode, decode, kind), never an algorithm by name.
//!
//! | what happens | where |
//! |---|---|
//! | a command, event or timer enters | `dispatch.rs`, `server_events.rs`, `key_events.rs`, `guard.rs` |
//! | keys are opened, committed and given their expiry | `key/` |
//! | effects go to replicas and the AOF, or come from them | `outgoing.rs`, `incoming_effect.rs`, `effect_demand.rs` |
//! | values are saved, loaded, moved and freed | `native_type.rs`, `rdb.rs`, `defragmentation.rs`, `lazy_free.rs` |
//! | clients are blocked and answered | `blocked.rs`, `waiting_callbacks.rs` |
//! | policies last, and travel in a cluster | `policy_persistence.rs`, `bus.rs` |
//! | commands, settings and INFO are registered | `command.rs`, `config.rs`, `info_section.rs` |
//!
//! All but the freeing of values runs while the server has called the module, on the thread that holds the server's
//! lock: mostly its main thread, but other modules call from threads of their own. A handle never outlives that call.
//! Functions of the module API that a server may lack are optional pointers, asked at each use; the others are in a
//! table that is filled at load ([`api::fill`](crate::redis::api::fill)), so that a call of one cannot fail.

#![allow(unsafe_code, reason = "the server is reached by pointers alone")]

pub mod acl;
pub mod api;
pub mod background_call;
pub mod blocked;
pub mod bus;
mod clock;
pub mod cluster_slots;
pub mod command;
pub mod config;
mod current_call;
mod debug_round_trip;
mod defragmentation;
pub mod dispatch;
mod dry_run;
pub mod effect_demand;
mod global;
pub mod guard;
pub mod incoming_effect;
pub mod info_section;
pub mod key;
pub mod key_events;
pub mod kind_operations;
pub mod lazy_free;
#[cfg_attr(test, allow(dead_code, reason = "tests of the core have no server to allocate from"))]
pub mod memory;
pub mod native_type;
mod outgoing;
pub mod policy_persistence;
mod rdb;
mod replies;
pub mod server_entry;
pub mod server_events;
pub mod waiting_callbacks;
pub mod write_permission;

pub use clock::now;
pub use current_call::Redis;
