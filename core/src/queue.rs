//! Who waits for a lease of one key: first come, first served.
//!
//! A queue says whose turn it is, until when each waits, and under which limit; whether there is room is for the lease
//! table to say ([`leases`](crate::leases)). Only the head is ever asked. So a big claim at the head is not overtaken by
//! small ones behind it, and nobody starves.
//!
//! **The limit:** a call brings the limit, and the last one to come brings it for all who wait: a limit that is raised
//! or lowered holds at once. What a claim keeps for others (KEEP) stays as that call said it.
//!
//! **When to use it:** where who is denied would ask again until it is let in. **Known flaw:** while a big claim waits
//! for room at the head, units that smaller ones behind it could use stay free.
//!
//! **Cost:** to join, to leave and to be served are each logarithmic in those who wait; a clock gone back passes all of
//! them once.

use crate::leases::Concurrency;
use crate::name::Kept;
use crate::spec::{AnyLimit, Asked, Call, Spec};
use crate::{Amount, Ask, Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// What a call that waits has asked for: a lease. It outlives the words of the call.
#[derive(Clone, Debug)]
pub struct Claim {
    concurrency: Concurrency,
    holder: Kept,
    cost: Amount,
    kept: Amount,
    name: Option<Box<[u8]>>,
    nx: bool,
}

impl Claim {
    /// What a spec asks; `None` if that is no lease.
    #[must_use]
    pub fn of(spec: &Spec) -> Option<Claim> {
        let (AnyLimit::Concurrency(concurrency), Ask::Take(cost)) = (spec.limit.raised_by(spec.kept), spec.ask) else {
            return None;
        };
        let (holder, name) = (Kept::from(spec.holder), spec.name.map(Box::from));
        Some(Claim { concurrency, holder, cost, kept: spec.kept, name, nx: spec.nx })
    }

    /// Who is to hold the lease.
    #[must_use]
    pub fn holder(&self) -> &[u8] {
        &self.holder
    }

    /// How many units it asks for.
    #[must_use]
    pub fn cost(&self) -> Amount {
        self.cost
    }

    /// When a lease that it is granted at `now` expires.
    #[must_use]
    pub fn expires_at(&self, now: Timestamp) -> Timestamp {
        self.concurrency.expires_at(now)
    }

    /// The call again, under the limit that now holds, behind those who wait before it.
    #[must_use]
    pub fn asked(&self, limit: Amount, others_wait: bool) -> Asked<'_> {
        let limit = AnyLimit::Concurrency(self.concurrency.limited_to(limit).behind(others_wait));
        let (holder, name) = (&*self.holder, self.name.as_deref());
        let spec = Spec { holder, name, nx: self.nx, ..Spec::of(limit, Ask::Take(self.cost)) }.keeping(self.kept);
        if name.is_some() { Asked::Several(Box::new(Call::of_one(spec))) } else { Asked::One(spec) }
    }
}

/// One who waits; `C` is how it is answered.
#[derive(Clone, Debug)]
pub struct Waiter<C> {
    /// What it asks for.
    pub claim: Claim,
    /// Since when it waits.
    pub since: Timestamp,
    /// Until when it does; `None`, for as long as it takes.
    pub until: Option<Timestamp>,
    /// How it is answered.
    pub client: C,
}

/// A place in a queue: who has a lower one came before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

/// Those who wait for a lease of one key.
///
/// ```
/// use ratelimit_core::args::Args;
/// use ratelimit_core::queue::{Claim, Queue, Waiter};
/// use ratelimit_core::spec::{Asked, Spec};
/// use ratelimit_core::{Amount, Timestamp};
///
/// let claim = |holder: &str| {
///     let words = [b"8", b"30s", holder.as_bytes()];
///     let Asked::One(spec) = Asked::one(&mut Args::new(&words), Spec::concurrency).unwrap() else { unreachable!() };
///     Claim::of(&spec).unwrap()
/// };
/// let (mut queue, now) = (Queue::new(Amount::ONE), Timestamp::EPOCH);
/// for name in ["alice", "bob"] {
///     queue.join(Waiter { claim: claim(name), since: now, until: None, client: name });
/// }
/// let (place, head) = queue.head().unwrap();
/// assert_eq!(head.client, "alice");
/// queue.leave(place);
/// assert_eq!(queue.head().unwrap().1.client, "bob");
/// ```
#[derive(Clone, Debug)]
pub struct Queue<C> {
    /// In the order in which they came.
    waiters: BTreeMap<Place, Waiter<C>>,
    /// The places of those who have not been replaced by a later call of the same holder.
    by_holder: BTreeMap<Kept, Place>,
    /// Those who do not wait for ever.
    by_deadline: BTreeSet<(Timestamp, Place)>,
    /// Those who have been replaced: they are to be denied.
    replaced: BTreeSet<Place>,
    /// The next place.
    next: Place,
    /// The limit that the last call brought.
    limit: Amount,
}

impl<C> Queue<C> {
    /// Nobody yet, under that limit.
    #[must_use]
    pub fn new(limit: Amount) -> Queue<C> {
        Queue {
            waiters: BTreeMap::new(),
            by_holder: BTreeMap::new(),
            by_deadline: BTreeSet::new(),
            replaced: BTreeSet::new(),
            next: Place::default(),
            limit,
        }
    }

    /// Adds one, behind all others; or, if its holder waits already, in its place: the call that waited there is to be
    /// denied ([`replaced`](Queue::replaced)). Where it waits.
    pub fn join(&mut self, waiter: Waiter<C>) -> Place {
        let holder = Kept::clone(&waiter.claim.holder);
        let last = self.next;
        self.next = Place(last.0.saturating_add(1));
        let place = self.by_holder.get(&holder).copied().unwrap_or(last);
        if let Some(older) = self.leave(place) {
            self.replaced.insert(last);
            self.enter(last, older);
        }
        self.by_holder.insert(holder, place);
        self.enter(place, waiter);
        place
    }

    fn enter(&mut self, place: Place, waiter: Waiter<C>) {
        self.by_deadline.extend(waiter.until.map(|until| (until, place)));
        self.waiters.insert(place, waiter);
    }

    /// Takes one away: it has been answered, or is gone.
    pub fn leave(&mut self, place: Place) -> Option<Waiter<C>> {
        let waiter = self.waiters.remove(&place)?;
        if !self.replaced.remove(&place) {
            self.by_holder.remove(&waiter.claim.holder);
        }
        if let Some(until) = waiter.until {
            self.by_deadline.remove(&(until, place));
        }
        Some(waiter)
    }

    /// Who waits there.
    #[must_use]
    pub fn at(&self, place: Place) -> Option<&Waiter<C>> {
        self.waiters.get(&place)
    }

    /// Whose turn it is.
    #[must_use]
    pub fn head(&self) -> Option<(Place, &Waiter<C>)> {
        self.waiters.iter().map(|(place, waiter)| (*place, waiter)).find(|(place, _)| !self.replaced.contains(place))
    }

    /// One whose holder has asked again since: it is to be denied.
    #[must_use]
    pub fn replaced(&self) -> Option<(Place, &Waiter<C>)> {
        let place = self.replaced.first()?;
        Some((*place, self.waiters.get(place)?))
    }

    /// One who has waited for as long as it would.
    #[must_use]
    pub fn overdue(&self, now: Timestamp) -> Option<(Place, &Waiter<C>)> {
        let (_, place) = self.by_deadline.first().filter(|(until, _)| *until <= now)?;
        Some((*place, self.waiters.get(place)?))
    }

    /// When the first of them will have waited for as long as it would.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.by_deadline.first().map(|(until, _)| *until)
    }

    /// The limit that holds.
    #[must_use]
    pub fn limit(&self) -> Amount {
        self.limit
    }

    /// A call has come that brings this limit. Whether it is another than before.
    pub fn limit_to(&mut self, limit: Amount) -> bool {
        std::mem::replace(&mut self.limit, limit) != limit
    }

    /// Whether others wait before the call at `place`.
    #[must_use]
    pub fn others_wait_before(&self, place: Place) -> bool {
        self.head().is_some_and(|(head, _)| head < place)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Waiter<C>> {
        self.waiters.values()
    }

    /// Moves all instants back: the clock has gone back by `span`.
    pub fn move_back(&mut self, span: Span) {
        self.by_deadline.clear();
        for (place, waiter) in &mut self.waiters {
            waiter.since = waiter.since.minus(span);
            waiter.until = waiter.until.map(|until| until.minus(span));
            self.by_deadline.extend(waiter.until.map(|until| (until, *place)));
        }
    }
}

#[cfg(test)]
mod tests;
