//! Leases of a key with many leases, indexed by holder and ordered by expiry.
//!
//! The state consists of the leases that *count*: those that had not expired at the last change. Denied calls and peeks
//! cannot change the state, so they have to subtract the leases that have expired since then. The amortized cost of a
//! call is independent of the number of leases that have expired, and of changes of the clock:
//!
//! * the sum of the expired leases is cached with the time that it refers to. A later evaluation adds only the leases
//!   that have expired since that time;
//! * leases that no longer count remain in the table, and each change removes some of them;
//! * when the clock moves backwards, all expiries are shifted by one number (`Shift`).

use super::lease::{Lease, LeaseSum};
#[cfg(test)]
use super::step_counter;
use crate::number::lazy_shift::{Mark, Shift};
use crate::number::{Span, Timestamp};
use crate::record_table::{Record, RecordPosition, RecordTable};
use std::cell::Cell;

/// Maximum number of expired leases that a change removes: more than a change can add, and few enough that their
/// removal takes no longer than the call itself.
pub(super) const MAX_SWEPT: usize = 16;

/// Many leases.
#[derive(Clone, Debug, Default)]
pub(super) struct ManyLeases {
    /// Leases by expiry, and then by holder. Leases at the front that expired by `changed_at` no longer count.
    leases: RecordTable,
    /// Distance by which all expiries are shifted.
    shift: Shift,
    /// Time of the last change.
    pub(super) changed_at: Timestamp,
    /// Sum of the leases that count.
    pub(super) counted_sum: LeaseSum,
    /// Cached sum of the counted leases that have expired since the last change. Not part of the state.
    cached_expired: Cell<ExpiredSum>,
    /// Position of the lease that the current call has taken.
    pub(super) leased_position: Option<RecordPosition>,
}

/// Cached sum of expired leases.
#[derive(Clone, Copy, Debug, Default)]
struct ExpiredSum {
    /// Time that the sum refers to, not before the last change.
    until: Timestamp,
    /// Sum of the counted leases that have expired by that time.
    sum: LeaseSum,
}

impl ManyLeases {
    /// Returns the time until the last lease expires.
    pub(super) fn time_to_last_expiry(&self, now: Timestamp) -> Span {
        self.leases.latest().map_or(Span::ZERO, |last| self.shift.timestamp(last).since(self.effective_time(now)))
    }

    /// Returns the time at which to evaluate the leases at `now`: `now`, but not before the last change. If the clock
    /// moved backwards, all expiries would be shifted by the same distance, so the result is that at the last change.
    pub(super) fn effective_time(&self, now: Timestamp) -> Timestamp {
        now.max(self.changed_at)
    }

    /// Returns the time after which a lease has to expire to count: the last change. At the latest timestamp, a lease
    /// expires at the time at which it is taken, and counts nevertheless.
    fn counted_after(&self) -> Timestamp {
        self.changed_at.min(Timestamp::MAX.minus(Span::MICROSECOND))
    }

    /// Returns the lease of a holder, which may have expired.
    pub(super) fn lease_of(&self, holder: &[u8]) -> Option<Lease> {
        self.leases.get(holder).and_then(|record| Lease::from_record(&record, self.shift))
    }

    /// Returns the sum of the leases that count and have not expired.
    pub(super) fn live_sum(&self, now: Timestamp) -> LeaseSum {
        self.counted_sum.minus(self.expired_sum(now))
    }

    /// Returns the sum of the leases that count and have not expired, for a change at `now`.
    pub(super) fn live_sum_at_change(&self, now: Timestamp) -> LeaseSum {
        self.counted_sum.minus(self.expired_sum_at_change(now))
    }

    /// Returns the sum of the counted leases that have expired by `now`. Updates the cached sum.
    fn expired_sum(&self, now: Timestamp) -> LeaseSum {
        let now = self.effective_time(now).min(Timestamp::MAX);
        let ExpiredSum { until, sum } = self.cached_expired.get();
        if now == until {
            return sum;
        }
        if now == self.changed_at {
            // Also the result after the clock moved backwards. The cached sum stays valid.
            return LeaseSum::default();
        }
        let sum = if until < now {
            sum.plus(self.expiring_sum(until, now))
        } else {
            sum.minus(self.expiring_sum(now, until))
        };
        self.cached_expired.set(ExpiredSum { until: now, sum });
        sum
    }

    /// Returns the sum of the counted leases that have expired by `now`, the time of a change. If the cached sum refers
    /// to a later time (on a replica whose clock is ahead of that of its primary), leaves the cache unchanged, and
    /// computes the sum from the last change on.
    fn expired_sum_at_change(&self, now: Timestamp) -> LeaseSum {
        let now = self.effective_time(now);
        if now < self.cached_expired.get().until {
            self.expiring_sum(self.changed_at, now)
        } else {
            self.expired_sum(now)
        }
    }

    /// Returns the sum of the leases that expire after `from` and until `to`, which is not before `from`.
    fn expiring_sum(&self, from: Timestamp, to: Timestamp) -> LeaseSum {
        let end = self.first_mark_after(to);
        // Usually no lease expires, which the first lease shows without a search.
        if self.leases.first().is_none_or(|first| first.at >= end) {
            return LeaseSum::default();
        }
        let expiring = self.leases.iter_from(self.first_mark_after(from)).take_while(|record| record.at < end);
        expiring.filter_map(|record| Lease::from_record(&record, self.shift)).fold(LeaseSum::default(), |sum, lease| {
            #[cfg(test)]
            step_counter::step();
            sum.plus(LeaseSum::single(lease.units))
        })
    }

    /// Returns the leases that have not expired, in the order of expiry.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        self.expiring_after(self.effective_time(now))
    }

    /// Returns the leases that count, with their holders, in the order of expiry.
    pub(super) fn counted_leases(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        self.expiring_after(self.counted_after())
    }

    fn expiring_after(&self, instant: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        let leases = self.leases.iter_from(self.first_mark_after(instant));
        leases.filter_map(|record| Some((record.name, Lease::from_record(&record, self.shift)?)))
    }

    /// Returns the smallest mark after `instant`.
    fn first_mark_after(&self, instant: Timestamp) -> Mark {
        self.shift.mark(instant.plus(Span::MICROSECOND))
    }

    /// Advances to `now`: stops counting the expired leases, and shifts the others back by `span`, the distance by
    /// which the clock has moved backwards.
    pub(super) fn advance(&mut self, span: Span, now: Timestamp) {
        // Time shown by the clock before a move backwards.
        let at = now.plus(span);
        let expired = self.expired_sum_at_change(at);
        let ExpiredSum { until, sum } = self.cached_expired.get();
        self.cached_expired.set(ExpiredSum { until: until.minus(span).max(now), sum: sum.minus(expired) });
        self.counted_sum = self.counted_sum.minus(expired);
        self.shift_back(span);
        self.changed_at = now;
    }

    /// Advances to `now` and removes some leases that no longer count.
    pub(super) fn tidy(&mut self, span: Span, now: Timestamp) {
        self.advance(span, now);
        // At the latest timestamp, new leases expire at the same time as the expired ones, so all expired leases
        // are removed first.
        let max = if now == Timestamp::MAX { usize::MAX } else { MAX_SWEPT };
        let now = self.shift.mark(now);
        for _ in 0..max {
            if self.leases.first().is_none_or(|first| first.at > now) {
                break;
            }
            #[cfg(test)]
            step_counter::step();
            self.leases.remove_first();
        }
    }

    /// Removes the lease of a holder. Returns `false` if there is none.
    pub(super) fn remove(&mut self, holder: &[u8]) -> bool {
        let shift = self.shift;
        let Some(lease) = self.leases.take(holder, |record| Lease::from_record(&record, shift)) else { return false };
        if let Some(lease) = lease {
            self.change_sums(lease, LeaseSum::minus);
        }
        true
    }

    /// Applies `change`, which is [`LeaseSum::plus`] or [`LeaseSum::minus`], to the sums that contain the lease.
    fn change_sums(&mut self, lease: Lease, change: impl Fn(LeaseSum, LeaseSum) -> LeaseSum) {
        if lease.expires_at <= self.counted_after() {
            return;
        }
        let lease_sum = LeaseSum::single(lease.units);
        self.counted_sum = change(self.counted_sum, lease_sum);
        let expired = self.cached_expired.get_mut();
        if lease.expires_at <= expired.until {
            expired.sum = change(expired.sum, lease_sum);
        }
    }

    /// Stores a lease of a holder, which replaces the holder's previous lease.
    pub(super) fn store_lease(&mut self, holder: &[u8], lease: Lease) {
        self.remove(holder);
        let (at, bytes) = lease.to_record(holder, self.shift);
        self.leased_position = Some(self.leases.insert(at, holder, bytes));
        self.change_sums(lease, LeaseSum::plus);
    }

    /// Appends a lease that expires after all others. Returns `false` if the holder already has a lease.
    pub(super) fn append(&mut self, holder: &[u8], lease: Lease) -> bool {
        let (at, bytes) = lease.to_record(holder, self.shift);
        self.change_sums(lease, LeaseSum::plus);
        self.leases.append_if_new(at, holder, bytes)
    }

    fn shift_back(&mut self, span: Span) {
        self.shift = self.shift.back(span);
        if !self.shift.is_far() {
            return;
        }
        let far = std::mem::take(&mut self.shift);
        self.leases.rewrite(|record| {
            #[cfg(test)]
            step_counter::step();
            let at = Shift::NONE.mark(far.timestamp(record.at));
            (at, Record { at, ..record }.copy())
        });
    }

    /// Returns the number of leases, including expired ones that no longer count.
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Returns the approximate heap memory in bytes.
    pub(super) fn heap_size(&self) -> usize {
        size_of::<ManyLeases>().saturating_add(self.leases.heap_size())
    }

    /// Returns the approximate number of allocations to free.
    pub(super) fn free_effort(&self) -> usize {
        self.leases.free_effort()
    }

    /// Creates the form of many from `leases`, which must be in the order of expiry, were last changed at `changed_at`,
    /// and all count.
    pub(super) fn from_ordered<'a>(
        changed_at: Timestamp,
        leases: impl Iterator<Item = (&'a [u8], Lease)>,
    ) -> ManyLeases {
        let mut many = ManyLeases { changed_at, ..ManyLeases::default() };
        many.cached_expired.get_mut().until = changed_at;
        leases.for_each(|(holder, lease)| {
            many.append(holder, lease);
        });
        many
    }

    /// Returns the holder and the lease that the current call has taken, and forgets the lease's position.
    pub(super) fn take_leased(&mut self) -> Option<(&[u8], Lease)> {
        let record = self.leases.record_at(self.leased_position.take()?)?;
        Some((record.name, Lease::from_record(&record, self.shift)?))
    }
}
