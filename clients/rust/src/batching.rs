//! Batches of units: when to request how many, and which of them to spend. No I/O and no clock.
//!
//! docs/units.md in the repository states the algorithm. The packages for Python and Node.js have the same, and
//! clients/units.json has choices that all three make.

use std::collections::VecDeque;

/// Time constant of the rate, in seconds.
const RATE_TIME: f64 = 0.5;
/// Seconds that a batch lasts while at least half of the limit remains.
const LASTS: f64 = 0.5;
/// Seconds that a batch lasts while nothing remains.
const LASTS_AT_LIMIT: f64 = 0.3;
const HALF: f64 = 0.5;
/// Largest batch, as a share of the limit.
const SHARE: f64 = 1.0 / 100.0;
/// Largest batches of all processes together with `peers`, as a share of the limit.
const SHARE_OF_PEERS: f64 = 1.0 / 4.0;
/// Largest growth from one batch to the next.
const GROWTH: u64 = 2;
/// Rest of a batch with which the next is requested.
const REST: f64 = 1.0 / 3.0;
/// Round trips for which the units in hand must last.
const ROUND_TRIPS: f64 = 2.0;
/// Weight of the latest round trip in the average.
const SMOOTHING: f64 = 1.0 / 8.0;
/// Pause after a short grant, as a share of `keep` or of the recovery of the limit.
const PAUSE: f64 = 1.0 / 4.0;
/// Doublings of the pause by consecutive grants of nothing.
const DOUBLINGS: u32 = 2;
/// Largest random part, as a share of the pause.
const JITTER: f64 = 1.0 / 2.0;
/// Longest pause in seconds, after which a limit that was raised is noticed.
const LONGEST_PAUSE: f64 = 10.0;

/// Units granted to one call.
pub(crate) struct Grant {
    pub(crate) id: String,
    pub(crate) left: u64,
    pub(crate) spent: u64,
    until: f64,
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

/// Units in hand, and the choice of requests for more. Times are seconds of any clock.
///
/// A take calls `demand` once, and then is allowed by `spend`, denied by `denies`, or waits for a request of `wanted`
/// units, whose reply goes to `received`.
pub(crate) struct Batching {
    keep: f64,
    /// Upper bound of a batch.
    largest: Option<u32>,
    share: f64,
    grants: VecDeque<Grant>,
    expired: Vec<Grant>,
    left: u64,
    /// Units per second at `rate_at`.
    rate: f64,
    rate_at: f64,
    /// Size of the last batch.
    size: u64,
    /// Seconds that a batch lasts.
    lasts: f64,
    round_trip: Option<f64>,
    /// Limit of the last reply, and the time until which it counts.
    limit: u64,
    limit_until: f64,
    /// Number of consecutive grants of nothing.
    empty: u32,
    paused_until: f64,
    /// Time at which the server has a unit again. `None`: never.
    free_at: Option<f64>,
    early_from: f64,
}

impl Batching {
    pub(crate) fn new(keep: f64, largest: Option<u32>, peers: Option<u32>) -> Self {
        Self {
            keep,
            largest,
            share: peers.map_or(SHARE, |peers| SHARE_OF_PEERS / f64::from(peers)),
            grants: VecDeque::new(),
            expired: Vec::new(),
            left: 0,
            rate: 0.0,
            rate_at: 0.0,
            size: 0,
            lasts: LASTS,
            round_trip: None,
            limit: 0,
            limit_until: 0.0,
            empty: 0,
            paused_until: 0.0,
            free_at: Some(0.0),
            early_from: 0.0,
        }
    }

    /// Counts the cost of a take, allowed or not, towards the rate.
    pub(crate) fn demand(&mut self, cost: u32, now: f64) {
        self.rate = self.rate_now(now) + f64::from(cost) / RATE_TIME;
        self.rate_at = now;
    }

    /// Returns the number of units that can be spent without a call.
    pub(crate) fn in_hand(&mut self, now: f64) -> u64 {
        while self.expires_at().is_some_and(|until| now >= until) {
            let Some(grant) = self.grants.pop_front() else { break };
            self.left -= grant.left;
            self.expired.push(grant);
        }
        self.left
    }

    /// Spends the oldest units. Returns `false` if there are too few.
    pub(crate) fn spend(&mut self, cost: u32, now: f64) -> bool {
        let mut rest = u64::from(cost);
        if self.in_hand(now) < rest {
            return false;
        }
        self.left -= rest;
        while rest > 0 {
            let Some(oldest) = self.grants.front_mut() else { break };
            let taken = oldest.left.min(rest);
            oldest.left -= taken;
            oldest.spent += taken;
            rest -= taken;
            if oldest.left == 0 {
                self.grants.pop_front();
            }
        }
        true
    }

    /// Returns `true` if a take that the units in hand do not cover is denied without a call.
    pub(crate) fn denies(&self, cost: u32, now: f64) -> bool {
        now < self.paused_until || (u64::from(cost) > self.limit && now < self.limit_until)
    }

    /// Returns the seconds after which a denied take may pass. `None`: never.
    pub(crate) fn wait(&self, cost: u32, now: f64) -> Option<f64> {
        let free_at = self.free_at.filter(|_| u64::from(cost) <= self.limit)?;
        Some(self.paused_until.max(free_at).max(now) - now)
    }

    /// Returns `true` if the next batch is requested although there are units in hand.
    pub(crate) fn is_due(&self, now: f64) -> bool {
        if self.left == 0 || now < self.paused_until || now < self.early_from {
            return false;
        }
        let rate = self.rate_now(now);
        let needed = rate * self.round_trip.unwrap_or_default() * ROUND_TRIPS;
        real(self.left) <= (real(self.target(rate)) * REST).max(needed)
    }

    /// Returns the number of units to request. `waiting` is the cost of all waiting takes.
    pub(crate) fn wanted(&mut self, waiting: u64, now: f64) -> u64 {
        let size = self.target(self.rate_now(now)).min(self.size.saturating_mul(GROWTH).max(1));
        self.size = size.max(waiting.saturating_sub(self.in_hand(now)));
        self.size
    }

    /// Records the reply to a request. `random` is a number from 0 to 1.
    pub(crate) fn received(&mut self, reply: Reply, wanted: u64, sent_at: f64, now: f64, random: f64) {
        let Reply { id, granted, limit, remaining, wait, reset } = reply;
        let trip = now - sent_at;
        self.round_trip = Some(self.round_trip.map_or(trip, |average| average + (trip - average) * SMOOTHING));
        (self.limit, self.limit_until) = (limit, now + LONGEST_PAUSE);
        let free = if limit == 0 { 0.0 } else { (real(remaining) / real(limit) / HALF).min(1.0) };
        self.lasts = LASTS_AT_LIMIT + (LASTS - LASTS_AT_LIMIT) * free;
        self.free_at = wait.map(|wait| now + wait);
        if granted > 0 {
            // They were charged after `sent_at`, so they expire early rather than late.
            self.grants.push_back(Grant { id, left: granted, spent: 0, until: sent_at + self.keep });
            self.left += granted;
        }
        if granted >= wanted {
            (self.empty, self.paused_until) = (0, 0.0);
            return;
        }
        let doubled = f64::from(2_u32.pow(self.empty.min(DOUBLINGS)));
        let pause = (self.keep.min(reset) * PAUSE * doubled).min(LONGEST_PAUSE);
        let random_part = pause * JITTER * random;
        let least = if granted > 0 {
            self.empty = 0;
            0.0
        } else {
            self.empty = self.empty.saturating_add(1);
            wait.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
        };
        self.paused_until = now + pause.max(least) + random_part;
    }

    /// Delays the next early request after one that the server did not answer.
    pub(crate) fn failed(&mut self, now: f64) {
        self.early_from = now + self.keep * PAUSE;
    }

    /// Time at which the oldest units expire.
    pub(crate) fn expires_at(&self) -> Option<f64> {
        self.grants.front().map(|grant| grant.until)
    }

    /// Removes and returns the expired grants, to be settled.
    pub(crate) fn expired(&mut self) -> Vec<Grant> {
        std::mem::take(&mut self.expired)
    }

    /// Removes and returns all grants, to be settled.
    pub(crate) fn rest(&mut self) -> Vec<Grant> {
        self.left = 0;
        let mut found = self.expired();
        found.extend(self.grants.drain(..));
        found
    }

    fn rate_now(&self, now: f64) -> f64 {
        self.rate * ((self.rate_at - now) / RATE_TIME).exp()
    }

    /// Returns the size of a batch at this rate, apart from the growth.
    fn target(&self, rate: f64) -> u64 {
        let largest = (real(self.limit) * self.share).min(self.largest.map_or(f64::INFINITY, f64::from));
        whole((rate * self.lasts).min(largest)).max(1)
    }
}

/// Converts a number of units. Above 2^32 it stays at that.
fn real(units: u64) -> f64 {
    f64::from(u32::try_from(units).unwrap_or(u32::MAX))
}

/// Rounds down to a number of units, at most 2^32.
fn whole(units: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates, and is not negative")]
    let whole = units as u32;
    whole.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Outcome of a take: spent or asked with the units in hand, or denied with the wait.
    fn taken(batching: &mut Batching, cost: u32, now: f64) -> (&'static str, Option<f64>) {
        batching.demand(cost, now);
        if batching.spend(cost, now) {
            ("spent", Some(real(batching.in_hand(now))))
        } else if batching.denies(cost, now) {
            ("denied", batching.wait(cost, now))
        } else {
            ("asked", Some(real(batching.in_hand(now))))
        }
    }

    fn is_near(found: Option<f64>, expected: Option<f64>) -> bool {
        match (found, expected) {
            (Some(found), Some(expected)) => (found - expected).abs() < 2e-6,
            (found, expected) => found == expected,
        }
    }

    fn check(batching: &mut Batching, step: &[Value]) {
        let now = step[0].as_f64().unwrap();
        let name = step[1].as_str().unwrap();
        let (integer, number) = (|place: usize| step[place].as_u64().unwrap(), |place: usize| step[place].as_f64());
        let expected = step.last().unwrap();
        match name {
            "take" => {
                let (outcome, amount) = taken(batching, u32::try_from(integer(2)).unwrap(), now);
                assert_eq!(outcome, step[3], "{step:?}");
                assert!(is_near(amount, expected.as_f64()), "{amount:?}: {step:?}");
            }
            "spend" => {
                assert!(batching.spend(u32::try_from(integer(2)).unwrap(), now), "{step:?}");
                assert_eq!(batching.in_hand(now), *expected, "{step:?}");
            }
            "due" => assert_eq!(batching.is_due(now), *expected, "{step:?}"),
            "wanted" => assert_eq!(batching.wanted(integer(2), now), *expected, "{step:?}"),
            "received" => {
                let reply = Reply {
                    id: step[2].as_str().unwrap().to_owned(),
                    granted: integer(3),
                    limit: integer(4),
                    remaining: integer(5),
                    wait: number(6),
                    reset: number(7).unwrap(),
                };
                batching.received(reply, integer(8), number(9).unwrap(), now, number(10).unwrap());
                assert_eq!(batching.in_hand(now), *expected, "{step:?}");
            }
            "failed" => batching.failed(now),
            _ => {
                let found: Vec<_> =
                    batching.expired().into_iter().map(|grant| serde_json::json!([grant.id, grant.spent])).collect();
                assert_eq!((name, &Value::Array(found)), ("expired", expected), "{step:?}");
            }
        }
    }

    #[test]
    fn choices_are_those_of_the_table() {
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
