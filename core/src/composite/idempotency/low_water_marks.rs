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
//! kept by the *difference* from each low to the next, in a tree of sums (Fenwick 1994), where one number changes all
//! that follow.
//!
//! Cost: about 100 bytes a group, and there are no more groups than charges; each operation is logarithmic in them, but
//! for one that closes the gaps of many groups that have gone. A low that is recorded ends all groups above it at once;
//! their memory is freed by the lows that follow, a few groups each.

mod sum_tree;

use crate::number::Amount;
#[cfg(test)]
use crate::testing::effort;
use crate::wire::codec::{Decoder, Encoder};
use std::collections::BTreeMap;
use sum_tree::{MarkSum, Sums};

/// The lows of charges, which are numbered in the order in which they are made.
#[derive(Clone, Debug, Default)]
pub struct LowWaterMarks {
    /// The charges before the last low, the same low in each group, by the number of its first.
    groups: BTreeMap<u64, MarkGroup>,
    /// Of each group, at its position, the difference of its low from that of the one before, and how many charges it
    /// has. Nothing where a group has gone.
    sums: Sums,
    /// The number of the first charge of the group at each position, or of one that has gone.
    firsts: Vec<u64>,
    /// Groups that have gone, to be freed.
    spent: Spent,
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
struct MarkGroup {
    /// Where it is among `sums`: later than each older group.
    position: usize,
    /// By how much its low is above that of the group before, in millionths: not 0 but in the first.
    delta: u64,
    /// How many of its charges there are yet: not 0.
    live: usize,
}

/// The lows of charges, which are numbered in the order in which they are made: however they are kept.
pub trait Marks: Default {
    /// Whether there is no charge.
    fn is_idle(&self) -> bool {
        self.live() == 0
    }

    /// How many charges there are.
    fn live(&self) -> usize;

    /// Counts a charge that has just been made; its number, `None` if there is none left.
    fn charge(&mut self) -> Option<u64>;

    /// Records that `used`, or less, is used.
    fn low(&mut self, used: Amount);

    /// The low of a charge; `None` if none has been recorded since.
    fn least(&self, number: u64) -> Option<Amount>;

    /// Records that a charge is smaller `by` an amount that is not more than its low.
    fn lower(&mut self, number: u64, by: Amount);

    /// Forgets a charge.
    fn forget(&mut self, number: u64);

    /// How many bytes it holds beside itself, about.
    fn heap_size(&self) -> usize;

    /// Writes it out, but for how many charges there are: those are known by whoever remembers them.
    fn encode(&self, to: &mut impl Encoder);
}

/// Groups that are to be freed. A copy has none.
#[derive(Debug, Default)]
struct Spent(Vec<BTreeMap<u64, MarkGroup>>);

impl Clone for Spent {
    fn clone(&self) -> Spent {
        Spent::default()
    }
}

/// Where groups have ended.
struct EndedGroups {
    /// The number of the first.
    first: u64,
    position: usize,
    /// Of all that are left.
    sum: MarkSum,
}

impl LowWaterMarks {
    /// Far from overflow.
    pub const LAST: u64 = u64::MAX >> 1;
    /// How many groups a low ends or frees one by one: more than one adds.
    const FREED: usize = 16;

    /// Ends all groups whose low is `used` or more, at once: where they began.
    fn end_at(&mut self, used: u64) -> EndedGroups {
        let (place, sum) = self.sums.until(used);
        // One there that has gone is of nothing, and so are all before it.
        let first = self.firsts.get(place).and_then(|first| self.groups.range(first..).next());
        let (first, position) = first.map_or((self.open, place), |(first, group)| (*first, group.position));
        let all = self.groups.first_key_value().is_some_and(|(least, _)| *least == first);
        let ended = if all { std::mem::take(&mut self.groups) } else { self.groups.split_off(&first) };
        self.spent.0.push(ended);
        EndedGroups { first, position, sum }
    }

    /// Frees a few of the groups that have ended.
    fn free_spent(&mut self) {
        let Some(spent) = self.spent.0.last_mut() else { return };
        for _ in 0..LowWaterMarks::FREED {
            #[cfg(test)]
            effort::entry();
            if spent.pop_last().is_none() {
                self.spent.0.pop();
                return;
            }
        }
    }

    fn push(&mut self, first: u64, group: MarkGroup) {
        self.firsts.push(first);
        self.sums.push(MarkSum { delta: group.delta, live: u64_of(group.live) });
    }

    /// The group of a charge, by its first; `None` for those that have no low yet.
    fn group_of(&self, number: u64) -> Option<u64> {
        let group = || self.groups.range(..=number).next_back().map(|(first, _)| *first);
        (number < self.open).then(group).flatten()
    }

    /// Closes the gaps that groups have left among the differences, once there are more gaps than groups.
    fn make_room(&mut self) {
        const SPARE: usize = 16;
        if self.sums.len() <= self.groups.len().saturating_mul(2).saturating_add(SPARE) {
            return;
        }
        (self.firsts, self.sums) = (Vec::with_capacity(self.groups.len()), Sums::default());
        let mut sums = Vec::with_capacity(self.groups.len());
        for (first, group) in &mut self.groups {
            #[cfg(test)]
            effort::entry();
            group.position = sums.len();
            self.firsts.push(*first);
            sums.push(MarkSum { delta: group.delta, live: u64_of(group.live) });
        }
        self.sums = Sums::of(sums);
    }

    /// Reads what `encode` wrote. Then each charge is to be counted, and then it [`is_sound`](LowWaterMarks::is_sound)
    /// or not.
    pub fn decode(from: &mut impl Decoder) -> Option<LowWaterMarks> {
        let next = from.integer().filter(|next| *next <= LowWaterMarks::LAST)?;
        let open = from.integer().filter(|open| *open <= next)?;
        let mut low_water_marks = LowWaterMarks { open, next, ..LowWaterMarks::default() };
        for _ in 0..from.integer()? {
            let first = from.integer().filter(|first| *first < open)?;
            let delta = from.integer()?;
            let last = low_water_marks.groups.last_key_value();
            let in_order = last.is_none_or(|(last, _)| *last < first && delta != 0);
            if !in_order || delta > Amount::MAX.millionths().saturating_sub(low_water_marks.sums.sum().delta) {
                return None;
            }
            let group = MarkGroup { position: low_water_marks.sums.len(), delta, live: 0 };
            low_water_marks.push(first, group);
            low_water_marks.groups.insert(first, group);
        }
        Some(low_water_marks)
    }

    /// Counts a charge of a decoded one, which is remembered elsewhere; whether there can be one of that number.
    pub fn count(&mut self, number: u64) -> bool {
        self.live = self.live.saturating_add(1);
        let live = if number >= self.open {
            &mut self.open_live
        } else {
            let Some((_, group)) = self.groups.range_mut(..=number).next_back() else { return false };
            self.sums.add(group.position, MarkSum { delta: 0, live: 1 });
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

    /// What [`open`](LowWaterMarks::open) and [`groups`](LowWaterMarks::groups) said.
    pub fn of(
        (open, open_live, next): (u64, usize, u64),
        groups: impl Iterator<Item = (u64, u64, usize)>,
    ) -> LowWaterMarks {
        let mut marks = LowWaterMarks { open, open_live, next, live: open_live, ..LowWaterMarks::default() };
        let mut before = 0;
        for (first, low, live) in groups {
            let group = MarkGroup { position: marks.sums.len(), delta: low.saturating_sub(before), live };
            marks.push(first, group);
            marks.groups.insert(first, group);
            marks.live = marks.live.saturating_add(live);
            before = low;
        }
        marks
    }

    /// The number of the first charge since the last low, how many of those there are, and the next number.
    pub fn open(&self) -> (u64, usize, u64) {
        (self.open, self.open_live, self.next)
    }

    /// Each group: the number of its first charge, its low in millionths, and how many charges it has.
    pub fn groups(&self) -> impl Iterator<Item = (u64, u64, usize)> {
        self.groups.iter().scan(0_u64, |low, (first, group)| {
            *low = low.saturating_add(group.delta);
            Some((*first, *low, group.live))
        })
    }
}

impl Marks for LowWaterMarks {
    fn live(&self) -> usize {
        self.live
    }

    fn charge(&mut self) -> Option<u64> {
        let number = Some(self.next).filter(|number| *number < LowWaterMarks::LAST)?;
        self.next = number.saturating_add(1);
        self.open_live = self.open_live.saturating_add(1);
        self.live = self.live.saturating_add(1);
        Some(number)
    }

    fn low(&mut self, used: Amount) {
        self.free_spent();
        let (used, all) = (used.millionths(), self.sums.sum());
        let mut merged = MarkGroup { position: self.sums.len(), delta: 0, live: self.open_live };
        let (mut first, mut least, mut few) = (self.open, all.delta, LowWaterMarks::FREED);
        while least >= used
            && let Some(last) = self.groups.last_entry()
        {
            let Some(fewer) = few.checked_sub(1) else {
                let before = self.end_at(used);
                (first, least) = (before.first, before.sum.delta);
                merged.live = self.open_live.saturating_add(usize_of(all.live.saturating_sub(before.sum.live)));
                merged.position = before.position;
                break;
            };
            few = fewer;
            #[cfg(test)]
            effort::entry();
            let (number, group) = last.remove_entry();
            first = number;
            least = least.saturating_sub(group.delta);
            merged = MarkGroup { live: merged.live.saturating_add(group.live), ..group };
        }
        self.sums.truncate(merged.position);
        self.firsts.truncate(merged.position);
        if merged.live > 0 {
            merged.delta = used.saturating_sub(least);
            self.push(first, merged);
            self.groups.insert(first, merged);
            self.make_room();
        }
        (self.open, self.open_live) = (self.next, 0);
    }

    fn least(&self, number: u64) -> Option<Amount> {
        let group = self.groups.get(&self.group_of(number)?)?;
        Some(Amount::saturating(self.sums.up_to(group.position.saturating_add(1)).delta))
    }

    fn lower(&mut self, number: u64, by: Amount) {
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
                self.sums.add(group.position, MarkSum { delta: lowered, live: 0 }.negated());
                return;
            };
            // It falls to the low of the group before it, or below: then that one falls along.
            let MarkGroup { position, delta, live } = *group;
            self.groups.remove(&first);
            self.sums.add(position, MarkSum { delta, live: u64_of(live) }.negated());
            if let Some(before) = self.groups.get_mut(&before) {
                before.live = before.live.saturating_add(live);
                self.sums.add(before.position, MarkSum { delta: 0, live: u64_of(live) });
            }
            owed = owed.saturating_sub(delta);
            first = before;
        }
    }

    fn forget(&mut self, number: u64) {
        self.live = self.live.saturating_sub(1);
        if self.live == 0 {
            *self = LowWaterMarks::default();
            return;
        }
        let Some(first) = self.group_of(number) else {
            self.open_live = self.open_live.saturating_sub(1);
            return;
        };
        let Some(group) = self.groups.get_mut(&first) else { return };
        group.live = group.live.saturating_sub(1);
        let MarkGroup { position, delta, live } = *group;
        if live > 0 {
            self.sums.add(position, MarkSum { delta: 0, live: 1 }.negated());
            return;
        }
        self.groups.remove(&first);
        self.sums.add(position, MarkSum { delta, live: 1 }.negated());
        if let Some((_, newer)) = self.groups.range_mut(first..).next() {
            newer.delta = newer.delta.saturating_add(delta);
            self.sums.add(newer.position, MarkSum { delta, live: 0 });
        }
    }

    fn heap_size(&self) -> usize {
        // As for leases: a node of the tree has room for 11 groups and holds 6 or more, but for the only one.
        const NODE: usize = 384;
        let nodes = self.groups.len().div_ceil(6).saturating_mul(NODE);
        let spent = self.spent.0.iter().map(|spent| spent.len().div_ceil(6).saturating_mul(NODE));
        let spent = spent
            .fold(self.spent.0.capacity().saturating_mul(size_of::<BTreeMap<u64, MarkGroup>>()), usize::saturating_add);
        let firsts = self.firsts.capacity().saturating_mul(size_of::<u64>());
        [nodes, spent, firsts, self.sums.heap_size()].into_iter().fold(0, usize::saturating_add)
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.next);
        to.integer(self.open);
        to.integer(u64::try_from(self.groups.len()).unwrap_or(0));
        for (first, group) in &self.groups {
            to.integer(*first);
            to.integer(group.delta);
        }
    }
}

/// A count as it is added to a sum: no more is held than there is memory for.
fn u64_of(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// A count out of a sum: no more is held than there is memory for.
fn usize_of(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
