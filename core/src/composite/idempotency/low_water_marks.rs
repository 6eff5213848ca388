//! The least that a usage has been since each of many charges.
//!
//! Where all that is charged lies together and only drains (a bucket, a fixed window), had a charge been smaller by d,
//! the usage now would be lower by d, but by no more than the least that it has been since: what had drained by then
//! had drained in either case. (The reflection of a queue at 0: Skorokhod 1961.) So what has to be known of a charge is
//! that least, its *low*.
//!
//! A usage only falls between two changes, so its lows are what it is just before each. A change at which `x` is used
//! lowers every low above `x` to it: what is charged one after another has lows that never fall from the older to the
//! newer, and charges with the same low are one group. Settling a charge takes d off its own low and off all newer
//! ones, as the usage was lower by that much since; older lows that are then above it fall to it. So the groups are
//! kept by the *difference* from each low to the next, where one number changes all that follow.
//!
//! Cost: 24 bytes a group, and there are no more groups than charges. The group of a charge is found by a binary search
//! of its number, and its low by adding up the differences before it: among 100,000 groups in less than a tenth of a
//! millisecond.

use crate::number::Amount;
#[cfg(test)]
use crate::testing::step_counter;
use crate::wire::codec::{Decoder, Encoder};

/// The lows of charges, which are numbered in the order in which they are made.
#[derive(Clone, Debug, Default)]
pub struct LowWaterMarks {
    /// The charges before the last low, the same low in each group, the oldest first. Among them may be gaps, of groups
    /// whose charges have gone.
    groups: Vec<MarkGroup>,
    /// The number of gaps.
    gaps: usize,
    /// The low of the newest group in millionths: the sum of all differences.
    top: u64,
    /// The number of the first charge since the last low: these have none yet.
    open: u64,
    /// Number of charges since the last low.
    open_live: usize,
    /// The number that the next charge gets.
    next: u64,
    /// Number of charges in all.
    live: usize,
}

/// Charges with the same low.
#[derive(Clone, Copy, Debug)]
struct MarkGroup {
    /// The number of the first.
    first: u64,
    /// Difference of its low from that of the group before, in millionths: not 0 but in the first, or a gap.
    delta: u64,
    /// Number of its charges that are left: 0 in a gap.
    live: usize,
}

impl LowWaterMarks {
    /// Number behind the last charge. Far from overflow.
    pub const LAST: u64 = u64::MAX >> 1;

    /// Returns `true` if there is no charge.
    pub fn is_idle(&self) -> bool {
        self.live == 0
    }

    /// Returns the number of charges.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Counts a charge that has just been made, and returns its number; `None` if there is none left.
    pub fn charge(&mut self) -> Option<u64> {
        let number = Some(self.next).filter(|number| *number < LowWaterMarks::LAST)?;
        self.next = number.saturating_add(1);
        self.open_live = self.open_live.saturating_add(1);
        self.live = self.live.saturating_add(1);
        Some(number)
    }

    /// Records that `used`, or less, is used.
    pub fn low(&mut self, used: Amount) {
        let used = used.millionths();
        let mut merged = MarkGroup { first: self.open, delta: 0, live: self.open_live };
        while self.top >= used
            && let Some(last) = self.groups.pop()
        {
            #[cfg(test)]
            step_counter::step();
            self.top = self.top.saturating_sub(last.delta);
            if last.live == 0 {
                self.gaps = self.gaps.saturating_sub(1);
            } else {
                merged = MarkGroup { first: last.first, delta: 0, live: merged.live.saturating_add(last.live) };
            }
        }
        if merged.live > 0 {
            merged.delta = used.saturating_sub(self.top);
            self.push(merged);
        }
        (self.open, self.open_live) = (self.next, 0);
        self.close_gaps();
    }

    fn push(&mut self, group: MarkGroup) {
        if self.groups.len() == self.groups.capacity() {
            // Doubling would waste as much as a charge takes.
            self.groups.reserve_exact(self.groups.len().div_ceil(8).saturating_add(2));
        }
        self.top = self.top.saturating_add(group.delta);
        self.groups.push(group);
    }

    /// Returns the place of the newest group up to `place` that is no gap.
    fn newest_until(&self, place: usize) -> Option<usize> {
        self.groups.get(..place)?.iter().rposition(|group| group.live > 0)
    }

    /// Returns the place of the group of a charge; `None` for those that have no low yet.
    fn place_of(&self, number: u64) -> Option<usize> {
        let behind = || self.groups.partition_point(|group| group.first <= number);
        if number < self.open { self.newest_until(behind()) } else { None }
    }

    /// Returns the low of a charge; `None` if none has been recorded since.
    pub fn least(&self, number: u64) -> Option<Amount> {
        let groups = self.groups.get(..=self.place_of(number)?)?;
        Some(Amount::saturating(groups.iter().map(|group| group.delta).fold(0, u64::saturating_add)))
    }

    /// Records that a charge is smaller `by` an amount that is not more than its low.
    pub fn lower(&mut self, number: u64, by: Amount) {
        let mut owed = by.millionths();
        let Some(mut place) = self.place_of(number) else { return };
        loop {
            #[cfg(test)]
            step_counter::step();
            let before = self.newest_until(place);
            let Some(group) = self.groups.get_mut(place) else { return };
            let before = before.filter(|_| group.delta <= owed);
            let lowered = owed.min(group.delta);
            owed = owed.saturating_sub(lowered);
            group.delta = group.delta.saturating_sub(lowered);
            self.top = self.top.saturating_sub(lowered);
            let Some(before) = before else { break };
            // It falls to the low of the group before it, or below: then that one falls along.
            let live = std::mem::take(&mut group.live);
            self.gaps = self.gaps.saturating_add(1);
            if let Some(before) = self.groups.get_mut(before) {
                before.live = before.live.saturating_add(live);
            }
            place = before;
        }
        self.close_gaps();
    }

    /// Forgets a charge.
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
        let Some([group, newer @ ..]) = self.groups.get_mut(place..) else { return };
        group.live = group.live.saturating_sub(1);
        if group.live == 0 {
            let delta = std::mem::take(&mut group.delta);
            match newer.iter_mut().find(|newer| newer.live > 0) {
                Some(newer) => newer.delta = newer.delta.saturating_add(delta),
                None => self.top = self.top.saturating_sub(delta),
            }
            self.gaps = self.gaps.saturating_add(1);
            self.close_gaps();
        }
    }

    /// Closes the gaps once there are more of them than groups.
    fn close_gaps(&mut self) {
        const SPARE: usize = 16;
        let left = self.groups.len().saturating_sub(self.gaps);
        if self.gaps > left.saturating_add(SPARE) {
            #[cfg(test)]
            self.groups.iter().for_each(|_| step_counter::step());
            self.groups.retain(|group| group.live > 0);
            self.groups.shrink_to(left.saturating_mul(2));
            self.gaps = 0;
        }
    }

    /// Returns the number of bytes that it holds beside itself.
    pub fn heap_size(&self) -> usize {
        self.groups.capacity().saturating_mul(size_of::<MarkGroup>())
    }

    /// Returns the groups that are no gaps.
    fn groups(&self) -> impl Iterator<Item = &MarkGroup> {
        self.groups.iter().filter(|group| group.live > 0)
    }

    /// Writes it out, but for how many charges there are: those are known by whoever remembers them.
    pub fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.next);
        to.integer(self.open);
        to.integer(u64_of(self.groups.len().saturating_sub(self.gaps)));
        for group in self.groups() {
            to.integer(group.first);
            to.integer(group.delta);
        }
    }

    /// Reads what [`encode`](LowWaterMarks::encode) wrote. Then each charge is to be counted, and then it
    /// [`is_sound`](LowWaterMarks::is_sound) or not.
    pub fn decode(from: &mut impl Decoder) -> Option<LowWaterMarks> {
        let next = from.integer().filter(|next| *next <= LowWaterMarks::LAST)?;
        let open = from.integer().filter(|open| *open <= next)?;
        let mut low_water_marks = LowWaterMarks { open, next, ..LowWaterMarks::default() };
        for _ in 0..from.integer()? {
            let first = from.integer().filter(|first| *first < open)?;
            let delta = from.integer()?;
            let in_order = low_water_marks.groups.last().is_none_or(|last| last.first < first && delta != 0);
            if !in_order || delta > Amount::MAX.millionths().saturating_sub(low_water_marks.top) {
                return None;
            }
            low_water_marks.push(MarkGroup { first, delta, live: 0 });
        }
        Some(low_water_marks)
    }

    /// Counts a charge of a decoded one, which is remembered elsewhere, and returns whether there can be one of that number.
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

    /// Returns `true` if charges that were counted make it one that calls can have led to.
    pub fn is_sound(&self) -> bool {
        let ends = self.groups.iter().skip(1).map(|group| group.first).chain([self.open]);
        let groups = self.groups.iter().zip(ends).map(|(group, end)| (group.live, end.saturating_sub(group.first)));
        let open = (self.open_live, self.next.saturating_sub(self.open));
        let fit = |(live, numbers)| u64_of(live) <= numbers;
        // Without charges it begins anew.
        self.groups.iter().all(|group| group.live > 0)
            && groups.chain([open]).all(fit)
            && (self.live > 0 || self.next == 0)
    }

    /// Writes it out with how many charges each group has.
    pub fn pack(&self, to: &mut impl Encoder) {
        self.encode(to);
        to.integer(u64_of(self.open_live));
        self.groups().for_each(|group| to.integer(u64_of(group.live)));
    }

    /// Reads what [`pack`](LowWaterMarks::pack) wrote.
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

/// Returns a count as it is written: no more is held than there is memory for.
fn u64_of(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
