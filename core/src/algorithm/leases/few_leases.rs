//! Few leases, in one block without an index: nearly every key has no more, and is to take little beside them. Each is
//! passed at every call.

use super::lease::{Lease, LeaseSum};
use crate::number::lazy_shift::{Mark, Shift};
use crate::number::{Span, Timestamp};
use crate::record_table::Block;

/// Maximum number of leases: about where a call costs as much as it does among many.
pub(super) const MOST: usize = 32;

/// Shift of few leases, whose instants are as they are kept.
const UNMOVED: Shift = Shift::NONE;

/// Few leases, all of which count: what has expired goes with the next change.
#[derive(Clone, Debug, Default)]
pub(super) struct FewLeases {
    /// Instant of the last change.
    pub(super) written: Timestamp,
    /// Leases by the instant of expiry, and then by holder.
    leases: Block,
}

impl FewLeases {
    /// Returns leases that were last changed at `written`, from those in the order in which they expire.
    pub(super) fn of<'a>(written: Timestamp, leases: impl Iterator<Item = (&'a [u8], Lease)>) -> FewLeases {
        let mut few = FewLeases { written, ..FewLeases::default() };
        leases.for_each(|(holder, lease)| few.append(holder, lease));
        few
    }

    /// Adds a lease that expires behind all others, of a holder that has none.
    pub(super) fn append(&mut self, holder: &[u8], lease: Lease) {
        self.leases.append(&mut lease.record(holder, UNMOVED).1);
    }

    /// Returns the instant, on the leases' own clock, that a look at `now` is at. One from before the last change sees them as
    /// they were then: moved back, everything lies as far off as before.
    pub(super) fn at(&self, now: Timestamp) -> Timestamp {
        now.max(self.written)
    }

    /// Returns the number of leases.
    pub(super) fn len(&self) -> usize {
        self.leases.records().count()
    }

    /// Returns `true` if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.leases.bytes().is_empty()
    }

    /// Returns the sum of those that have not expired.
    pub(super) fn present(&self, now: Timestamp) -> LeaseSum {
        self.live(now).fold(LeaseSum::default(), |sum, (_, lease)| sum.plus(LeaseSum::of(lease.units)))
    }

    /// Returns a holder's lease, though it may have expired.
    pub(super) fn lease_of(&self, holder: &[u8]) -> Option<Lease> {
        self.leases.find(holder).and_then(|(_, record)| Lease::read(&record, UNMOVED))
    }

    /// Returns the holder and lease in a place.
    pub(super) fn get(&self, place: usize) -> Option<(&[u8], Lease)> {
        self.iter().nth(place)
    }

    /// Returns all, in the order in which they expire.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        self.leases.records().filter_map(|(_, record)| Some((record.name, Lease::read(&record, UNMOVED)?)))
    }

    /// Returns the leases that have not expired, with their holders.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        // At the end of time a lease expires at the very instant at which it was taken.
        let at = self.at(now).min(Timestamp::MAX);
        self.iter().filter(move |(_, lease)| at < lease.expires_at)
    }

    /// Returns the time until the last one expires.
    pub(super) fn time_to_last_expiry(&self, now: Timestamp) -> Span {
        self.leases.last().map_or(Span::ZERO, |last| UNMOVED.instant(last.at).since(self.at(now)))
    }

    /// Goes on to `now`, by a clock that may have gone back by `span` before: what has expired by then goes.
    pub(super) fn go_on(&mut self, span: Span, now: Timestamp) {
        // By the clock as it was before it went back.
        let at = UNMOVED.mark(now.plus(span).min(Timestamp::MAX));
        self.leases.remove_until(at);
        if span != Span::ZERO {
            self.leases.change_instants(|at: Mark| UNMOVED.mark(UNMOVED.instant(at).minus(span)));
        }
        self.written = now;
    }

    /// Takes a holder's lease away; `false` if there is none.
    pub(super) fn remove(&mut self, holder: &[u8]) -> bool {
        let place = self.leases.find(holder).map(|(place, _)| place);
        place.map(|place| self.leases.remove(place)).is_some()
    }

    /// Gives a holder a lease, in place of the one that it may have, and returns its place.
    pub(super) fn lease(&mut self, holder: &[u8], lease: Lease) -> usize {
        self.remove(holder);
        let (at, mut bytes) = lease.record(holder, UNMOVED);
        self.leases.insert(at, holder, &mut bytes)
    }

    /// Returns the number of bytes that they take, about.
    pub(super) fn heap_size(&self) -> usize {
        self.leases.capacity()
    }
}
