//! Leases of a key with few leases, in one block of memory without an index. Nearly all keys have few leases, so this
//! form takes as little memory as possible. Each call scans all leases of the key.

use super::lease::{Lease, LeaseSum};
use crate::number::lazy_shift::Shift;
use crate::number::{Span, Timestamp};
use crate::record_table::Block;

/// Maximum number of leases in this form. At about this number, a call takes as long as in the form of [many
/// leases](super::many_leases).
pub(super) const MAX_FEW: usize = 32;

/// Shift of few leases, whose expiries are stored unshifted.
const NO_SHIFT: Shift = Shift::NONE;

/// Few leases: those that had not expired at the last change.
#[derive(Clone, Debug, Default)]
pub(super) struct FewLeases {
    /// Time of the last change.
    pub(super) changed_at: Timestamp,
    /// Leases by expiry, and then by holder.
    leases: Block,
}

impl FewLeases {
    /// Creates the form of few from `leases`, which must be in the order of expiry and were last changed at
    /// `changed_at`.
    pub(super) fn from_ordered<'a>(
        changed_at: Timestamp,
        leases: impl Iterator<Item = (&'a [u8], Lease)>,
    ) -> FewLeases {
        let mut few = FewLeases { changed_at, ..FewLeases::default() };
        leases.for_each(|(holder, lease)| few.append(holder, lease));
        few
    }

    /// Appends a lease that expires after all others. The holder must not have a lease.
    pub(super) fn append(&mut self, holder: &[u8], lease: Lease) {
        self.leases.push(&mut lease.to_record(holder, NO_SHIFT).1);
    }

    /// Returns the time at which to evaluate the leases at `now`: `now`, but not before the last change. If the clock
    /// moved backwards, all expiries would be shifted by the same distance, so the result is that at the last change.
    pub(super) fn effective_time(&self, now: Timestamp) -> Timestamp {
        now.max(self.changed_at)
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
    pub(super) fn live_sum(&self, now: Timestamp) -> LeaseSum {
        self.live(now).fold(LeaseSum::default(), |sum, (_, lease)| sum.plus(LeaseSum::single(lease.units)))
    }

    /// Returns the lease of a holder, which may have expired.
    pub(super) fn lease_of(&self, holder: &[u8]) -> Option<Lease> {
        self.leases.find(holder).and_then(|(_, record)| Lease::from_record(&record, NO_SHIFT))
    }

    /// Returns the holder and the lease at a position in the block.
    pub(super) fn get(&self, position: usize) -> Option<(&[u8], Lease)> {
        let record = self.leases.record_at(position)?;
        Some((record.name, Lease::from_record(&record, NO_SHIFT)?))
    }

    /// Returns all leases in the order of expiry.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        self.leases.records().filter_map(|(_, record)| Some((record.name, Lease::from_record(&record, NO_SHIFT)?)))
    }

    /// Returns the leases that have not expired, with their holders.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        // At the latest timestamp, a lease expires at the time at which it is taken.
        let at = self.effective_time(now).min(Timestamp::MAX);
        self.iter().filter(move |(_, lease)| at < lease.expires_at)
    }

    /// Returns the time until the last lease expires.
    pub(super) fn time_to_last_expiry(&self, now: Timestamp) -> Span {
        self.leases.last_instant().map_or(Span::ZERO, |last| NO_SHIFT.timestamp(last).since(self.effective_time(now)))
    }

    /// Advances to `now`: removes the expired leases, and shifts the others back by `span`, the distance by which the
    /// clock has moved backwards.
    pub(super) fn advance(&mut self, span: Span, now: Timestamp) {
        // Time shown by the clock before a move backwards.
        let at = NO_SHIFT.mark(now.plus(span).min(Timestamp::MAX));
        self.leases.remove_until(at);
        if span != Span::ZERO {
            let moved = |lease: Lease| Lease { expires_at: lease.expires_at.minus(span), ..lease };
            *self = FewLeases::from_ordered(now, self.iter().map(|(holder, lease)| (holder, moved(lease))));
        }
        self.changed_at = now;
    }

    /// Removes the lease of a holder. Returns `false` if there is none.
    pub(super) fn remove(&mut self, holder: &[u8]) -> bool {
        let range = self.leases.find(holder).map(|(range, _)| range);
        range.map(|range| self.leases.remove(range)).is_some()
    }

    /// Stores a lease of a holder, which replaces the holder's previous lease. Returns the position of the lease in the
    /// block.
    pub(super) fn store_lease(&mut self, holder: &[u8], lease: Lease) -> usize {
        self.remove(holder);
        let (at, mut bytes) = lease.to_record(holder, NO_SHIFT);
        let position = self.leases.position_of(at, holder);
        self.leases.insert(position, &mut bytes);
        position
    }

    /// Returns the approximate heap memory in bytes.
    pub(super) fn heap_size(&self) -> usize {
        self.leases.capacity()
    }
}
