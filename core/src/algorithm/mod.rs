//! Algorithms of the [list](crate::algorithms), one file each, with the limit and the usage of each.

pub mod any;
pub mod bucket;
pub mod count_min;
pub mod fixed_window;
pub mod leases;
pub mod log;
pub mod sliding_window;
pub mod strict_window;
