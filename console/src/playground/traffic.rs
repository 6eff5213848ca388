//! Simulated traffic: calls at regular or random intervals, and bursts at set times.

use ratelimit_core::{Amount, Span, Timestamp};
use serde::Deserialize;

/// Interval of random traffic in which there is at most one call.
const RANDOM_STEP: Span = Span::MILLISECOND;
/// Maximum number of calls in one step. Further calls are dropped.
pub const MAX_CALLS_PER_STEP: u32 = 2000;
/// Maximum number of bursts.
const MAX_BURSTS: usize = 64;

/// Description of traffic.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traffic {
    /// Calls in 1000 seconds, up to 1,000,000.
    pub rate: u32,
    /// `true` for random intervals between calls.
    pub random: bool,
    /// Bursts, each with its time in milliseconds and its number of calls.
    pub bursts: Vec<(u32, u32)>,
    /// Period after which the bursts repeat, in milliseconds, or 0 if they do not.
    pub every: u32,
    /// Cost of a call.
    pub cost: u32,
}

impl Default for Traffic {
    fn default() -> Traffic {
        Traffic { rate: 0, random: false, bursts: vec![], every: 0, cost: 1 }
    }
}

impl Traffic {
    /// Checks the bounds of all values.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn validated(self) -> Result<Traffic, String> {
        if self.rate > 1_000_000 {
            return Err("rate must be a number of calls in 1000 seconds, up to 1000000".to_owned());
        }
        if !(1..=1000).contains(&self.cost) {
            return Err("cost must be a whole number from 1 to 1000".to_owned());
        }
        if self.bursts.len() > MAX_BURSTS || self.bursts.iter().any(|(_, calls)| *calls > MAX_CALLS_PER_STEP) {
            return Err(format!("bursts must be at most {MAX_BURSTS}, of at most {MAX_CALLS_PER_STEP} calls each"));
        }
        if self.every > 0 && self.every < 100 {
            return Err("every must be 0 or a number of milliseconds from 100".to_owned());
        }
        Ok(self)
    }

    /// Returns the cost of a call.
    #[must_use]
    pub fn cost(&self) -> Amount {
        Amount::saturating(u64::from(self.cost) * Amount::ONE.millionths())
    }
}

/// Generator of traffic.
#[derive(Clone, Debug)]
pub struct TrafficSource {
    traffic: Traffic,
    /// Start of the first period of bursts.
    bursts_start: Timestamp,
    /// Time of the next call at regular intervals.
    next_call: Timestamp,
    /// State of the random number generator.
    random_state: u64,
}

impl TrafficSource {
    /// Creates a generator that starts at `from`. The same seed generates the same traffic.
    #[must_use]
    pub fn new(traffic: Traffic, seed: u64, from: Timestamp) -> TrafficSource {
        // From state 0, the generator would only produce 0.
        TrafficSource {
            traffic,
            bursts_start: from,
            next_call: from,
            random_state: seed.max(1).wrapping_mul(0x9E37_79B9_7F4A_7C15),
        }
    }

    /// Returns the cost of a call.
    #[must_use]
    pub fn cost(&self) -> Amount {
        self.traffic.cost()
    }

    /// Changes the traffic. Changed bursts start anew.
    pub fn change(&mut self, traffic: Traffic, now: Timestamp) {
        if (&traffic.bursts, traffic.every) != (&self.traffic.bursts, self.traffic.every) {
            self.bursts_start = now;
        }
        if traffic.rate != self.traffic.rate {
            // The next call is made at once, so that a user who moves a slider sees the effect.
            self.next_call = now;
        }
        self.traffic = traffic;
    }

    /// Returns the instants of the calls from `from` up to, but excluding, `to`, in order.
    pub fn calls(&mut self, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let mut calls = self.burst_calls(from, to);
        if self.traffic.random {
            self.add_random_calls(from, to, &mut calls);
        } else {
            self.add_even_calls(to, &mut calls);
        }
        calls.sort_unstable();
        calls.truncate(MAX_CALLS_PER_STEP as usize);
        calls
    }

    fn burst_calls(&self, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let mut calls = vec![];
        let period = Span::MILLISECOND.times(self.traffic.every.into());
        for (offset_ms, count) in &self.traffic.bursts {
            let mut at = self.bursts_start.plus(Span::MILLISECOND.times((*offset_ms).into()));
            if at < from && period > Span::ZERO {
                at = at.plus(period.times(from.since(at).micros().div_ceil(period.micros())));
            }
            while at >= from && at < to && calls.len() <= MAX_CALLS_PER_STEP as usize {
                calls.extend(std::iter::repeat_n(at, *count as usize));
                if period == Span::ZERO {
                    break;
                }
                at = at.plus(period);
            }
        }
        calls
    }

    fn add_even_calls(&mut self, to: Timestamp, calls: &mut Vec<Timestamp>) {
        let Some(gap) = 1_000_000_000_u64.checked_div(self.traffic.rate.into()) else { return };
        while self.next_call < to && calls.len() <= MAX_CALLS_PER_STEP as usize {
            calls.push(self.next_call);
            self.next_call = self.next_call.plus(Span::from_micros(gap));
        }
    }

    fn add_random_calls(&mut self, from: Timestamp, to: Timestamp, calls: &mut Vec<Timestamp>) {
        let mut at = from;
        while at < to && calls.len() <= MAX_CALLS_PER_STEP as usize {
            if self.next_random() % 1_000_000 < self.traffic.rate.into() {
                calls.push(at);
            }
            at = at.plus(RANDOM_STEP);
        }
        self.next_call = to;
    }

    /// Returns a random number: xorshift64* (Vigna, 2016).
    fn next_random(&mut self) -> u64 {
        self.random_state ^= self.random_state >> 12;
        self.random_state ^= self.random_state << 25;
        self.random_state ^= self.random_state >> 27;
        self.random_state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH.plus(Span::MILLISECOND.times(millis))
    }

    fn millis(calls: &[Timestamp]) -> Vec<u64> {
        calls.iter().map(|at| at.floor_millis()).collect()
    }

    #[test]
    fn even_rate_does_not_depend_on_the_length_of_steps() {
        let traffic = Traffic { rate: 4000, ..Traffic::default() };
        let mut whole = TrafficSource::new(traffic.clone(), 1, at(0));
        let mut stepwise = whole.clone();
        let calls = whole.calls(at(0), at(1000));
        assert_eq!(millis(&calls), [0, 250, 500, 750]);
        let steps: Vec<_> = (0..10).flat_map(|step| stepwise.calls(at(step * 100), at(step * 100 + 100))).collect();
        assert_eq!(steps, calls);
    }

    #[test]
    fn random_traffic_is_reproducible_and_keeps_its_rate() {
        let traffic = Traffic { rate: 20_000, random: true, ..Traffic::default() };
        let run = |seed| TrafficSource::new(traffic.clone(), seed, at(0)).calls(at(0), at(50_000));
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        for seed in 0..20 {
            // 1000 expected, with a standard deviation of 31.
            assert!((850..1150).contains(&run(seed).len()), "{}", run(seed).len());
        }
    }

    #[test]
    fn bursts_occur_at_their_times_and_repeat() {
        let traffic = Traffic { bursts: vec![(900, 2), (1100, 1)], every: 2000, ..Traffic::default() };
        let mut source = TrafficSource::new(traffic.clone(), 1, at(0));
        assert_eq!(millis(&source.calls(at(0), at(1000))), [900, 900]);
        assert_eq!(millis(&source.calls(at(1000), at(4000))), [1100, 2900, 2900, 3100]);
        // Unchanged bursts continue, different ones start anew.
        source.change(Traffic { rate: 1, ..traffic.clone() }, at(4000));
        assert_eq!(millis(&source.calls(at(4000), at(5000))), [4000, 4900, 4900]);
        source.change(Traffic { bursts: vec![(100, 1)], ..Traffic::default() }, at(5000));
        assert_eq!(millis(&source.calls(at(5000), at(9000))), [5100]);
    }

    #[test]
    fn calls_per_step_and_traffic_are_bounded() {
        let traffic = Traffic { rate: 1_000_000, bursts: vec![(0, 2000)], ..Traffic::default() };
        assert_eq!(TrafficSource::new(traffic, 1, at(0)).calls(at(0), at(10_000)).len(), 2000);
        for wrong in [
            Traffic { rate: 1_000_001, ..Traffic::default() },
            Traffic { cost: 0, ..Traffic::default() },
            Traffic { bursts: vec![(0, 2001)], ..Traffic::default() },
            Traffic { bursts: vec![(0, 1); 65], ..Traffic::default() },
            Traffic { every: 1, ..Traffic::default() },
        ] {
            assert!(wrong.validated().is_err());
        }
    }
}
