//! The fuzz targets of the core.
//!
//! A target is a function of bytes that panics where a law does not hold. libFuzzer feeds it what it thinks up
//! (`fuzz_targets/`, a line each); `tests/replay.rs` feeds it the inputs in `corpus/` (archives) and `found/`, on any toolchain.

pub mod key;
pub mod laws;
pub mod targets;
