//! Test support: random calls, laws that hold for every limit, an oracle in exact rational numbers, and a counter of
//! steps.

pub mod calls;
pub mod encoded_fields;
pub mod laws;
pub mod oracle;
pub mod step_counter;
