//! Going through all records in pieces, so that no server is busy with thousands in one go.

use std::collections::BTreeSet;

/// How many groups of names the digest has.
pub const GROUPS: usize = 64;

/// The group of a name, by the highest bits of its hash: the lowest say where it is in the table.
pub(super) fn group_of(hash: u64) -> usize {
    usize::try_from(hash >> GROUP_SHIFT).unwrap_or_default()
}

/// Below the six bits of a group.
const GROUP_SHIFT: u32 = 58;

/// Where somebody has come to who goes through the records of some groups of names. In the meantime the table may
/// change: what is added behind this place is met, and what is before it is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// A bit for each group that has not begun.
    groups: u64,
    /// The least hash that may come next, in the group that has begun.
    next: Option<u64>,
}

impl Walk {
    /// Through all groups.
    pub const ALL: Walk = Walk { groups: u64::MAX, next: None };

    /// Whether nothing is left to be gone through.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.groups == 0 && self.next.is_none()
    }

    /// Goes through these groups too, a bit for each, but for the one that it is in.
    pub fn include(&mut self, groups: u64) {
        let begun = self.next.map_or(0, |next| bit(next >> GROUP_SHIFT));
        self.groups |= groups & !begun;
    }

    /// The next hash of those that there are.
    pub(super) fn step(&mut self, hashes: &BTreeSet<u64>) -> Option<u64> {
        loop {
            let from = match self.next {
                Some(next) => next,
                None if self.groups == 0 => return None,
                None => {
                    let group = u64::from(self.groups.trailing_zeros());
                    self.groups &= !bit(group);
                    group << GROUP_SHIFT
                }
            };
            let last = from | (u64::MAX >> (u64::BITS - GROUP_SHIFT));
            let found = hashes.range(from..=last).next().copied();
            self.next = found.filter(|found| *found < last).map(|found| found.saturating_add(1));
            if found.is_some() {
                return found;
            }
        }
    }
}

/// The bit of a group.
fn bit(group: u64) -> u64 {
    1 << (group & 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(group: u64, rest: u64) -> u64 {
        group << GROUP_SHIFT | rest
    }

    #[test]
    fn each_hash_of_the_groups_is_met_once() {
        let last = u64::MAX >> (u64::BITS - GROUP_SHIFT);
        let hashes: Vec<u64> =
            [(0, 0), (0, 5), (1, 0), (1, last), (2, 7), (63, 0), (63, last)].map(|(g, rest)| hash(g, rest)).to_vec();
        let set: BTreeSet<u64> = hashes.iter().copied().collect();
        let walked = |mut walk: Walk| {
            let mut met = Vec::new();
            while let Some(hash) = walk.step(&set) {
                met.push(hash);
            }
            assert!(walk.is_over());
            met
        };
        assert_eq!(walked(Walk::ALL), hashes);
        assert_eq!(walked(Walk { groups: 0b110, next: None }), hashes[2..5]);
        assert_eq!(walked(Walk::default()), []);
    }

    #[test]
    fn what_is_asked_for_again_is_not_gone_through_twice_while_it_is() {
        let set: BTreeSet<u64> = [hash(0, 1), hash(1, 1), hash(1, 2)].into();
        let mut walk = Walk { groups: 0b11, next: None };
        assert_eq!([walk.step(&set), walk.step(&set)], [Some(hash(0, 1)), Some(hash(1, 1))]);
        walk.include(0b11);
        assert_eq!([walk.step(&set), walk.step(&set), walk.step(&set)], [Some(hash(1, 2)), Some(hash(0, 1)), None]);
    }
}
