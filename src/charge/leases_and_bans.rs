//! Changes and queries without a limit: bans, released leases, and the expiry and token of a lease.

use super::commit::{Applied, Apply, commit, convert, reject_growth};
use crate::redis::Redis;
use crate::redis::key::Stored;
use ratelimit_core::algorithm::leases::{ConcurrencyUsage, Token};
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Span, Timestamp, Usage, UsageKind, with_usage_type};

/// Bans a key for a duration; creates a missing key, which then holds only the ban. Never shortens a ban; a duration of
/// 0 lifts it. Returns the remaining duration of the ban.
pub fn ban(redis: &mut Redis, index: KeyIndex, duration: Span, now: Timestamp) -> Result<Span, Error> {
    let (key, ban) = (redis.open(index)?, Ban { duration });
    let key = match key.typed::<CompositeUsage>() {
        Ok(key) if !key.usage().is_changed_by_ban(duration, now) => return Ok(key.usage().remaining_ban(now)),
        Ok(key) => {
            reject_growth(key.redis(), key.is_missing())?;
            return Ok(commit(key, &ban, true, now));
        }
        Err(key) => key,
    };
    match key.contents().stored() {
        Stored::Plain(kind) if kind.stands_alone() => Err(Stored::Plain(kind).wrong_type(UsageKind::Limits.name())),
        Stored::Plain(_) if duration == Span::ZERO => Ok(Span::ZERO),
        Stored::Plain(kind) => {
            reject_growth(key.redis(), true)?;
            with_usage_type!(kind, Plain => match key.typed::<Plain>() {
                Ok(key) => Ok(convert(key, &ban, now)),
                Err(_) => Err(Error::Internal),
            }, Err(Error::Internal))
        }
        stored => Err(stored.wrong_type(UsageKind::Limits.name())),
    }
}

struct Ban {
    duration: Span,
}

impl Apply for Ban {
    type Usage = CompositeUsage;
    type Answer = Span;

    fn apply(&self, usage: &mut CompositeUsage, now: Timestamp) -> Option<Applied<Span>> {
        usage.ban(self.duration, now);
        Some(Applied { answer: usage.remaining_ban(now), reset: usage.reset(now) })
    }

    fn answer(&self, usage: &CompositeUsage, now: Timestamp) -> Span {
        usage.remaining_ban(now)
    }

    fn reset(&self, usage: &CompositeUsage, now: Timestamp) -> Span {
        usage.reset(now)
    }
}

/// Releases the leases of holders in a plain or composite key. If `expires_at` is `Some`, releases nothing unless every
/// holder has a lease with that expiry. Returns the number of released leases.
pub fn release(
    redis: &mut Redis,
    index: KeyIndex,
    holders: &[&[u8]],
    expires_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<usize, Error> {
    let key = match redis.open(index)?.typed::<ConcurrencyUsage>() {
        Ok(key) => {
            let (release, reset) = (ConcurrencyUsage::release, ConcurrencyUsage::time_to_recovery);
            let apply = LeaseRelease { holders, expires_at, leases: |usage| Some(usage), release, reset };
            return Ok(commit(key, &apply, true, now));
        }
        Err(key) => key,
    };
    match key.typed::<CompositeUsage>() {
        Ok(key) => {
            let (leases, release, reset) = (CompositeUsage::leases, CompositeUsage::release, CompositeUsage::reset);
            Ok(commit(key, &LeaseRelease { holders, expires_at, leases, release, reset }, true, now))
        }
        Err(key) => Err(key.contents().stored().wrong_type(UsageKind::Concurrency.name())),
    }
}

/// Release of leases in a plain or composite key.
struct LeaseRelease<'h, U> {
    holders: &'h [&'h [u8]],
    /// Expiry that all of the leases must have; `None` for any expiry.
    expires_at: Option<Timestamp>,
    /// Function that returns the leases in the usage, if it has any.
    leases: fn(&U) -> Option<&ConcurrencyUsage>,
    /// Function that releases the leases of holders, and returns their number.
    release: fn(&mut U, &[&[u8]], Timestamp) -> usize,
    /// Function that returns the time until the usage has recovered.
    reset: fn(&U, Timestamp) -> Span,
}

impl<U: Usage> Apply for LeaseRelease<'_, U> {
    type Usage = U;
    type Answer = usize;

    fn apply(&self, usage: &mut U, now: Timestamp) -> Option<Applied<usize>> {
        let lease_until = |holder: &[u8]| (self.leases)(usage)?.lease_until(holder, now);
        let has_other_expiry = |holder: &&[u8]| lease_until(holder) != self.expires_at;
        if self.expires_at.is_some() && self.holders.iter().any(has_other_expiry) {
            return None;
        }
        let released = (self.release)(usage, self.holders, now);
        (released > 0).then(|| Applied { answer: released, reset: (self.reset)(usage, now) })
    }

    fn answer(&self, _usage: &U, _now: Timestamp) -> usize {
        0
    }

    fn reset(&self, usage: &U, now: Timestamp) -> Span {
        (self.reset)(usage, now)
    }
}

/// Shifts the leases of a key back if the clock moved backwards, as a denied call does.
pub fn follow_clock(redis: &mut Redis, index: KeyIndex, now: Timestamp) {
    // An error means that the key has a type without leases.
    drop(release(redis, index, &[], None, now));
}

/// Returns the expiry of a holder's lease in a key; `None` if the holder has none.
pub fn lease_until(redis: &mut Redis, index: KeyIndex, holder: &[u8], now: Timestamp) -> Option<Timestamp> {
    let key = redis.peek(index).ok()?;
    if let Ok(usage) = key.usage::<ConcurrencyUsage>() {
        return usage.lease_until(holder, now);
    }
    key.usage::<CompositeUsage>().ok()?.leases()?.lease_until(holder, now)
}

/// Returns the fencing token of a holder's lease in a key; 0 if there is none.
pub fn lease_token(redis: &mut Redis, index: KeyIndex, holder: &[u8], now: Timestamp) -> u64 {
    let Ok(key) = redis.peek(index) else { return 0 };
    let token = match key.usage::<ConcurrencyUsage>() {
        Ok(usage) => usage.lease_token(holder, now),
        Err(_) => key.usage::<CompositeUsage>().ok().and_then(|usage| usage.leases()?.lease_token(holder, now)),
    };
    token.map_or(0, Token::get)
}
