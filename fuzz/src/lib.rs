//! The fuzz targets, and the core and its readers, which they have compiled in as they stand.
//!
//! A target is a function of bytes that panics where a law does not hold. libFuzzer feeds it what it thinks up
//! (`fuzz_targets/`, a line each); `tests/replay.rs` feeds it what is in `corpus/` and `found/`, on any toolchain.

#![allow(
    dead_code,
    missing_docs,
    unused_imports,
    unused_macros,
    reason = "a target uses a part of what is compiled in"
)]

#[path = "../../src/args.rs"]
pub mod args;
#[path = "../../src/effect.rs"]
pub mod effect;
#[path = "../../src/error.rs"]
pub mod error;
#[path = "../../src/limiter/mod.rs"]
pub mod limiter;
#[path = "../../src/spec.rs"]
pub mod spec;

pub mod laws;
pub mod targets;
