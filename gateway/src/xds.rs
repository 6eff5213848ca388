//! Configuration by a control plane.

mod options;

pub use options::XdsOptions;
