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
//! for 100,000 groups, and so does removing a group among them. The oldest and the newest are removed at once.

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
    top: u64,
    /// Number of the first charge without a mark: the first since the last change.
    open: u64,
    /// Count of charges without a mark.
    open_live: usize,
    /// Number of the next charge.
    next: u64,
    /// Count of all charges.
    live: usize,
}

/// Group of charges with the same mark.
#[derive(Clone, Copy, Debug)]
struct MarkGroup {
    /// Number of the first charge.
    first: u64,
    /// Difference between its mark and that of the previous group, in millionths. 0 only in the first group.
    delta: u64,
    /// Count of its remaining charges.
    live: usize,
}

impl LowWaterMarks {
    /// Upper bound of the numbers of charges, far below overflow.
    pub const LAST: u64 = u64::MAX >> 1;

    /// Returns `true` if there is no charge.
    pub fn is_idle(&self) -> bool {
        self.live == 0
    }

    /// Returns the number of charges.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Adds a new charge and returns its number; `None` if the numbers are exhausted.
    pub fn charge(&mut self) -> Option<u64> {
        let number = Some(self.next).filter(|number| *number < LowWaterMarks::LAST)?;
        self.next = number.saturating_add(1);
        self.open_live = self.open_live.saturating_add(1);
        self.live = self.live.saturating_add(1);
        Some(number)
    }

    /// Lowers all marks to `used` if they are above it. Called before each change.
    pub fn low(&mut self, used: Amount) {
        let used = used.millionths();
        let mut merged = MarkGroup { first: self.open, delta: 0, live: self.open_live };
        while self.top >= used
            && let Some(last) = self.groups.pop_back()
        {
            #[cfg(test)]
            step_counter::step();
            self.top = self.top.saturating_sub(last.delta);
            merged = MarkGroup { first: last.first, delta: 0, live: merged.live.saturating_add(last.live) };
        }
        if merged.live > 0 {
            merged.delta = used.saturating_sub(self.top);
            self.push(merged);
        }
        (self.open, self.open_live) = (self.next, 0);
    }

    fn push(&mut self, group: MarkGroup) {
        if self.groups.len() == self.groups.capacity() {
            // Doubling would waste as much memory as the charges take.
            self.groups.reserve_exact(self.groups.len().div_ceil(8).saturating_add(2));
        }
        self.top = self.top.saturating_add(group.delta);
        self.groups.push_back(group);
    }

    /// Returns the index of the group of a charge; `None` if the charge has no mark yet.
    fn place_of(&self, number: u64) -> Option<usize> {
        let behind = || self.groups.partition_point(|group| group.first <= number);
        if number < self.open { behind().checked_sub(1) } else { None }
    }

    /// Returns the mark of a charge; `None` if it has none yet.
    pub fn least(&self, number: u64) -> Option<Amount> {
        let groups = self.groups.range(..=self.place_of(number)?);
        Some(Amount::saturating(groups.map(|group| group.delta).fold(0, u64::saturating_add)))
    }

    /// Reduces a charge by `by`, which is at most its mark.
    pub fn lower(&mut self, number: u64, by: Amount) {
        let Some(end) = self.place_of(number) else { return };
        let (mut place, mut remaining, mut live) = (end, by.millionths(), 0_usize);
        while let Some(group) = self.groups.get_mut(place) {
            #[cfg(test)]
            step_counter::step();
            let lowered = remaining.min(group.delta);
            remaining = remaining.saturating_sub(lowered);
            group.delta = group.delta.saturating_sub(lowered);
            self.top = self.top.saturating_sub(lowered);
            live = live.saturating_add(group.live);
            if group.delta > 0 || place == 0 {
                group.live = live;
                break;
            }
            // Its mark falls to or below that of the previous group. So its charges join that group, which is lowered
            // too.
            place = place.saturating_sub(1);
        }
        self.groups.drain(place.saturating_add(1)..=end);
    }

    /// Removes a charge.
    pub fn forget(&mut self, number: u64) {
        self.live = self.live.saturating_sub(1);
        if self.live == 0 {
            *self = LowWaterMarks::default();
            return;
        }
        let Some(place) = self.place_of(number) else {
            self.open_live = self.open_live.saturating_sub(1);
            return;
        };
        let Some(group) = self.groups.get_mut(place) else { return };
        group.live = group.live.saturating_sub(1);
        if group.live == 0 {
            let delta = group.delta;
            self.groups.remove(place);
            match self.groups.get_mut(place) {
                Some(newer) => newer.delta = newer.delta.saturating_add(delta),
                None => self.top = self.top.saturating_sub(delta),
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
        to.integer(self.open);
        to.integer(u64_of(self.groups.len()));
        for group in &self.groups {
            to.integer(group.first);
            to.integer(group.delta);
        }
    }

    /// Decodes marks encoded by [`encode`](LowWaterMarks::encode). Each recorded charge must then be passed to
    /// [`count`](LowWaterMarks::count), before [`is_sound`](LowWaterMarks::is_sound) is checked.
    pub fn decode(from: &mut impl Decoder) -> Option<LowWaterMarks> {
        let next = from.integer().filter(|next| *next <= LowWaterMarks::LAST)?;
        let open = from.integer().filter(|open| *open <= next)?;
        let mut low_water_marks = LowWaterMarks { open, next, ..LowWaterMarks::default() };
        for _ in 0..from.integer()? {
            let first = from.integer().filter(|first| *first < open)?;
            let delta = from.integer()?;
            let in_order = low_water_marks.groups.back().is_none_or(|last| last.first < first && delta != 0);
            if !in_order || delta > Amount::MAX.millionths().saturating_sub(low_water_marks.top) {
                return None;
            }
            low_water_marks.push(MarkGroup { first, delta, live: 0 });
        }
        Some(low_water_marks)
    }

    /// Counts a recorded charge after decoding. Returns `true` if a charge with that number is possible.
    pub fn count(&mut self, number: u64) -> bool {
        self.live = self.live.saturating_add(1);
        let live = if number >= self.open {
            &mut self.open_live
        } else {
            let behind = self.groups.partition_point(|group| group.first <= number);
            let Some(group) = behind.checked_sub(1).and_then(|place| self.groups.get_mut(place)) else { return false };
            &mut group.live
        };
        *live = live.saturating_add(1);
        number < self.next
    }

    /// Returns `true` if calls can have led to the decoded marks with the counted charges.
    pub fn is_sound(&self) -> bool {
        let ends = self.groups.iter().skip(1).map(|group| group.first).chain([self.open]);
        let groups = self.groups.iter().zip(ends).map(|(group, end)| (group.live, end.saturating_sub(group.first)));
        let open = (self.open_live, self.next.saturating_sub(self.open));
        let fit = |(live, numbers)| u64_of(live) <= numbers;
        // Without charges, the numbers start again at 0.
        self.groups.iter().all(|group| group.live > 0)
            && groups.chain([open]).all(fit)
            && (self.live > 0 || self.next == 0)
    }

    /// Encodes the marks with the count of charges in each group.
    pub fn pack(&self, to: &mut impl Encoder) {
        self.encode(to);
        to.integer(u64_of(self.open_live));
        self.groups.iter().for_each(|group| to.integer(u64_of(group.live)));
    }

    /// Decodes marks encoded by [`pack`](LowWaterMarks::pack).
    pub fn unpack(from: &mut impl Decoder) -> Option<LowWaterMarks> {
        let mut marks = LowWaterMarks::decode(from)?;
        marks.open_live = usize::try_from(from.integer()?).ok()?;
        marks.live = marks.open_live;
        for group in &mut marks.groups {
            group.live = usize::try_from(from.integer()?).ok()?;
            marks.live = marks.live.saturating_add(group.live);
        }
        Some(marks)
    }
}

/// Converts a count for encoding. It cannot overflow, because memory limits it.
fn u64_of(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
