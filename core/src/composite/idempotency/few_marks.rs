//! The lows of few charges, group after group: the same as [`LowWaterMarks`] of as many, to the byte that is stored.

use super::low_water_marks::{LowWaterMarks, Marks};
use crate::number::Amount;
use crate::wire::codec::{Decoder, Encoder};
use arrayvec::ArrayVec;

/// Of how many charges it can hold the lows.
pub const MOST: usize = 16;

/// The lows of at most [`MOST`] charges.
#[derive(Clone, Debug, Default)]
pub struct FewMarks {
    groups: ArrayVec<FewGroup, MOST>,
    open: u64,
    open_live: usize,
    next: u64,
}

/// Charges with the same low, by the number of the first.
#[derive(Clone, Copy, Debug)]
struct FewGroup {
    first: u64,
    low: u64,
    live: usize,
}

impl FewMarks {
    /// What `marks` say of few charges; `None` if they are too many.
    pub fn of(marks: &LowWaterMarks) -> Option<FewMarks> {
        if marks.live() > MOST {
            return None;
        }
        let (open, open_live, next) = marks.open();
        let groups = marks.groups().map(|(first, low, live)| FewGroup { first, low, live }).collect();
        Some(FewMarks { groups, open, open_live, next })
    }

    /// These marks in the form of many.
    pub fn as_many(&self) -> LowWaterMarks {
        let groups = self.groups.iter().map(|group| (group.first, group.low, group.live));
        LowWaterMarks::of((self.open, self.open_live, self.next), groups)
    }

    fn place_of(&self, number: u64) -> Option<usize> {
        if number >= self.open {
            return None;
        }
        self.groups.iter().rposition(|group| group.first <= number)
    }

    /// Writes it out with how many charges each group has.
    pub fn pack(&self, to: &mut impl Encoder) {
        for field in [self.next, self.open, u64_of(self.open_live), u64_of(self.groups.len())] {
            to.integer(field);
        }
        for group in &self.groups {
            for field in [group.first, group.low, u64_of(group.live)] {
                to.integer(field);
            }
        }
    }

    /// Reads what [`pack`](FewMarks::pack) wrote into unused ones.
    pub fn unpack(&mut self, from: &mut impl Decoder) -> Option<()> {
        (self.next, self.open) = (from.integer()?, from.integer()?);
        self.open_live = usize::try_from(from.integer()?).ok()?;
        for _ in 0..from.integer()? {
            let (first, low) = (from.integer()?, from.integer()?);
            let live = usize::try_from(from.integer()?).ok()?;
            self.groups.try_push(FewGroup { first, low, live }).ok()?;
        }
        Some(())
    }
}

impl Marks for FewMarks {
    fn live(&self) -> usize {
        self.groups.iter().map(|group| group.live).fold(self.open_live, usize::saturating_add)
    }

    fn charge(&mut self) -> Option<u64> {
        let number = Some(self.next).filter(|number| *number < LowWaterMarks::LAST)?;
        self.next = number.saturating_add(1);
        self.open_live = self.open_live.saturating_add(1);
        Some(number)
    }

    fn low(&mut self, used: Amount) {
        let low = used.millionths();
        let mut merged = FewGroup { first: self.open, low, live: self.open_live };
        while let Some(last) = self.groups.last().copied().filter(|last| last.low >= low) {
            self.groups.pop();
            merged.first = last.first;
            merged.live = merged.live.saturating_add(last.live);
        }
        if merged.live > 0 {
            // Each group has a charge, so there are no more groups than charges.
            let _ = self.groups.try_push(merged);
        }
        (self.open, self.open_live) = (self.next, 0);
    }

    fn least(&self, number: u64) -> Option<Amount> {
        let group = self.groups.get(self.place_of(number)?)?;
        Some(Amount::saturating(group.low))
    }

    fn lower(&mut self, number: u64, by: Amount) {
        let Some(mut place) = self.place_of(number) else { return };
        for group in self.groups.iter_mut().skip(place) {
            group.low = group.low.saturating_sub(by.millionths());
        }
        // Older lows that are above it now fall to it.
        while let Some(before) = place.checked_sub(1)
            && let [older, group] = self.groups.as_slice().get(before..=place).unwrap_or_default()
            && older.low >= group.low
        {
            let merged = FewGroup { first: older.first, low: group.low, live: older.live.saturating_add(group.live) };
            self.groups.remove(place);
            if let Some(older) = self.groups.get_mut(before) {
                *older = merged;
            }
            place = before;
        }
    }

    fn forget(&mut self, number: u64) {
        if self.live() <= 1 {
            *self = FewMarks::default();
            return;
        }
        let Some(place) = self.place_of(number) else {
            self.open_live = self.open_live.saturating_sub(1);
            return;
        };
        let Some(group) = self.groups.get_mut(place) else { return };
        group.live = group.live.saturating_sub(1);
        if group.live == 0 {
            self.groups.remove(place);
        }
    }

    fn heap_size(&self) -> usize {
        0
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.next);
        to.integer(self.open);
        to.integer(u64_of(self.groups.len()));
        let mut before = 0;
        for group in &self.groups {
            to.integer(group.first);
            to.integer(group.low.saturating_sub(before));
            before = group.low;
        }
    }
}

fn u64_of(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
