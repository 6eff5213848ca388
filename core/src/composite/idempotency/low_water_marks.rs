//! Low-water mark of each charge: the lowest usage since the charge.
//!
//! A bucket or a fixed window adds all charges to one amount, which only drains. If a charge had been smaller by d, the
//! current usage would be smaller by d, but by no more than the lowest usage since the charge, because the amount
//! cannot drain below 0. (This is the reflection of a queue at 0: Skorokhod 1961.) So settling a charge only requires
//! its low-water mark.
//!
//! Usage decreases between two changes, so its minimum is the value just before each change. A change at usage `x`
//! lowers all marks above `x` to `x`. So the marks of successive charges never decrease from older to newer ones, and
//! charges with the same mark form a group. Settling a charge by d subtracts d from its own mark and all newer ones,
//! because the usage would have been lower by d since. Older marks that are then above it are lowered to it. The groups
//! store the *difference* between each mark and the next, so that one number changes all following marks.
//!
//! **Cost:** 24 bytes per group, and at most one group per charge. The group of a charge is found by a binary search
//! for its number, and its mark by adding up the differences before it. This takes less than a tenth of a millisecond
//! for 100,000 groups, and so does removing a group among them. The oldest and the newest group are removed in constant
//! time.

use crate::number::Amount;
#[cfg(test)]
use crate::testing::step_counter;
use crate::wire::codec::{Decoder, Encoder};
use std::collections::VecDeque;

/// Low-water marks of charges, which are numbered in the order of creation.
#[derive(Clone, Debug, Default)]
pub struct LowWaterMarks {
    /// Groups of the charges that have a mark, the oldest first.
    groups: VecDeque<MarkGroup>,
    /// Mark of the newest group in millionths: the sum of all differences.
    newest_mark: u64,
    /// Number of the first charge without a mark: the first since the last change.
    first_unmarked: u64,
    /// Count of charges without a mark.
    unmarked_count: usize,
    /// Number of the next charge.
    next: u64,
    /// Count of all charges that have not been removed.
    pub(super) charge_count: usize,
}

/// Group of charges with the same mark.
#[derive(Clone, Copy, Debug)]
struct MarkGroup {
    /// Number of the first charge.
    first: u64,
    /// Difference between the mark of this group and that of the previous one, in millionths. 0 only in the first
    /// group.
    delta: u64,
    /// Count of the group's charges that have not been removed.
    charge_count: usize,
}

impl LowWaterMarks {
    /// Upper bound (exclusive) of the numbers of charges, far below overflow.
    pub const NUMBER_LIMIT: u64 = u64::MAX >> 1;

    /// Adds a new charge and returns its number; `None` if the numbers are exhausted.
    pub fn charge(&mut self) -> Option<u64> {
        let number = Some(self.next).filter(|number| *number < LowWaterMarks::NUMBER_LIMIT)?;
        self.next = number.saturating_add(1);
        self.unmarked_count = self.unmarked_count.saturating_add(1);
        self.charge_count = self.charge_count.saturating_add(1);
        Some(number)
    }

    /// Lowers all marks above `used` to `used`, the current usage. Called before each change.
    pub fn lower_all(&mut self, used: Amount) {
        let used = used.millionths();
        let mut merged = MarkGroup { first: self.first_unmarked, delta: 0, charge_count: self.unmarked_count };
        while self.newest_mark >= used
            && let Some(last) = self.groups.pop_back()
        {
            #[cfg(test)]
            step_counter::step();
            self.newest_mark = self.newest_mark.saturating_sub(last.delta);
            merged = MarkGroup {
                first: last.first,
                delta: 0,
                charge_count: merged.charge_count.saturating_add(last.charge_count),
            };
        }
        if merged.charge_count > 0 {
            merged.delta = used.saturating_sub(self.newest_mark);
            self.push(merged);
        }
        (self.first_unmarked, self.unmarked_count) = (self.next, 0);
    }

    fn push(&mut self, group: MarkGroup) {
        if self.groups.len() == self.groups.capacity() {
            // Doubling would waste as much memory as the charges take.
            self.groups.reserve_exact(self.groups.len().div_ceil(8).saturating_add(2));
        }
        self.newest_mark = self.newest_mark.saturating_add(group.delta);
        self.groups.push_back(group);
    }

    /// Returns the index of the group of a charge; `None` if the charge has no mark yet.
    fn group_of(&self, number: u64) -> Option<usize> {
        let next_group = || self.groups.partition_point(|group| group.first <= number);
        if number < self.first_unmarked { next_group().checked_sub(1) } else { None }
    }

    /// Returns the mark of a charge; `None` if it has none yet.
    pub fn mark_of(&self, number: u64) -> Option<Amount> {
        let groups = self.groups.range(..=self.group_of(number)?);
        Some(Amount::saturating(groups.map(|group| group.delta).fold(0, u64::saturating_add)))
    }

    /// Reduces a charge by `reduction`, which is at most its mark.
    pub fn settle(&mut self, number: u64, reduction: Amount) {
        let Some(end) = self.group_of(number) else { return };
        let (mut index, mut remaining, mut charge_count) = (end, reduction.millionths(), 0_usize);
        while let Some(group) = self.groups.get_mut(index) {
            #[cfg(test)]
            step_counter::step();
            let lowered = remaining.min(group.delta);
            remaining = remaining.saturating_sub(lowered);
            group.delta = group.delta.saturating_sub(lowered);
            self.newest_mark = self.newest_mark.saturating_sub(lowered);
            charge_count = charge_count.saturating_add(group.charge_count);
            if group.delta > 0 || index == 0 {
                group.charge_count = charge_count;
                break;
            }
            // The mark has reached that of the previous group. So the charges join that group, which is lowered too.
            index = index.saturating_sub(1);
        }
        self.groups.drain(index.saturating_add(1)..=end);
    }

    /// Removes a charge.
    pub fn forget(&mut self, number: u64) {
        self.charge_count = self.charge_count.saturating_sub(1);
        if self.charge_count == 0 {
            *self = LowWaterMarks::default();
            return;
        }
        let Some(index) = self.group_of(number) else {
            self.unmarked_count = self.unmarked_count.saturating_sub(1);
            return;
        };
        let Some(group) = self.groups.get_mut(index) else { return };
        group.charge_count = group.charge_count.saturating_sub(1);
        if group.charge_count == 0 {
            let delta = group.delta;
            self.groups.remove(index);
            match self.groups.get_mut(index) {
                Some(newer) => newer.delta = newer.delta.saturating_add(delta),
                None => self.newest_mark = self.newest_mark.saturating_sub(delta),
            }
            if self.groups.len() < self.groups.capacity() / 4 {
                self.groups.shrink_to(self.groups.len().saturating_mul(2));
            }
        }
    }

    /// Returns the heap memory in bytes.
    pub fn heap_size(&self) -> usize {
        self.groups.capacity().saturating_mul(size_of::<MarkGroup>())
    }

    /// Encodes the marks without the counts of charges, which the recorded calls contain.
    pub fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.next);
        to.integer(self.first_unmarked);
        to.integer(u64_of(self.groups.len()));
        for group in &self.groups {
            to.integer(group.first);
            to.integer(group.delta);
        }
    }

    /// Decodes marks encoded by [`encode`](LowWaterMarks::encode). Each recorded charge must then be passed to
    /// [`count_charge`](LowWaterMarks::count_charge), before [`is_sound`](LowWaterMarks::is_sound) is checked.
    pub fn decode(from: &mut impl Decoder) -> Option<LowWaterMarks> {
        let next = from.integer().filter(|next| *next <= LowWaterMarks::NUMBER_LIMIT)?;
        let first_unmarked = from.integer().filter(|first_unmarked| *first_unmarked <= next)?;
        let mut marks = LowWaterMarks { first_unmarked, next, ..LowWaterMarks::default() };
        for _ in 0..from.integer()? {
            let first = from.integer().filter(|first| *first < first_unmarked)?;
            let delta = from.integer()?;
            let in_order = marks.groups.back().is_none_or(|last| last.first < first && delta != 0);
            if !in_order || delta > Amount::MAX.millionths().saturating_sub(marks.newest_mark) {
                return None;
            }
            marks.push(MarkGroup { first, delta, charge_count: 0 });
        }
        Some(marks)
    }

    /// Counts a recorded charge at its decoded mark. Returns `true` if a charge with that number is possible.
    pub fn count_charge(&mut self, number: u64) -> bool {
        self.charge_count = self.charge_count.saturating_add(1);
        let count = if number >= self.first_unmarked {
            &mut self.unmarked_count
        } else {
            let Some(group) = self.group_of(number).and_then(|index| self.groups.get_mut(index)) else { return false };
            &mut group.charge_count
        };
        *count = count.saturating_add(1);
        number < self.next
    }

    /// Returns `true` if calls can have led to the decoded marks with the counted charges.
    pub fn is_sound(&self) -> bool {
        let group_ends = self.groups.iter().skip(1).map(|group| group.first).chain([self.first_unmarked]);
        let groups = self
            .groups
            .iter()
            .zip(group_ends)
            .map(|(group, end)| (group.charge_count, end.saturating_sub(group.first)));
        let unmarked = (self.unmarked_count, self.next.saturating_sub(self.first_unmarked));
        let fit = |(charges, numbers)| u64_of(charges) <= numbers;
        // Without charges, the numbers start again at 0.
        self.groups.iter().all(|group| group.charge_count > 0)
            && groups.chain([unmarked]).all(fit)
            && (self.charge_count > 0 || self.next == 0)
    }

    /// Encodes the counts of charges: of those without a mark, and of each group.
    pub fn encode_counts(&self, to: &mut impl Encoder) {
        to.integer(u64_of(self.unmarked_count));
        self.groups.iter().for_each(|group| to.integer(u64_of(group.charge_count)));
    }

    /// Adds the counts encoded by [`encode_counts`](LowWaterMarks::encode_counts) to decoded marks. Returns `None` if
    /// they are malformed.
    pub fn decode_counts(&mut self, from: &mut impl Decoder) -> Option<()> {
        self.unmarked_count = usize::try_from(from.integer()?).ok()?;
        self.charge_count = self.unmarked_count;
        for group in &mut self.groups {
            group.charge_count = usize::try_from(from.integer()?).ok()?;
            self.charge_count = self.charge_count.saturating_add(group.charge_count);
        }
        Some(())
    }
}

/// Converts a count for encoding. Memory bounds the count, so it fits.
fn u64_of(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
