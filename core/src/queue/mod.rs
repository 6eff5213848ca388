//! The queue of callers that wait for a lease of one key: first come, first served.
//!
//! A queue says whose turn it is, until when each waits, and under which limit; whether there is room is for the lease
//! table to say ([`leases`](crate::algorithm::leases)). Only the head is ever asked. So a big claim at the head is not
//! overtaken by small ones behind it, and nobody starves.
//!
//! **To serve it,** when something may have changed: whoever was [`replaced`](Queue::replaced) is denied. Then the
//! [`head`](Queue::head) is asked as its [`Claim`] says. If it passes, or never can, it leaves with its answer, and the
//! next is asked. If it is denied for now, one who is [`overdue`](Queue::overdue) is denied, and the head is asked
//! again: who was denied may have been in the way of the next. The head is asked by a call, not by a look: a look does
//! not see to a clock gone back.
//!
//! **The limit:** a call brings the limit, and the last one to come brings it for all who wait: a limit that is raised
//! or lowered holds at once. What a claim keeps for others (KEEP) stays as that call said it.
//!
//! **When to use it:** where who is denied would ask again until it is let in. **Known flaw:** while a big claim waits
//! for room at the head, units that smaller ones behind it could use stay free.
//!
//! **Time:** since when and until when each waits is [steady time](Steady), which a clock gone back does not move.
//!
//! **Cost:** to join, to leave and to be served are each logarithmic in those who wait.

use crate::algorithm::any::AnyLimit;
use crate::algorithm::leases::Concurrency;
use crate::evaluate::Request;
pub use crate::number::steady::{Steady, SteadyClock};
use crate::number::{Amount, Timestamp};
use crate::syntax::{CompositeRequest, KeyRequest, Spec};
#[cfg(test)]
use crate::testing::effort;
use crate::wire::name::Kept;
use std::cmp::Ordering;
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
    fenced: bool,
}

impl Claim {
    /// What a spec asks; `None` if that is no lease.
    #[must_use]
    pub fn of(spec: &Spec) -> Option<Claim> {
        let (AnyLimit::Concurrency(concurrency), Request::Take(cost)) = (spec.limit.raised_by(spec.kept), spec.request)
        else {
            return None;
        };
        let (holder, name) = (Kept::from(spec.holder), spec.name.map(Box::from));
        Some(Claim { concurrency, holder, cost, kept: spec.kept, name, nx: spec.nx, fenced: spec.fence.is_some() })
    }

    /// The holder that the lease is for.
    #[must_use]
    pub fn holder(&self) -> &[u8] {
        &self.holder
    }

    /// Whether it asks for a fencing token, which is made when the lease is granted.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fenced
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
    pub fn request(&self, limit: Amount, callers_wait_ahead: bool) -> KeyRequest<'_> {
        let limit = AnyLimit::Concurrency(self.concurrency.limited_to(limit).behind(callers_wait_ahead));
        let (holder, name) = (&*self.holder, self.name.as_deref());
        let spec = Spec { holder, name, nx: self.nx, ..Spec::of(limit, Request::Take(self.cost)) }.keeping(self.kept);
        if name.is_some() {
            KeyRequest::Composite(Box::new(CompositeRequest::of_one(spec)))
        } else {
            KeyRequest::One(spec)
        }
    }
}

/// One who waits; `C` is how it is answered.
#[derive(Clone, Debug)]
pub struct Waiter<C> {
    /// What it asks for.
    pub claim: Claim,
    /// Since when it waits.
    pub since: Steady,
    /// Until when it does; `None`, for as long as it takes.
    pub until: Option<Steady>,
    /// How it is answered.
    pub client: C,
}

/// A place in a queue: who has a lower one is served before. It is one call's, from when that joins until it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Whose turn it is: of the holder's first call, where later ones took its place.
    turn: u64,
    /// Which call it is, of all that have joined.
    call: u64,
}

impl PartialOrd for QueuePlace {
    fn partial_cmp(&self, other: &QueuePlace) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueuePlace {
    fn cmp(&self, other: &QueuePlace) -> Ordering {
        #[cfg(test)]
        effort::entry();
        (self.turn, self.call).cmp(&(other.turn, other.call))
    }
}

/// The callers that wait for a lease of one key.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::Amount;
/// use ratelimit_core::queue::{Claim, Queue, Steady, Waiter};
/// use ratelimit_core::syntax::{KeyRequest, Spec};
///
/// let claim = |holder: &str| {
///     let words = [b"RL.ACQUIRE", &b"8"[..], b"30s", holder.as_bytes()];
///     let KeyRequest::One(spec) = KeyRequest::one(&mut Args::new(&words), Spec::concurrency).unwrap() else { unreachable!() };
///     Claim::of(&spec).unwrap()
/// };
/// let (mut queue, now) = (Queue::new(Amount::ONE), Steady::default());
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
    /// The callers that wait for their turn.
    waiting: BTreeMap<QueuePlace, Waiter<C>>,
    /// Their places by their holders, each of whom has one.
    by_holder: BTreeMap<Kept, QueuePlace>,
    /// The places of those of them who do not wait for ever.
    by_deadline: BTreeSet<(Steady, QueuePlace)>,
    /// The places of all who have joined and not left, by the order in which they joined.
    by_call: BTreeMap<u64, QueuePlace>,
    /// Those whose holder has asked again since: they are to be denied, whenever that would have been.
    replaced: BTreeMap<QueuePlace, Waiter<C>>,
    /// How many have joined.
    calls: u64,
    /// The limit that the last call brought.
    limit: Amount,
}

impl<C> Queue<C> {
    /// Nobody yet, under that limit.
    #[must_use]
    pub fn new(limit: Amount) -> Queue<C> {
        Queue {
            waiting: BTreeMap::new(),
            by_holder: BTreeMap::new(),
            by_deadline: BTreeSet::new(),
            by_call: BTreeMap::new(),
            replaced: BTreeMap::new(),
            calls: 0,
            limit,
        }
    }

    /// Adds one, behind all others; or, if its holder waits already, where that does: the call that waited there keeps
    /// its [`QueuePlace`], but is to be denied ([`replaced`](Queue::replaced)). Where it waits.
    pub fn join(&mut self, waiter: Waiter<C>) -> QueuePlace {
        let holder = Kept::clone(&waiter.claim.holder);
        let (older, call) = (self.by_holder.get(&holder).copied(), self.calls);
        self.calls = call.saturating_add(1);
        let place = QueuePlace { turn: older.map_or(call, |older| older.turn), call };
        if let Some(older) = older {
            let replaced = self.leave(older);
            self.by_call.insert(older.call, older);
            self.replaced.extend(replaced.map(|waiter| (older, waiter)));
        }
        self.by_call.insert(call, place);
        self.by_holder.insert(holder, place);
        self.by_deadline.extend(waiter.until.map(|until| (until, place)));
        self.waiting.insert(place, waiter);
        place
    }

    /// Takes one away: it has been answered, or is gone.
    pub fn leave(&mut self, place: QueuePlace) -> Option<Waiter<C>> {
        self.by_call.remove(&place.call);
        let Some(waiter) = self.waiting.remove(&place) else { return self.replaced.remove(&place) };
        self.by_holder.remove(&waiter.claim.holder);
        if let Some(until) = waiter.until {
            self.by_deadline.remove(&(until, place));
        }
        Some(waiter)
    }

    /// The caller at this place.
    #[must_use]
    pub fn at(&self, place: QueuePlace) -> Option<&Waiter<C>> {
        self.waiting.get(&place).or_else(|| self.replaced.get(&place))
    }

    /// Whose turn it is.
    #[must_use]
    pub fn head(&self) -> Option<(QueuePlace, &Waiter<C>)> {
        self.waiting.first_key_value().map(|(place, waiter)| (*place, waiter))
    }

    /// One whose holder has asked again since: it is to be denied, before anybody is served.
    #[must_use]
    pub fn replaced(&self) -> Option<(QueuePlace, &Waiter<C>)> {
        self.replaced.first_key_value().map(|(place, waiter)| (*place, waiter))
    }

    /// One who has waited for as long as it would, the first to have done so first.
    #[must_use]
    pub fn overdue(&self, now: Steady) -> Option<(QueuePlace, &Waiter<C>)> {
        let (_, place) = self.by_deadline.first().filter(|(until, _)| *until <= now)?;
        Some((*place, self.waiting.get(place)?))
    }

    /// When the first of them will have waited for as long as it would.
    #[must_use]
    pub fn deadline(&self) -> Option<Steady> {
        self.by_deadline.first().map(|(until, _)| *until)
    }

    /// Since when the one waits who has waited longest; with those who are to be denied.
    #[must_use]
    pub fn oldest(&self) -> Option<Steady> {
        let (_, place) = self.by_call.first_key_value()?;
        Some(self.at(*place)?.since)
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

    /// Whether others wait before the call at `place`: before all but the head. Before who has been replaced, its
    /// holder's later call did, even if that is gone.
    #[must_use]
    pub fn others_wait_before(&self, place: QueuePlace) -> bool {
        self.head().is_none_or(|(head, _)| head != place)
    }

    /// Where this holder waits.
    #[must_use]
    pub fn place_of(&self, holder: &[u8]) -> Option<QueuePlace> {
        self.by_holder.get(holder).copied()
    }

    /// How many wait; with those who are to be denied.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len().saturating_add(self.replaced.len())
    }

    /// Whether nobody does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in order; those who are to be denied come last.
    pub fn iter(&self) -> impl Iterator<Item = &Waiter<C>> {
        self.waiting.values().chain(self.replaced.values())
    }
}

#[cfg(test)]
mod tests;
