//! redis-ratelimit: rate limiting as native commands of Redis and Valkey.
//!
//! What can be decided without a server is in the crate below, `ratelimit-core`. In reading order:

// A test that goes wrong may panic: that is what it is for.
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

/// The module's version.
mod version;

/// What this server knows beside its keys: policies, queues, the keys that are denied most, counters, settings.
mod server;

/// One file a command family: grammar, one call of the charge path, reply.
mod command;

/// Where calls wait for a lease: the queue of a key is served, and its head is decided by the charge path.
mod waiting;

/// The charge path: open a key, evaluate, commit.
mod charge;

/// A decision on the wire.
mod reply;

/// The boundary to the server: clock, keys, native types, effects.
mod redis;

/// The tables that a server loads.
mod module;
