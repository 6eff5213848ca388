//! The leases of a key: few of them one after another, many in a table ([`FewLeases`], [`ManyLeases`]). Both hold the
//! same, and what is stored and propagated of either is the same.

use super::few_leases::{self, FewLeases};
use super::lease::{Lease, LeaseSum};
use super::many_leases::ManyLeases;
use crate::limit::Token;
use crate::number::{Amount, Span, Timestamp};

/// State of a concurrency limit.
#[derive(Clone, Debug, Default)]
pub struct ConcurrencyUsage {
    leases: Leases,
    /// Changes of the current call besides a lease: most have none.
    rest: Option<Box<RestOfDelta>>,
    /// Place of the lease that the current call has taken, among few.
    leased: Option<u8>,
    /// The latest fencing token that any lease has had here; 0 if none had one.
    latest_token: u64,
}

#[derive(Clone, Debug)]
enum Leases {
    Few(FewLeases),
    Many(Box<ManyLeases>),
}

impl Default for Leases {
    fn default() -> Leases {
        Leases::Few(FewLeases::default())
    }
}

/// Runs `$body` with `$leases` as few leases or many.
macro_rules! of_either {
    ($held:expr, $leases:ident => $body:expr) => {
        match $held {
            Leases::Few($leases) => $body,
            Leases::Many($leases) => $body,
        }
    };
}

/// Changes of a call in a lease table besides taking a lease, in this order.
#[derive(Clone, Debug, Default)]
struct RestOfDelta {
    /// Span that every expiry moves back by, because the clock did.
    moved_back: Span,
    /// Holders whose leases go.
    released: Vec<Box<[u8]>>,
}

/// Changes of a call in a lease table, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseDelta<H> {
    /// Span that every expiry moves back by, because the clock did.
    pub(super) moved_back: Span,
    /// Instant of the change: what has expired by then goes, and the table was last changed then.
    pub(super) written: Timestamp,
    /// Holders whose leases go.
    pub(super) released: Vec<Box<[u8]>>,
    /// Lease that comes, in place of the one that its holder had.
    pub(super) leased: Option<(H, Lease)>,
}

impl ConcurrencyUsage {
    /// Takes the live leases of `holders` back, and returns their number.
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

    /// Returns `true` if a holder has a lease.
    #[must_use]
    pub fn has_lease(&self, holder: &[u8], now: Timestamp) -> bool {
        self.held_by(holder, now).is_some()
    }

    /// Returns the expiry of a holder's lease; `None` if it has none.
    #[must_use]
    pub fn lease_until(&self, holder: &[u8], now: Timestamp) -> Option<Timestamp> {
        self.live_lease_of(holder, now).map(|lease| lease.expires_at)
    }

    /// Returns the fencing token of a holder's lease; `None` if it has no lease, or did not ask for a token.
    #[must_use]
    pub fn lease_token(&self, holder: &[u8], now: Timestamp) -> Option<Token> {
        self.live_lease_of(holder, now).and_then(|lease| lease.token)
    }

    /// Returns the latest fencing token that any lease has had here; 0 if none had one.
    pub(super) fn latest_of_tokens(&self) -> u64 {
        self.latest_token
    }

    /// Returns the time until the last lease expires.
    #[must_use]
    pub fn time_to_last_expiry(&self, now: Timestamp) -> Span {
        of_either!(&self.leases, leases => leases.time_to_last_expiry(now))
    }

    /// Returns the instant, on the table's own clock, that a look at `now` is at.
    pub(super) fn at(&self, now: Timestamp) -> Timestamp {
        of_either!(&self.leases, leases => leases.at(now))
    }

    /// Returns the instant of the last change.
    pub(super) fn written(&self) -> Timestamp {
        of_either!(&self.leases, leases => leases.written)
    }

    /// Returns the units of a holder's live lease.
    pub(super) fn held_by(&self, holder: &[u8], now: Timestamp) -> Option<Amount> {
        self.live_lease_of(holder, now).map(|lease| lease.units)
    }

    fn live_lease_of(&self, holder: &[u8], now: Timestamp) -> Option<Lease> {
        self.lease_of(holder).filter(|lease| self.at(now) < lease.expires_at)
    }

    /// Returns a holder's lease, though it may have expired.
    pub(super) fn lease_of(&self, holder: &[u8]) -> Option<Lease> {
        of_either!(&self.leases, leases => leases.lease_of(holder))
    }

    /// Returns the number of leases that count: those that had not expired when the table was last changed.
    pub(super) fn count(&self) -> usize {
        match &self.leases {
            Leases::Few(leases) => leases.len(),
            Leases::Many(leases) => leases.counted.leases,
        }
    }

    /// Returns the sum of the leases that have not expired.
    pub(super) fn present(&self, now: Timestamp) -> LeaseSum {
        of_either!(&self.leases, leases => leases.present(now))
    }

    /// Returns the leases that have not expired, in the order in which they will.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        let (few, many) = self.parted();
        few.into_iter().flat_map(move |few| few.live(now)).chain(many.into_iter().flat_map(move |many| many.live(now)))
    }

    /// Returns the leases that count, in the order in which they expire.
    pub(super) fn counted(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        let (few, many) = self.parted();
        few.into_iter().flat_map(FewLeases::iter).chain(many.into_iter().flat_map(ManyLeases::counted))
    }

    /// Returns the table of few leases or that of many, whichever there is.
    pub(super) fn parted(&self) -> (Option<&FewLeases>, Option<&ManyLeases>) {
        match &self.leases {
            Leases::Few(leases) => (Some(leases), None),
            Leases::Many(leases) => (None, Some(leases)),
        }
    }

    /// Returns `true` if no lease counts.
    pub(super) fn is_empty(&self) -> bool {
        match &self.leases {
            Leases::Few(leases) => leases.is_empty(),
            Leases::Many(leases) => leases.counted.leases == 0,
        }
    }

    /// Returns the number of bytes that they take, about.
    pub(super) fn bytes(&self) -> usize {
        of_either!(&self.leases, leases => leases.heap_size())
    }

    /// Returns the number of allocations that it takes to free them, about.
    pub(super) fn blocks(&self) -> usize {
        match &self.leases {
            Leases::Few(_) => 1,
            Leases::Many(leases) => leases.free_effort(),
        }
    }

    /// Moves back with the clock to `now`.
    pub(super) fn move_back_by(&mut self, span: Span, now: Timestamp) {
        of_either!(&mut self.leases, leases => leases.go_on(span, now));
        self.rest.get_or_insert_default().moved_back = span;
    }

    /// Goes on to `now`, and sweeps out leases that count no more: of many a few.
    pub(super) fn tidy(&mut self, span: Span, now: Timestamp) {
        match &mut self.leases {
            Leases::Few(leases) => leases.go_on(span, now),
            Leases::Many(leases) => {
                leases.tidy(span, now);
                // Far fewer than made it a table, so that a key which has about as many does not go to and fro.
                if leases.len() <= few_leases::MOST / 4 {
                    self.leases = Leases::Few(FewLeases::of(leases.written, leases.counted()));
                }
            }
        }
    }

    /// Takes a holder's lease away; `false` if there is none.
    fn remove(&mut self, holder: &[u8]) -> bool {
        of_either!(&mut self.leases, leases => leases.remove(holder))
    }

    /// Gives a holder a lease, in place of the one that it may have.
    pub(super) fn lease(&mut self, holder: &[u8], lease: Lease) {
        self.observe_token(lease);
        if self.lease_of(holder).is_none() {
            self.make_room();
        }
        match &mut self.leases {
            Leases::Few(leases) => self.leased = u8::try_from(leases.lease(holder, lease)).ok(),
            Leases::Many(leases) => leases.lease(holder, lease),
        }
    }

    /// Adds a lease that was read, and expires behind all others; `false` if its holder has one.
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

    /// Makes a table of few leases that are as many as may be: one more is to come.
    fn make_room(&mut self) {
        if let Leases::Few(few) = &self.leases
            && few.len() >= few_leases::MOST
        {
            self.leases = Leases::Many(Box::new(ManyLeases::of(few.written, few.iter())));
        }
    }

    /// Returns an empty table that is to be filled with what was read of one that was last changed at `written`.
    pub(super) fn of(written: Timestamp) -> ConcurrencyUsage {
        let leases = Leases::Few(FewLeases::of(written, std::iter::empty()));
        ConcurrencyUsage { leases, ..ConcurrencyUsage::default() }
    }

    /// Forgets what the current call has changed.
    pub(super) fn forget_delta(&mut self) {
        (self.rest, self.leased) = (None, None);
        if let Leases::Many(leases) = &mut self.leases {
            leases.forget_leased();
        }
    }

    /// Takes what the current call has changed.
    pub(super) fn delta(&mut self) -> LeaseDelta<&[u8]> {
        let RestOfDelta { moved_back, released } = self.rest.take().map(|rest| *rest).unwrap_or_default();
        let written = self.written();
        let leased = match &mut self.leases {
            Leases::Few(leases) => self.leased.take().and_then(|place| leases.get(usize::from(place))),
            Leases::Many(leases) => leases.take_leased(),
        };
        LeaseDelta { moved_back, written, released, leased }
    }

    /// Returns `true` if `delta` can have been caused by a call on this table.
    pub(super) fn accepts(&self, delta: &LeaseDelta<Box<[u8]>>) -> bool {
        // By the clock as it was before it went back.
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

    /// Makes the change that a call has made elsewhere.
    pub(super) fn change(&mut self, delta: LeaseDelta<Box<[u8]>>) {
        self.tidy(delta.moved_back, delta.written);
        for holder in &delta.released {
            self.remove(holder);
        }
        if let Some((holder, lease)) = delta.leased {
            self.lease(&holder, lease);
        }
        self.forget_delta();
    }
}
