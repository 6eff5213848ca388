//! Amounts, timestamps and durations, and their arithmetic. No operation overflows, and each operation that rounds
//! documents the direction.

pub mod amount;
pub mod decimal;
pub mod lazy_shift;
pub mod ratio;
pub mod steady;
pub mod time;

pub use amount::Amount;
pub use time::{Period, Span, Timestamp};
