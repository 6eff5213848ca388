//! Interface to the server. Only this module and `module.rs` contain unsafe code or use the SDK. Its code reaches a
//! usage through the trait `Usage`, and names no algorithm.
//!
//! | Task | File |
//! |---|---|
//! | functions of the server, clock, log, timers | `api.rs` |
//! | entry of commands, events, timers | `dispatch.rs`, `server_events.rs`, `key_events.rs`, `guard.rs` |
//! | opening and committing keys, expiries | `key/` |
//! | effects to and from replicas and the AOF | `outgoing.rs`, `kind_operations.rs` |
//! | saving, loading, moving and freeing values | `native_type.rs`, `rdb.rs`, `defragmentation.rs`, `lazy_free.rs` |
//! | blocking and answering clients | `blocked.rs`, `waiting_callbacks.rs` |
//! | checks that the server makes for a call, but not for a timer | `cluster_slots.rs`, `permissions.rs` |
//! | persistence of policies, and their exchange in a cluster | `policy_persistence.rs`, `bus.rs` |
//! | registration of commands, settings and INFO | `command.rs`, `config.rs`, `info_section.rs` |
//!
//! Except for freeing values, all code runs inside a call from the server, on the thread that holds the server's lock.
//! That is usually the main thread, but other modules may call from their own threads. A handle never outlives the
//! call. Functions of the module API that a server may lack are optional pointers, tested at each use. The others are
//! in a table that is filled at load ([`api::fill`](crate::redis::api::fill)), so that calling one cannot fail.

#![allow(unsafe_code, reason = "the server is reached by pointers alone")]

pub mod api;
pub mod blocked;
pub mod bus;
pub mod cluster_slots;
pub mod command;
pub mod config;
mod current_call;
mod debug_round_trip;
mod defragmentation;
pub mod dispatch;
pub mod guard;
pub mod info_section;
pub mod key;
pub mod key_events;
pub mod kind_operations;
pub mod lazy_free;
#[cfg_attr(test, allow(dead_code, reason = "unit tests have no server to allocate from"))]
pub mod memory;
pub mod native_type;
pub mod outgoing;
pub mod permissions;
pub mod policy_persistence;
mod rdb;
pub mod server_entry;
pub mod server_events;
pub mod waiting_callbacks;

pub use api::now;
pub use current_call::Redis;
