//! The algorithms of the [list](crate::algorithms), a file each: what a limit of its kind allows, and what a key
//! remembers of it.

pub mod any;
pub mod bucket;
pub mod count_min;
pub mod fixed_window;
pub mod leases;
pub mod log;
pub mod sliding_window;
pub mod strict_window;
