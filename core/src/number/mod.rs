//! Amounts, timestamps and durations: the only raw arithmetic of this crate. No operation overflows, and rounding
//! happens only where a name says so.

pub mod amount;
pub mod decimal;
pub mod lazy_shift;
pub mod ratio;
pub mod steady;
pub mod time;

pub use amount::Amount;
pub use time::{Period, Span, Timestamp};
