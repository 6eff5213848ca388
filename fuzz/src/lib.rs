//! Fuzz targets of the core.
//!
//! A target is a function of bytes that panics if they break a law. libFuzzer calls it with generated inputs (see
//! `fuzz_targets/`). `tests/replay.rs` calls it with the inputs in `corpus/` (archives) and `found/`, on any toolchain.

pub mod key;
pub mod laws;
pub mod targets;
