//! redis-ratelimit: rate limiting as native commands of Redis and Valkey.
//!
//! In reading order:

pub mod limiter; // the core: what a limit allows, in pure arithmetic
pub mod error; // what a call can be refused for
pub mod args; // a left-to-right reader of a command's words
pub mod spec; // `TOKENBUCKET 200 100 60s COST 2` -> a limit, and what is asked of it
pub mod command; // one file a command family: read, decide, charge, reply
pub mod reply; // a decision on the wire
pub mod redis; // the server: clock, keys, native types, effects; the only unsafe code
pub mod module; // the tables that a server loads
