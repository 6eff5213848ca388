//! What comes into the core and leaves it as bytes: the words of a call, its errors, and what a usage is written as.

pub mod args;
pub mod codec;
pub mod error;
pub(crate) mod name;
pub(crate) mod short_bytes;
