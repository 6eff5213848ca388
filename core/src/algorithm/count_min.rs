//! Token buckets for any number of items in a fixed amount of memory: a count-min sketch whose cells drain.
//!
//! The sketch has four rows of cells. An item (any bytes) has one cell in each row, chosen by a keyed hash
//! (`secret.rs`). The usage of an item is the minimum usage of its four cells. A charge raises the cells that are below
//! usage plus cost to this sum ("conservative update": Estan and Varghese, "New Directions in Traffic Measurement and
//! Accounting", SIGCOMM 2002; the sketch itself: Cormode and Muthukrishnan, "An Improved Data Stream Summary", 2005).
//! Cells decrease only by draining, and all drain at the same rate: the key has one water mark (`mark.rs`), and the
//! usage of a cell is its level above the mark.
//!
//! **Law:** whatever a sketch grants an item, an exact bucket for that item with the same charges would have granted
//! too, because each of the item's cells is at least at the level of that bucket. So in any time `t` an item is granted
//! at most `capacity + t * refill / period`. Items that share cells can only be denied too early, and that effect
//! drains away.
//!
//! **When to use it:** for limits by values that an attacker chooses (addresses, user agents, unknown tokens), where
//! one key per value would use unbounded memory. **Known flaw:** if all items together are granted more than `3 *
//! refill` units per period for each cell of a row, honest items are denied too. RL.INFO shows the share of new items
//! that would be denied (`estimate.rs`). Usage cannot be refunded, because the usage of items is merged.
//!
//! **Cost:** a hash of the item, and four cells on different pages of memory. 8 bytes per cell, allocated in pieces of
//! 4 KB on the first write.
//!
//! **Exactness:** as in a [bucket](super::bucket), the mark moves only by whole steps in which a whole number of
//! millionths drains. When an empty cell is charged between two steps, its level is rounded up by less than a
//! millionth. Between two charges with different rates, all cells drain at the rate of the later charge.

mod cells;
mod estimate;
mod mark;
mod secret;
mod size;
mod sketch_state;
mod sketch_usage;

use crate::algorithm::bucket::{Bucket, BucketUsage};
use crate::limit::{Identity, Limit, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use secret::{ItemCells, Secret};
pub use size::SketchSize;
use sketch_state::CELLS_PER_ITEM;
pub use sketch_usage::SketchUsage;
use std::array;
use std::cell::Cell;
use std::fmt;

/// Sketch limiter: a token bucket for each item.
///
/// ```
/// use ratelimit_core::algorithm::bucket::{Bucket, Discipline};
/// use ratelimit_core::algorithm::count_min::{Sketch, SketchUsage};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp, Verdict};
///
/// let bucket = Bucket::new(Amount::ONE, Amount::ONE, Period::parse(b"1m").unwrap(), Discipline::Burst).unwrap();
/// let sketch = Sketch::new(bucket, None);
/// let (mut usage, now) = (SketchUsage::default(), Timestamp::EPOCH);
/// let [one, other] = [b"203.0.113.7", b"203.0.113.8"].map(|address| sketch.for_item(address));
/// one.charge(&mut usage, now, Amount::ONE);
/// assert_eq!(one.verdict(&usage, now, Amount::ONE), Verdict::After(Span::SECOND.times(60)));
/// assert_eq!(other.verdict(&usage, now, Amount::ONE), Verdict::Allowed(Span::ZERO));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sketch {
    /// Bucket of an item, lowered by the amount to keep.
    bucket: Bucket,
    /// Whole capacity, including the amount to keep, for display.
    displayed_capacity: Amount,
    /// Size of a new key; `None` for the default of the setting.
    size: Option<SketchSize>,
}

impl Sketch {
    /// Creates a sketch whose items have buckets like `bucket`, with the discipline
    /// [`Burst`](super::bucket::Discipline::Burst). A new key gets the given size or, if that is `None`, the
    /// [default](SketchSize::default_for_new_keys).
    #[must_use]
    pub fn new(bucket: Bucket, size: Option<SketchSize>) -> Sketch {
        Sketch { bucket, displayed_capacity: bucket.limit(), size }
    }

    /// Returns the capacity of each item's bucket.
    #[must_use]
    pub fn limit(&self) -> Amount {
        self.bucket.limit()
    }

    /// Returns this sketch with another capacity. The displayed capacity is unchanged.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> Sketch {
        Sketch { bucket: self.bucket.limited_to(limit), ..self }
    }

    /// Returns the size of a new key.
    #[must_use]
    pub fn size(&self) -> SketchSize {
        self.size.unwrap_or_else(SketchSize::default_for_new_keys)
    }

    /// Returns this sketch with capacity and refill multiplied by `factor`, like [`Bucket::scaled`].
    #[must_use]
    pub fn scaled(self, factor: Amount) -> Sketch {
        let bucket = self.bucket.scaled(factor);
        Sketch { bucket, displayed_capacity: bucket.limit(), ..self }
    }

    /// Returns this sketch with the precomputed step of its buckets, for limits that serve many calls.
    #[must_use]
    pub fn prepared(mut self) -> Sketch {
        self.bucket = self.bucket.prepared();
        self
    }

    /// Returns the empty identity, because a sketch is alone in its key.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity { micros: 0, options: 0 }
    }

    /// Returns the limit of one item, which may be any bytes, including none.
    #[must_use]
    pub fn for_item(self, item: &[u8]) -> ItemLimit<'_> {
        ItemLimit { sketch: self, item, last_cells: Cell::new(None), secret: None }
    }
}

impl fmt::Display for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SKETCH {}", self.bucket.arguments())?;
        self.size.map_or(Ok(()), |size| write!(f, " SIZE {size}"))
    }
}

/// Limit of one item of a sketch.
#[derive(Clone, Debug)]
pub struct ItemLimit<'a> {
    sketch: Sketch,
    item: &'a [u8],
    /// Cells of the item in the sketch that was evaluated last.
    last_cells: Cell<Option<(SketchSize, Secret, ItemCells)>>,
    /// Secret of a new sketch; `None` for a random one.
    secret: Option<Secret>,
}

impl ItemLimit<'_> {
    /// Returns the cells of the item in a sketch. The hash is computed once per call. Returns `None` for an unused
    /// sketch.
    #[inline(always)]
    fn cells(&self, usage: &SketchUsage) -> Option<ItemCells> {
        let (size, secret) = usage.hash_parameters()?;
        if let Some((last_size, last_secret, cells)) = self.last_cells.get()
            && last_size == size
            && last_secret == secret
        {
            return Some(cells);
        }
        let cells = secret.cells(size, self.item);
        self.last_cells.set(Some((size, secret, cells)));
        Some(cells)
    }

    /// Returns the usage of the item's bucket.
    #[inline(always)]
    fn item_usage(&self, usage: &SketchUsage) -> BucketUsage {
        usage.usage_of_cells(self.cells(usage))
    }

    /// Returns the remaining amount of each of the item's four cells at `now`. The maximum is the remaining amount of
    /// the item's bucket.
    #[must_use]
    pub fn remaining_by_cell(&self, usage: &SketchUsage, now: Timestamp) -> [Amount; CELLS_PER_ITEM] {
        let cells = self.cells(usage);
        let row_cell_only = |row: usize| cells.and_then(|cells| cells.get(row).map(|cell| [*cell; CELLS_PER_ITEM]));
        array::from_fn(|row| self.sketch.bucket.remaining(&usage.usage_of_cells(row_cell_only(row)), now))
    }

    /// Returns the usage of the item's bucket after a charge of `cost` at `now`, which must not be before the time of
    /// the usage.
    fn item_usage_after_charge(&self, usage: &SketchUsage, now: Timestamp, cost: Amount) -> BucketUsage {
        let mut fullest = usage.fullest;
        let before = fullest.used;
        self.sketch.bucket.advance(&mut fullest, now);
        let drained = before.minus(fullest.used);
        self.sketch.bucket.usage_after(self.item_usage(usage).used.minus(drained), fullest.drained_to, now, cost)
    }
}

impl Limit for ItemLimit<'_> {
    type Usage = SketchUsage;
    const IS_READ_PARTIALLY: bool = true;

    fn limit(&self) -> Amount {
        self.sketch.limit()
    }

    #[inline]
    fn verdict(&self, usage: &SketchUsage, now: Timestamp, cost: Amount) -> Verdict {
        self.sketch.bucket.verdict(&self.item_usage(usage), now, cost)
    }

    #[inline]
    fn remaining(&self, usage: &SketchUsage, now: Timestamp) -> Amount {
        self.sketch.bucket.remaining(&self.item_usage(usage), now)
    }

    #[inline]
    fn reset(&self, usage: &SketchUsage, now: Timestamp) -> Span {
        self.sketch.bucket.reset(&self.item_usage(usage), now)
    }

    #[inline]
    fn recovery(&self, usage: &SketchUsage, now: Timestamp) -> Span {
        self.sketch.bucket.reset(&usage.fullest, now)
    }

    fn debt_after_charge(&self, usage: &SketchUsage, now: Timestamp, cost: Amount) -> Span {
        // After a clock step back, the usage moves to `now`, so that no time has passed since its stored time.
        let now = now.max(usage.fullest.drained_to);
        self.sketch.bucket.debt(&self.item_usage_after_charge(usage, now, cost), now)
    }

    #[inline]
    fn charge(&self, usage: &mut SketchUsage, now: Timestamp, cost: Amount) {
        if usage.hash_parameters().is_none() {
            usage.initialize(self.sketch.size(), self.secret.unwrap_or_else(Secret::random), self.sketch.bucket, now);
        }
        let Some(cells) = self.cells(usage) else { return };
        let charged = self.item_usage_after_charge(usage, now, cost);
        usage.charge(&self.sketch.bucket, self.sketch.displayed_capacity, now, cells, charged.used);
    }

    fn entries_after_charge(&self, usage: &SketchUsage, _now: Timestamp) -> Option<usize> {
        // An unused sketch has no pieces yet. Its call creates the key, which is checked separately.
        let allocations = usage.allocations(self.cells(usage)?);
        (allocations > 0).then(|| usage.entries().saturating_add(allocations))
    }

    fn refund(&self, _usage: &mut SketchUsage, _now: Timestamp, _amount: Amount) {
        // Unreachable, because the grammar rejects refunds of sketches: merged usage cannot be separated.
    }
}

#[cfg(test)]
mod tests;
