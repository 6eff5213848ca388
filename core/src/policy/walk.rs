//! Iteration over all records in batches, so that no call blocks the server for thousands of them.

use std::collections::BTreeSet;

/// Number of groups of names in the digest.
pub const GROUPS: usize = 64;

/// Returns the group of a name from the highest bits of its hash. The lowest bits select the slot in the table.
pub(super) fn group_of(hash: u64) -> usize {
    usize::try_from(hash >> GROUP_SHIFT).unwrap_or_default()
}

/// Returns the digest of all groups: the sum of their digests.
pub(super) fn sum(digests: &[u64; GROUPS]) -> u64 {
    digests.iter().fold(0, |sum, digest| sum.wrapping_add(*digest))
}

/// Number of bits of a hash below the six bits that select the group.
const GROUP_SHIFT: u32 = 58;

/// Position of an iteration over the records of some groups. The table may change in between: records added after the
/// position are visited, and those before it are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Groups that have not been started, one bit each.
    groups: u64,
    /// Smallest hash that may come next in the current group.
    next: Option<u64>,
}

impl Walk {
    /// Iteration over all groups.
    pub const ALL: Walk = Walk { groups: u64::MAX, next: None };

    /// Returns `true` if nothing is left to visit.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.groups == 0 && self.next.is_none()
    }

    /// Adds groups to the iteration, one bit each, except the current one.
    pub fn include(&mut self, groups: u64) {
        let current_group = self.next.map_or(0, |next| bit(next >> GROUP_SHIFT));
        self.groups |= groups & !current_group;
    }

    /// Advances to the next hash in `hashes`, and returns it. Returns `None` at the end.
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

/// Returns the bit of a group.
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
    fn walk_visits_each_hash_of_its_groups_once() {
        let last = u64::MAX >> (u64::BITS - GROUP_SHIFT);
        let hashes: Vec<u64> =
            [(0, 0), (0, 5), (1, 0), (1, last), (2, 7), (63, 0), (63, last)].map(|(g, rest)| hash(g, rest)).to_vec();
        let set: BTreeSet<u64> = hashes.iter().copied().collect();
        let visited = |mut walk: Walk| {
            let mut visited = Vec::new();
            while let Some(hash) = walk.step(&set) {
                visited.push(hash);
            }
            assert!(walk.is_over());
            visited
        };
        assert_eq!(visited(Walk::ALL), hashes);
        assert_eq!(visited(Walk { groups: 0b110, next: None }), hashes[2..5]);
        assert_eq!(visited(Walk::default()), []);
    }

    #[test]
    fn including_the_current_group_does_not_visit_it_twice() {
        let set: BTreeSet<u64> = [hash(0, 1), hash(1, 1), hash(1, 2)].into();
        let mut walk = Walk { groups: 0b11, next: None };
        assert_eq!([walk.step(&set), walk.step(&set)], [Some(hash(0, 1)), Some(hash(1, 1))]);
        walk.include(0b11);
        assert_eq!([walk.step(&set), walk.step(&set), walk.step(&set)], [Some(hash(1, 2)), Some(hash(0, 1)), None]);
    }
}
