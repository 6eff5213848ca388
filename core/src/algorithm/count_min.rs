//! A token bucket for each of any number of items, in a fixed amount of memory: a count-min sketch whose cells drain.
//!
//! Four rows of cells; an item, any bytes, is found in one cell of each row, chosen by a keyed hash (`secret.rs`). Its
//! usage is the least of the four. A charge raises only those cells that are below usage plus cost to that ("conservative
//! update": Estan and Varghese, "New Directions in Traffic Measurement and Accounting", SIGCOMM 2002; the sketch itself:
//! Cormode and Muthukrishnan, "An Improved Data Stream Summary", 2005). No cell falls but by draining, and all drain at
//! one rate: the key has one water mark (`mark.rs`), and a cell's usage is its level above that.
//!
//! **Law:** what a sketch grants an item, an exact bucket of that item's own, charged with just that, would have granted
//! too: each of the item's cells is at least that bucket's level. So in any time `t` an item is granted no more than
//! `capacity + t * refill / period`. Items that share cells can only be denied too early, and that drains away.
//!
//! **When to use it:** to limit by what an attacker chooses (addresses, user agents, unknown tokens), where a key for
//! each would take as much memory as the attacker likes. **Known flaw:** where all items
//! together are granted more than `3 * refill` units a period for each cell of a row, honest items are denied too;
//! RL.INFO tells what share (`estimate.rs`). And usage cannot be given back: what has been merged cannot be told apart
//! again.
//!
//! **Cost:** a hash of the item and four cells, of which each is in another page of memory. 8 bytes a cell, in pieces of
//! 4 KB that come when they are first written.
//!
//! **Exactness:** as a [bucket](super::bucket), the mark moves only by whole steps in which a whole number of millionths
//! drains. Where an empty cell is charged, the mark in between two steps is rounded up, by less than a millionth. Two
//! charges with different rates drain all cells, between them, at the rate that the later brings.

mod cells;
mod estimate;
mod item_fast_take;
mod made_sketch;
mod mark;
mod secret;
mod size;
mod sketch_change;
mod sketch_usage;

use crate::algorithm::bucket::{Bucket, BucketUsage};
use crate::limit::{Identity, Limit, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
pub use item_fast_take::{ItemCharge, ItemTaken};
use made_sketch::ROWS_OF_CELLS;
use secret::{ItemCells, Secret};
pub use size::SketchSize;
pub use sketch_usage::SketchUsage;
use std::array;
use std::cell::Cell;
use std::fmt;

/// A sketch's numbers: a token bucket for each item.
///
/// ```
/// use ratelimit_core::algorithm::bucket::{Bucket, Discipline};
/// use ratelimit_core::algorithm::count_min::{Sketch, SketchUsage};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp, Verdict};
///
/// let bucket = Bucket::new(Amount::ONE, Amount::ONE, Period::parse(b"1m").unwrap(), Discipline::Burst).unwrap();
/// let sketch = Sketch::new(bucket, None);
/// let (mut usage, now) = (SketchUsage::default(), Timestamp::EPOCH);
/// let [one, other] = [b"203.0.113.7", b"203.0.113.8"].map(|address| sketch.of_item(address));
/// one.charge(&mut usage, now, Amount::ONE);
/// assert_eq!(one.verdict(&usage, now, Amount::ONE), Verdict::After(Span::SECOND.times(60)));
/// assert_eq!(other.verdict(&usage, now, Amount::ONE), Verdict::Allowed(Span::ZERO));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sketch {
    /// The bucket of an item, lowered by what is kept.
    bucket: Bucket,
    /// Its whole capacity, for people.
    whole: Amount,
    /// The size of a key that is made; `None`: as the setting says.
    size: Option<SketchSize>,
}

impl Sketch {
    /// A sketch of such buckets, whose discipline is [`Burst`](super::bucket::Discipline::Burst). A key that it makes is
    /// of that size, or if that is `None`, of the [default](SketchSize::of_setting).
    #[must_use]
    pub fn new(bucket: Bucket, size: Option<SketchSize>) -> Sketch {
        Sketch { bucket, whole: bucket.limit(), size }
    }

    /// The capacity of each item's bucket.
    #[must_use]
    pub fn limit(&self) -> Amount {
        self.bucket.limit()
    }

    /// This sketch with another capacity, of which the whole is what is shown to people.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> Sketch {
        Sketch { bucket: self.bucket.limited_to(limit), ..self }
    }

    /// The size of a key that it makes.
    #[must_use]
    pub fn size(&self) -> SketchSize {
        self.size.unwrap_or_else(SketchSize::of_setting)
    }

    /// Whether what is used recovers by a rate, which a scale changes.
    pub const RECOVERS_BY_RATE: bool = true;

    /// This sketch with capacity and refill times `factor`, as [`Bucket::scaled`] says.
    #[must_use]
    pub fn scaled(self, factor: Amount) -> Sketch {
        let bucket = self.bucket.scaled(factor);
        Sketch { bucket, whole: bucket.limit(), ..self }
    }

    /// This sketch with the step of its buckets worked out, for one that many calls bring.
    #[must_use]
    pub fn prepared(mut self) -> Sketch {
        self.bucket = self.bucket.prepared();
        self
    }

    /// The numbers that people are told: of the whole capacity.
    #[inline(always)]
    fn shown(&self) -> Bucket {
        self.bucket.limited_to(self.whole)
    }

    /// What it is known by without a name: nothing, since it is alone in its key.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity { micros: 0, words: 0 }
    }

    /// The bucket of one item, which is any bytes, none too.
    #[must_use]
    pub fn of_item(self, item: &[u8]) -> ItemLimit<'_> {
        ItemLimit { sketch: self, item, found: Cell::new(None), secret: None }
    }
}

impl fmt::Display for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SKETCH {}", self.bucket.numbers())?;
        self.size.map_or(Ok(()), |size| write!(f, " SIZE {size}"))
    }
}

/// The bucket of one item of a sketch.
#[derive(Clone, Debug)]
pub struct ItemLimit<'a> {
    sketch: Sketch,
    item: &'a [u8],
    /// The cells of the item in the sketch that was looked at last.
    found: Cell<Option<(SketchSize, Secret, ItemCells)>>,
    /// The secret of a sketch that it makes; `None`: a random one.
    secret: Option<Secret>,
}

impl ItemLimit<'_> {
    /// The cells of the item in a sketch, of which the hash is taken once a call. `None` of a sketch that is not made.
    #[inline(always)]
    fn cells(&self, usage: &SketchUsage) -> Option<ItemCells> {
        let (size, secret) = usage.hashing()?;
        if let Some((of_size, of_secret, cells)) = self.found.get()
            && of_size == size
            && of_secret == secret
        {
            return Some(cells);
        }
        let cells = secret.cells(size, self.item);
        self.found.set(Some((size, secret, cells)));
        Some(cells)
    }

    /// What is used of the item's bucket.
    #[inline(always)]
    fn used(&self, usage: &SketchUsage) -> BucketUsage {
        usage.bucket_of(self.cells(usage))
    }

    /// What each of the item's four cells says is left at `now`. The most of them is what is left of the item's bucket.
    #[must_use]
    pub fn remaining_by_cell(&self, usage: &SketchUsage, now: Timestamp) -> [Amount; ROWS_OF_CELLS] {
        let cells = self.cells(usage);
        let of_row = |row: usize| cells.and_then(|cells| cells.get(row).map(|cell| [*cell; ROWS_OF_CELLS]));
        array::from_fn(|row| self.sketch.bucket.remaining(&usage.bucket_of(of_row(row)), now))
    }

    /// The bucket of the item after a charge of `cost` at `now`, which is not before the usage's instant.
    fn used_after_charge(&self, usage: &SketchUsage, now: Timestamp, cost: Amount) -> BucketUsage {
        let mut fullest = usage.fullest();
        let before = fullest.used();
        self.sketch.bucket.advance(&mut fullest, now);
        let drained = before.minus(fullest.used());
        self.sketch.bucket.charged(self.used(usage).used().minus(drained), fullest.drained_to(), now, cost)
    }
}

impl Limit for ItemLimit<'_> {
    type Usage = SketchUsage;
    const LOOKS_AT_A_PART: bool = true;

    fn limit(&self) -> Amount {
        self.sketch.limit()
    }

    #[inline]
    fn verdict(&self, usage: &SketchUsage, now: Timestamp, cost: Amount) -> Verdict {
        self.sketch.bucket.verdict(&self.used(usage), now, cost)
    }

    #[inline]
    fn remaining(&self, usage: &SketchUsage, now: Timestamp) -> Amount {
        self.sketch.bucket.remaining(&self.used(usage), now)
    }

    #[inline]
    fn reset(&self, usage: &SketchUsage, now: Timestamp) -> Span {
        self.sketch.bucket.reset(&self.used(usage), now)
    }

    #[inline]
    fn recovery(&self, usage: &SketchUsage, now: Timestamp) -> Span {
        self.sketch.bucket.reset(&usage.fullest(), now)
    }

    fn debt_after_charge(&self, usage: &SketchUsage, now: Timestamp, cost: Amount) -> Span {
        // A clock gone back moves the usage's instant to now, at which no time has passed since.
        let now = now.max(usage.fullest().drained_to());
        self.sketch.bucket.debt(&self.used_after_charge(usage, now, cost), now)
    }

    #[inline]
    fn charge(&self, usage: &mut SketchUsage, now: Timestamp, cost: Amount) {
        if usage.hashing().is_none() {
            usage.make(self.sketch.size(), self.secret.unwrap_or_else(Secret::random), self.sketch.bucket, now);
        }
        let Some(cells) = self.cells(usage) else { return };
        let charged = self.used_after_charge(usage, now, cost);
        usage.charge(&self.sketch.bucket, self.sketch.whole, now, cells, charged.used());
    }

    fn entries_after_charge(&self, usage: &SketchUsage, _now: Timestamp) -> Option<usize> {
        // A sketch that is not made has no pieces yet, and its key is refused as a new one.
        let allocations = usage.allocations(self.cells(usage)?);
        (allocations > 0).then(|| usage.entries().saturating_add(allocations))
    }

    fn give_back(&self, _usage: &mut SketchUsage, _now: Timestamp, _amount: Amount) {
        // The grammar has no such call: what has been merged cannot be told apart again.
    }
}

#[cfg(test)]
mod tests;
