//! Queue of callers that wait for a lease of one key, in first-come, first-served order.
//!
//! A queue knows the order of its waiters, their deadlines and the current limit. The lease table decides whether there
//! is room ([`leases`](crate::algorithm::leases)). Only the head is evaluated. So a large claim at the head is not
//! overtaken by small ones after it, and no waiter starves.
//!
//! **Serving,** whenever something may have changed: first deny the [`replaced`](Queue::replaced) waiters. Then
//! evaluate the [`head`](Queue::head) as its [`Claim`] says. If the head is granted, or can never be granted, it leaves
//! with its reply, and the next waiter is evaluated. If the head is denied for now, deny the
//! [`overdue`](Queue::overdue) waiters and evaluate the head again, because a denied waiter may have blocked the next
//! one. The head is evaluated by a call that charges, not by a peek, because a peek does not correct timestamps after
//! the clock moved backwards.
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
    /// Creates the claim of a spec. Returns `None` if the spec does not request a lease.
    #[must_use]
    pub fn of(spec: &Spec) -> Option<Claim> {
        // KEEP has already lowered the limit of the spec. Raises it again, because `request` applies KEEP.
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
    /// the call.
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
    pub joined_at: Steady,
    /// Deadline; `None` if the call waits without a timeout.
    pub deadline: Option<Steady>,
    /// Client that receives the reply.
    pub client: C,
}

/// Place of a call in a queue. Calls are served in ascending order of places. A place is never reused by another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Order of service: the number of the holder's first call, inherited by its later calls.
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
///     queue.join(Waiter { claim: claim(name), joined_at: now, deadline: None, client: name });
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
    /// Calls of holders that have called again. They must be denied before any call is served.
    replaced: BTreeMap<QueuePlace, Waiter<C>>,
    /// Number of calls that have joined.
    call_count: u64,
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
            call_count: 0,
            limit,
        }
    }

    /// Adds a call at the end of the queue, and returns its place. If its holder is waiting already, the new call
    /// inherits the position of the earlier call, which must be denied ([`replaced`](Queue::replaced)).
    pub fn join(&mut self, waiter: Waiter<C>) -> QueuePlace {
        let holder = SharedName::clone(&waiter.claim.holder);
        let (earlier, call) = (self.by_holder.get(&holder).copied(), self.call_count);
        self.call_count = call.saturating_add(1);
        let place = QueuePlace { position: earlier.map_or(call, |earlier| earlier.position), call };
        if let Some(earlier) = earlier {
            let replaced = self.leave(earlier);
            self.by_call.insert(earlier.call, earlier);
            self.replaced.extend(replaced.map(|waiter| (earlier, waiter)));
        }
        self.by_call.insert(call, place);
        self.by_holder.insert(holder, place);
        self.by_deadline.extend(waiter.deadline.map(|deadline| (deadline, place)));
        self.waiting.insert(place, waiter);
        place
    }

    /// Removes a call that has been answered, or that lost its client.
    pub fn leave(&mut self, place: QueuePlace) -> Option<Waiter<C>> {
        self.by_call.remove(&place.call);
        let Some(waiter) = self.waiting.remove(&place) else { return self.replaced.remove(&place) };
        self.by_holder.remove(&waiter.claim.holder);
        if let Some(deadline) = waiter.deadline {
            self.by_deadline.remove(&(deadline, place));
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

    /// Returns a call of a holder that has called again. It must be denied before any other call is served.
    #[must_use]
    pub fn replaced(&self) -> Option<(QueuePlace, &Waiter<C>)> {
        self.replaced.first_key_value().map(|(place, waiter)| (*place, waiter))
    }

    /// Returns the call with the earliest deadline, if the deadline has passed.
    #[must_use]
    pub fn overdue(&self, now: Steady) -> Option<(QueuePlace, &Waiter<C>)> {
        let (_, place) = self.by_deadline.first().filter(|(deadline, _)| *deadline <= now)?;
        Some((*place, self.waiting.get(place)?))
    }

    /// Returns the earliest deadline.
    #[must_use]
    pub fn earliest_deadline(&self) -> Option<Steady> {
        self.by_deadline.first().map(|(deadline, _)| *deadline)
    }

    /// Returns the time at which the oldest call joined, including replaced calls.
    #[must_use]
    pub fn oldest_joined_at(&self) -> Option<Steady> {
        let (_, place) = self.by_call.first_key_value()?;
        Some(self.at(*place)?.joined_at)
    }

    /// Returns the current limit.
    #[must_use]
    pub fn limit(&self) -> Amount {
        self.limit
    }

    /// Sets the limit. Returns `true` if it changed.
    pub fn set_limit(&mut self, limit: Amount) -> bool {
        std::mem::replace(&mut self.limit, limit) != limit
    }

    /// Returns `true` if other calls precede the call at `place`, that is, if it is not the head. A replaced call
    /// counts as preceded by the later call of its holder, even if the later call has left.
    #[must_use]
    pub fn has_waiters_ahead(&self, place: QueuePlace) -> bool {
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
