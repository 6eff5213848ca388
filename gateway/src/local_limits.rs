//! Local limits: while the server is away, the gateway grants a share of each limit, from a bucket that recovers in the
//! same time as the limit.

use crate::call::{Call, CallDecision, LimitDecision, Operation, Reply, Rule};
use crate::charge::ChargingMode;
use crate::limit::{Limit, parse_limits};
use crate::policy_cache::PolicyCache;
use ratelimit_core::Amount;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of buckets, and of idempotency keys. The oldest entries are removed.
const MAX_ENTRIES: usize = 10_000;

/// Limits that the gateway itself enforces.
pub struct LocalLimits {
    /// Share of each limit, above 0 and up to 1.
    share: f64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Units in use, by key and name of the limit.
    usage: BoundedMap<(Vec<u8>, String), f64>,
    /// Charged costs, by key and idempotency key.
    charges: BoundedMap<(Vec<u8>, Vec<u8>), Amount>,
}

/// Map of at most [`MAX_ENTRIES`] entries with the time of their last change. When it is full, the older half is
/// removed.
struct BoundedMap<K, V>(HashMap<K, (V, Instant)>);

impl<K, V> Default for BoundedMap<K, V> {
    fn default() -> BoundedMap<K, V> {
        BoundedMap(HashMap::new())
    }
}

impl<K: Eq + Hash, V> BoundedMap<K, V> {
    fn insert(&mut self, key: K, value: V, now: Instant) {
        if self.0.len() >= MAX_ENTRIES && !self.0.contains_key(&key) {
            let mut times: Vec<Instant> = self.0.values().map(|(_, changed_at)| *changed_at).collect();
            let (_, median, _) = times.select_nth_unstable(MAX_ENTRIES / 2);
            let median = *median;
            self.0.retain(|_, (_, changed_at)| *changed_at > median);
            // If all entries have the same time, none is newer than the median, and all are removed.
            if self.0.len() >= MAX_ENTRIES {
                self.0.clear();
            }
        }
        self.0.insert(key, (value, now));
    }
}

/// Call whose limits are known, so that it can be decided locally.
struct LocalCall<'a> {
    call: &'a Call,
    limits: Arc<[Limit]>,
    /// Name of the policy that applies, unless the call itself contains the limits.
    policy: Option<String>,
}

impl LocalLimits {
    /// Creates local limits without usage, which grant this share of each limit, above 0 and up to 1.
    #[must_use]
    pub fn new(share: f64) -> LocalLimits {
        LocalLimits { share, state: Mutex::default() }
    }

    /// Replaces undecided replies by local decisions. The replies are in the order of the calls.
    ///
    /// Calls in the charging mode all-or-none are not charged if any call of the request is denied. A call whose policy
    /// is not cached stays undecided.
    pub fn decide(&self, calls: &[Call], replies: &mut [Reply], policies: &PolicyCache) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let undecided: Vec<(usize, LocalCall<'_>)> = calls
            .iter()
            .zip(replies.iter())
            .enumerate()
            .filter(|(_, (_, reply))| reply.is_undecided())
            .filter_map(|(index, (call, _))| Some((index, LocalCall::new(call, policies)?)))
            .collect();
        let is_denied = |reply: &Reply| matches!(reply, Reply::Decided(decision) if !decision.allowed);
        let mut is_request_allowed =
            !calls.iter().zip(replies.iter()).any(|(call, reply)| call.may_charge() && is_denied(reply));
        for (_, local) in &undecided {
            is_request_allowed &= self.evaluate(&state, local, now).allowed;
        }
        for (index, local) in undecided {
            let decision = self.evaluate(&state, &local, now);
            let is_independent = !local.call.may_charge() || local.charging_mode() != ChargingMode::AllOrNone;
            let decision = if is_request_allowed || is_independent || local.is_charged_despite_denial(&decision) {
                self.charge(&mut state, &local, decision, now)
            } else {
                decision
            };
            if let Some(reply) = replies.get_mut(index) {
                let error = (!matches!(reply, Reply::Lost(_))).then(|| Box::new(reply.clone()));
                *reply = Reply::Local(decision, error);
            }
        }
    }

    /// Decides a call without charging it.
    fn evaluate(&self, state: &State, local: &LocalCall<'_>, now: Instant) -> CallDecision {
        let cost = match local.call.operation {
            Operation::Take(cost) if !state.is_charged(local.call) => cost,
            _ => Amount::ZERO,
        };
        let limit_decisions: Vec<LimitDecision> = local
            .limits
            .iter()
            .map(|limit| self.limit_decision(limit, state.current_usage(&local.call.key, limit, now, self.share), cost))
            .collect();
        let denials = || {
            let decisions = limit_decisions.iter().zip(local.limits.iter());
            decisions.filter(|(decision, limit)| !decision.allowed && !limit.shadow)
        };
        let never_passes = denials().any(|(decision, _)| decision.wait_ms < 0);
        let longest_wait = denials().map(|(decision, _)| decision.wait_ms).max().unwrap_or(0);
        CallDecision {
            allowed: denials().next().is_none(),
            wait_ms: if never_passes { -1 } else { longest_wait },
            limit_decisions,
            policy: local.policy.clone(),
            version: None,
        }
    }

    fn limit_decision(&self, limit: &Limit, used: f64, cost: Amount) -> LimitDecision {
        if limit.is_concurrency {
            // Leases cannot be counted locally: their releases go to the server.
            let capacity = round_down(units(limit.capacity));
            return LimitDecision { allowed: true, limit: capacity, remaining: capacity, wait_ms: 0, reset_ms: 0 };
        }
        let capacity = local_capacity(limit, self.share);
        let rate = local_rate(limit, self.share);
        let cost = if cost == Amount::ZERO { 0.0 } else { units(limit.cost.unwrap_or(cost)) };
        // A difference of a millionth may be a rounding error.
        let missing = used + cost - capacity - 1e-6;
        let allowed = missing <= 0.0;
        let wait_ms = match (allowed, cost > capacity) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => round_down((missing / rate * 1000.0).ceil()),
        };
        LimitDecision {
            allowed,
            limit: round_down(capacity),
            remaining: round_down((capacity - used + 1e-6).max(0.0)),
            wait_ms,
            reset_ms: round_down((used / rate * 1000.0).ceil()),
        }
    }

    /// Charges a call if its decision permits a charge. Returns the decision with the remaining units and the reset
    /// after the charge.
    fn charge(&self, state: &mut State, local: &LocalCall<'_>, decision: CallDecision, now: Instant) -> CallDecision {
        let call = local.call;
        let id = |call: &Call| Some((call.key.clone(), call.id.clone()?));
        let is_charged = decision.allowed || local.is_charged_despite_denial(&decision);
        let (sign, cost) = match (&call.operation, id(call)) {
            (Operation::Take(cost), id) if is_charged && *cost != Amount::ZERO && !state.is_charged(call) => {
                if let Some(id) = id {
                    state.charges.insert(id, *cost, now);
                }
                (1.0, units(*cost))
            }
            (Operation::Force(cost), _) if *cost != Amount::ZERO => (1.0, units(*cost)),
            (Operation::GiveBack(cost), _) => (-1.0, units(*cost)),
            (Operation::Settle(cost), Some(id)) => match state.charges.0.remove(&id) {
                Some((charged, _)) => (1.0, units(*cost) - units(charged)),
                None => return decision,
            },
            _ => return decision,
        };
        for limit in local.limits.iter().filter(|limit| !limit.is_concurrency) {
            let limit_cost = limit.cost.map(units);
            let added = match (&call.operation, limit_cost) {
                (Operation::Settle(_), Some(_)) => 0.0,
                (_, Some(limit_cost)) => limit_cost * sign,
                (_, None) => cost * sign,
            };
            let usage = (state.current_usage(&call.key, limit, now, self.share) + added).max(0.0);
            state.usage.insert((call.key.clone(), limit.name.clone()), usage, now);
        }
        let mut charged = decision;
        for (decision, limit) in charged.limit_decisions.iter_mut().zip(local.limits.iter()) {
            let usage = state.current_usage(&call.key, limit, now, self.share);
            let after = self.limit_decision(limit, usage, Amount::ZERO);
            (decision.remaining, decision.reset_ms) = (after.remaining, after.reset_ms);
        }
        charged
    }
}

impl<'a> LocalCall<'a> {
    /// Resolves the limits of a call. Returns `None` if the limits are not known, and for a release, which no limit
    /// decides.
    fn new(call: &'a Call, policies: &PolicyCache) -> Option<LocalCall<'a>> {
        let (policy, limits) = match &call.rule {
            _ if call.operation == Operation::Release => return None,
            Rule::Limits(words) => (None, parse_limits(&words.join(" ")).into()),
            Rule::Policies(names) => {
                let (name, limits) = policies.first_cached(names)?;
                (Some(name), limits)
            }
        };
        Some(LocalCall { call, limits, policy })
    }

    fn charging_mode(&self) -> ChargingMode {
        self.call.charging_mode_under(&self.limits)
    }

    /// Returns `true` if the call is charged although it is denied: all limits that deny it are charged beyond their
    /// capacity.
    fn is_charged_despite_denial(&self, decision: &CallDecision) -> bool {
        let decisions = decision.limit_decisions.iter().zip(self.limits.iter());
        let mut denials = decisions.filter(|(decision, limit)| !decision.allowed && !limit.shadow);
        !decision.allowed && (self.charging_mode() == ChargingMode::Always || denials.all(|(_, limit)| limit.is_forced))
    }
}

impl State {
    /// Returns the units of a limit that are in use now.
    fn current_usage(&self, key: &[u8], limit: &Limit, now: Instant, share: f64) -> f64 {
        let Some((usage, changed_at)) = self.usage.0.get(&(key.to_vec(), limit.name.clone())) else { return 0.0 };
        let elapsed: Duration = now.saturating_duration_since(*changed_at);
        (usage - elapsed.as_secs_f64() * local_rate(limit, share)).max(0.0)
    }

    /// Returns `true` if a call with the same idempotency key was already charged.
    fn is_charged(&self, call: &Call) -> bool {
        call.id.as_ref().is_some_and(|id| self.charges.0.contains_key(&(call.key.clone(), id.clone())))
    }
}

/// Returns the local share of a limit's capacity: at least one unit, unless the capacity is less.
fn local_capacity(limit: &Limit, share: f64) -> f64 {
    let capacity = units(limit.capacity);
    capacity.min((capacity * share).max(1.0))
}

/// Returns the units that the local share of a limit regains in each second.
#[allow(clippy::cast_precision_loss, reason = "windows are years at the most")]
fn local_rate(limit: &Limit, share: f64) -> f64 {
    let capacity = local_capacity(limit, share);
    (if capacity > 0.0 { capacity } else { 1.0 }) / limit.recovery_seconds.max(1) as f64
}

#[allow(clippy::cast_precision_loss, reason = "amounts are 10^12 at the most")]
fn units(amount: Amount) -> f64 {
    amount.millionths() as f64 / 1e6
}

/// Rounds down to an integer. Numbers out of range become the nearest integer in range.
#[allow(clippy::cast_possible_truncation, reason = "a cast from floats saturates")]
fn round_down(number: f64) -> i64 {
    number.floor() as i64
}

#[cfg(test)]
mod tests;
