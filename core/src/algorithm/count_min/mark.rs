//! Water mark of a sketch: the total amount drained since its creation, in millionths.
//!
//! The level of a cell, counted since the sketch was created, never decreases. The usage is the part of the level above
//! the mark, so all cells drain at once in constant time.
//!
//! An era ends when 2^62 millionths have drained in it. Levels are stored relative to the beginning of an era, so that
//! 64 bits are always enough. Each piece of cells (`cells.rs`) stores the era of its levels.

/// Millionths in an era. A usage is below 2^63, so a level in the current era is below 2^63 + 2^62.
const ERA: u64 = 1 << ERA_BITS;
/// Binary logarithm of [`ERA`].
const ERA_BITS: u32 = 62;

/// Maximum amount that [`since`](WaterMark::since) returns. No usage is larger.
const MAX_DRAINED: u64 = u64::MAX >> 1;
/// Largest wrapping difference in eras by which a mark can be ahead of another one. A larger difference is a negative one
/// that has wrapped: the mark is behind.
const MAX_ERAS_AHEAD: u64 = u64::MAX >> 1;

/// Total amount drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WaterMark {
    /// Number of completed eras, wrapping. No sketch reaches the largest number by itself, but a crafted payload may be
    /// close to it, and the state after further charges must be decodable, too.
    pub(super) era: u64,
    /// Amount drained in the current era, in millionths.
    pub(super) level: u64,
}

impl WaterMark {
    /// Creates a mark from stored values. Returns `None` if no sketch can have this mark.
    pub(super) fn from_stored(era: u64, level: u64) -> Option<WaterMark> {
        (level < ERA).then_some(WaterMark { era, level })
    }

    /// Converts a level of the era `era` to the current era.
    #[inline(always)]
    pub(super) fn level_in_current_era(&self, level: u64, era: u64) -> u64 {
        if era == self.era { level } else { self.convert_from_earlier_era(level, era) }
    }

    #[cold]
    fn convert_from_earlier_era(&self, level: u64, era: u64) -> u64 {
        let eras = self.era.wrapping_sub(era);
        eras.checked_mul(ERA).map_or(0, |drained| level.saturating_sub(drained))
    }

    /// Returns the usage of a cell with a level of the era `era`.
    #[inline(always)]
    pub(super) fn usage(&self, level: u64, era: u64) -> u64 {
        self.level_in_current_era(level, era).saturating_sub(self.level)
    }

    /// Returns the level, in the current era, of a cell with this usage.
    #[inline(always)]
    pub(super) fn level_of(&self, usage: u64) -> u64 {
        self.level.saturating_add(usage)
    }

    /// Advances the mark by a drained amount below 2^63.
    #[inline(always)]
    pub(super) fn advance(&mut self, drained: u64) {
        let level = self.level.saturating_add(drained);
        self.era = self.era.wrapping_add(level >> ERA_BITS);
        self.level = level & ERA.saturating_sub(1);
    }

    /// Returns the amount drained since `earlier`, at most 2^63-1, or `None` if `earlier` is later.
    pub(super) fn since(&self, earlier: &WaterMark) -> Option<u64> {
        let eras = self.era.wrapping_sub(earlier.era);
        if eras > MAX_ERAS_AHEAD {
            return None;
        }
        match eras.checked_mul(ERA).and_then(|drained| drained.checked_add(self.level)) {
            Some(level) => level.checked_sub(earlier.level).map(|drained| drained.min(MAX_DRAINED)),
            None => Some(MAX_DRAINED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_drains_with_the_mark_across_eras() {
        let usages = [0, 1, ERA - 1, ERA, ERA + 1, u64::MAX >> 1];
        for (usage, first_era) in usages.into_iter().flat_map(|usage| [0, 5, u64::MAX - 1].map(|era| (usage, era))) {
            for first_level in [0, 1, ERA - 1] {
                let mut mark = WaterMark { era: first_era, level: first_level };
                let (earlier, level, mut drained) = (mark, mark.level_of(usage), 0_u128);
                for step in [0, 1, ERA - 1, ERA, u64::MAX >> 1, 3, ERA, u64::MAX >> 1] {
                    mark.advance(step);
                    drained += u128::from(step);
                    let expected = u128::from(usage).saturating_sub(drained);
                    assert_eq!(u128::from(mark.usage(level, first_era)), expected, "{usage} after {drained}");
                    assert_eq!(u128::from(mark.usage(mark.level_in_current_era(level, first_era), mark.era)), expected);
                    assert_eq!(mark.since(&earlier).map(u128::from), Some(drained.min(u128::from(u64::MAX >> 1))));
                    assert_eq!(earlier.since(&mark), (drained == 0).then_some(0));
                }
            }
        }
        assert_eq!(WaterMark { era: 1 << 48, level: 0 }.usage(u64::MAX, 0), 0);
        // A mark is later if it is ahead by less than half of all eras.
        let ahead = |eras| WaterMark { era: eras, level: 0 }.since(&WaterMark::default());
        assert_eq!([1 << 48, u64::MAX >> 1].map(ahead), [Some(u64::MAX >> 1); 2]);
        assert_eq!([1 << 63, u64::MAX].map(ahead), [None; 2]);
    }

    #[test]
    fn invalid_stored_mark_is_rejected() {
        assert!(WaterMark::from_stored(u64::MAX, ERA - 1).is_some());
        assert!(WaterMark::from_stored(0, ERA).is_none());
    }
}
