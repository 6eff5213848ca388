//! Only for tests: the laws that hold for every limit, an oracle in exact rationals, and calls counted by their effort.

pub mod calls;
pub mod effort;
pub mod encoded_fields;
pub mod laws;
pub mod oracle;
