//! Counting here while the server is away: a share of each limit, in buckets that drain as the limit would recover.

use crate::ask::{Call, Decision, Reply, Rule, Verb, Verdict};
use crate::charge::Charge;
use crate::told_policies::Table;
use crate::windows::{Window, windows};
use ratelimit_core::Amount;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How many buckets are remembered, and how many ids: those that were asked about last.
const MOST: usize = 10_000;

/// The buckets.
pub struct Local {
    share: f64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// By the key and the name of its limit: what is used, as of when.
    used: Bounded<(Vec<u8>, String), f64>,
    /// By the key and the id: what the call was charged.
    ids: Bounded<(Vec<u8>, Vec<u8>), Amount>,
}

/// A map of at most [`MOST`] entries: the newer half stays when it is full.
struct Bounded<K, V>(HashMap<K, (V, Instant)>);

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Bounded<K, V> {
        Bounded(HashMap::new())
    }
}

impl<K: Eq + Hash, V> Bounded<K, V> {
    fn keep(&mut self, key: K, value: V, now: Instant) {
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            let mut times: Vec<Instant> = self.0.values().map(|(_, at)| *at).collect();
            let (_, middle, _) = times.select_nth_unstable(MOST / 2);
            let middle = *middle;
            self.0.retain(|_, (_, at)| *at > middle);
            // All at one time: then none is newer.
            if self.0.len() >= MOST {
                self.0.clear();
            }
        }
        self.0.insert(key, (value, now));
    }
}

/// A call that can be decided here.
struct LocalCall<'a> {
    call: &'a Call,
    windows: Arc<[Window]>,
    policy: Option<String>,
}

impl Local {
    /// Of this share of each limit, above 0 and up to 1.
    #[must_use]
    pub fn new(share: f64) -> Local {
        Local { share, kept: Mutex::default() }
    }

    /// Decides what the server did not. `calls` and `replies` go together. Calls that are charged all or none are not
    /// charged if a call is denied here, or if the server has denied another. What is not known here stays as it is.
    pub fn decide(&self, calls: &[Call], replies: &mut [Reply], table: &Table) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let lost: Vec<(usize, LocalCall<'_>)> = calls
            .iter()
            .zip(replies.iter())
            .enumerate()
            .filter(|(_, (_, reply))| reply.is_undecided())
            .filter_map(|(place, (call, _))| Some((place, LocalCall::of(call, table)?)))
            .collect();
        let denied = |reply: &Reply| matches!(reply, Reply::Decided(verdict) if !verdict.allowed);
        let mut passes = !calls.iter().zip(replies.iter()).any(|(call, reply)| call.charges() && denied(reply));
        for (_, known) in &lost {
            passes &= self.verdict(&kept, known, now).allowed;
        }
        for (place, known) in lost {
            let looked = self.verdict(&kept, &known, now);
            let may_stay = !known.call.charges() || known.charge() != Charge::AllOrNone;
            let is_charged = passes || may_stay || known.is_past(&looked);
            let after = if is_charged { self.charge(&mut kept, &known, looked, now) } else { looked };
            if let Some(reply) = replies.get_mut(place) {
                let refused = (!matches!(reply, Reply::Lost(_))).then(|| Box::new(reply.clone()));
                *reply = Reply::Local(after, refused);
            }
        }
    }

    /// What its limits say of a call, before it is charged.
    fn verdict(&self, kept: &Kept, known: &LocalCall<'_>, now: Instant) -> Verdict {
        let cost = match known.call.verb {
            Verb::Take(cost) if !kept.repeats(known.call) => cost,
            _ => Amount::ZERO,
        };
        let each: Vec<Decision> = known
            .windows
            .iter()
            .map(|window| self.decision(window, kept.of(&known.call.key, window, now, self.share), cost))
            .collect();
        let denying = || each.iter().zip(known.windows.iter()).filter(|(one, window)| !one.allowed && !window.shadow);
        let never = denying().any(|(one, _)| one.wait_ms < 0);
        let longest = denying().map(|(one, _)| one.wait_ms).max().unwrap_or(0);
        Verdict {
            allowed: denying().next().is_none(),
            wait_ms: if never { -1 } else { longest },
            each,
            policy: known.policy.clone(),
            version: None,
        }
    }

    fn decision(&self, window: &Window, used: f64, cost: Amount) -> Decision {
        if window.held {
            // Nobody here could free a place again.
            let most = whole(units(window.quota));
            return Decision { allowed: true, limit: most, remaining: most, wait_ms: 0, reset_ms: 0 };
        }
        let capacity = capacity(window, self.share);
        let rate = rate(window, self.share);
        let cost = if cost == Amount::ZERO { 0.0 } else { units(window.cost.unwrap_or(cost)) };
        // Sums of floats are off by less.
        let missing = used + cost - capacity - 1e-6;
        let allowed = missing <= 0.0;
        let wait_ms = match (allowed, cost > capacity) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => whole((missing / rate * 1000.0).ceil()),
        };
        Decision {
            allowed,
            limit: whole(capacity),
            remaining: whole((capacity - used + 1e-6).max(0.0)),
            wait_ms,
            reset_ms: whole((used / rate * 1000.0).ceil()),
        }
    }

    /// Charges a call if it passes; what its limits say then.
    fn charge(&self, kept: &mut Kept, known: &LocalCall<'_>, looked: Verdict, now: Instant) -> Verdict {
        let call = known.call;
        let id = |call: &Call| Some((call.key.clone(), call.id.clone()?));
        let is_charged = looked.allowed || known.is_past(&looked);
        let (sign, cost) = match (&call.verb, id(call)) {
            (Verb::Take(cost), id) if is_charged && *cost != Amount::ZERO && !kept.repeats(call) => {
                if let Some(id) = id {
                    kept.ids.keep(id, *cost, now);
                }
                (1.0, units(*cost))
            }
            (Verb::Charge(cost), _) if *cost != Amount::ZERO => (1.0, units(*cost)),
            (Verb::GiveBack(cost), _) => (-1.0, units(*cost)),
            (Verb::Settle(cost), Some(id)) => match kept.ids.0.remove(&id) {
                Some((charged, _)) => (1.0, units(*cost) - units(charged)),
                None => return looked,
            },
            _ => return looked,
        };
        for window in known.windows.iter().filter(|window| !window.held) {
            let own = window.cost.map(units);
            let more = match (&call.verb, own) {
                (Verb::Settle(_), Some(_)) => 0.0,
                (_, Some(own)) => own * sign,
                (_, None) => cost * sign,
            };
            let used = (kept.of(&call.key, window, now, self.share) + more).max(0.0);
            kept.used.keep((call.key.clone(), window.label.clone()), used, now);
        }
        let mut after = looked;
        for (decision, window) in after.each.iter_mut().zip(known.windows.iter()) {
            let left = self.decision(window, kept.of(&call.key, window, now, self.share), Amount::ZERO);
            (decision.remaining, decision.reset_ms) = (left.remaining, left.reset_ms);
        }
        after
    }
}

impl<'a> LocalCall<'a> {
    /// If its limits are known here, and it asks something of them.
    fn of(call: &'a Call, table: &Table) -> Option<LocalCall<'a>> {
        let (policy, windows) = match &call.rule {
            _ if call.verb == Verb::Release => return None,
            Rule::Limits(words) => (None, windows(&words.join(" ")).into()),
            Rule::Policies(names) => {
                let (name, windows) = table.first(names)?;
                (Some(name), windows)
            }
        };
        Some(LocalCall { call, windows, policy })
    }

    fn charge(&self) -> Charge {
        self.call.charge_under(&self.windows)
    }

    /// Returns `true` if the call is charged although it is denied: only limits deny that are charged past their end.
    fn is_past(&self, looked: &Verdict) -> bool {
        let denying =
            looked.each.iter().zip(self.windows.iter()).filter(|(one, window)| !one.allowed && !window.shadow);
        !looked.allowed && (self.charge() == Charge::Always || denying.into_iter().all(|(_, window)| window.forced))
    }
}

impl Kept {
    fn of(&self, key: &[u8], window: &Window, now: Instant, share: f64) -> f64 {
        let Some((used, at)) = self.used.0.get(&(key.to_vec(), window.label.clone())) else { return 0.0 };
        let passed: Duration = now.saturating_duration_since(*at);
        (used - passed.as_secs_f64() * rate(window, share)).max(0.0)
    }

    /// Whether a call of this id was charged already.
    fn repeats(&self, call: &Call) -> bool {
        call.id.as_ref().is_some_and(|id| self.ids.0.contains_key(&(call.key.clone(), id.clone())))
    }
}

/// A share of a small limit is one unit still; a limit of 0 stays 0.
fn capacity(window: &Window, share: f64) -> f64 {
    let quota = units(window.quota);
    quota.min((quota * share).max(1.0))
}

/// Units a second.
#[allow(clippy::cast_precision_loss, reason = "windows are years at the most")]
fn rate(window: &Window, share: f64) -> f64 {
    let capacity = capacity(window, share);
    (if capacity > 0.0 { capacity } else { 1.0 }) / window.seconds.max(1) as f64
}

#[allow(clippy::cast_precision_loss, reason = "amounts are 10^12 at the most")]
fn units(amount: Amount) -> f64 {
    amount.millionths() as f64 / 1e6
}

/// Rounded down; what is beyond is the most that there is.
#[allow(clippy::cast_possible_truncation, reason = "a cast from floats saturates")]
fn whole(number: f64) -> i64 {
    number.floor() as i64
}

#[cfg(test)]
mod tests;
