//! Denials remembered in the gateway. No I/O and no clock.
//!
//! The wait in a denial is exact: until it is over, the server would deny the same call, and one of a higher cost. Usage
//! only grows meanwhile, unless units are given back, the key is reset or a ban is lifted, which client tracking
//! reports. A denial is used only once the server tracks the key: a key that is denied twice is peeked at on a
//! connection with tracking.

use crate::call::{Call, CallDecision, Operation};
use crate::charge::Charge;
use crate::limit::Limit;
use ratelimit_core::Amount;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Upper bound of `--remember-denials`: changes of policies are not tracked.
pub const MAX_DURATION: Duration = Duration::from_secs(1);
/// Maximum number of keys. Beyond it, the denial of a new key is not remembered.
pub const MAX_KEYS: usize = 100_000;
/// Minimum duration of a denial that is remembered.
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
    /// Number of peeks that were requested.
    peeks: u64,
    purged_at: Option<Instant>,
}

/// Denial of a key.
struct Denial {
    /// Hash of the rule and the charging mode of the denied call.
    rule: u64,
    /// Lowest cost that is denied.
    cost: Amount,
    /// Number of changes of the policies before the decision.
    policy_changes: u64,
    until: Instant,
    state: State,
}

enum State {
    /// The key was denied once.
    Once,
    /// The key was denied again, and the peek of this number is in flight.
    Peeking(u64),
    /// Calls are denied by this decision, made at this time.
    Remembered(CallDecision, Instant),
}

/// Decision of the server on a call that was sent, or peeked at, by `sent_at`.
#[derive(Clone, Copy)]
pub struct SentCall<'a> {
    pub call: &'a Call,
    pub decision: &'a CallDecision,
    pub sent_at: Instant,
    /// Longest time for which a denial is remembered.
    pub longest: Duration,
}

/// Peek that a denied key needs before its denial is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Peek {
    number: u64,
    /// Cost of the denied call.
    pub cost: Amount,
}

/// Effect of a denied call.
#[derive(PartialEq)]
enum Effect {
    /// The call is not charged.
    Uncharged,
    /// The call is charged beyond a window of the calendar, which denies all calls until it ends.
    Exceeded,
}

impl DeniedKeys {
    /// Returns the remembered denial of a call, as the server would report it now.
    #[must_use]
    pub fn find(&self, call: &Call, policy_changes: u64, now: Instant) -> Option<CallDecision> {
        let (Operation::Take(cost), None) = (&call.operation, &call.id) else { return None };
        let denials = self.lock();
        let denial = denials.by_key.get(&call.key)?;
        let State::Remembered(decision, at) = &denial.state else { return None };
        let is_denied = now < denial.until
            && denial.cost <= *cost
            && denial.policy_changes == policy_changes
            && denial.rule == self.rule_hash(call);
        is_denied.then(|| decision.after(now.saturating_duration_since(*at)))
    }

    /// Records a denial of the server under these limits. Returns the peek after which it is remembered, if that is
    /// worthwhile; it ends with [`DeniedKeys::confirm`].
    pub fn record(&self, sent: SentCall<'_>, limits: &[Limit], policy_changes: u64, now: Instant) -> Option<Peek> {
        let SentCall { call, decision, .. } = sent;
        let (Operation::Take(cost), None) = (&call.operation, &call.id) else { return None };
        let effect = effect(call, limits)?;
        let until = sent.end(now)?;
        let cost = match effect {
            Effect::Uncharged => *cost,
            // The reply to a cost above the capacity does not show the end of the window.
            Effect::Exceeded if decision.wait_ms < 0 => return None,
            Effect::Exceeded => Amount::ZERO,
        };
        let rule = self.rule_hash(call);
        let mut denials = self.lock();
        denials.purge(now);
        let is_full = denials.by_key.len() >= MAX_KEYS;
        let is_repeated = match denials.by_key.get(&call.key) {
            None if is_full => return None,
            None => false,
            Some(known) => {
                let is_current = now < known.until && known.policy_changes == policy_changes && known.cost <= cost;
                // A concurrent call was recorded first.
                if known.rule == rule && is_current && !matches!(known.state, State::Once) {
                    return None;
                }
                known.rule == rule
            }
        };
        let number = denials.peeks;
        let (state, peek) = match (is_repeated, effect) {
            (false, _) => (State::Once, None),
            // A charge of another caller would end the tracking of the key without an end of the denial.
            (true, Effect::Exceeded) => (State::Remembered(decision.clone(), now), None),
            (true, Effect::Uncharged) => (State::Peeking(number), Some(Peek { number, cost })),
        };
        denials.peeks = number.wrapping_add(1);
        denials.by_key.insert(call.key.clone(), Denial { rule, cost, policy_changes, until, state });
        peek
    }

    /// Remembers the denial that a peek on a tracked key has shown, unless the key has changed since.
    pub fn confirm(&self, sent: SentCall<'_>, peek: Peek, now: Instant) {
        let mut denials = self.lock();
        let Some(denial) = denials.by_key.get_mut(&sent.call.key) else { return };
        if !matches!(denial.state, State::Peeking(number) if number == peek.number) {
            return;
        }
        match sent.end(now) {
            Some(until) => (denial.until, denial.state) = (until, State::Remembered(sent.decision.clone(), now)),
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
    /// Removes denials that expired before [`PURGE_INTERVAL`], at most once in it.
    fn purge(&mut self, now: Instant) {
        if self.purged_at.is_none_or(|at| now.saturating_duration_since(at) >= PURGE_INTERVAL) {
            // A key that is denied again needs no second denial.
            self.by_key.retain(|_, denial| now.saturating_duration_since(denial.until) < PURGE_INTERVAL);
            self.purged_at = Some(now);
        }
    }
}

impl SentCall<'_> {
    /// Returns the end of the denial, or `None` if the call is allowed or the end is near.
    fn end(&self, now: Instant) -> Option<Instant> {
        let wait = match u64::try_from(self.decision.wait_ms) {
            _ if self.decision.allowed => return None,
            Ok(wait) => Duration::from_millis(wait).saturating_sub(ROUNDING).min(self.longest),
            // The call never passes.
            Err(_) => self.longest,
        };
        let until = self.sent_at.checked_add(wait)?;
        (until >= now.checked_add(MIN_DURATION)?).then_some(until)
    }
}

/// Returns the effect of a denied call, or `None` if each one must be sent: the limits are not known, count strikes for
/// a ban, or are charged beyond their capacity and recover meanwhile.
fn effect(call: &Call, limits: &[Limit]) -> Option<Effect> {
    if limits.is_empty() || limits.iter().any(|limit| limit.bans) {
        return None;
    }
    if call.charge != Charge::Always && !limits.iter().any(|limit| limit.forced) {
        return Some(Effect::Uncharged);
    }
    matches!(limits, [limit] if limit.aligned).then_some(Effect::Exceeded)
}

#[cfg(test)]
mod tests;
