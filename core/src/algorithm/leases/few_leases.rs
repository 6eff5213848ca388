//! Leases of a key with few, in one block of memory without an index. Nearly all keys have few leases, so these take as
//! little memory as possible. Each call scans all leases of the key.

use super::lease::{Lease, LeaseSum};
use crate::number::lazy_shift::Shift;
use crate::number::{Span, Timestamp};
use crate::record_table::Block;

/// Maximum number of leases. At about this number a call costs as much as in a [table](super::many_leases).
pub(super) const MOST: usize = 32;

/// Shift of few leases, whose instants are stored without a shift.
const UNMOVED: Shift = Shift::NONE;

/// Few leases. All of them count; each change removes the expired ones.
#[derive(Clone, Debug, Default)]
pub(super) struct FewLeases {
    /// Instant of the last change.
    pub(super) written: Timestamp,
    /// Leases by the instant of expiry, and then by holder.
    leases: Block,
}

impl FewLeases {
    /// Creates leases that were last changed at `written`. `leases` must be in the order of expiry.
    pub(super) fn of<'a>(written: Timestamp, leases: impl Iterator<Item = (&'a [u8], Lease)>) -> FewLeases {
        let mut few = FewLeases { written, ..FewLeases::default() };
        leases.for_each(|(holder, lease)| few.append(holder, lease));
        few
    }

    /// Appends a lease that expires after all others. The holder must not have a lease.
    pub(super) fn append(&mut self, holder: &[u8], lease: Lease) {
        self.leases.push(&mut lease.record(holder, UNMOVED).1);
    }

    /// Returns the instant at which to evaluate the leases at `now`: not before the last change. If the clock moved
    /// backwards, they are evaluated as of the last change, because all instants would be shifted by the same distance.
    pub(super) fn at(&self, now: Timestamp) -> Timestamp {
        now.max(self.written)
    }

    /// Returns the number of leases.
    pub(super) fn len(&self) -> usize {
        self.leases.records().count()
    }

    /// Returns `true` if there are no leases.
    pub(super) fn is_empty(&self) -> bool {
        self.leases.bytes().is_empty()
    }

    /// Returns the sum of the leases that have not expired.
    pub(super) fn present(&self, now: Timestamp) -> LeaseSum {
        self.live(now).fold(LeaseSum::default(), |sum, (_, lease)| sum.plus(LeaseSum::of(lease.units)))
    }

    /// Returns the lease of a holder, which may have expired.
    pub(super) fn lease_of(&self, holder: &[u8]) -> Option<Lease> {
        self.leases.find(holder).and_then(|(_, record)| Lease::read(&record, UNMOVED))
    }

    /// Returns the holder and lease at a place.
    pub(super) fn get(&self, place: usize) -> Option<(&[u8], Lease)> {
        let record = self.leases.record_at(place)?;
        Some((record.name, Lease::read(&record, UNMOVED)?))
    }

    /// Returns all leases in the order of expiry.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        self.leases.records().filter_map(|(_, record)| Some((record.name, Lease::read(&record, UNMOVED)?)))
    }

    /// Returns the leases that have not expired, with their holders.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        // At the latest instant, a lease expires at the instant at which it is taken.
        let at = self.at(now).min(Timestamp::MAX);
        self.iter().filter(move |(_, lease)| at < lease.expires_at)
    }

    /// Returns the time until the last one expires.
    pub(super) fn time_to_last_expiry(&self, now: Timestamp) -> Span {
        self.leases.last_instant().map_or(Span::ZERO, |last| UNMOVED.instant(last).since(self.at(now)))
    }

    /// Advances to `now`: removes the expired leases, and shifts the others back by `span`, the distance by which the
    /// clock has moved backwards.
    pub(super) fn advance(&mut self, span: Span, now: Timestamp) {
        // Time shown by the clock before it moved backwards.
        let at = UNMOVED.mark(now.plus(span).min(Timestamp::MAX));
        self.leases.remove_until(at);
        if span != Span::ZERO {
            let moved = |lease: Lease| Lease { expires_at: lease.expires_at.minus(span), ..lease };
            *self = FewLeases::of(now, self.iter().map(|(holder, lease)| (holder, moved(lease))));
        }
        self.written = now;
    }

    /// Removes the lease of a holder. Returns `false` if there is none.
    pub(super) fn remove(&mut self, holder: &[u8]) -> bool {
        let place = self.leases.find(holder).map(|(place, _)| place);
        place.map(|place| self.leases.remove(place)).is_some()
    }

    /// Stores a lease of a holder, which replaces its previous one, and returns its place.
    pub(super) fn lease(&mut self, holder: &[u8], lease: Lease) -> usize {
        self.remove(holder);
        let (at, mut bytes) = lease.record(holder, UNMOVED);
        let place = self.leases.place_of(at, holder);
        self.leases.insert(place, &mut bytes);
        place
    }

    /// Returns the approximate heap memory in bytes.
    pub(super) fn heap_size(&self) -> usize {
        self.leases.capacity()
    }
}
