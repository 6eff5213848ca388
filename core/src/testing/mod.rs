//! Test support: laws that hold for every limit, an oracle in exact rational numbers, random calls, and counted work.

pub mod calls;
pub mod encoded_fields;
pub mod laws;
pub mod oracle;
pub mod step_counter;
