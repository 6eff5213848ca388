//! The water mark of a sketch: what has drained in all since the sketch was made, in millionths.
//!
//! A cell stores a level that does not fall; its usage is the part of the level above the mark. So all cells drain at
//! once, in constant time. The mark is counted in eras, so that levels of 64 bits do for ever: a level is counted from
//! the beginning of its piece's era.

/// How many millionths an era has. A usage is below 2^63, so a level of the present era is below 2^63 + 2^62.
const ERA: u64 = 1 << ERA_BITS;
const ERA_BITS: u32 = 62;

/// The most that a mark is told to have moved on by: no usage is more.
const MOST: u64 = u64::MAX >> 1;

/// What has drained in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WaterMark {
    /// How many eras are over, wrapping. No sketch gets through all, but a payload may have been made to be near the
    /// end, and what is charged then is to be read back too.
    era: u64,
    /// What has drained in the present one.
    level: u64,
}

impl WaterMark {
    /// A mark that is stored; `None` if no sketch can have it.
    pub(super) fn stored(era: u64, level: u64) -> Option<WaterMark> {
        (level < ERA).then_some(WaterMark { era, level })
    }

    /// How many eras are over.
    #[inline(always)]
    pub(super) fn era(&self) -> u64 {
        self.era
    }

    /// What has drained in the present one.
    pub(super) fn level(&self) -> u64 {
        self.level
    }

    /// The level, in the present era, of a cell that was filled to `level` in the era `era`.
    #[inline(always)]
    pub(super) fn in_era(&self, level: u64, era: u64) -> u64 {
        if era == self.era { level } else { self.of_earlier(level, era) }
    }

    #[cold]
    fn of_earlier(&self, level: u64, era: u64) -> u64 {
        let eras = self.era.wrapping_sub(era);
        eras.checked_mul(ERA).map_or(0, |drained| level.saturating_sub(drained))
    }

    /// What is used of a cell that was filled to `level` in the era `era`.
    #[inline(always)]
    pub(super) fn usage(&self, level: u64, era: u64) -> u64 {
        self.in_era(level, era).saturating_sub(self.level)
    }

    /// The level, in the present era, of a cell of which so much is used.
    #[inline(always)]
    pub(super) fn level_of(&self, usage: u64) -> u64 {
        self.level.saturating_add(usage)
    }

    /// Moves on by what has drained, below 2^63.
    #[inline(always)]
    pub(super) fn advance(&mut self, drained: u64) {
        let level = self.level.saturating_add(drained);
        self.era = self.era.wrapping_add(level >> ERA_BITS);
        self.level = level & ERA.saturating_sub(1);
    }

    /// What has drained since `earlier`, at most 2^63-1; `None` if that is later.
    pub(super) fn since(&self, earlier: &WaterMark) -> Option<u64> {
        let eras = self.era.wrapping_sub(earlier.era);
        if eras > MOST {
            return None;
        }
        match eras.checked_mul(ERA).and_then(|drained| drained.checked_add(self.level)) {
            Some(level) => level.checked_sub(earlier.level).map(|drained| drained.min(MOST)),
            None => Some(MOST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_drained_by_what_the_mark_has_moved_on_through_every_era() {
        let usages = [0, 1, ERA - 1, ERA, ERA + 1, u64::MAX >> 1];
        for (usage, begin) in usages.into_iter().flat_map(|usage| [0, 5, u64::MAX - 1].map(|era| (usage, era))) {
            for first in [0, 1, ERA - 1] {
                let mut mark = WaterMark { era: begin, level: first };
                let (earlier, level, mut drained) = (mark, mark.level_of(usage), 0_u128);
                for step in [0, 1, ERA - 1, ERA, u64::MAX >> 1, 3, ERA, u64::MAX >> 1] {
                    mark.advance(step);
                    drained += u128::from(step);
                    let left = u128::from(usage).saturating_sub(drained);
                    assert_eq!(u128::from(mark.usage(level, begin)), left, "{usage} after {drained}");
                    assert_eq!(u128::from(mark.usage(mark.in_era(level, begin), mark.era)), left);
                    assert_eq!(mark.since(&earlier).map(u128::from), Some(drained.min(u128::from(u64::MAX >> 1))));
                    assert_eq!(earlier.since(&mark), (drained == 0).then_some(0));
                }
            }
        }
        assert_eq!(WaterMark { era: 1 << 48, level: 0 }.usage(u64::MAX, 0), 0);
        // The later of two is the one that is ahead by half a turn of all eras at most.
        let ahead = |eras| WaterMark { era: eras, level: 0 }.since(&WaterMark::default());
        assert_eq!([1 << 48, u64::MAX >> 1].map(ahead), [Some(u64::MAX >> 1); 2]);
        assert_eq!([1 << 63, u64::MAX].map(ahead), [None; 2]);
    }

    #[test]
    fn a_mark_that_no_sketch_has_is_refused() {
        assert!(WaterMark::stored(u64::MAX, ERA - 1).is_some());
        assert!(WaterMark::stored(0, ERA).is_none());
    }
}
