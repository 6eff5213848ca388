//! Bytes that enter and leave the core: the words of calls, their errors, and encodings of usages.

pub mod args;
pub mod codec;
pub mod error;
pub(crate) mod name;
pub mod packed_fields;
pub(crate) mod short_bytes;
pub(crate) mod varint;
