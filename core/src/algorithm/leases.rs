//! Concurrency limit: at most `limit` units are leased at once. A lease ends after `ttl`, unless it is released or
//! renewed before.
//!
//! **When to use it:** workers, connections, requests in flight to an upstream. **Known flaw:** a holder that continues
//! after its `ttl` without renewing its lease is not stopped. **Cost:** up to 32 leases: about 15 bytes for each, plus
//! the holder's name, and each call scans all of them. Above that: about 40 bytes for each, plus the name, and time
//! logarithmic in their number, amortized (a full index doubles, and each lease is visited once when it expires). Only
//! a denied call for several units takes longer: it visits each lease that has to expire first.

mod few_leases;
mod lease;
mod lease_table;
mod many_leases;
mod usage;

pub use crate::limit::Token;
use crate::limit::{Identity, Limit, Usage, Verdict};
use crate::number::{Amount, Period, Span, Timestamp};
#[cfg(test)]
use crate::testing::step_counter;
use crate::wire::name::MAX_NAME;
use lease::Lease;
pub use lease_table::ConcurrencyUsage;
use std::fmt;

/// Concurrency limiter.
///
/// ```
/// use ratelimit_core::algorithm::leases::{Concurrency, ConcurrencyUsage};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp, Verdict};
///
/// let ttl = Period::parse(b"30s").unwrap();
/// let [alice, bob] = [b"alice", b"bobby"].map(|holder| Concurrency::new(Amount::ONE, ttl).for_holder(holder));
/// let (mut usage, now) = (ConcurrencyUsage::default(), Timestamp::EPOCH);
/// alice.charge(&mut usage, now, Amount::ONE);
/// // Alice may renew; Bobby waits until the lease is released or expires.
/// assert_eq!(alice.verdict(&usage, now, Amount::ONE), Verdict::Allowed(Span::ZERO));
/// assert_eq!(bob.verdict(&usage, now, Amount::ONE), Verdict::After(ttl.span()));
/// assert_eq!(usage.release(&[b"alice"], now), 1);
/// assert_eq!(bob.verdict(&usage, now, Amount::ONE), Verdict::Allowed(Span::ZERO));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Concurrency {
    limit: Amount,
    ttl: Period,
    /// `true`: other callers wait for a lease of the key, and this call is not granted a lease before them.
    has_waiters_ahead: bool,
}

/// Maximum length of the name of a holder, in bytes.
pub const MAX_HOLDER: usize = MAX_NAME;

impl Concurrency {
    /// Creates a limiter of `limit` units at once, each leased for `ttl`.
    #[must_use]
    pub fn new(limit: Amount, ttl: Period) -> Concurrency {
        Concurrency { limit, ttl, has_waiters_ahead: false }
    }

    /// Returns the maximum number of units.
    #[must_use]
    pub fn limit(&self) -> Amount {
        self.limit
    }

    /// Returns this limiter with another limit.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> Concurrency {
        Concurrency { limit, ..self }
    }

    /// Returns this limiter for a call. If `has_waiters_ahead` is `true`, other callers have waited for longer. Then
    /// only a cost of zero or a renewal of at most the held units is granted. Another call that would fit is denied
    /// with a wait of a millisecond.
    #[must_use]
    pub fn with_waiters_ahead(self, has_waiters_ahead: bool) -> Concurrency {
        Concurrency { has_waiters_ahead, ..self }
    }

    /// Returns the identity that stands for the limit if it has no name. It is constant, because a key has at most one
    /// table of leases.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity { micros: 0, options: 0 }
    }

    /// Returns the expiry of a lease that is acquired at `now`.
    #[must_use]
    pub fn expires_at(&self, now: Timestamp) -> Timestamp {
        now.plus(self.ttl.span()).min(Timestamp::MAX)
    }

    /// Returns the limit of one holder, whose name has 1 to [`MAX_HOLDER`] bytes.
    #[must_use]
    pub fn for_holder(self, holder: &[u8]) -> LeaseLimit<'_> {
        LeaseLimit { concurrency: self, holder, nx: false, fence: None }
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CONCURRENCY {} {}", self.limit, self.ttl)
    }
}

/// Concurrency limiter for one holder.
#[derive(Clone, Copy, Debug)]
pub struct LeaseLimit<'a> {
    concurrency: Concurrency,
    holder: &'a [u8],
    /// `true`: a holder with a lease is denied (option NX).
    nx: bool,
    /// Fencing token for a lease that has none.
    fence: Option<Token>,
}

impl LeaseLimit<'_> {
    /// Returns this limiter with or without the option `NX`. If `nx` is `true`, a holder with a lease is denied until
    /// the lease expires. Meant for locks, where two callers of the same name must not both hold a lease.
    #[must_use]
    pub fn with_nx(self, nx: bool) -> Self {
        LeaseLimit { nx, ..self }
    }

    /// Returns this limiter with a fencing token for new leases, and for leases without one. A renewal keeps its token.
    #[must_use]
    pub fn with_token(self, fence: Option<Token>) -> Self {
        LeaseLimit { fence, ..self }
    }
}

impl Limit for LeaseLimit<'_> {
    type Usage = ConcurrencyUsage;

    fn limit(&self) -> Amount {
        self.concurrency.limit
    }

    fn verdict(&self, usage: &ConcurrencyUsage, now: Timestamp, cost: Amount) -> Verdict {
        let own_units = usage.held_by(self.holder, now);
        let mut other_units = usage.live_sum(now).units.minus(own_units.unwrap_or_default());
        let mut is_blocked_by_nx = self.nx && own_units.is_some();
        // A renewal takes no units from other holders, so it is granted under any limit.
        let renews = own_units.is_some_and(|held| cost <= held);
        let fits = renews || other_units.excess(cost, self.concurrency.limit) == Amount::ZERO;
        if fits && !is_blocked_by_nx {
            let overtakes = self.concurrency.has_waiters_ahead && !renews && cost != Amount::ZERO;
            return if overtakes { Verdict::After(Span::MILLISECOND) } else { Verdict::Allowed(Span::ZERO) };
        }
        if cost > self.concurrency.limit {
            return Verdict::Never;
        }
        for (holder, lease) in usage.live(now) {
            #[cfg(test)]
            step_counter::step();
            if *holder == *self.holder {
                is_blocked_by_nx = false;
            } else {
                other_units = other_units.minus(lease.units);
            }
            if !is_blocked_by_nx && other_units.excess(cost, self.concurrency.limit) == Amount::ZERO {
                return Verdict::After(lease.expires_at.since(usage.effective_time(now)));
            }
        }
        Verdict::Never
    }

    fn remaining(&self, usage: &ConcurrencyUsage, now: Timestamp) -> Amount {
        self.concurrency.limit.minus(usage.live_sum(now).units)
    }

    fn reset(&self, usage: &ConcurrencyUsage, now: Timestamp) -> Span {
        usage.time_to_recovery(now)
    }

    fn charge(&self, usage: &mut ConcurrencyUsage, now: Timestamp, cost: Amount) {
        let token = usage.lease_token(self.holder, now).or(self.fence);
        usage.tidy(Span::ZERO, now);
        let expires_at = self.concurrency.expires_at(now);
        usage.store_lease(self.holder, Lease { expires_at, units: cost, token });
    }

    fn refund(&self, _usage: &mut ConcurrencyUsage, _now: Timestamp, _amount: Amount) {
        // Unreachable, because the grammar rejects refunds of leases: a holder releases a whole lease.
    }

    fn entries_after_charge(&self, usage: &ConcurrencyUsage, now: Timestamp) -> Option<usize> {
        let grows = usage.held_by(self.holder, now).is_none();
        grows.then(|| usage.live_sum(now).leases.saturating_add(1))
    }
}

#[cfg(test)]
mod tests;
