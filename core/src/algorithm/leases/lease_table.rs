//! Leases of a key. Few leases are stored one after another ([`FewLeases`]), many in an indexed table ([`ManyLeases`]).
//! The saved and propagated encoding is the same for both.

use super::few_leases::{self, FewLeases};
use super::lease::{Lease, LeaseSum};
use super::many_leases::ManyLeases;
use crate::limit::Token;
use crate::number::{Amount, Span, Timestamp};

/// State of a concurrency limit.
#[derive(Clone, Debug, Default)]
pub struct ConcurrencyUsage {
    pub(super) leases: Leases,
    /// Further changes by the current call. Most calls make no further changes.
    further_changes: Option<Box<FurtherChanges>>,
    /// Position of the lease that the current call has taken, in the form of few.
    leased_position: Option<u16>,
    /// Largest fencing token of all leases that this key has had; 0 if none had a token.
    pub(super) latest_token: u64,
}

/// Leases of a key, few or many.
#[derive(Clone, Debug)]
pub(super) enum Leases {
    Few(FewLeases),
    Many(Box<ManyLeases>),
}

impl Default for Leases {
    fn default() -> Leases {
        Leases::Few(FewLeases::default())
    }
}

/// Runs `$body` with `$leases` bound to the leases in either form.
macro_rules! with_either_form {
    ($either:expr, $leases:ident => $body:expr) => {
        match $either {
            Leases::Few($leases) => $body,
            Leases::Many($leases) => $body,
        }
    };
}
pub(super) use with_either_form;

/// Changes by a call to a lease table, apart from a new lease. They are applied in the order of the fields.
#[derive(Clone, Debug, Default)]
struct FurtherChanges {
    /// Span by which all expiries are shifted, because the clock moved backwards.
    moved_back: Span,
    /// Holders whose leases are removed.
    released: Vec<Box<[u8]>>,
}

/// Changes by a call to a lease table. They are applied in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseDelta<H> {
    /// Span by which all expiries are shifted, because the clock moved backwards.
    pub(super) moved_back: Span,
    /// Time of the change. Leases that have expired by then are removed.
    pub(super) changed_at: Timestamp,
    /// Holders whose leases are removed.
    pub(super) released: Vec<Box<[u8]>>,
    /// New lease, which replaces a lease of the same holder.
    pub(super) leased: Option<(H, Lease)>,
}

impl ConcurrencyUsage {
    /// Releases the unexpired leases of `holders`, and returns their number.
    pub fn release(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let mut released = Vec::new();
        for holder in holders {
            if self.held_by(holder, now).is_some() && self.remove(holder) {
                released.push(Box::from(*holder));
            }
        }
        let count = released.len();
        if count > 0 {
            self.tidy(Span::ZERO, now);
            self.further_changes.get_or_insert_default().released = released;
        }
        count
    }

    /// Returns the expiry of a holder's lease; `None` if the holder has no unexpired lease.
    #[must_use]
    pub fn lease_until(&self, holder: &[u8], now: Timestamp) -> Option<Timestamp> {
        self.live_lease_of(holder, now).map(|lease| lease.expires_at)
    }

    /// Returns the fencing token of a holder's lease; `None` if the holder has no lease, or did not request a token.
    #[must_use]
    pub fn lease_token(&self, holder: &[u8], now: Timestamp) -> Option<Token> {
        self.live_lease_of(holder, now).and_then(|lease| lease.token)
    }

    /// Returns the time at which to evaluate the leases at `now`: not before the last change.
    pub(super) fn effective_time(&self, now: Timestamp) -> Timestamp {
        with_either_form!(&self.leases, leases => leases.effective_time(now))
    }

    /// Returns the time of the last change.
    pub(super) fn changed_at(&self) -> Timestamp {
        with_either_form!(&self.leases, leases => leases.changed_at)
    }

    /// Returns the units of a holder's unexpired lease.
    pub(super) fn held_by(&self, holder: &[u8], now: Timestamp) -> Option<Amount> {
        self.live_lease_of(holder, now).map(|lease| lease.units)
    }

    fn live_lease_of(&self, holder: &[u8], now: Timestamp) -> Option<Lease> {
        self.lease_of(holder).filter(|lease| self.effective_time(now) < lease.expires_at)
    }

    /// Returns the lease of a holder, which may have expired.
    pub(super) fn lease_of(&self, holder: &[u8]) -> Option<Lease> {
        with_either_form!(&self.leases, leases => leases.lease_of(holder))
    }

    /// Returns the sum of the leases that have not expired.
    pub(super) fn live_sum(&self, now: Timestamp) -> LeaseSum {
        with_either_form!(&self.leases, leases => leases.live_sum(now))
    }

    /// Returns the leases that have not expired, in the order of expiry.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        let (few, many) = self.by_form();
        few.into_iter().flat_map(move |few| few.live(now)).chain(many.into_iter().flat_map(move |many| many.live(now)))
    }

    /// Returns the leases that count, in the order of expiry: those that had not expired when the table was last
    /// changed.
    pub(super) fn counted_leases(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        let (few, many) = self.by_form();
        few.into_iter().flat_map(FewLeases::iter).chain(many.into_iter().flat_map(ManyLeases::counted_leases))
    }

    /// Returns the leases in the form that they have, and `None` for the other form.
    pub(super) fn by_form(&self) -> (Option<&FewLeases>, Option<&ManyLeases>) {
        match &self.leases {
            Leases::Few(leases) => (Some(leases), None),
            Leases::Many(leases) => (None, Some(leases)),
        }
    }

    /// Shifts all leases back by `span`, because the clock moved backwards to `now`.
    pub(super) fn move_back_by(&mut self, span: Span, now: Timestamp) {
        with_either_form!(&mut self.leases, leases => leases.advance(span, now));
        self.further_changes.get_or_insert_default().moved_back = span;
    }

    /// Advances to `now`, and shifts all leases back by `span`, the distance by which the clock has moved backwards.
    /// Removes leases that no longer count: all in the form of few, some in the form of many.
    pub(super) fn tidy(&mut self, span: Span, now: Timestamp) {
        match &mut self.leases {
            Leases::Few(leases) => leases.advance(span, now),
            Leases::Many(leases) => {
                leases.tidy(span, now);
                // A quarter of the maximum, so that a key near the maximum does not alternate between the forms.
                if leases.len() <= few_leases::MAX_FEW / 4 {
                    self.leases = Leases::Few(FewLeases::from_ordered(leases.changed_at, leases.counted_leases()));
                }
            }
        }
    }

    /// Removes the lease of a holder. Returns `false` if there is none.
    fn remove(&mut self, holder: &[u8]) -> bool {
        with_either_form!(&mut self.leases, leases => leases.remove(holder))
    }

    /// Stores a lease of a holder, which replaces the holder's previous lease.
    pub(super) fn store_lease(&mut self, holder: &[u8], lease: Lease) {
        self.observe_token(lease);
        if self.lease_of(holder).is_none() {
            self.make_room();
        }
        match &mut self.leases {
            Leases::Few(leases) => self.leased_position = u16::try_from(leases.store_lease(holder, lease)).ok(),
            Leases::Many(leases) => leases.store_lease(holder, lease),
        }
    }

    /// Appends a decoded lease that expires after all others. Returns `false` if the holder already has a lease.
    pub(super) fn append(&mut self, holder: &[u8], lease: Lease) -> bool {
        self.observe_token(lease);
        self.make_room();
        match &mut self.leases {
            Leases::Few(leases) => {
                let is_new = leases.lease_of(holder).is_none();
                if is_new {
                    leases.append(holder, lease);
                }
                is_new
            }
            Leases::Many(leases) => leases.append(holder, lease),
        }
    }

    fn observe_token(&mut self, lease: Lease) {
        self.latest_token = self.latest_token.max(lease.token.map_or(0, Token::get));
    }

    /// Converts few leases to the form of many if the form of few has no room for another lease.
    fn make_room(&mut self) {
        if let Leases::Few(few) = &self.leases
            && few.len() >= few_leases::MAX_FEW
        {
            self.leases = Leases::Many(Box::new(ManyLeases::from_ordered(few.changed_at, few.iter())));
        }
    }

    /// Creates an empty table, to be filled with the decoded leases of a table that was last changed at `changed_at`.
    pub(super) fn empty_at(changed_at: Timestamp) -> ConcurrencyUsage {
        let leases = Leases::Few(FewLeases::from_ordered(changed_at, std::iter::empty()));
        ConcurrencyUsage { leases, ..ConcurrencyUsage::default() }
    }

    /// Discards the changes recorded for the current call.
    pub(super) fn discard_delta(&mut self) {
        (self.further_changes, self.leased_position) = (None, None);
        if let Leases::Many(leases) = &mut self.leases {
            leases.leased_position = None;
        }
    }

    /// Takes the changes recorded for the current call.
    pub(super) fn take_delta(&mut self) -> LeaseDelta<&[u8]> {
        let FurtherChanges { moved_back, released } =
            self.further_changes.take().map(|changes| *changes).unwrap_or_default();
        let changed_at = self.changed_at();
        let leased = match &mut self.leases {
            Leases::Few(leases) => self.leased_position.take().and_then(|position| leases.get(usize::from(position))),
            Leases::Many(leases) => leases.take_leased(),
        };
        LeaseDelta { moved_back, changed_at, released, leased }
    }

    /// Returns `true` if `delta` can have been caused by a call on this table.
    pub(super) fn accepts(&self, delta: &LeaseDelta<Box<[u8]>>) -> bool {
        // Time shown by the clock before a move backwards.
        let at = delta.changed_at.plus(delta.moved_back);
        let in_order = at >= self.changed_at();
        let is_sound = delta.leased.as_ref().is_none_or(|(holder, lease)| {
            let live_sum = match &self.leases {
                Leases::Few(leases) => leases.live_sum(at),
                Leases::Many(leases) => leases.live_sum_at_change(at),
            };
            let other_units = live_sum.units.minus(self.held_by(holder, at).unwrap_or_default());
            delta.released.is_empty() && lease.is_sound(delta.changed_at, other_units)
        });
        in_order && is_sound
    }

    /// Applies the changes of a call on another server.
    pub(super) fn apply_delta(&mut self, delta: LeaseDelta<Box<[u8]>>) {
        self.tidy(delta.moved_back, delta.changed_at);
        for holder in &delta.released {
            self.remove(holder);
        }
        if let Some((holder, lease)) = delta.leased {
            self.store_lease(&holder, lease);
        }
        self.discard_delta();
    }
}
