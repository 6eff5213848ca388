//! Many leases, by holder and by the instant at which they expire.
//!
//! The state is what had not expired when the table was last written; a denied call and a look change nothing, so what
//! has expired since is looked past. However many expire together, and wherever the clock goes:
//!
//! * to look past them is to know their sum, which is kept along with the instant up to which it was taken, and goes on
//!   from there: the first look passes each of them, and no other does;
//! * those that are no part of the state any more stay in place, unseen, and each change sweeps a few of them out;
//! * a clock gone back moves all expiries back by one number (`Shift`).

#[cfg(test)]
use super::effort;
use super::lease::{Lease, LeaseSum};
use crate::number::lazy_shift::{Mark, Shift};
use crate::number::{Amount, Span, Timestamp};
use crate::wire::name::{Kept, Name, size_of_kept};
use hashbrown::HashTable;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A holder and its lease; with the name's hash, so that a table that grows looks no name up.
#[derive(Clone, Debug)]
struct HeldLease {
    hash: u64,
    holder: Kept,
    expires_at: Mark,
    units: Amount,
}

/// Whether a lease is this holder's.
fn is_of(holder: Name) -> impl Fn(&HeldLease) -> bool {
    move |held| *held.holder == *holder.text
}

/// How many leases that are no part of the state any more a change sweeps out: more than one adds, and few enough to
/// take no longer than the rest of the call.
pub(super) const SWEPT: usize = 16;

/// Many leases.
#[derive(Clone, Debug, Default)]
pub(super) struct ManyLeases {
    /// The units of every lease, by the instant at which it expires and its holder. At the front may be some that
    /// expired by `written`, to be swept out: no part of the state.
    by_expiry: BTreeMap<(Mark, Kept), Amount>,
    /// The leases by holder.
    by_holder: HashTable<HeldLease>,
    /// How far all expiries have moved back.
    shift: Shift,
    /// When the table was last changed.
    pub(super) written: Timestamp,
    /// The leases that count: those that had not expired by then.
    pub(super) counted: LeaseSum,
    /// Those of them that have expired since: a memory of the last look, no part of the state.
    expired: Cell<Expired>,
    /// What the names of holders take, in bytes.
    names: usize,
    /// The holder whose lease the current call has taken, with the name's hash.
    leased: Option<(u64, Kept)>,
}

/// The leases that have expired by an instant, not before the table was last changed.
#[derive(Clone, Copy, Debug, Default)]
struct Expired {
    by: Timestamp,
    sum: LeaseSum,
}

impl ManyLeases {
    /// How long until the last lease expires.
    pub(super) fn time_to_last_expiry(&self, now: Timestamp) -> Span {
        let last = self.by_expiry.last_key_value();
        last.map_or(Span::ZERO, |((expires_at, _), _)| self.shift.instant(*expires_at).since(self.at(now)))
    }

    /// The instant, on the table's own clock, that a look at `now` is at. One from before the table was last changed
    /// sees it as it was then: moved back, everything in it lies as far off as before.
    pub(super) fn at(&self, now: Timestamp) -> Timestamp {
        now.max(self.written)
    }

    /// What expires after this counts. At the end of time a lease expires at the very instant at which it was taken.
    fn horizon(&self) -> Timestamp {
        self.written.min(Timestamp::MAX.minus(Span::MICROSECOND))
    }

    /// A holder's lease, though it may have expired.
    pub(super) fn lease_of(&self, holder: Name) -> Option<Lease> {
        let held = self.by_holder.find(holder.hash, is_of(holder))?;
        Some(Lease { expires_at: self.shift.instant(held.expires_at), units: held.units })
    }

    /// The leases that count and have not expired.
    pub(super) fn present(&self, now: Timestamp) -> LeaseSum {
        self.counted.minus(self.expired(now))
    }

    /// The leases that count and will not have expired when a change comes at `now`.
    pub(super) fn present_at_change(&self, now: Timestamp) -> LeaseSum {
        self.counted.minus(self.expired_by_change(now))
    }

    /// What has expired by now. It goes on from where the last look was, on or back.
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

    /// What has expired by `now`, as a change sees it. Looks may have gone further (those of a replica do, if its clock
    /// is ahead of its master's): then they stay where they are, and what expires is summed up from the last change.
    fn expired_by_change(&self, now: Timestamp) -> LeaseSum {
        let now = self.at(now);
        if now < self.expired.get().by { self.expiring(self.written, now) } else { self.expired(now) }
    }

    /// What expires after `from`, up to and with `to`, which is not before it.
    fn expiring(&self, from: Timestamp, to: Timestamp) -> LeaseSum {
        let end = self.after(to);
        // Mostly nothing does, which the first tells without a search.
        if self.by_expiry.first_key_value().is_none_or(|(first, _)| *first >= end) {
            return LeaseSum::default();
        }
        let expiring = self.by_expiry.range(self.after(from)..end);
        expiring.fold(LeaseSum::default(), |sum, (_, units)| {
            #[cfg(test)]
            effort::entry();
            sum.plus(LeaseSum { units: *units, leases: 1 })
        })
    }

    /// The leases that have not expired, in the order in which they will.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        self.expiring_after(self.at(now))
    }

    /// The leases that count, with their holders, in the order in which they expire.
    pub(super) fn counted(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        self.expiring_after(self.horizon())
    }

    fn expiring_after(&self, instant: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        let leases = self.by_expiry.range(self.after(instant)..);
        leases.map(|((expires_at, holder), units)| {
            (&**holder, Lease { expires_at: self.shift.instant(*expires_at), units: *units })
        })
    }

    /// Where, in order of expiry, what expires after `instant` begins.
    fn after(&self, instant: Timestamp) -> (Mark, Kept) {
        (self.shift.mark(instant.plus(Span::MICROSECOND)), Arc::default())
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
            let Some(first) = self.by_expiry.first_entry().filter(|first| first.key().0 <= now) else { break };
            #[cfg(test)]
            effort::entry();
            let ((_, holder), _) = first.remove_entry();
            self.forget(Name::of(&holder));
        }
        // A table keeps the room that it once needed: of a crowd that is gone, no more than 32 times what is left. Less
        // often would waste more, and more often would move more at once.
        if self.by_holder.len() < self.by_holder.capacity() / 32 {
            self.by_holder.shrink_to(self.by_holder.len().saturating_mul(2), |held| held.hash);
        }
    }

    /// Takes a holder's lease out of the table, and of nothing else.
    fn forget(&mut self, holder: Name) -> Option<HeldLease> {
        let entry = self.by_holder.find_entry(holder.hash, is_of(holder)).ok()?;
        self.names = self.names.saturating_sub(size_of_kept(holder.text));
        Some(entry.remove().0)
    }

    /// Takes a holder's lease away; the name by which it was known.
    pub(super) fn remove(&mut self, holder: Name) -> Option<Kept> {
        let HeldLease { holder, expires_at, units, .. } = self.forget(holder)?;
        self.unlist(&(expires_at, holder), units)
    }

    /// Takes a lease out of those that expire; its holder's name, as it was there.
    fn unlist(&mut self, lease: &(Mark, Kept), units: Amount) -> Option<Kept> {
        let listed = self.by_expiry.remove_entry(lease);
        self.count(lease.0, |sum| sum.minus(LeaseSum { units, leases: 1 }));
        listed.map(|((_, holder), _)| holder)
    }

    /// Counts a change of the lease that expires at `expires_at`, in whatever it counts.
    fn count(&mut self, expires_at: Mark, change: impl Fn(LeaseSum) -> LeaseSum) {
        let expires_at = self.shift.instant(expires_at);
        if expires_at <= self.horizon() {
            return;
        }
        self.counted = change(self.counted);
        let expired = self.expired.get_mut();
        if expires_at <= expired.by {
            expired.sum = change(expired.sum);
        }
    }

    /// Gives a holder a lease, in place of the one that it may have.
    pub(super) fn lease(&mut self, holder: Name, Lease { expires_at, units }: Lease) {
        let expires_at = self.shift.mark(expires_at);
        // To share a name takes a lock on the bus: a renewal goes on with those that it takes out.
        let (name, listed) = if let Some(held) = self.by_holder.find_mut(holder.hash, is_of(holder)) {
            let expires_before = std::mem::replace(&mut held.expires_at, expires_at);
            let units_before = std::mem::replace(&mut held.units, units);
            let before = (expires_before, Arc::clone(&held.holder));
            let listed = self.unlist(&before, units_before);
            (before.1, listed)
        } else {
            let name: Kept = Arc::from(holder.text);
            let held = HeldLease { hash: holder.hash, holder: Arc::clone(&name), expires_at, units };
            self.by_holder.insert_unique(holder.hash, held, |held| held.hash);
            self.names = self.names.saturating_add(size_of_kept(holder.text));
            (name, None)
        };
        let listed = listed.unwrap_or_else(|| Arc::clone(&name));
        self.by_expiry.insert((expires_at, listed), units);
        self.count(expires_at, |sum| sum.plus(LeaseSum { units, leases: 1 }));
        self.leased = Some((holder.hash, name));
    }

    fn shift_back(&mut self, span: Span) {
        self.shift = self.shift.back(span);
        if !self.shift.is_far() {
            return;
        }
        let far = std::mem::take(&mut self.shift);
        for ((expires_at, holder), units) in std::mem::take(&mut self.by_expiry) {
            #[cfg(test)]
            effort::entry();
            let expires_at = self.shift.mark(far.instant(expires_at));
            let name = Name::of(&holder);
            if let Some(held) = self.by_holder.find_mut(name.hash, is_of(name)) {
                held.expires_at = expires_at;
            }
            self.by_expiry.insert((expires_at, holder), units);
        }
    }

    /// How many leases are there, counted or not.
    pub(super) fn len(&self) -> usize {
        self.by_holder.len()
    }

    /// How many bytes it takes, about.
    pub(super) fn heap_size(&self) -> usize {
        // A node of the tree has room for 11 entries and holds 6 or more, but for the only one; the table has a byte
        // beside each of its places, an eighth of which stay free.
        const NODE: usize = 384;
        const PLACE: usize = size_of::<HeldLease>() + 1;
        let nodes = self.by_expiry.len().div_ceil(6).saturating_mul(NODE);
        let places = self.by_holder.capacity().saturating_mul(8).div_ceil(7).saturating_mul(PLACE);
        size_of::<ManyLeases>().saturating_add(nodes).saturating_add(places).saturating_add(self.names)
    }

    /// Leases that were last changed at `written`, and all of which count.
    pub(super) fn of<'a>(written: Timestamp, leases: impl Iterator<Item = (&'a [u8], Lease)>) -> ManyLeases {
        let mut many = ManyLeases { written, ..ManyLeases::default() };
        many.expired.get_mut().by = written;
        for (holder, lease) in leases {
            many.lease(Name::of(holder), lease);
        }
        many.leased = None;
        many
    }

    /// Forgets whose lease the current call has taken.
    pub(super) fn forget_leased(&mut self) {
        self.leased = None;
    }

    /// The holder whose lease the current call has taken, and the lease; once.
    pub(super) fn take_leased(&mut self) -> Option<(&[u8], Lease)> {
        let (hash, holder) = self.leased.take()?;
        let held = self.by_holder.find(hash, is_of(Name { text: &holder, hash }))?;
        Some((&*held.holder, Lease { expires_at: self.shift.instant(held.expires_at), units: held.units }))
    }
}
