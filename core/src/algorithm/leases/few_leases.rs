//! Few leases, one after another in the order in which they expire: nearly every key has no more, and a lease takes a
//! third of what it takes among many. Each is passed at every call.

use super::lease::{Lease, LeaseSum};
use crate::number::{Span, Timestamp};
use crate::wire::name::size_of_block;

/// How many leases there are at most: about where a call costs as much as it does among many.
pub(super) const MOST: usize = 32;

/// Few leases, all of which count: what has expired goes with the next change.
#[derive(Clone, Debug, Default)]
pub(super) struct FewLeases {
    /// When they were last changed.
    pub(super) written: Timestamp,
    /// By the instant of expiry, and then by holder.
    leases: Vec<FewLease>,
}

/// A lease and its holder.
#[derive(Clone, Debug)]
struct FewLease {
    lease: Lease,
    holder: Box<[u8]>,
}

impl FewLeases {
    /// Leases that were last changed at `written`, in the order in which they expire.
    pub(super) fn of<'a>(written: Timestamp, leases: impl Iterator<Item = (&'a [u8], Lease)>) -> FewLeases {
        let leases = leases.map(|(holder, lease)| FewLease { lease, holder: holder.into() });
        FewLeases { written, leases: leases.collect() }
    }

    /// The instant, on the leases' own clock, that a look at `now` is at. One from before the last change sees them as
    /// they were then: moved back, everything lies as far off as before.
    pub(super) fn at(&self, now: Timestamp) -> Timestamp {
        now.max(self.written)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Those that have not expired.
    pub(super) fn present(&self, now: Timestamp) -> LeaseSum {
        self.live(now).fold(LeaseSum::default(), |sum, (_, lease)| sum.plus(LeaseSum::of(lease.units)))
    }

    /// A holder's lease, though it may have expired.
    pub(super) fn lease_of(&self, holder: &[u8]) -> Option<Lease> {
        self.leases.iter().find(|held| *held.holder == *holder).map(|held| held.lease)
    }

    /// The holder and lease in one place.
    pub(super) fn get(&self, place: usize) -> Option<(&[u8], Lease)> {
        self.leases.get(place).map(|held| (&*held.holder, held.lease))
    }

    /// All, in the order in which they expire.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        self.leases.iter().map(|held| (&*held.holder, held.lease))
    }

    /// The leases that have not expired, with their holders.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        // At the end of time a lease expires at the very instant at which it was taken.
        let at = self.at(now).min(Timestamp::MAX);
        self.iter().filter(move |(_, lease)| at < lease.expires_at)
    }

    /// How long until the last one expires.
    pub(super) fn time_to_last_expiry(&self, now: Timestamp) -> Span {
        self.leases.last().map_or(Span::ZERO, |held| held.lease.expires_at.since(self.at(now)))
    }

    /// Goes on to `now`, by a clock that may have gone back by `span` before: what has expired by then goes.
    pub(super) fn go_on(&mut self, span: Span, now: Timestamp) {
        // By the clock as it was before it went back.
        let at = now.plus(span).min(Timestamp::MAX);
        self.leases.retain(|held| at < held.lease.expires_at);
        if span != Span::ZERO {
            for FewLease { lease, .. } in &mut self.leases {
                lease.expires_at = lease.expires_at.minus(span);
            }
        }
        self.written = now;
    }

    /// Takes a holder's lease away; the name by which it was known.
    pub(super) fn remove(&mut self, holder: &[u8]) -> Option<Box<[u8]>> {
        let place = self.leases.iter().position(|held| *held.holder == *holder)?;
        Some(self.leases.remove(place).holder)
    }

    /// Gives a holder a lease, in place of the one that it may have; where that is now.
    pub(super) fn lease(&mut self, holder: &[u8], lease: Lease) -> usize {
        let holder = self.remove(holder).unwrap_or_else(|| holder.into());
        let later = |held: &FewLease| (held.lease.expires_at, &held.holder) > (lease.expires_at, &holder);
        let place = self.leases.iter().position(later).unwrap_or(self.leases.len());
        // A key has few and may keep them long, so it keeps no room for others.
        self.leases.reserve_exact(1);
        self.leases.insert(place, FewLease { lease, holder });
        place
    }

    /// How many bytes they take, about.
    pub(super) fn heap_size(&self) -> usize {
        let names = self.leases.iter().map(|held| size_of_block(&held.holder)).fold(0, usize::saturating_add);
        self.leases.capacity().saturating_mul(size_of::<FewLease>()).saturating_add(names)
    }
}
