//! Queue of callers that wait for a lease of one key, in first-come, first-served order.
//!
//! A queue knows the order of its waiters, their deadlines and the current limit. The lease table decides whether there
//! is room ([`leases`](crate::algorithm::leases)). Only the head is evaluated. So a large claim at the head is not
//! overtaken by small ones after it, and no waiter starves.
//!
//! **Serving,** whenever something may have changed: first deny the [`replaced`](Queue::replaced) waiters. Then
//! evaluate the [`head`](Queue::head) as its [`Claim`] says. If it is granted, or can never be, it leaves with its
//! reply, and the next one is evaluated. If it is denied for now, deny the [`overdue`](Queue::overdue) waiters and
//! evaluate the head again, because a denied waiter may have blocked the next one. The head is evaluated by a call that
//! charges, not by a peek, because a peek does not correct timestamps after the clock moved backwards.
//!
//! **Limit:** each call contains the limit, and the limit of the latest call applies to all waiters. So a changed limit
//! takes effect at once. The amount that a claim keeps available for others (KEEP) stays that of its own call.
//!
//! **When to use it:** for callers that would otherwise retry until they are granted a lease. **Known flaw:** while a
//! large claim waits at the head, units that smaller ones after it could use stay free.
//!
//! **Time:** joining times and deadlines are in [steady time](Steady), which a clock that moves backwards does not
//! change.
//!
//! **Cost:** joining, leaving and serving are logarithmic in the number of waiters.

use crate::algorithm::any::AnyLimit;
use crate::algorithm::leases::Concurrency;
use crate::evaluate::Request;
pub use crate::number::steady::{Steady, SteadyClock};
use crate::number::{Amount, Timestamp};
use crate::syntax::{CompositeRequest, KeyRequest, Spec};
#[cfg(test)]
use crate::testing::step_counter;
use crate::wire::name::SharedName;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Requested lease of a waiting call. Owns its data, because the arguments of the call are gone while it waits.
#[derive(Clone, Debug)]
pub struct Claim {
    concurrency: Concurrency,
    holder: SharedName,
    /// Requested units.
    pub cost: Amount,
    keep: Amount,
    name: Option<Box<[u8]>>,
    nx: bool,
    /// `true` if the call requests a fencing token, which is created when the lease is granted.
    pub is_fenced: bool,
}

impl Claim {
    /// Creates the claim of a spec. Returns `None` if the spec does not take a lease.
    #[must_use]
    pub fn of(spec: &Spec) -> Option<Claim> {
        // KEEP has already lowered the limit of the spec. That is reverted here, because `request` lowers it again.
        let (AnyLimit::Concurrency(concurrency), Request::Take(cost)) = (spec.limit.raised_by(spec.keep), spec.request)
        else {
            return None;
        };
        let (holder, name) = (SharedName::from(spec.holder_or_item), spec.name.map(Box::from));
        Some(Claim { concurrency, holder, cost, keep: spec.keep, name, nx: spec.nx, is_fenced: spec.fence.is_some() })
    }

    /// Returns the holder of the requested lease.
    #[must_use]
    pub fn holder(&self) -> &[u8] {
        &self.holder
    }

    /// Returns the expiry of a lease granted at `now`.
    #[must_use]
    pub fn expires_at(&self, now: Timestamp) -> Timestamp {
        self.concurrency.expires_at(now)
    }

    /// Returns the request of the call under the current limit. `has_waiters_ahead` is `true` if other waiters precede
    /// it.
    #[must_use]
    pub fn request(&self, limit: Amount, has_waiters_ahead: bool) -> KeyRequest<'_> {
        let limit = AnyLimit::Concurrency(self.concurrency.limited_to(limit).with_waiters_ahead(has_waiters_ahead));
        let (holder, name) = (&*self.holder, self.name.as_deref());
        let spec = Spec { holder_or_item: holder, name, nx: self.nx, ..Spec::of(limit, Request::Take(self.cost)) }
            .with_keep(self.keep);
        if name.is_some() {
            KeyRequest::Composite(Box::new(CompositeRequest::of_one(spec)))
        } else {
            KeyRequest::One(spec)
        }
    }
}

/// Waiting call. `C` identifies its client.
#[derive(Clone, Debug)]
pub struct Waiter<C> {
    /// Requested lease.
    pub claim: Claim,
    /// Time at which the call joined.
    pub since: Steady,
    /// Deadline; `None` if the call waits without a timeout.
    pub until: Option<Steady>,
    /// Client that receives the reply.
    pub client: C,
}

/// Place of a call in a queue. Calls are served in ascending order of places. A place is never reused by another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Order of service: the number of the holder's first call, whose position later calls inherit.
    position: u64,
    /// Number of the call, in the order of joining.
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
        step_counter::step();
        (self.position, self.call).cmp(&(other.position, other.call))
    }
}

/// Queue of callers that wait for a lease of one key.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::Amount;
/// use ratelimit_core::queue::{Claim, Queue, Steady, Waiter};
/// use ratelimit_core::syntax::KeyRequest;
///
/// let claim = |holder: &str| {
///     let words = [b"RL.TAKE", &b"CONCURRENCY"[..], b"8", b"30s", holder.as_bytes()];
///     let request = KeyRequest::take(&mut Args::new(&words), None).unwrap();
///     let KeyRequest::One(spec) = request else { unreachable!() };
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
    /// Waiting calls in the order of service.
    waiting: BTreeMap<QueuePlace, Waiter<C>>,
    /// Place of each holder, which has at most one waiting call.
    by_holder: BTreeMap<SharedName, QueuePlace>,
    /// Places of the waiting calls with a deadline.
    by_deadline: BTreeSet<(Steady, QueuePlace)>,
    /// Places of all calls that have not left, in the order of joining.
    by_call: BTreeMap<u64, QueuePlace>,
    /// Calls whose holder has called again. They must be denied, regardless of their deadlines.
    replaced: BTreeMap<QueuePlace, Waiter<C>>,
    /// Number of calls that have joined.
    calls: u64,
    /// Limit of the latest call.
    limit: Amount,
}

impl<C> Queue<C> {
    /// Creates an empty queue with a limit.
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

    /// Adds a call at the end of the queue, and returns its place. If its holder is waiting already, the new call
    /// inherits that position, and the earlier call must be denied ([`replaced`](Queue::replaced)).
    pub fn join(&mut self, waiter: Waiter<C>) -> QueuePlace {
        let holder = SharedName::clone(&waiter.claim.holder);
        let (older, call) = (self.by_holder.get(&holder).copied(), self.calls);
        self.calls = call.saturating_add(1);
        let place = QueuePlace { position: older.map_or(call, |older| older.position), call };
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

    /// Removes a call that has been answered or whose client is gone.
    pub fn leave(&mut self, place: QueuePlace) -> Option<Waiter<C>> {
        self.by_call.remove(&place.call);
        let Some(waiter) = self.waiting.remove(&place) else { return self.replaced.remove(&place) };
        self.by_holder.remove(&waiter.claim.holder);
        if let Some(until) = waiter.until {
            self.by_deadline.remove(&(until, place));
        }
        Some(waiter)
    }

    /// Returns the call at a place.
    #[must_use]
    pub fn at(&self, place: QueuePlace) -> Option<&Waiter<C>> {
        self.waiting.get(&place).or_else(|| self.replaced.get(&place))
    }

    /// Returns the next call to serve.
    #[must_use]
    pub fn head(&self) -> Option<(QueuePlace, &Waiter<C>)> {
        self.waiting.first_key_value().map(|(place, waiter)| (*place, waiter))
    }

    /// Returns a call whose holder has called again. It must be denied before any other call is served.
    #[must_use]
    pub fn replaced(&self) -> Option<(QueuePlace, &Waiter<C>)> {
        self.replaced.first_key_value().map(|(place, waiter)| (*place, waiter))
    }

    /// Returns the call with the earliest deadline, if that has passed.
    #[must_use]
    pub fn overdue(&self, now: Steady) -> Option<(QueuePlace, &Waiter<C>)> {
        let (_, place) = self.by_deadline.first().filter(|(until, _)| *until <= now)?;
        Some((*place, self.waiting.get(place)?))
    }

    /// Returns the earliest deadline.
    #[must_use]
    pub fn deadline(&self) -> Option<Steady> {
        self.by_deadline.first().map(|(until, _)| *until)
    }

    /// Returns the time at which the oldest call joined, including replaced calls.
    #[must_use]
    pub fn oldest(&self) -> Option<Steady> {
        let (_, place) = self.by_call.first_key_value()?;
        Some(self.at(*place)?.since)
    }

    /// Returns the current limit.
    #[must_use]
    pub fn limit(&self) -> Amount {
        self.limit
    }

    /// Sets the limit. Returns `true` if it changed.
    pub fn limit_to(&mut self, limit: Amount) -> bool {
        std::mem::replace(&mut self.limit, limit) != limit
    }

    /// Returns `true` if other calls precede the call at `place`, that is, if it is not the head. A replaced call
    /// counts as preceded by the later call of its holder, even if that has left.
    #[must_use]
    pub fn others_wait_before(&self, place: QueuePlace) -> bool {
        self.head().is_none_or(|(head, _)| head != place)
    }

    /// Returns the place at which a holder waits.
    #[must_use]
    pub fn place_of(&self, holder: &[u8]) -> Option<QueuePlace> {
        self.by_holder.get(holder).copied()
    }

    /// Returns the number of calls, including replaced ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len().saturating_add(self.replaced.len())
    }

    /// Returns `true` if there are no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the calls in the order of service, followed by the replaced ones.
    pub fn iter(&self) -> impl Iterator<Item = &Waiter<C>> {
        self.waiting.values().chain(self.replaced.values())
    }
}

#[cfg(test)]
mod tests;
