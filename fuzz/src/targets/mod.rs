//! Fuzz targets, each in a file of its own.

pub mod argv;
pub mod calls;
pub mod effects;
pub mod numbers;
pub mod payloads;
pub mod records;
pub mod states;

/// Function that takes any bytes and panics if they break a law.
pub type Target = fn(&[u8]);

/// All targets with their names in `cargo fuzz`.
pub const ALL: [(&str, Target); 7] = [
    ("argv", argv::run),
    ("calls", calls::run),
    ("effects", effects::run),
    ("numbers", numbers::run),
    ("payloads", payloads::run),
    ("records", records::run),
    ("states", states::run),
];
