//! Calls that count once: what a key remembers of the ids of calls ([`IdempotencyTable`]), and what it takes to settle
//! a charge later ([`Settlement`]).
//!
//! When to use it: where a client may have to send a call again because it lost the reply, and where what a call costs
//! is known only after it. Settling a charge for less makes usage what it would be had the call cost that from the
//! start; how, is the usage's own:
//!
//! * **Bucket, fixed window**: all that is charged lies together. Usage falls by what is settled, but by no more than
//!   the least that it has been since the charge. That is exact; of a bucket it is rounded against the
//!   caller by less than a millionth in all.
//! * **Sliding window, strict window, log**: a charge lies in a place of its own, a count, a slot or an entry
//!   ([`Usage::place`](crate::limit::Usage::place)), and from there it is taken back, if that place still counts. That
//!   is exact, too, as long as nobody gives back by hand in between: such a give-back may have taken the same units, so
//!   as much less of the charge can be settled. And a charge that counts all anew, under a window of another length,
//!   ends what can be settled of those before it.
//! * What saturates (at 2^63-1 millionths) cannot be settled.
//!
//! Windows stay what they were: a call that is settled to 0 has still opened the window that it opened. It happened, it
//! cost nothing.
//!
//! Cost: an id of 36 bytes with one charge takes about 80 bytes where a key remembers at most 16, and about 120 where
//! it remembers more. Time is logarithmic in the ids, but for settling, which adds up the differences between the lows
//! of the older charges, for a log, in which the totals of the entries on one side of a settled one are moved, and for
//! a clock gone back, which moves the places of all charges.

mod idempotency_change;
mod idempotency_table;
mod low_water_marks;
mod packed;
mod recorded_call;
mod records;
mod settlement;

pub use idempotency_change::{IdempotencyChange, encode_no_effect};
pub use idempotency_table::IdempotencyTable;
pub use recorded_call::{MAX_CHARGES, RecordedCall};
pub use records::IdempotencyRecords;
pub use settlement::{Charge, Settlement};

#[cfg(test)]
mod tests;
