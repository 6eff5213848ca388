//! redis-ratelimit: rate limiting as native commands of Redis and Valkey.
//!
//! In reading order:

// A test that goes wrong may panic: that is what it is for.
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

/// The core: what a limit allows, in pure arithmetic.
mod limiter;

/// What a call can be refused for.
mod error;

/// A left-to-right reader of a command's words.
mod args;

/// `TOKENBUCKET 200 100 60s COST 2` -> a limit, and what is asked of it.
mod spec;

/// What replicas and the AOF are told, as text.
mod effect;

/// The settings, `ratelimit.*`.
mod config;

/// What the module has done, for INFO.
mod stats;

/// One file a command family: read, look, charge, reply.
mod command;

/// A decision on the wire.
mod reply;

/// The server: clock, keys, native types, effects; the only unsafe code.
mod redis;

/// The tables that a server loads.
mod module;
