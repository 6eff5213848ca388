//! State of a sliding log: an entry for each timestamp, with the running total.
//!
//! The documentation of [`log`](super) explains why entries hold totals.
//!
//! The words of an effect are: the tag (1: the change of a call; 0: the whole log follows, in its stored encoding); the
//! microseconds by which the log was shifted back after the clock moved backwards; the number of oldest entries
//! removed; the refunded millionths; 0, 1 if an entry was added, or 2 if a cost was taken back from an entry. After 1
//! and 2, the timestamp of the entry and this cost follow.

use crate::limit::{InfoField, Usage};
use crate::number::lazy_shift::{Mark, Shift};
use crate::number::{Amount, Span, Timestamp};
#[cfg(test)]
use crate::testing::step_counter;
use crate::usage_kind::UsageKind;
use crate::wire::codec::{CHANGE, Decoder, Encoder};
use std::collections::VecDeque;

/// State of a sliding log.
#[derive(Clone, Debug, Default)]
pub struct SlidingLogUsage {
    /// Entries, oldest first. Timestamps and totals are strictly increasing.
    pub(super) entries: VecDeque<LogEntry>,
    /// Running total before the first entry.
    total_before: u64,
    /// Span by which all entries have been shifted back.
    shift: Shift,
    /// Change made by the current call.
    pub(super) delta: LogDelta,
}

/// Entry of a sliding log: the charges of one timestamp.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEntry {
    /// Timestamp, relative to the shift of the log.
    pub(super) at: Mark,
    /// Running total up to and including this entry, in millionths, wrapping.
    pub(super) total: u64,
}

const _: () = assert!(size_of::<LogEntry>() == 16);

/// Change of a log by one call. The fields are applied in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogDelta {
    /// Span by which every entry is shifted back because the clock moved backwards.
    pub(super) moved_back: Span,
    /// Number of oldest entries to remove.
    pub(super) removed: usize,
    /// Amount to refund, starting at the oldest entry.
    pub(super) refunded: Amount,
    /// Timestamp and cost of an entry to add. The cost is added to the newest entry if that has the same timestamp.
    pub(super) added: Option<(Timestamp, Amount)>,
    /// Timestamp of an entry and the cost to take back from it.
    pub(super) taken_back: Option<(Timestamp, Amount)>,
}

impl SlidingLogUsage {
    /// Returns the running total at the end of the log.
    pub(super) fn total(&self) -> u64 {
        self.entries.back().map_or(self.total_before, |newest| newest.total)
    }

    /// Returns the sum of the entries from `index` on.
    pub(super) fn sum_from(&self, index: usize) -> Amount {
        let total_before = match index.checked_sub(1) {
            None => self.total_before,
            Some(index) => self.entries.get(index).map_or(self.total_before, |entry| entry.total),
        };
        Amount::saturating(self.total().wrapping_sub(total_before))
    }

    /// Returns the timestamp of the newest entry.
    pub(super) fn newest_timestamp(&self) -> Option<Timestamp> {
        self.entries.back().map(|newest| self.shift.timestamp(newest.at))
    }

    /// Returns the shift of all entries at the time `now`. A peek uses the shift without storing it.
    pub(super) fn shift_at(&self, now: Timestamp) -> Shift {
        self.shift.back(self.ahead(now))
    }

    /// Returns the number of entries, from the oldest on, that have expired in a window of the given length.
    pub(super) fn expired_entries(&self, window: Span, now: Timestamp) -> usize {
        let shift = self.shift_at(now);
        self.entries.partition_point(|entry| shift.timestamp(entry.at).plus(window) <= now)
    }

    /// Returns `true` if a call on this log can have caused `delta`.
    fn accepts(&self, delta: LogDelta) -> bool {
        let newest = self.newest_timestamp().map_or(Timestamp::EPOCH, |newest| newest.minus(delta.moved_back));
        delta.removed <= self.entries.len()
            && delta.added.is_none_or(|(at, cost)| at >= newest && cost != Amount::ZERO)
            && delta.taken_back.is_none_or(|(at, amount)| {
                let cost = self.cost_at(at, self.shift.back(delta.moved_back)).map_or(Amount::ZERO, |(_, cost)| cost);
                let is_only_change = delta.removed == 0 && delta.refunded == Amount::ZERO;
                is_only_change && amount != Amount::ZERO && amount <= cost
            })
    }

    /// Changes the log as a call does, and keeps the change for the effect.
    pub(super) fn change(&mut self, delta: LogDelta) {
        self.remove_oldest(delta.removed);
        self.refund(delta.refunded);
        if let Some((at, cost)) = delta.added {
            self.add(at, cost);
        }
        if let Some((at, amount)) = delta.taken_back {
            self.take_back_from_entry(at, amount);
        }
        self.delta = delta;
    }

    fn shift_back(&mut self, span: Span) {
        if span == Span::ZERO {
            return;
        }
        self.shift = self.shift.back(span);
        if self.shift.is_far() {
            let far = std::mem::take(&mut self.shift);
            for entry in &mut self.entries {
                #[cfg(test)]
                step_counter::step();
                entry.at = self.shift.mark(far.timestamp(entry.at));
            }
        }
        // The epoch is the earliest timestamp. Entries that meet there are merged, with the latest of their totals.
        let at_epoch = self.entries.partition_point(|entry| self.shift.timestamp(entry.at) == Timestamp::EPOCH);
        self.entries.drain(..at_epoch.saturating_sub(1));
    }

    /// Removes a number of the oldest entries.
    pub(super) fn remove_oldest(&mut self, count: usize) {
        if let Some(last_removed) = count.checked_sub(1).and_then(|index| self.entries.get(index)) {
            self.total_before = last_removed.total;
            self.entries.drain(..count);
        }
        // Amortized: the buffer shrinks only after the log has lost half of its entries.
        if self.entries.capacity() > Self::capacity_for(self.entries.len().saturating_mul(2)) {
            self.entries.shrink_to(Self::capacity_for(self.entries.len()));
        }
    }

    fn refund(&mut self, amount: Amount) {
        let refunded_entries =
            self.entries.partition_point(|entry| entry.total.wrapping_sub(self.total_before) <= amount.millionths());
        self.entries.drain(..refunded_entries);
        self.total_before = self.total_before.wrapping_add(amount.millionths());
    }

    fn add(&mut self, at: Timestamp, cost: Amount) {
        let cost = cost.min(Amount::MAX.minus(self.sum_from(0)));
        if cost == Amount::ZERO {
            return;
        }
        let total = self.total().wrapping_add(cost.millionths());
        let shares_entry = self.newest_timestamp() == Some(at);
        match self.entries.back_mut() {
            Some(newest) if shares_entry => newest.total = total,
            _ => {
                if self.entries.len() == self.entries.capacity() {
                    let additional = Self::capacity_for(self.entries.len()).saturating_sub(self.entries.len());
                    self.entries.reserve_exact(additional);
                }
                self.entries.push_back(LogEntry { at: self.shift.mark(at), total });
            }
        }
    }

    /// Returns `true` if the sum is saturated, so that it may be lower than the sum of the charges. Then no charge can
    /// be taken back, because the sum may contain only a part of it.
    pub(super) fn is_saturated(&self) -> bool {
        self.sum_from(0) == Amount::MAX
    }

    /// Returns the index and the cost of the entry whose timestamp is `at` under `shift`. Entries that meet at the
    /// epoch count as one.
    fn cost_at(&self, at: Timestamp, shift: Shift) -> Option<(usize, Amount)> {
        let first = self.entries.partition_point(|entry| shift.timestamp(entry.at) < at);
        let last = self.entries.partition_point(|entry| shift.timestamp(entry.at) <= at).checked_sub(1)?;
        let cost = self.sum_from(first).minus(self.sum_from(last.saturating_add(1)));
        (first <= last).then_some((last, cost))
    }

    /// Subtracts up to `amount` from the entry with the timestamp `at` and returns the reduction. Adjusts the totals on
    /// the shorter side of the entry.
    fn take_back_from_entry(&mut self, at: Timestamp, amount: Amount) -> Amount {
        let Some((index, cost)) = self.cost_at(at, self.shift) else { return Amount::ZERO };
        let reduction = amount.min(cost);
        let newer = self.entries.len().saturating_sub(index);
        let (shorter_side, change) = if index < newer {
            self.total_before = self.total_before.wrapping_add(reduction.millionths());
            (0..index, reduction.millionths())
        } else {
            (index..self.entries.len(), reduction.millionths().wrapping_neg())
        };
        for entry in self.entries.range_mut(shorter_side) {
            #[cfg(test)]
            step_counter::step();
            entry.total = entry.total.wrapping_add(change);
        }
        if reduction == cost {
            self.entries.remove(index);
        }
        reduction
    }

    /// Returns the capacity for a log of `length`: a sixteenth and four entries more. Doubling would waste up to 16
    /// bytes per entry.
    pub(super) fn capacity_for(length: usize) -> usize {
        length.saturating_add(length / 16).saturating_add(4)
    }

    /// Returns the entries with their own costs, oldest first.
    pub(super) fn costs(&self) -> impl Iterator<Item = (Timestamp, Amount)> + '_ {
        self.entries.iter().scan(self.total_before, |total_before, entry| {
            let cost = entry.total.wrapping_sub(std::mem::replace(total_before, entry.total));
            Some((self.shift.timestamp(entry.at), Amount::saturating(cost)))
        })
    }
}

/// Tag in an effect without an entry.
const NO_ENTRY: u64 = 0;
/// Tag in an effect before an entry to add.
const ADDED: u64 = 1;
/// Tag in an effect before an entry and the cost that was taken back from it.
const TAKEN_BACK: u64 = 2;

impl LogDelta {
    fn decode(from: &mut impl Decoder) -> Option<LogDelta> {
        let moved_back = Span::from_micros(from.integer()?);
        let removed = usize::try_from(from.integer()?).ok()?;
        let refunded = Amount::from_millionths(from.integer()?)?;
        let tag = from.integer()?;
        let mut entry = || Some((Timestamp::from_micros(from.integer()?)?, Amount::from_millionths(from.integer()?)?));
        let (added, taken_back) = match tag {
            NO_ENTRY => (None, None),
            ADDED => (Some(entry()?), None),
            TAKEN_BACK => (None, Some(entry()?)),
            _ => return None,
        };
        Some(LogDelta { moved_back, removed, refunded, added, taken_back })
    }
}

impl Usage for SlidingLogUsage {
    const KIND: UsageKind = UsageKind::SlidingLog;
    const GROWS: bool = true;
    const PROPAGATES_CHANGES: bool = true;

    fn is_unused(&self) -> bool {
        self.entries.is_empty()
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.newest_timestamp().map_or(Span::ZERO, |newest| newest.since(now))
    }

    fn move_back(&mut self, now: Timestamp) {
        let span = self.ahead(now);
        self.shift_back(span);
        self.delta.moved_back = span;
    }

    /// Returns the timestamp of the newest entry.
    fn place(&self) -> Option<Timestamp> {
        self.newest_timestamp()
    }

    fn take_back(&mut self, place: Option<Timestamp>, amount: Amount) -> Amount {
        let Some(at) = place.filter(|_| !self.is_saturated()) else { return Amount::ZERO };
        let reduction = self.take_back_from_entry(at, amount);
        self.delta.taken_back = (reduction != Amount::ZERO).then_some((at, reduction));
        reduction
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(u64::try_from(self.entries.len()).unwrap_or(0));
        for (at, cost) in self.costs() {
            to.integer(at.micros());
            to.integer(cost.millionths());
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<SlidingLogUsage> {
        let length = from.integer()?;
        let mut usage = SlidingLogUsage::default();
        for _ in 0..length {
            let at = Timestamp::from_micros(from.integer()?)?;
            let cost = Amount::from_millionths(from.integer()?).filter(|cost| *cost != Amount::ZERO)?;
            let in_order = usage.newest_timestamp().is_none_or(|newest| newest < at);
            if !in_order || cost > Amount::MAX.minus(usage.sum_from(0)) {
                return None;
            }
            usage.add(at, cost);
        }
        (!usage.is_unused()).then_some(usage)
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let LogDelta { moved_back, removed, refunded, added, taken_back } = std::mem::take(&mut self.delta);
        to.integer(CHANGE);
        to.integer(moved_back.micros());
        to.integer(u64::try_from(removed).unwrap_or(0));
        to.integer(refunded.millionths());
        let (tag, entry) = match (added, taken_back) {
            (Some(added), _) => (ADDED, Some(added)),
            (None, Some(taken_back)) => (TAKEN_BACK, Some(taken_back)),
            (None, None) => (NO_ENTRY, None),
        };
        to.integer(tag);
        if let Some((at, amount)) = entry {
            to.integer(at.micros());
            to.integer(amount.millionths());
        }
    }

    fn accepts_change(&self, tag: u64, from: &mut impl Decoder, latest: Timestamp) -> bool {
        // The caller checks the stored entries against `latest`.
        let is_in_time = |delta: &LogDelta| delta.added.is_none_or(|(at, _)| at <= latest);
        tag == CHANGE && LogDelta::decode(from).is_some_and(|delta| is_in_time(&delta) && self.accepts(delta))
    }

    fn apply_change(&mut self, _tag: u64, from: &mut impl Decoder) {
        if let Some(delta) = LogDelta::decode(from) {
            self.shift_back(delta.moved_back);
            self.change(delta);
            self.delta = LogDelta::default();
        }
    }

    fn entries(&self) -> usize {
        self.entries.len()
    }

    fn heap_size(&self) -> usize {
        self.entries.capacity().saturating_mul(size_of::<LogEntry>())
    }

    fn describe(&self, now: Timestamp, recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        // The newest entry is the last to expire, so its expiry gives the window.
        let window = self.newest_timestamp().and_then(|newest| recovers_at.map(|at| at.since(newest)));
        let first_counted = window.map_or(0, |window| self.expired_entries(window, now));
        let entries = self.entries.len().saturating_sub(first_counted);
        let mut facts = vec![
            ("used", InfoField::Amount(self.sum_from(first_counted))),
            ("entries", InfoField::Count(u64::try_from(entries).unwrap_or(u64::MAX))),
        ];
        if let (Some(oldest), Some(newest)) = (self.entries.front(), self.newest_timestamp()) {
            facts.push(("oldest", InfoField::Instant(self.shift.timestamp(oldest.at))));
            facts.push(("newest", InfoField::Instant(newest)));
        }
        facts
    }
}
