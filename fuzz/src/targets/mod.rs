//! One file a target.

pub mod argv;
pub mod calls;
pub mod effects;
pub mod numbers;
pub mod payloads;
pub mod records;
pub mod states;

/// Takes any bytes; panics if they break a law.
pub type Target = fn(&[u8]);

/// Every target, by the name that `cargo fuzz` knows it by.
pub const ALL: [(&str, Target); 7] = [
    ("argv", argv::run),
    ("calls", calls::run),
    ("effects", effects::run),
    ("numbers", numbers::run),
    ("payloads", payloads::run),
    ("records", records::run),
    ("states", states::run),
];
