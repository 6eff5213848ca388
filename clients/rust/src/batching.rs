//! Decisions on batches of units: when to request units, how many, and which units to spend. No I/O and no clock.
//!
//! docs/units.md in the repository states the algorithm. The packages for Python and Node.js implement it as well, and
//! clients/units.json tests the decisions of all three.

use std::collections::VecDeque;

/// Time constant of the decaying average of the rate, in seconds.
const RATE_TIME: f64 = 0.5;
/// Seconds for which a batch lasts at the current rate, while at least `AMPLE_SHARE` of the limit remains.
const BATCH_SECONDS: f64 = 0.5;
/// Seconds for which a batch lasts at the current rate, while nothing of the limit remains.
const BATCH_SECONDS_AT_LIMIT: f64 = 0.3;
/// Remaining share of the limit below which a batch lasts for less time.
const AMPLE_SHARE: f64 = 0.5;
/// Largest batch, as a share of the limit.
const MAX_SHARE: f64 = 1.0 / 100.0;
/// Largest batches of all `peers` processes together, as a share of the limit.
const MAX_SHARE_OF_PEERS: f64 = 1.0 / 4.0;
/// Largest factor between the sizes of one batch and the next.
const MAX_GROWTH: u64 = 2;
/// Share of a batch that is still in hand when the next batch is requested.
const SHARE_AT_REQUEST: f64 = 1.0 / 3.0;
/// Number of round trips for which the units in hand must last.
const ROUND_TRIPS: f64 = 2.0;
/// Weight of the latest round trip in the average.
const SMOOTHING: f64 = 1.0 / 8.0;
/// Pause after a grant of fewer units than requested, as a share of `keep` or of the recovery of the limit, whichever
/// is shorter.
const PAUSE_SHARE: f64 = 1.0 / 4.0;
/// Largest number of doublings of the pause, one for each grant of nothing that follows another.
const MAX_DOUBLINGS: u32 = 2;
/// Largest random part of a pause, as a share of the pause.
const JITTER_SHARE: f64 = 1.0 / 2.0;
/// Upper bound, in seconds, of a pause without its random part, and of the time for which the last `limit` counts, so
/// that a raised limit is noticed.
const LONGEST_PAUSE: f64 = 10.0;

/// Units granted to one call.
pub(crate) struct Grant {
    pub(crate) id: String,
    /// Units that are not spent yet.
    pub(crate) unspent: u64,
    pub(crate) spent: u64,
    expires_at: f64,
}

/// Reply of the server to a request for units.
pub(crate) struct Reply {
    pub(crate) id: String,
    pub(crate) granted: u64,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    /// Seconds until a unit is available. `None`: never.
    pub(crate) wait: Option<f64>,
    /// Seconds until the limit has recovered.
    pub(crate) reset: f64,
}

/// Units in hand, and the decisions on requests for more units. Times are seconds of any clock.
///
/// A take calls `record_demand` once. Then it is allowed by `spend`, denied by `denies`, or waits for a request of
/// `plan_request` units, whose reply is passed to `record_reply`.
pub(crate) struct Batching {
    /// Seconds for which granted units may be spent.
    keep: f64,
    /// Upper bound of a batch, if the caller set one.
    largest: Option<u32>,
    /// Upper bound of a batch, as a share of the limit.
    share: f64,
    grants: VecDeque<Grant>,
    expired: Vec<Grant>,
    /// Units in hand: unspent units of all grants.
    unspent: u64,
    /// Demand of all takes, in units a second, at the time `rate_at`.
    rate: f64,
    rate_at: f64,
    /// Size of the last batch.
    last_size: u64,
    /// Seconds for which the next batch lasts at the current rate.
    batch_seconds: f64,
    /// Average seconds of a request.
    round_trip: Option<f64>,
    /// Limit in the last reply.
    limit: u64,
    /// Time until which costs above `limit` are denied without a request.
    limit_until: f64,
    /// Number of consecutive grants of nothing.
    empty_grants: u32,
    /// Time until which nothing is requested.
    paused_until: f64,
    /// Time at which the server has a unit again. `None`: never.
    free_at: Option<f64>,
    /// Time before which no batch is requested while units are in hand.
    early_requests_from: f64,
}

impl Batching {
    pub(crate) fn new(keep: f64, largest: Option<u32>, peers: Option<u32>) -> Self {
        Self {
            keep,
            largest,
            share: peers.map_or(MAX_SHARE, |peers| MAX_SHARE_OF_PEERS / f64::from(peers)),
            grants: VecDeque::new(),
            expired: Vec::new(),
            unspent: 0,
            rate: 0.0,
            rate_at: 0.0,
            last_size: 0,
            batch_seconds: BATCH_SECONDS,
            round_trip: None,
            limit: 0,
            limit_until: 0.0,
            empty_grants: 0,
            paused_until: 0.0,
            free_at: Some(0.0),
            early_requests_from: 0.0,
        }
    }

    /// Adds the cost of a take, allowed or not, to the rate.
    pub(crate) fn record_demand(&mut self, cost: u32, now: f64) {
        self.rate = self.current_rate(now) + f64::from(cost) / RATE_TIME;
        self.rate_at = now;
    }

    /// Sets expired grants aside, and returns the number of units that can be spent without a call.
    pub(crate) fn in_hand(&mut self, now: f64) -> u64 {
        while self.expires_at().is_some_and(|expires_at| now >= expires_at) {
            let Some(grant) = self.grants.pop_front() else { break };
            self.unspent -= grant.unspent;
            self.expired.push(grant);
        }
        self.unspent
    }

    /// Spends the oldest units. Returns `false` if the units in hand are too few.
    pub(crate) fn spend(&mut self, cost: u32, now: f64) -> bool {
        let mut uncovered = u64::from(cost);
        if self.in_hand(now) < uncovered {
            return false;
        }
        self.unspent -= uncovered;
        while uncovered > 0 {
            let Some(oldest) = self.grants.front_mut() else { break };
            let spent_units = oldest.unspent.min(uncovered);
            oldest.unspent -= spent_units;
            oldest.spent += spent_units;
            uncovered -= spent_units;
            if oldest.unspent == 0 {
                self.grants.pop_front();
            }
        }
        true
    }

    /// Returns `true` if a take that the units in hand do not cover is denied without a call.
    pub(crate) fn denies(&self, cost: u32, now: f64) -> bool {
        now < self.paused_until || (u64::from(cost) > self.limit && now < self.limit_until)
    }

    /// Returns the seconds after which a denied take may pass, or `None` if it never passes.
    pub(crate) fn wait(&self, cost: u32, now: f64) -> Option<f64> {
        let free_at = self.free_at.filter(|_| u64::from(cost) <= self.limit)?;
        Some(self.paused_until.max(free_at).max(now) - now)
    }

    /// Returns `true` if the next batch is requested although there are units in hand.
    pub(crate) fn is_due(&self, now: f64) -> bool {
        if self.unspent == 0 || now < self.paused_until || now < self.early_requests_from {
            return false;
        }
        let rate = self.current_rate(now);
        let needed = rate * self.round_trip.unwrap_or_default() * ROUND_TRIPS;
        to_f64(self.unspent) <= (to_f64(self.target(rate)) * SHARE_AT_REQUEST).max(needed)
    }

    /// Returns the number of units to request. `waiting` is the total cost of the waiting takes.
    pub(crate) fn plan_request(&mut self, waiting: u64, now: f64) -> u64 {
        let size = self.target(self.current_rate(now)).min(self.last_size.saturating_mul(MAX_GROWTH).max(1));
        self.last_size = size.max(waiting.saturating_sub(self.in_hand(now)));
        self.last_size
    }

    /// Records the reply to a request. `random` is a number from 0 to 1.
    pub(crate) fn record_reply(&mut self, reply: Reply, requested: u64, sent_at: f64, now: f64, random: f64) {
        let Reply { id, granted, limit, remaining, wait, reset } = reply;
        let round_trip = now - sent_at;
        self.round_trip =
            Some(self.round_trip.map_or(round_trip, |average| average + (round_trip - average) * SMOOTHING));
        (self.limit, self.limit_until) = (limit, now + LONGEST_PAUSE);
        let fraction = if limit == 0 { 0.0 } else { (to_f64(remaining) / to_f64(limit) / AMPLE_SHARE).min(1.0) };
        self.batch_seconds = BATCH_SECONDS_AT_LIMIT + (BATCH_SECONDS - BATCH_SECONDS_AT_LIMIT) * fraction;
        self.free_at = wait.map(|wait| now + wait);
        if granted > 0 {
            // The units were charged after `sent_at`, so they expire early rather than late.
            self.grants.push_back(Grant { id, unspent: granted, spent: 0, expires_at: sent_at + self.keep });
            self.unspent += granted;
        }
        if granted >= requested {
            (self.empty_grants, self.paused_until) = (0, 0.0);
            return;
        }
        let doubled = f64::from(2_u32.pow(self.empty_grants.min(MAX_DOUBLINGS)));
        let pause = (self.keep.min(reset) * PAUSE_SHARE * doubled).min(LONGEST_PAUSE);
        let random_part = pause * JITTER_SHARE * random;
        let min_pause = if granted > 0 {
            self.empty_grants = 0;
            0.0
        } else {
            self.empty_grants = self.empty_grants.saturating_add(1);
            wait.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
        };
        self.paused_until = now + pause.max(min_pause) + random_part;
    }

    /// Delays the next early request, after a request without a reply.
    pub(crate) fn record_failure(&mut self, now: f64) {
        self.early_requests_from = now + self.keep * PAUSE_SHARE;
    }

    /// Returns the time at which the oldest units expire, or `None` without units.
    pub(crate) fn expires_at(&self) -> Option<f64> {
        self.grants.front().map(|grant| grant.expires_at)
    }

    /// Removes and returns the expired grants, to be settled.
    pub(crate) fn take_expired(&mut self) -> Vec<Grant> {
        std::mem::take(&mut self.expired)
    }

    /// Removes and returns all grants, to be settled.
    pub(crate) fn take_all(&mut self) -> Vec<Grant> {
        self.unspent = 0;
        let mut grants = self.take_expired();
        grants.extend(self.grants.drain(..));
        grants
    }

    fn current_rate(&self, now: f64) -> f64 {
        self.rate * ((self.rate_at - now) / RATE_TIME).exp()
    }

    /// Returns the size of a batch at this rate, before `MAX_GROWTH` bounds it.
    fn target(&self, rate: f64) -> u64 {
        let largest = (to_f64(self.limit) * self.share).min(self.largest.map_or(f64::INFINITY, f64::from));
        round_down((rate * self.batch_seconds).min(largest)).max(1)
    }
}

/// Converts a number of units. Numbers above `u32::MAX` become `u32::MAX`.
fn to_f64(units: u64) -> f64 {
    f64::from(u32::try_from(units).unwrap_or(u32::MAX))
}

/// Rounds down to a number of units. Numbers above `u32::MAX` become `u32::MAX`.
fn round_down(units: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates, and is not negative")]
    let whole = units as u32;
    whole.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Returns the outcome of a take: "spent" or "asked" with the units in hand, or "denied" with the wait.
    fn take_outcome(batching: &mut Batching, cost: u32, now: f64) -> (&'static str, Option<f64>) {
        batching.record_demand(cost, now);
        if batching.spend(cost, now) {
            ("spent", Some(to_f64(batching.in_hand(now))))
        } else if batching.denies(cost, now) {
            ("denied", batching.wait(cost, now))
        } else {
            ("asked", Some(to_f64(batching.in_hand(now))))
        }
    }

    fn is_near(actual: Option<f64>, expected: Option<f64>) -> bool {
        match (actual, expected) {
            (Some(actual), Some(expected)) => (actual - expected).abs() < 2e-6,
            (actual, expected) => actual == expected,
        }
    }

    fn check(batching: &mut Batching, step: &[Value]) {
        let now = step[0].as_f64().unwrap();
        let name = step[1].as_str().unwrap();
        let (integer, number) = (|index: usize| step[index].as_u64().unwrap(), |index: usize| step[index].as_f64());
        let expected = step.last().unwrap();
        match name {
            "take" => {
                let (outcome, amount) = take_outcome(batching, u32::try_from(integer(2)).unwrap(), now);
                assert_eq!(outcome, step[3], "{step:?}");
                assert!(is_near(amount, expected.as_f64()), "{amount:?}: {step:?}");
            }
            "spend" => {
                assert!(batching.spend(u32::try_from(integer(2)).unwrap(), now), "{step:?}");
                assert_eq!(batching.in_hand(now), *expected, "{step:?}");
            }
            "due" => assert_eq!(batching.is_due(now), *expected, "{step:?}"),
            "wanted" => assert_eq!(batching.plan_request(integer(2), now), *expected, "{step:?}"),
            "received" => {
                let reply = Reply {
                    id: step[2].as_str().unwrap().to_owned(),
                    granted: integer(3),
                    limit: integer(4),
                    remaining: integer(5),
                    wait: number(6),
                    reset: number(7).unwrap(),
                };
                batching.record_reply(reply, integer(8), number(9).unwrap(), now, number(10).unwrap());
                assert_eq!(batching.in_hand(now), *expected, "{step:?}");
            }
            "failed" => batching.record_failure(now),
            _ => {
                let actual: Vec<_> = batching
                    .take_expired()
                    .into_iter()
                    .map(|grant| serde_json::json!([grant.id, grant.spent]))
                    .collect();
                assert_eq!((name, &Value::Array(actual)), ("expired", expected), "{step:?}");
            }
        }
    }

    #[test]
    fn decisions_match_the_table_of_all_packages() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../units.json")).unwrap();
        let table: Value = serde_json::from_str(&text).unwrap();
        for case in table["cases"].as_array().unwrap() {
            let option = |name: &str| case["options"][name].as_u64().map(|number| u32::try_from(number).unwrap());
            let keep = case["options"]["keep"].as_f64().unwrap_or(1.0);
            let mut batching = Batching::new(keep, option("batch"), option("peers"));
            for step in case["steps"].as_array().unwrap() {
                check(&mut batching, step.as_array().unwrap());
            }
        }
    }
}
