//! A sequence of differences and counts of which any may change, with the sums of those before each: a tree of sums
//! (Fenwick 1994). Each operation is logarithmic in the length.

#[cfg(test)]
use crate::testing::effort;

/// Groups that follow one another, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MarkSum {
    /// By how much the low of the last is above that before the first, in millionths.
    pub(super) delta: u64,
    /// How many charges they have.
    pub(super) live: u64,
}

impl MarkSum {
    fn plus(self, other: MarkSum) -> MarkSum {
        MarkSum { delta: self.delta.wrapping_add(other.delta), live: self.live.wrapping_add(other.live) }
    }

    /// What takes it away when it is added.
    pub(super) fn negated(self) -> MarkSum {
        MarkSum { delta: self.delta.wrapping_neg(), live: self.live.wrapping_neg() }
    }
}

/// A sequence of sums, of which any may be changed, and what those before any come to is known.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums(pub(super) Vec<MarkSum>);

// A node at 1-based place n holds the sum of as many, up to and with the n-th, as n's lowest bit says.
impl Sums {
    /// Of what is at each place, in order.
    pub(super) fn of(mut places: Vec<MarkSum>) -> Sums {
        for index in 0..places.len() {
            let above = index | index.saturating_add(1);
            let Some(sum) = places.get(index).copied() else { break };
            if let Some(above) = places.get_mut(above) {
                *above = above.plus(sum);
            }
        }
        Sums(places)
    }

    /// How many places there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The sum of all.
    pub(super) fn sum(&self) -> MarkSum {
        self.up_to(self.0.len())
    }

    /// The sum of the first `count`.
    pub(super) fn up_to(&self, count: usize) -> MarkSum {
        let (mut sum, mut place) = (MarkSum::default(), count);
        while let Some(node) = place.checked_sub(1).and_then(|index| self.0.get(index)) {
            #[cfg(test)]
            effort::entry();
            sum = sum.plus(*node);
            place = Sums::without_lowest_bit(place);
        }
        sum
    }

    /// The place of the first with which the differences come to so much, and the sum of those before; behind all, if
    /// they do not.
    pub(super) fn until(&self, delta: u64) -> (usize, MarkSum) {
        let (mut place, mut sum) = (0_usize, MarkSum::default());
        let mut step = self.0.len().checked_ilog2().map_or(0, |bits| 1_usize << bits);
        while step > 0 {
            #[cfg(test)]
            effort::entry();
            let next = place.saturating_add(step);
            let node = next.checked_sub(1).and_then(|index| self.0.get(index));
            if let Some(before) = node.map(|node| sum.plus(*node)).filter(|sum| sum.delta < delta) {
                (place, sum) = (next, before);
            }
            step >>= 1;
        }
        (place, sum)
    }

    /// One more at the end.
    pub(super) fn push(&mut self, last: MarkSum) {
        let place = self.0.len().saturating_add(1);
        let covered = self.sum().plus(self.up_to(Sums::without_lowest_bit(place)).negated());
        self.0.push(covered.plus(last));
    }

    /// Adds to what is at `index`.
    pub(super) fn add(&mut self, index: usize, sum: MarkSum) {
        let mut index = index;
        while let Some(node) = self.0.get_mut(index) {
            #[cfg(test)]
            effort::entry();
            *node = node.plus(sum);
            // n plus its lowest bit, for n one above the index: all bits below that one are set.
            index |= index.saturating_add(1);
        }
    }

    /// Drops all places from `length` on.
    pub(super) fn truncate(&mut self, length: usize) {
        self.0.truncate(length);
    }

    /// How many bytes it holds beside itself.
    pub(super) fn heap_size(&self) -> usize {
        self.0.capacity().saturating_mul(size_of::<MarkSum>())
    }

    fn without_lowest_bit(place: usize) -> usize {
        place & place.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests;
