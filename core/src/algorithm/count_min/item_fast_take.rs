//! Fast path for taking from an item's bucket. It combines [`evaluate`](crate::evaluate()), charge and decision, hashes
//! the item once and makes each division once.
//!
//! It handles common calls: a positive cost, on a sketch that exists and is not ahead of the clock, with products that
//! fit 64 bits. Other calls take the slow path. Tests compare the results of both.

use super::secret::ItemCells;
use super::{Sketch, SketchUsage};
use crate::algorithm::bucket::BucketUsage;
use crate::limit::{Decision, Verdict};
use crate::number::{Amount, Span, Timestamp};

/// Result of taking from an item's bucket.
#[derive(Clone, Copy, Debug)]
pub enum ItemTaken {
    /// The call is charged: the decision with the change of the sketch.
    Charged(Decision, ItemCharge),
    /// The call is denied: the decision.
    Denied(Decision),
}

/// Change of a sketch by charging an item.
#[derive(Clone, Copy, Debug)]
pub struct ItemCharge {
    /// Cells of the item.
    pub(super) cells: ItemCells,
    /// Usage of the item's bucket after the charge.
    pub(super) used: Amount,
    /// Amount drained since the last charge.
    pub(super) drained: Amount,
    /// Usage of the fullest cell after draining and before the charge.
    pub(super) fullest: BucketUsage,
    /// Time until the whole sketch has recovered.
    pub recovery: Span,
}

impl ItemCharge {
    /// Returns `true` if the change allocates memory.
    #[inline(always)]
    #[must_use]
    pub fn grows(&self, usage: &SketchUsage) -> bool {
        usage.allocations(self.cells) > 0
    }
}

impl Sketch {
    /// Takes `cost` from the bucket of an item. Returns `None` if the call needs the slow path.
    #[inline(always)]
    #[must_use]
    pub fn item_taken_fast(&self, usage: &SketchUsage, item: &[u8], now: Timestamp, cost: Amount) -> Option<ItemTaken> {
        let before = usage.fullest();
        let elapsed = now.checked_since(before.drained_to())?.micros();
        let [capacity, refill, period] = self.bucket.fields();
        if cost == Amount::ZERO || cost.millionths() > capacity {
            return None;
        }
        let (size, secret) = usage.hashing()?;
        let cells = secret.cells(size, item);
        let used = usage.bucket_of(Some(cells)).used();
        let drained = elapsed.checked_mul(refill)?.checked_div(period)?;
        let present = used.millionths().saturating_sub(drained);
        let after_cost = present.saturating_add(cost.millionths());
        let time_to_drain = |amount: u64| {
            let micros = amount.checked_mul(period)?.div_ceil(refill);
            (micros <= Span::MAX.micros()).then_some(micros)
        };
        let decision = |verdict, used: u64, reset: u64| Decision {
            verdict,
            limit: self.limit(),
            remaining: Amount::saturating(capacity.saturating_sub(used)),
            reset: Span::from_micros(reset),
            granted: None,
        };
        if after_cost > capacity {
            let excess = used.excess(cost, self.limit()).millionths();
            let wait = Span::from_micros(time_to_drain(excess)?.saturating_sub(elapsed));
            let reset = time_to_drain(used.millionths())?.saturating_sub(elapsed);
            return Some(ItemTaken::Denied(decision(Verdict::After(wait), present, reset)));
        }
        let mut fullest = before;
        let over = self.bucket.advance_fast(&mut fullest, now, elapsed, drained)?;
        let drained = before.used().minus(fullest.used());
        let since = over.checked_mul(refill)?;
        let (down, up) = (since.checked_div(period)?, since.div_ceil(period));
        let used = used.minus(drained).millionths().max(up).saturating_add(cost.millionths());
        let reset = time_to_drain(used)?.saturating_sub(over);
        let recovery = time_to_drain(fullest.used().millionths().max(used))?.saturating_sub(over);
        let (used, recovery) = (Amount::saturating(used), Span::from_micros(recovery));
        let answer = decision(Verdict::Allowed(Span::ZERO), used.millionths().saturating_sub(down), reset);
        Some(ItemTaken::Charged(answer, ItemCharge { cells, used, drained, fullest, recovery }))
    }
}
