//! Many leases, by holder and by the instant at which they expire.
//!
//! The state is what had not expired when the table was last written; a denied call and a look change nothing, so what
//! has expired since is looked past. However many expire together, and wherever the clock goes:
//!
//! * to look past them is to know their sum, which is kept along with the instant up to which it was taken, and goes on
//!   from there: the first look passes each of them, and no other does;
//! * those that are no part of the state any more stay in place, unseen, and each change sweeps a few of them out;
//! * a clock gone back moves all expiries back by one number (`Shift`).

use super::lease::{Lease, LeaseSum};
#[cfg(test)]
use super::step_counter;
use crate::number::lazy_shift::{Mark, Shift};
use crate::number::{Span, Timestamp};
use crate::record_table::{Record, RecordTable};
use std::cell::Cell;

/// Number of leases, no part of the state any more, that a change sweeps out: more than one adds, and few enough to
/// take no longer than the rest of the call.
pub(super) const SWEPT: usize = 16;

/// Many leases.
#[derive(Clone, Debug, Default)]
pub(super) struct ManyLeases {
    /// The leases, by the instant of expiry and by holder. At the front may be some that expired by `written`, to be
    /// swept out: no part of the state.
    leases: RecordTable,
    /// Distance that all expiries have moved back.
    shift: Shift,
    /// Instant of the last change.
    pub(super) written: Timestamp,
    /// The leases that count: those that had not expired by then.
    pub(super) counted: LeaseSum,
    /// Sum of those that have expired since: a memory of the last look, no part of the state.
    expired: Cell<Expired>,
    /// The holder whose lease the current call has taken.
    leased: Option<Box<[u8]>>,
}

/// The leases that have expired by an instant, not before the table was last changed.
#[derive(Clone, Copy, Debug, Default)]
struct Expired {
    by: Timestamp,
    sum: LeaseSum,
}

impl ManyLeases {
    /// Returns the time until the last lease expires.
    pub(super) fn time_to_last_expiry(&self, now: Timestamp) -> Span {
        self.leases.last().map_or(Span::ZERO, |last| self.shift.instant(last.at).since(self.at(now)))
    }

    /// Returns the instant, on the table's own clock, that a look at `now` is at. One from before the table was last changed
    /// sees it as it was then: moved back, everything in it lies as far off as before.
    pub(super) fn at(&self, now: Timestamp) -> Timestamp {
        now.max(self.written)
    }

    /// Returns the instant after which an expiry counts. At the end of time a lease expires at the very instant at which it was taken.
    fn horizon(&self) -> Timestamp {
        self.written.min(Timestamp::MAX.minus(Span::MICROSECOND))
    }

    /// Returns a holder's lease, though it may have expired.
    pub(super) fn lease_of(&self, holder: &[u8]) -> Option<Lease> {
        self.leases.get(holder).and_then(|record| Lease::read(&record, self.shift))
    }

    /// Returns the sum of the leases that count and have not expired.
    pub(super) fn present(&self, now: Timestamp) -> LeaseSum {
        self.counted.minus(self.expired(now))
    }

    /// Returns the sum of the leases that count and will not have expired when a change comes at `now`.
    pub(super) fn present_at_change(&self, now: Timestamp) -> LeaseSum {
        self.counted.minus(self.expired_by_change(now))
    }

    /// Returns the sum of what has expired by now. It goes on from where the last look was, on or back.
    fn expired(&self, now: Timestamp) -> LeaseSum {
        let now = self.at(now).min(Timestamp::MAX);
        let Expired { by, sum } = self.expired.get();
        if now == by {
            return sum;
        }
        if now == self.written {
            // As any look by a clock that has gone back: it need not forget where the others are.
            return LeaseSum::default();
        }
        let sum = if by < now { sum.plus(self.expiring(by, now)) } else { sum.minus(self.expiring(now, by)) };
        self.expired.set(Expired { by: now, sum });
        sum
    }

    /// Returns the sum of what has expired by `now`, as a change sees it. Looks may have gone further (those of a replica do, if its clock
    /// is ahead of its master's): then they stay where they are, and what expires is summed up from the last change.
    fn expired_by_change(&self, now: Timestamp) -> LeaseSum {
        let now = self.at(now);
        if now < self.expired.get().by { self.expiring(self.written, now) } else { self.expired(now) }
    }

    /// Returns the sum of what expires after `from`, up to and with `to`, which is not before it.
    fn expiring(&self, from: Timestamp, to: Timestamp) -> LeaseSum {
        let end = self.after(to);
        // Mostly nothing does, which the first tells without a search.
        if self.leases.first().is_none_or(|first| first.at >= end) {
            return LeaseSum::default();
        }
        let expiring = self.leases.from(self.after(from)).take_while(|record| record.at < end);
        expiring.filter_map(|record| Lease::read(&record, self.shift)).fold(LeaseSum::default(), |sum, lease| {
            #[cfg(test)]
            step_counter::step();
            sum.plus(LeaseSum::of(lease.units))
        })
    }

    /// Returns the leases that have not expired, in the order in which they will.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        self.expiring_after(self.at(now))
    }

    /// Returns the leases that count, with their holders, in the order in which they expire.
    pub(super) fn counted(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        self.expiring_after(self.horizon())
    }

    fn expiring_after(&self, instant: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        let leases = self.leases.from(self.after(instant));
        leases.filter_map(|record| Some((record.name, Lease::read(&record, self.shift)?)))
    }

    /// Returns the first mark of what expires after `instant`.
    fn after(&self, instant: Timestamp) -> Mark {
        self.shift.mark(instant.plus(Span::MICROSECOND))
    }

    /// Goes on to `now`, by a clock that may have gone back by `span` before: what has expired by then counts no more.
    pub(super) fn go_on(&mut self, span: Span, now: Timestamp) {
        // By the clock as it was before it went back.
        let at = now.plus(span);
        let gone = self.expired_by_change(at);
        let Expired { by, sum } = self.expired.get();
        self.expired.set(Expired { by: by.minus(span).max(now), sum: sum.minus(gone) });
        self.counted = self.counted.minus(gone);
        self.shift_back(span);
        self.written = now;
    }

    /// Goes on to `now`, and sweeps out a few leases that count no more.
    pub(super) fn tidy(&mut self, span: Span, now: Timestamp) {
        self.go_on(span, now);
        // At the end of time what has just come and what has expired lie at one instant: there all of the latter goes.
        let most = if now == Timestamp::MAX { usize::MAX } else { SWEPT };
        let now = self.shift.mark(now);
        for _ in 0..most {
            if self.leases.first().is_none_or(|first| first.at > now) {
                break;
            }
            #[cfg(test)]
            step_counter::step();
            self.leases.remove_first();
        }
    }

    /// Takes a holder's lease away; `false` if there is none.
    pub(super) fn remove(&mut self, holder: &[u8]) -> bool {
        let shift = self.shift;
        let Some(lease) = self.leases.take(holder, |record| Lease::read(&record, shift)) else { return false };
        if let Some(lease) = lease {
            self.count(lease, LeaseSum::minus);
        }
        true
    }

    /// Counts a change of a lease, in whatever it counts.
    fn count(&mut self, lease: Lease, change: impl Fn(LeaseSum, LeaseSum) -> LeaseSum) {
        if lease.expires_at <= self.horizon() {
            return;
        }
        let one = LeaseSum::of(lease.units);
        self.counted = change(self.counted, one);
        let expired = self.expired.get_mut();
        if lease.expires_at <= expired.by {
            expired.sum = change(expired.sum, one);
        }
    }

    /// Gives a holder a lease, in place of the one that it may have.
    pub(super) fn lease(&mut self, holder: &[u8], lease: Lease) {
        self.remove(holder);
        let (at, bytes) = lease.record(holder, self.shift);
        self.leases.insert(at, holder, bytes);
        self.count(lease, LeaseSum::plus);
        self.leased = Some(holder.into());
    }

    /// Adds a lease that expires behind all others; `false` if its holder has one.
    pub(super) fn append(&mut self, holder: &[u8], lease: Lease) -> bool {
        let (at, bytes) = lease.record(holder, self.shift);
        self.count(lease, LeaseSum::plus);
        self.leases.append(at, holder, bytes)
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
            let at = Shift::NONE.mark(far.instant(record.at));
            (at, Record { at, ..record }.copy())
        });
    }

    /// Returns the number of leases, counted or not.
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Returns the number of bytes that it takes, about.
    pub(super) fn heap_size(&self) -> usize {
        size_of::<ManyLeases>().saturating_add(self.leases.heap_size())
    }

    /// Returns the number of allocations that it takes to free it, about.
    pub(super) fn free_effort(&self) -> usize {
        self.leases.free_effort()
    }

    /// Returns leases that were last changed at `written`, and all of which count, from those in the order in which they expire.
    pub(super) fn of<'a>(written: Timestamp, leases: impl Iterator<Item = (&'a [u8], Lease)>) -> ManyLeases {
        let mut many = ManyLeases { written, ..ManyLeases::default() };
        many.expired.get_mut().by = written;
        leases.for_each(|(holder, lease)| {
            many.append(holder, lease);
        });
        many
    }

    /// Forgets whose lease the current call has taken.
    pub(super) fn forget_leased(&mut self) {
        self.leased = None;
    }

    /// Returns the holder whose lease the current call has taken, and the lease; once.
    pub(super) fn take_leased(&mut self) -> Option<(&[u8], Lease)> {
        let holder = self.leased.take()?;
        let record = self.leases.get(&holder)?;
        Some((record.name, Lease::read(&record, self.shift)?))
    }
}
