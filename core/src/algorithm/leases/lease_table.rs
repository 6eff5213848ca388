//! Leases of a key. Few leases are stored in sequence ([`FewLeases`]), many in an indexed table ([`ManyLeases`]). The
//! saved and propagated encoding is the same for both.

use super::few_leases::{self, FewLeases};
use super::lease::{Lease, LeaseSum};
use super::many_leases::ManyLeases;
use crate::limit::Token;
use crate::number::{Amount, Span, Timestamp};

/// State of a concurrency limit.
#[derive(Clone, Debug, Default)]
pub struct ConcurrencyUsage {
    pub(super) leases: Leases,
    /// Further changes by the current call. Most calls have none.
    rest: Option<Box<FurtherChanges>>,
    /// Position of the lease that the current call has taken, in the form of few.
    leased: Option<u16>,
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
macro_rules! of_either {
    ($either:expr, $leases:ident => $body:expr) => {
        match $either {
            Leases::Few($leases) => $body,
            Leases::Many($leases) => $body,
        }
    };
}
pub(super) use of_either;

/// Changes by a call to a lease table, apart from a new lease, in this order.
#[derive(Clone, Debug, Default)]
struct FurtherChanges {
    /// Span by which all expiries are shifted, because the clock moved backwards.
    moved_back: Span,
    /// Holders whose leases are removed.
    released: Vec<Box<[u8]>>,
}

/// Changes by a call to a lease table, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseDelta<H> {
    /// Span by which all expiries are shifted, because the clock moved backwards.
    pub(super) moved_back: Span,
    /// Instant of the change. Leases that have expired by then are removed.
    pub(super) written: Timestamp,
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
            self.rest.get_or_insert_default().released = released;
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
        of_either!(&self.leases, leases => leases.effective_time(now))
    }

    /// Returns the time of the last change.
    pub(super) fn written(&self) -> Timestamp {
        of_either!(&self.leases, leases => leases.written)
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
        of_either!(&self.leases, leases => leases.lease_of(holder))
    }

    /// Returns the sum of the leases that have not expired.
    pub(super) fn present(&self, now: Timestamp) -> LeaseSum {
        of_either!(&self.leases, leases => leases.present(now))
    }

    /// Returns the leases that have not expired, in the order of expiry.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        let (few, many) = self.by_form();
        few.into_iter().flat_map(move |few| few.live(now)).chain(many.into_iter().flat_map(move |many| many.live(now)))
    }

    /// Returns the leases that count, in the order of expiry: those that had not expired when the table was last changed.
    pub(super) fn counted(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        let (few, many) = self.by_form();
        few.into_iter().flat_map(FewLeases::iter).chain(many.into_iter().flat_map(ManyLeases::counted))
    }

    /// Returns the leases in their form, and `None` in position of the other form.
    pub(super) fn by_form(&self) -> (Option<&FewLeases>, Option<&ManyLeases>) {
        match &self.leases {
            Leases::Few(leases) => (Some(leases), None),
            Leases::Many(leases) => (None, Some(leases)),
        }
    }

    /// Shifts all leases back by `span`, because the clock moved backwards to `now`.
    pub(super) fn move_back_by(&mut self, span: Span, now: Timestamp) {
        of_either!(&mut self.leases, leases => leases.advance(span, now));
        self.rest.get_or_insert_default().moved_back = span;
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
                    self.leases = Leases::Few(FewLeases::of(leases.written, leases.counted()));
                }
            }
        }
    }

    /// Removes the lease of a holder. Returns `false` if there is none.
    fn remove(&mut self, holder: &[u8]) -> bool {
        of_either!(&mut self.leases, leases => leases.remove(holder))
    }

    /// Stores a lease of a holder, which replaces the holder's previous lease.
    pub(super) fn lease(&mut self, holder: &[u8], lease: Lease) {
        self.observe_token(lease);
        if self.lease_of(holder).is_none() {
            self.make_room();
        }
        match &mut self.leases {
            Leases::Few(leases) => self.leased = u16::try_from(leases.lease(holder, lease)).ok(),
            Leases::Many(leases) => leases.lease(holder, lease),
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
            self.leases = Leases::Many(Box::new(ManyLeases::of(few.written, few.iter())));
        }
    }

    /// Creates an empty table, to be filled with the decoded leases of a table that was last changed at `written`.
    pub(super) fn of(written: Timestamp) -> ConcurrencyUsage {
        let leases = Leases::Few(FewLeases::of(written, std::iter::empty()));
        ConcurrencyUsage { leases, ..ConcurrencyUsage::default() }
    }

    /// Discards the changes recorded for the current call.
    pub(super) fn discard_delta(&mut self) {
        (self.rest, self.leased) = (None, None);
        if let Leases::Many(leases) = &mut self.leases {
            leases.leased = None;
        }
    }

    /// Takes the changes recorded for the current call.
    pub(super) fn delta(&mut self) -> LeaseDelta<&[u8]> {
        let FurtherChanges { moved_back, released } = self.rest.take().map(|rest| *rest).unwrap_or_default();
        let written = self.written();
        let leased = match &mut self.leases {
            Leases::Few(leases) => self.leased.take().and_then(|position| leases.get(usize::from(position))),
            Leases::Many(leases) => leases.take_leased(),
        };
        LeaseDelta { moved_back, written, released, leased }
    }

    /// Returns `true` if `delta` can have been caused by a call on this table.
    pub(super) fn accepts(&self, delta: &LeaseDelta<Box<[u8]>>) -> bool {
        // Time shown by the clock before a move backwards.
        let at = delta.written.plus(delta.moved_back);
        let in_order = at >= self.written();
        let sound = delta.leased.as_ref().is_none_or(|(holder, lease)| {
            let present = match &self.leases {
                Leases::Few(leases) => leases.present(at),
                Leases::Many(leases) => leases.present_at_change(at),
            };
            let others = present.units.minus(self.held_by(holder, at).unwrap_or_default());
            delta.released.is_empty() && lease.is_sound(delta.written, others)
        });
        in_order && sound
    }

    /// Applies the changes of a call on another server.
    pub(super) fn change(&mut self, delta: LeaseDelta<Box<[u8]>>) {
        self.tidy(delta.moved_back, delta.written);
        for holder in &delta.released {
            self.remove(holder);
        }
        if let Some((holder, lease)) = delta.leased {
            self.lease(&holder, lease);
        }
        self.discard_delta();
    }
}
