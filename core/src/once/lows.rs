//! The least that a usage has been since each of many charges.
//!
//! Where all that is charged lies together and only drains (a bucket, a fixed window), had a charge been smaller by d,
//! the usage now would be lower by d, but by no more than the least that it has been since: what had drained by then
//! had drained in either case. (The reflection of a queue at 0: Skorokhod 1961.) So what has to be known of a charge is
//! that least, its *low*.
//!
//! A usage only falls between two changes, so its lows are what it is just before each. A change at which `x` is used
//! lowers every low above `x` to it: what is charged one after another has lows that never fall from the older to the
//! newer, and charges with the same low are one group. Settling a charge takes d off its own low and off all newer ones,
//! as the usage was lower by that much since; older lows that are then above it fall to it. So the groups are kept by
//! the *difference* from each low to the next, in a tree of sums (Fenwick 1994), where one number changes all that
//! follow.
//!
//! Cost: about 100 bytes a group, and there are no more groups than charges; each operation is logarithmic in them,
//! amortized (a low that is recorded ends the groups above it).

use crate::Amount;
use crate::codec::{Decoder, Encoder};
#[cfg(test)]
use crate::effort;
use std::collections::BTreeMap;

/// The lows of charges, which are numbered in the order in which they are made.
#[derive(Clone, Debug, Default)]
pub struct Lows {
    /// The charges before the last low, the same low in each group, by the number of its first.
    groups: BTreeMap<u64, Group>,
    /// The difference of each group's low from that of the one before, at the group's position.
    deltas: Sums,
    /// The number of the first charge since the last low: these have none yet.
    open: u64,
    /// How many of those there are.
    open_live: usize,
    /// The number that the next charge gets.
    next: u64,
    /// How many charges there are in all.
    live: usize,
}

/// Charges with the same low.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Where its difference is among `deltas`: later than that of each older group.
    position: usize,
    /// By how much its low is above that of the group before, in millionths: not 0 but in the first.
    delta: u64,
    /// How many of its charges there are yet: not 0.
    live: usize,
}

impl Lows {
    /// Far from overflow.
    const LAST: u64 = u64::MAX >> 1;

    /// Whether there is no charge.
    pub fn is_idle(&self) -> bool {
        self.live == 0
    }

    /// How many charges there are.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Counts a charge that has just been made; its number.
    pub fn charge(&mut self) -> u64 {
        let number = self.next;
        self.next = number.saturating_add(1);
        self.open_live = self.open_live.saturating_add(1);
        self.live = self.live.saturating_add(1);
        number
    }

    /// Records that so much is used, or less.
    pub fn low(&mut self, used: Amount) {
        let used = used.millionths();
        let mut merged = Group { position: self.deltas.len(), delta: 0, live: self.open_live };
        let (mut first, mut least) = (self.open, self.deltas.sum());
        while least >= used
            && let Some(last) = self.groups.last_entry()
        {
            #[cfg(test)]
            effort::entry();
            let (number, group) = last.remove_entry();
            first = number;
            least = least.saturating_sub(group.delta);
            merged = Group { live: merged.live.saturating_add(group.live), ..group };
        }
        self.deltas.truncate(merged.position);
        if merged.live > 0 {
            merged.delta = used.saturating_sub(least);
            self.deltas.push(merged.delta);
            self.groups.insert(first, merged);
            self.make_room();
        }
        (self.open, self.open_live) = (self.next, 0);
    }

    /// The low of a charge; `None` if none has been recorded since.
    pub fn least(&self, number: u64) -> Option<Amount> {
        let group = self.groups.get(&self.group_of(number)?)?;
        Some(Amount::saturating(self.deltas.up_to(group.position.saturating_add(1))))
    }

    /// Records that a charge is smaller by so much, which is not more than its low.
    pub fn lower(&mut self, number: u64, by: Amount) {
        let mut owed = by.millionths();
        let Some(mut first) = self.group_of(number) else { return };
        loop {
            #[cfg(test)]
            effort::entry();
            let before = self.groups.range(..first).next_back().map(|(number, _)| *number);
            let Some(group) = self.groups.get_mut(&first) else { return };
            let Some(before) = before.filter(|_| group.delta <= owed) else {
                let lowered = owed.min(group.delta);
                group.delta = group.delta.saturating_sub(lowered);
                self.deltas.add(group.position, lowered.wrapping_neg());
                return;
            };
            // It falls to the low of the group before it, or below: then that one falls along.
            let Group { position, delta, live } = *group;
            self.groups.remove(&first);
            self.deltas.add(position, delta.wrapping_neg());
            if let Some(before) = self.groups.get_mut(&before) {
                before.live = before.live.saturating_add(live);
            }
            owed = owed.saturating_sub(delta);
            first = before;
        }
    }

    /// Forgets a charge.
    pub fn forget(&mut self, number: u64) {
        self.live = self.live.saturating_sub(1);
        if self.live == 0 {
            *self = Lows::default();
            return;
        }
        let Some(first) = self.group_of(number) else {
            self.open_live = self.open_live.saturating_sub(1);
            return;
        };
        let Some(group) = self.groups.get_mut(&first) else { return };
        group.live = group.live.saturating_sub(1);
        if group.live > 0 {
            return;
        }
        let Group { position, delta, .. } = *group;
        self.groups.remove(&first);
        self.deltas.add(position, delta.wrapping_neg());
        if let Some((_, newer)) = self.groups.range_mut(first..).next() {
            newer.delta = newer.delta.saturating_add(delta);
            self.deltas.add(newer.position, delta);
        }
    }

    /// The group of a charge, by its first; `None` for those that have no low yet.
    fn group_of(&self, number: u64) -> Option<u64> {
        let group = || self.groups.range(..=number).next_back().map(|(first, _)| *first);
        (number < self.open).then(group).flatten()
    }

    /// Closes the gaps that groups have left among the differences, once there are more gaps than groups.
    fn make_room(&mut self) {
        const SPARE: usize = 16;
        if self.deltas.len() <= self.groups.len().saturating_mul(2).saturating_add(SPARE) {
            return;
        }
        self.deltas = Sums::default();
        for group in self.groups.values_mut() {
            #[cfg(test)]
            effort::entry();
            group.position = self.deltas.len();
            self.deltas.push(group.delta);
        }
    }

    /// How many bytes it holds beside itself, about.
    pub fn heap_size(&self) -> usize {
        // As for leases: a node of the tree has room for 11 groups and holds 6 or more, but for the only one.
        const NODE: usize = 384;
        let nodes = self.groups.len().div_ceil(6).saturating_mul(NODE);
        nodes.saturating_add(self.deltas.heap_size())
    }

    /// Writes it out, but for how many charges there are: those are known by whoever remembers them.
    pub fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.next);
        to.integer(self.open);
        to.integer(u64::try_from(self.groups.len()).unwrap_or(0));
        for (first, group) in &self.groups {
            to.integer(*first);
            to.integer(group.delta);
        }
    }

    /// Reads what `encode` wrote. Then each charge is to be counted, and then it [`is_sound`](Lows::is_sound) or not.
    pub fn decode(from: &mut impl Decoder) -> Option<Lows> {
        let next = from.integer().filter(|next| *next <= Lows::LAST)?;
        let open = from.integer().filter(|open| *open <= next)?;
        let mut lows = Lows { open, next, ..Lows::default() };
        for _ in 0..from.integer()? {
            let first = from.integer().filter(|first| *first < open)?;
            let delta = from.integer()?;
            let last = lows.groups.last_key_value();
            let in_order = last.is_none_or(|(last, _)| *last < first && delta != 0);
            if !in_order || delta > Amount::MAX.millionths().saturating_sub(lows.deltas.sum()) {
                return None;
            }
            lows.groups.insert(first, Group { position: lows.deltas.len(), delta, live: 0 });
            lows.deltas.push(delta);
        }
        Some(lows)
    }

    /// Counts a charge of a decoded one, which is remembered elsewhere; whether there can be one of that number.
    pub fn count(&mut self, number: u64) -> bool {
        self.live = self.live.saturating_add(1);
        let live = if number >= self.open {
            &mut self.open_live
        } else {
            let Some((_, group)) = self.groups.range_mut(..=number).next_back() else { return false };
            &mut group.live
        };
        *live = live.saturating_add(1);
        number < self.next
    }

    /// Whether charges that were counted make it one that calls can have led to.
    pub fn is_sound(&self) -> bool {
        let ends = self.groups.keys().skip(1).chain([&self.open]);
        let groups = self.groups.iter().zip(ends).map(|((first, group), end)| (group.live, end.saturating_sub(*first)));
        let open = (self.open_live, self.next.saturating_sub(self.open));
        let fit = |(live, numbers)| u64::try_from(live).is_ok_and(|live: u64| live <= numbers);
        // Without charges it begins anew.
        self.groups.values().all(|group| group.live > 0)
            && groups.chain([open]).all(fit)
            && (self.live > 0 || self.next == 0)
    }
}

/// A sequence of numbers, of which any may be changed, and the sum of those before any is known.
#[derive(Clone, Debug, Default)]
struct Sums(Vec<u64>);

// A node at 1-based place n holds the sum of as many numbers, up to and with the n-th, as n's lowest bit says.
impl Sums {
    fn len(&self) -> usize {
        self.0.len()
    }

    /// The sum of all.
    fn sum(&self) -> u64 {
        self.up_to(self.0.len())
    }

    /// The sum of the first so many.
    fn up_to(&self, count: usize) -> u64 {
        let (mut sum, mut place) = (0_u64, count);
        while let Some(node) = place.checked_sub(1).and_then(|index| self.0.get(index)) {
            #[cfg(test)]
            effort::entry();
            sum = sum.wrapping_add(*node);
            place = Sums::without_lowest_bit(place);
        }
        sum
    }

    /// One more at the end.
    fn push(&mut self, number: u64) {
        let place = self.0.len().saturating_add(1);
        let covered = self.sum().wrapping_sub(self.up_to(Sums::without_lowest_bit(place)));
        self.0.push(covered.wrapping_add(number));
    }

    /// Adds to the number at `index`; what is to be subtracted is added negated.
    fn add(&mut self, index: usize, number: u64) {
        let mut index = index;
        while let Some(node) = self.0.get_mut(index) {
            #[cfg(test)]
            effort::entry();
            *node = node.wrapping_add(number);
            // n plus its lowest bit, for n one above the index: all bits below that one are set.
            index |= index.saturating_add(1);
        }
    }

    fn truncate(&mut self, length: usize) {
        self.0.truncate(length);
    }

    fn heap_size(&self) -> usize {
        self.0.capacity().saturating_mul(size_of::<u64>())
    }

    fn without_lowest_bit(place: usize) -> usize {
        place & place.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests;
