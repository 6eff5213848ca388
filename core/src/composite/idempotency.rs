//! Idempotency of calls: the recorded calls with ids ([`IdempotencyTable`]), and the state from which charges are
//! settled later ([`Settlement`]).
//!
//! **When to use it:** if a client may repeat a call because it lost the reply, or if the cost of a call is known only
//! afterwards. Settling a charge at a lower cost gives the usage that the key would have if the call had had that cost
//! from the start. The method depends on the usage:
//!
//! * **Bucket, fixed window**: all charges are added to one amount. A settlement subtracts the difference of the costs
//!   from that amount, but at most the lowest usage since the charge. This is exact; for a bucket, all roundings
//!   together add less than a millionth to the usage.
//! * **Sliding window, strict window, log**: a charge has a place, which is a count, a slot or an entry
//!   ([`Usage::place`](crate::limit::Usage::place)), and the difference is subtracted there while the place counts.
//!   This is exact too, unless there was a refund since the charge. A refund may have been subtracted from the same
//!   charge, so the amount that can be taken back is reduced by it. A charge under a window of another length recounts
//!   the usage, after which earlier charges can no longer be settled.
//! * Charges that saturate (at 2^63-1 millionths) cannot be settled.
//!
//! Settling does not move windows: a window opened by a call stays open if the call is settled to 0.
//!
//! **Cost:** an id of 36 bytes with one charge takes about 80 bytes if a key has at most 16 ids, else about 120. Time
//! is logarithmic in the number of ids, with three exceptions: settling adds up the differences between the low-water
//! marks of older charges; settling in a log changes the totals of all entries on one side of the charge; and when the
//! clock moves backwards, the places of all charges are shifted.

mod idempotency_change;
mod idempotency_table;
mod low_water_marks;
mod packed;
mod recorded_call;
mod records;
mod settlement;

pub use idempotency_change::{IdempotencyChange, encode_no_change};
pub use idempotency_table::IdempotencyTable;
pub use recorded_call::{MAX_CHARGES, RecordedCall};
pub use records::IdempotencyRecords;
pub use settlement::{Charge, Settlement};

#[cfg(test)]
mod tests;
