//! redis-ratelimit: rate limiting as native commands of Redis and Valkey.
//!
//! Everything that does not need a server is in the crate `ratelimit-core`.

// Tests may panic to report a failure.
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

/// The module's version.
mod version;

/// State of the module outside of keys: policies, queues, most denied keys, counters, settings.
mod server;

/// Commands, with a file per family: grammar, one call of the charge path, reply.
mod command;

/// Waiting for a lease: serves the queue of a key by evaluating its head on the charge path.
mod waiting;

/// The charge path: open a key, evaluate, commit.
mod charge;

/// Replies in the format of the protocol.
mod reply;

/// Interface to the server: clock, keys, native types, effects.
mod redis;

/// Entry point of the module, and its table of commands.
mod module;
