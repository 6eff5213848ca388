//! The leases of a key: few of them one after another, many in a table ([`FewLeases`], [`ManyLeases`]). Both hold the
//! same, and what is stored and propagated of either is the same.

use super::few_leases::{self, FewLeases};
use super::lease::{Lease, LeaseSum};
use super::many_leases::ManyLeases;
use super::tokens::Tokens;
use crate::limit::Token;
use crate::number::{Amount, Span, Timestamp};
use crate::wire::name::Name;

/// What a concurrency limit's key remembers.
#[derive(Clone, Debug, Default)]
pub struct ConcurrencyUsage {
    leases: Leases,
    /// What else than a lease the current call has changed: most have not.
    rest: Option<Box<RestOfDelta>>,
    /// Where the lease is that the current call has taken, among few.
    leased: Option<u8>,
    /// The fencing tokens of leases that asked for one.
    tokens: Tokens,
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

/// What a call changes in a lease table besides taking a lease, in this order.
#[derive(Clone, Debug, Default)]
struct RestOfDelta {
    /// Every expiry moves back by so much, because the clock did.
    moved_back: Span,
    /// These holders' leases go.
    released: Vec<Box<[u8]>>,
}

/// What a call changes in a lease table, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseDelta<H> {
    /// Every expiry moves back by so much, because the clock did.
    pub(super) moved_back: Span,
    /// What has expired by now goes, and the table was last changed now.
    pub(super) written: Timestamp,
    /// These holders' leases go.
    pub(super) released: Vec<Box<[u8]>>,
    /// This lease comes, in place of the one that its holder had.
    pub(super) leased: Option<(H, Lease)>,
    /// Its fencing token.
    pub(super) token: Option<Token>,
}

impl ConcurrencyUsage {
    /// Takes the live leases of `holders` back; how many there were.
    pub fn release(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let mut released = Vec::new();
        for holder in holders {
            let holder = Name::of(holder);
            if self.held_by(holder, now).is_some() {
                released.extend(self.remove(holder));
            }
        }
        let count = released.len();
        if count > 0 {
            self.tidy(Span::ZERO, now);
            self.rest.get_or_insert_default().released = released;
        }
        count
    }

    /// Whether a holder has a lease.
    #[must_use]
    pub fn has_lease(&self, holder: &[u8], now: Timestamp) -> bool {
        self.held_by(Name::of(holder), now).is_some()
    }

    /// When a holder's lease expires; `None` if it has none.
    #[must_use]
    pub fn lease_until(&self, holder: &[u8], now: Timestamp) -> Option<Timestamp> {
        self.live_lease_of(Name::of(holder), now).map(|lease| lease.expires_at)
    }

    /// The fencing token of a holder's lease; `None` if it has no lease, or did not ask for a token.
    #[must_use]
    pub fn lease_token(&self, holder: &[u8], now: Timestamp) -> Option<Token> {
        self.token_of(Name::of(holder), now)
    }

    /// The fencing token of a holder's live lease.
    pub(super) fn token_of(&self, holder: Name, now: Timestamp) -> Option<Token> {
        self.tokens.of(holder.text).filter(|_| self.held_by(holder, now).is_some())
    }

    /// The fencing token of a lease that counts.
    pub(super) fn token_of_counted(&self, holder: &[u8]) -> Option<Token> {
        self.tokens.of(holder)
    }

    /// The latest fencing token that any lease has had here.
    pub(super) fn latest_of_tokens(&self) -> u64 {
        self.tokens.latest()
    }

    /// How long until the last lease expires.
    #[must_use]
    pub fn time_to_last_expiry(&self, now: Timestamp) -> Span {
        of_either!(&self.leases, leases => leases.time_to_last_expiry(now))
    }

    /// The instant, on the table's own clock, that a look at `now` is at.
    pub(super) fn at(&self, now: Timestamp) -> Timestamp {
        of_either!(&self.leases, leases => leases.at(now))
    }

    /// When the table was last changed.
    pub(super) fn written(&self) -> Timestamp {
        of_either!(&self.leases, leases => leases.written)
    }

    /// The units of a holder's live lease.
    pub(super) fn held_by(&self, holder: Name, now: Timestamp) -> Option<Amount> {
        self.live_lease_of(holder, now).map(|lease| lease.units)
    }

    fn live_lease_of(&self, holder: Name, now: Timestamp) -> Option<Lease> {
        self.lease_of(holder).filter(|lease| self.at(now) < lease.expires_at)
    }

    /// A holder's lease, though it may have expired.
    pub(super) fn lease_of(&self, holder: Name) -> Option<Lease> {
        match &self.leases {
            Leases::Few(leases) => leases.lease_of(holder.text),
            Leases::Many(leases) => leases.lease_of(holder),
        }
    }

    /// How many leases count: those that had not expired when the table was last changed.
    pub(super) fn count(&self) -> usize {
        match &self.leases {
            Leases::Few(leases) => leases.len(),
            Leases::Many(leases) => leases.counted.leases,
        }
    }

    /// The leases that have not expired.
    pub(super) fn present(&self, now: Timestamp) -> LeaseSum {
        of_either!(&self.leases, leases => leases.present(now))
    }

    /// The leases that have not expired, in the order in which they will.
    pub(super) fn live(&self, now: Timestamp) -> impl Iterator<Item = (&[u8], Lease)> {
        let (few, many) = self.parted();
        few.into_iter().flat_map(move |few| few.live(now)).chain(many.into_iter().flat_map(move |many| many.live(now)))
    }

    /// The leases that count, in the order in which they expire.
    pub(super) fn counted(&self) -> impl Iterator<Item = (&[u8], Lease)> {
        let (few, many) = self.parted();
        few.into_iter().flat_map(FewLeases::iter).chain(many.into_iter().flat_map(ManyLeases::counted))
    }

    fn parted(&self) -> (Option<&FewLeases>, Option<&ManyLeases>) {
        match &self.leases {
            Leases::Few(leases) => (Some(leases), None),
            Leases::Many(leases) => (None, Some(leases)),
        }
    }

    /// How many leases are there, counted or not.
    pub(super) fn kept(&self) -> usize {
        of_either!(&self.leases, leases => leases.len())
    }

    /// How many bytes they take, about.
    pub(super) fn bytes(&self) -> usize {
        of_either!(&self.leases, leases => leases.heap_size()).saturating_add(self.tokens.heap_size())
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

    /// Takes a holder's lease away; the name by which it was known.
    fn remove(&mut self, holder: Name) -> Option<Box<[u8]>> {
        self.tokens.set(holder.text, None);
        match &mut self.leases {
            Leases::Few(leases) => leases.remove(holder.text),
            Leases::Many(leases) => leases.remove(holder).map(|holder| Box::from(&*holder)),
        }
    }

    /// Gives a holder a lease with that fencing token, in place of the one that it may have.
    pub(super) fn lease_fenced(&mut self, holder: Name, lease: Lease, token: Option<Token>) {
        self.lease(holder, lease);
        self.tokens.set(holder.text, token);
        if self.tokens.are_many(self.kept()) {
            let mut tokens = std::mem::take(&mut self.tokens);
            tokens.retain(|holder| self.lease_of(Name::of(holder)).is_some());
            self.tokens = tokens;
        }
    }

    /// Gives a holder a lease, in place of the one that it may have.
    fn lease(&mut self, holder: Name, lease: Lease) {
        if let Leases::Few(few) = &mut self.leases
            && few.len() >= few_leases::MOST
            && few.lease_of(holder.text).is_none()
        {
            self.leases = Leases::Many(Box::new(ManyLeases::of(few.written, few.iter())));
        }
        match &mut self.leases {
            Leases::Few(leases) => self.leased = u8::try_from(leases.lease(holder.text, lease)).ok(),
            Leases::Many(leases) => leases.lease(holder, lease),
        }
    }

    /// An empty table that is to be filled with what was read of one that was last changed at `written`.
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

    /// What the current call has changed.
    pub(super) fn delta(&mut self) -> LeaseDelta<&[u8]> {
        let RestOfDelta { moved_back, released } = self.rest.take().map(|rest| *rest).unwrap_or_default();
        let written = self.written();
        let leased = match &mut self.leases {
            Leases::Few(leases) => self.leased.take().and_then(|place| leases.get(usize::from(place))),
            Leases::Many(leases) => leases.take_leased(),
        };
        let token = leased.and_then(|(holder, _)| self.tokens.of(holder));
        LeaseDelta { moved_back, written, released, leased, token }
    }

    /// Whether `delta` can have been caused by a call on this table.
    pub(super) fn accepts(&self, delta: &LeaseDelta<Box<[u8]>>) -> bool {
        // By the clock as it was before it went back.
        let at = delta.written.plus(delta.moved_back);
        let in_order = at >= self.written();
        let sound = delta.leased.as_ref().is_none_or(|(holder, lease)| {
            let present = match &self.leases {
                Leases::Few(leases) => leases.present(at),
                Leases::Many(leases) => leases.present_at_change(at),
            };
            let others = present.units.minus(self.held_by(Name::of(holder), at).unwrap_or_default());
            delta.released.is_empty() && lease.is_sound(delta.written, others)
        });
        in_order && sound
    }

    /// Makes the change that a call has made elsewhere.
    pub(super) fn change(&mut self, delta: LeaseDelta<Box<[u8]>>) {
        self.tidy(delta.moved_back, delta.written);
        for holder in &delta.released {
            self.remove(Name::of(holder));
        }
        if let Some((holder, lease)) = delta.leased {
            self.lease_fenced(Name::of(&holder), lease, delta.token);
        }
        self.forget_delta();
    }
}
