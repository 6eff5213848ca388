//! Amounts, instants and lengths of time: the only raw arithmetic. Nothing here can overflow, and nothing is rounded
//! but where its name says so.

pub mod amount;
pub mod decimal;
pub mod lazy_shift;
pub mod ratio;
pub mod steady;
pub mod time;

pub use amount::Amount;
pub use time::{Period, Span, Timestamp};
