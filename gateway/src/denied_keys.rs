//! Denials remembered in the gateway. No I/O and no clock.
//!
//! The wait in a denial is exact: until it is over, the server would deny the same call, and any call of a higher cost.
//! A denial ends earlier only if units are given back, the key is reset or a ban is lifted. Client tracking reports
//! these changes. A denial is used only once the server tracks the key: after the second denial of a key, the gateway
//! peeks at the key on a connection with tracking.

use crate::call::{Call, CallDecision, Operation};
use crate::charge::ChargingMode;
use crate::limit::Limit;
use ratelimit_core::Amount;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Upper bound of `--remember-denials`. It is low, because client tracking does not report changes of policies.
pub const MAX_DURATION: Duration = Duration::from_secs(1);
/// Maximum number of keys. Beyond it, the denial of a new key is not remembered.
pub const MAX_KEYS: usize = 100_000;
/// Minimum time that a denial must still last to be remembered.
const MIN_DURATION: Duration = Duration::from_millis(10);
/// Rounding error of a wait, which the server rounds up to milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);
/// Minimum time between two removals of expired denials.
const PURGE_INTERVAL: Duration = Duration::from_secs(1);

/// Denials by key.
#[derive(Default)]
pub struct DeniedKeys {
    denials: Mutex<Denials>,
    hasher: RandomState,
}

#[derive(Default)]
struct Denials {
    by_key: HashMap<Vec<u8>, Denial>,
    /// Number of the next peek.
    next_peek: u64,
    purged_at: Option<Instant>,
}

/// Denial of a key.
struct Denial {
    /// Hash of the rule and the charging mode of the denied call.
    rule_hash: u64,
    /// Lowest cost that is denied.
    cost: Amount,
    /// Number of changes of the policies before the decision.
    policy_changes: u64,
    expires_at: Instant,
    state: State,
}

/// Stage of a denial.
enum State {
    /// The key was denied once.
    Once,
    /// The key was denied again, and the peek of this number is in flight.
    Peeking(u64),
    /// The gateway denies calls by this decision, which the server made at this time.
    Remembered(CallDecision, Instant),
}

/// Decision of the server on a call or on a peek for it, sent at `sent_at` or later.
#[derive(Clone, Copy)]
pub struct SentCall<'a> {
    pub call: &'a Call,
    pub decision: &'a CallDecision,
    pub sent_at: Instant,
    /// Longest time for which a denial is remembered.
    pub max_duration: Duration,
}

/// Peek at a denied key, which must succeed before the denial is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Peek {
    /// Number that no other peek has.
    number: u64,
    /// Cost of the denied call.
    pub cost: Amount,
}

/// Effect of a denied call.
#[derive(PartialEq)]
enum Effect {
    /// The call is not charged.
    Uncharged,
    /// The call is charged beyond the capacity of a calendar window, which denies all calls until it ends.
    Exceeded,
}

impl DeniedKeys {
    /// Returns the remembered denial of a call, as the server would report it now.
    #[must_use]
    pub fn find(&self, call: &Call, policy_changes: u64, now: Instant) -> Option<CallDecision> {
        let (Operation::Take(cost), None) = (&call.operation, &call.id) else { return None };
        let denials = self.lock();
        let denial = denials.by_key.get(&call.key)?;
        let State::Remembered(decision, decided_at) = &denial.state else { return None };
        let is_denied = now < denial.expires_at
            && denial.cost <= *cost
            && denial.policy_changes == policy_changes
            && denial.rule_hash == self.rule_hash(call);
        is_denied.then(|| decision.after(now.saturating_duration_since(*decided_at)))
    }

    /// Records that the server denied a call under these limits. If the denial is worth remembering, returns the peek
    /// that the caller must send; [`DeniedKeys::confirm`] takes its reply.
    pub fn record(&self, sent: SentCall<'_>, limits: &[Limit], policy_changes: u64, now: Instant) -> Option<Peek> {
        let SentCall { call, decision, .. } = sent;
        let (Operation::Take(cost), None) = (&call.operation, &call.id) else { return None };
        let effect = effect(call, limits)?;
        let expires_at = sent.expires_at(now)?;
        let cost = match effect {
            Effect::Uncharged => *cost,
            // The reply to a cost above the capacity does not show the end of the window.
            Effect::Exceeded if decision.wait_ms < 0 => return None,
            Effect::Exceeded => Amount::ZERO,
        };
        let rule_hash = self.rule_hash(call);
        let mut denials = self.lock();
        denials.purge(now);
        let is_full = denials.by_key.len() >= MAX_KEYS;
        let is_repeated = match denials.by_key.get(&call.key) {
            None if is_full => return None,
            None => false,
            Some(earlier) => {
                let is_current =
                    now < earlier.expires_at && earlier.policy_changes == policy_changes && earlier.cost <= cost;
                // A concurrent call was recorded first.
                if earlier.rule_hash == rule_hash && is_current && !matches!(earlier.state, State::Once) {
                    return None;
                }
                earlier.rule_hash == rule_hash
            }
        };
        let number = denials.next_peek;
        let (state, peek) = match (is_repeated, effect) {
            (false, _) => (State::Once, None),
            // Without tracking: the server would report each charge of another call, although the denial continues.
            (true, Effect::Exceeded) => (State::Remembered(decision.clone(), now), None),
            (true, Effect::Uncharged) => (State::Peeking(number), Some(Peek { number, cost })),
        };
        denials.next_peek = number.wrapping_add(1);
        denials.by_key.insert(call.key.clone(), Denial { rule_hash, cost, policy_changes, expires_at, state });
        peek
    }

    /// Remembers the denial that a peek at a tracked key has shown, unless the key has changed since the peek.
    pub fn confirm(&self, sent: SentCall<'_>, peek: Peek, now: Instant) {
        let mut denials = self.lock();
        let Some(denial) = denials.by_key.get_mut(&sent.call.key) else { return };
        if !matches!(denial.state, State::Peeking(number) if number == peek.number) {
            return;
        }
        match sent.expires_at(now) {
            Some(expires_at) => {
                (denial.expires_at, denial.state) = (expires_at, State::Remembered(sent.decision.clone(), now));
            }
            None => drop(denials.by_key.remove(&sent.call.key)),
        }
    }

    /// Removes the denial of a key, whose usage may have changed.
    pub fn forget(&self, key: &[u8]) {
        self.lock().by_key.remove(key);
    }

    /// Removes all denials.
    pub fn forget_all(&self) {
        self.lock().by_key.clear();
    }

    fn rule_hash(&self, call: &Call) -> u64 {
        self.hasher.hash_one((&call.rule, call.charge))
    }

    fn lock(&self) -> MutexGuard<'_, Denials> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Denials {
    /// Removes denials that expired [`PURGE_INTERVAL`] ago or earlier, at most once in that time.
    fn purge(&mut self, now: Instant) {
        if self.purged_at.is_none_or(|at| now.saturating_duration_since(at) >= PURGE_INTERVAL) {
            // Expired denials stay for a while: a key that is denied again counts as denied twice.
            self.by_key.retain(|_, denial| now.saturating_duration_since(denial.expires_at) < PURGE_INTERVAL);
            self.purged_at = Some(now);
        }
    }
}

impl SentCall<'_> {
    /// Returns the end of the denial, or `None` if the call is allowed or the end is near.
    fn expires_at(&self, now: Instant) -> Option<Instant> {
        let wait = match u64::try_from(self.decision.wait_ms) {
            _ if self.decision.allowed => return None,
            Ok(wait) => Duration::from_millis(wait).saturating_sub(ROUNDING).min(self.max_duration),
            // The call never passes.
            Err(_) => self.max_duration,
        };
        let expires_at = self.sent_at.checked_add(wait)?;
        (expires_at >= now.checked_add(MIN_DURATION)?).then_some(expires_at)
    }
}

/// Returns the effect of a denied call. Returns `None` if the server must see each call, because the limits are
/// unknown, count strikes for a ban, or are charged beyond their capacity and recover meanwhile.
fn effect(call: &Call, limits: &[Limit]) -> Option<Effect> {
    if limits.is_empty() || limits.iter().any(|limit| limit.has_ban) {
        return None;
    }
    if call.charge != ChargingMode::Always && !limits.iter().any(|limit| limit.is_forced) {
        return Some(Effect::Uncharged);
    }
    matches!(limits, [limit] if limit.is_aligned).then_some(Effect::Exceeded)
}

#[cfg(test)]
mod tests;
